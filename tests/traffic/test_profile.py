from __future__ import annotations

import xml.etree.ElementTree
from pathlib import Path

import pytest

from tkcc.ir.errors import TkccError
from tkcc.settings import data_folder
from tkcc.traffic.profile import Concurrency, TrafficProfile
from tkcc.traffic.profiles import built_in, built_in_names
from tkcc.traffic.readers import read_mooncake
from tkcc.traffic.records import TrafficRequest
from tkcc.traffic.sharing import reuse_at_capacity

DATA = data_folder()
needs_traces = pytest.mark.skipif(DATA is None, reason="the traces are not here (TKCC_DATA)")


def _requests() -> list[TrafficRequest]:
    return [
        TrafficRequest(float(i), 100 + i, 10, block_hashes=(0, i), block_size=64, latency=2.0)
        for i in range(60)
    ]


def test_a_profile_has_the_figures_of_its_requests() -> None:
    profile = TrafficProfile.of(_requests(), name="mine", users=2)
    assert profile.requests == 60
    assert profile.span == 59.0
    assert profile.input.mean == 129.5
    assert profile.input.at(0.5) == 129.5
    assert profile.output.at(0.9) == 10
    assert profile.arrivals.rate == pytest.approx(1.0)
    assert profile.arrivals.cv == pytest.approx(0.0, abs=1e-9)
    assert profile.arrivals.dispersion == 0.0
    assert profile.sharing is not None
    assert profile.sharing.share == pytest.approx(59 * 64 / (60 * 129.5))
    assert profile.new.mean == pytest.approx(129.5 - 59 * 64 / 60, rel=1e-5)
    assert profile.concurrency == Concurrency(mean=120 / 61, most=2, users=2)


def test_a_saved_profile_loads_as_it_was(tmp_path: Path) -> None:
    profile = TrafficProfile.of(_requests())
    profile.save(tmp_path / "profile.json")
    assert TrafficProfile.load(tmp_path / "profile.json") == profile


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ('"version":1 "version":2', "version"),
        ('"requests":60 "requests":0', "requests"),
        ('"span":59.0 "span":59.0,"more":1', "more"),
        ('"values":[100.0 "values":[900.0', "input.values"),
        ('"values":[100.0 "values":[NaN', "input.values"),
        ("{ [", "the file"),
    ],
)
def test_a_file_that_is_no_profile_is_refused_by_field(
    tmp_path: Path, change: str, field: str
) -> None:
    old, new = change.split(" ")
    text = TrafficProfile.of(_requests()).model_dump_json()
    assert old in text
    path = tmp_path / "profile.json"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(TkccError, match=f"no traffic profile of version 1: {field}") as caught:
        TrafficProfile.load(path)
    assert caught.value.where == str(path)


def test_the_requests_in_flight_follow_littles_law() -> None:
    profile = TrafficProfile.of(_requests())
    assert profile.in_flight(first_token=0.5, per_token=0.1) == pytest.approx(0.5 + 9 * 0.1)


def test_a_run_adds_concurrency_and_expert_load() -> None:
    profile = TrafficProfile.of(_requests())
    found = profile.with_run(Concurrency(mean=1.5, most=3), [[3, 1], [2, 2]])
    assert found.expert_load == ((0.75, 0.25), (0.5, 0.5))
    assert "1.5 times an even share" in found.summary()
    with pytest.raises(TkccError, match="expert load"):
        profile.with_run(None, [[0, 0]])


def test_text_and_plot_of_a_profile_show_names_without_control_or_markup() -> None:
    profile = TrafficProfile.of(_requests(), name="a\x1b[2J<b>&")
    assert "\x1b" not in profile.summary()
    root = xml.etree.ElementTree.fromstring(profile.plot())
    texts = ["".join(e.itertext()) for e in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == "a?[2J<b>&"
    assert len(list(root.iter("{http://www.w3.org/2000/svg}polyline"))) == 4


@pytest.mark.parametrize("name", built_in_names())
def test_built_in_profiles_name_their_source_and_can_be_shown(name: str) -> None:
    profile = built_in(name)
    assert profile.name == name
    assert profile.source
    assert profile.licence
    assert f"{name}: " in profile.summary()
    xml.etree.ElementTree.fromstring(profile.plot())


def test_an_unknown_built_in_profile_is_refused() -> None:
    with pytest.raises(TkccError, match="no built-in traffic profile 'x'"):
        built_in("x")


@needs_traces
@pytest.mark.parametrize("name", built_in_names())
def test_built_in_profiles_are_what_the_traces_give(name: str) -> None:
    from benchmarks.compute_profiles import compute

    assert DATA is not None
    stored, computed = built_in(name).model_dump(), compute(name, DATA / "traces").model_dump()
    numbers, others = _flat(stored), _flat(computed)
    assert numbers.keys() == others.keys()
    for field, value in numbers.items():
        same = others[field]
        if isinstance(value, float):
            same = pytest.approx(same, rel=1e-5, abs=1e-9)
        assert value == same, field


def _flat(value: object, at: str = "") -> dict[str, object]:
    if isinstance(value, dict):
        return {k: v for n in value for k, v in _flat(value[n], f"{at}.{n}").items()}
    if isinstance(value, list | tuple):
        return {k: v for n, x in enumerate(value) for k, v in _flat(x, f"{at}.{n}").items()}
    return {at: value}


@needs_traces
@pytest.mark.parametrize(("blocks", "percent"), [(1_000, 4.4), (10_000, 21.1), (50_000, 35.5)])
def test_reuse_of_the_mooncake_trace_is_the_published_one(blocks: int, percent: float) -> None:
    assert DATA is not None
    requests = read_mooncake(DATA / "traces" / "mooncake_conversation.jsonl.gz")
    assert round(100 * reuse_at_capacity(requests, 512 * blocks), 1) == percent
