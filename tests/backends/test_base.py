"""The contract: targets, schedules, provenance, and how backends are found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tkcc
from tkcc.backends import catalogue
from tkcc.backends.base import (
    Provenance,
    Ran,
    Schedule,
    Site,
    Target,
    backend_names,
    get_backend,
)
from tkcc.ir.errors import BackendError


@pytest.mark.parametrize("text", ["xla:cpu", "xla:gpu", "xla:tpu-v5e", "xla:tpu-v5p", "xla:tpu7x"])
def test_a_target_prints_as_it_was_read(text: str) -> None:
    assert str(Target.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("abacus:cpu", "xla"),  # an unknown backend: the known ones
        ("xla:tpu-v99", "xla:tpu-v6e"),  # an unknown chip: the backend's chips
        ("xla", "xla:cpu"),  # no chip at all: every target
        ("xla:", "xla:cpu"),
    ],
)
def test_an_unknown_target_says_what_there_is(text: str, named: str) -> None:
    with pytest.raises(BackendError) as caught:
        Target.parse(text)
    assert named in caught.value.remedy


def test_every_backend_reads_its_chips_from_its_own_file() -> None:
    for name in backend_names():
        assert all(str(target).startswith(f"{name}:") for target in get_backend(name).targets())
        assert get_backend(name) is get_backend(name)


def test_an_unknown_backend_is_refused_by_name() -> None:
    with pytest.raises(BackendError, match="abacus") as caught:
        get_backend("abacus")
    assert "xla" in caught.value.remedy


def test_every_figure_of_a_chip_names_its_unit_and_source() -> None:
    for chip, facts in catalogue.chips("xla").items():
        for column in ("data_sheet", "measured"):
            for name, figure in facts.get(column, {}).items():
                assert set(figure) == {"value", "unit", "source"}, (chip, name)
                assert figure["value"] > 0
                assert figure["source"]


def test_reading_a_target_imports_no_backend() -> None:
    code = (
        "import sys; from tkcc.backends.base import Target; Target.parse('xla:tpu-v5e');"
        "print('tkcc.backends.xla.backend' in sys.modules)"
    )
    root = str(Path(tkcc.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True
    )
    assert done.stdout.strip() == "False"


def test_provenance_reads_as_kind_and_source() -> None:
    assert str(Provenance.estimated("libtpu 0.0.52")) == "estimated (libtpu 0.0.52)"
    assert str(Provenance.measured("H200")) == "measured (H200)"
    assert str(Provenance.simulated("nki")) == "simulated (nki)"


def test_a_schedule_does_not_depend_on_the_order_of_its_keys() -> None:
    one = Schedule.of({"a": {"kernel": "x", "config": {"m": 1, "n": 2}}, "b": {}})
    other = Schedule.of({"b": {}, "a": {"config": {"n": 2, "m": 1}, "kernel": "x"}})
    assert one == other
    assert hash(one) == hash(other)
    assert one.hash == other.hash
    assert one != one.with_entry("b", {"kernel": "y"})


def test_a_schedule_cannot_be_changed_through_what_it_was_made_of() -> None:
    config = {"block": [1, 2]}
    schedule = Schedule.of({"a": config})
    config["block"].append(3)
    schedule.entries["a"]["block"].append(4)
    found = schedule.get("missing", "a")
    assert found == ("a", {"block": [1, 2]})


def test_a_schedule_reads_back_from_its_text() -> None:
    schedule = Schedule.of({"a": {"tiles": (8, 16), "fast": True, "scale": 0.5, "none": None}})
    assert Schedule.parse(schedule.text) == schedule
    assert json.loads(schedule.text) == schedule.entries


@pytest.mark.parametrize(
    "entries", [{"a": 1}, {"a": {"x": {1, 2}}}, {"a": {1: 2}}, {"a": {"x": float("nan")}}]
)
def test_a_schedule_refuses_what_json_cannot_hold(entries: dict[str, object]) -> None:
    with pytest.raises(BackendError):
        Schedule.of(entries)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 3}'])
def test_a_schedule_refuses_text_that_is_not_one(text: str) -> None:
    with pytest.raises(BackendError):
        Schedule.parse(text)


def test_a_report_line_says_where_what_how_and_why() -> None:
    line = Ran(Site("decode", (4, 0, 2), "mlp"), "group", "xla", "no entry in the schedule")
    assert str(line) == "decode:4.0.2 mlp: group by xla (no entry in the schedule)"
