"""Candidates: plain data that replays to the same program or says why not."""

from __future__ import annotations

import json

import pytest

from tests.tiny import WORKLOAD, tiny_module
from tkcc.candidate import Candidate, extend, load_candidate, replay
from tkcc.ir.errors import TkccError
from tkcc.ir.hashing import module_hash
from tkcc.ir.rewrite.driver import Log

RULES = (("merge_qkv", {}), ("merge_linears", {}), ("unroll_scan", {"k": 2}))


@pytest.fixture(scope="module")
def made():
    module, steps = tiny_module(), []
    for rule, options in RULES:
        module, step = extend(module, rule, options)
        assert step is not None, rule
        steps.append(step)
    candidate = Candidate(
        workload=WORKLOAD,
        target="xla:cpu",
        baseline=module_hash(tiny_module()),
        steps=tuple(steps),
    )
    return candidate, module


def test_replay_gives_the_same_module(made):
    candidate, module = made
    assert module_hash(replay(candidate, tiny_module())) == module_hash(module) == candidate.result


def test_a_saved_candidate_loads_equal(made, tmp_path):
    candidate, _ = made
    candidate.save(tmp_path / "runs" / "candidate.json")
    assert load_candidate(tmp_path / "runs" / "candidate.json") == candidate
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["candidate.json"]


def test_replay_stops_after_the_asked_step(made):
    candidate, _ = made
    log = Log()
    module = replay(candidate, tiny_module(), until=1, log=log)
    assert module_hash(module) == candidate.steps[0].module
    assert {event.rule for event in log.events} == {"merge_qkv"}


def test_title_names_rules_and_options(made):
    assert made[0].title() == "merge_qkv + merge_linears + unroll_scan(k=2)"
    assert made[0].kind == "exact"


def test_another_baseline_is_refused(made):
    candidate, module = made
    with pytest.raises(TkccError, match="baseline's hash"):
        replay(candidate, module)


def test_a_step_that_gives_another_program_is_refused(made):
    candidate, _ = made
    first = candidate.steps[0].model_copy(update={"module": "0" * 64})
    changed = candidate.model_copy(update={"steps": (first, *candidate.steps[1:])})
    with pytest.raises(TkccError, match=r"step 1 \(merge_qkv\) gives"):
        replay(changed, tiny_module())


def test_a_site_that_does_not_exist_is_refused(made):
    candidate, _ = made
    first = candidate.steps[0].model_copy(update={"sites": ("decode/999",)})
    changed = candidate.model_copy(update={"steps": (first,)})
    with pytest.raises(TkccError, match="no match at"):
        replay(changed, tiny_module())


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"format": "tkcc candidate 9"}, "format"),
        ({"steps": [{"rule": "merge_qkv"}]}, "steps.0"),
        ({"extra": 1}, "extra"),
        ({"workload": {}}, "workload"),
    ],
)
def test_a_file_that_is_no_candidate_is_refused_by_field(made, tmp_path, change, what):
    plain = {**json.loads(made[0].model_dump_json()), **change}
    path = tmp_path / "candidate.json"
    path.write_text(json.dumps(plain))
    with pytest.raises(TkccError, match=what):
        load_candidate(path)


def test_a_missing_or_broken_file_is_one_clear_error(tmp_path):
    with pytest.raises(TkccError, match="cannot read candidate"):
        load_candidate(tmp_path / "none.json")
    (tmp_path / "half.json").write_text('{"format": ')
    with pytest.raises(TkccError, match="not a candidate"):
        load_candidate(tmp_path / "half.json")
