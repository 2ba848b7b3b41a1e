"""The whole loop on a tiny model: verdicts, winners, records, and what it does with bad rules."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from tests.tiny import PROMPTS, SHAPE, WORKLOAD, tiny_module
from tkcc.backends.base import Target
from tkcc.candidate import Candidate, replay
from tkcc.ir.errors import TkccError
from tkcc.ir.hashing import module_hash
from tkcc.ir.rewrite import rule as rules
from tkcc.ir.rewrite.pattern import parse_rules
from tkcc.optimize import run as optimize_run
from tkcc.optimize.correctness import Reference, check, oracle, references
from tkcc.optimize.records import Observer, Plan
from tkcc.optimize.run import Optimizer
from tkcc.optimize.search import Move
from tkcc.optimize.session import DECODE, PREFILL, Session

CPU = Target.parse("xla:cpu")

WRONG = """
rule scale_gate {
  class exact
  about "Not the same at all: the joined product's halves are swapped."
  given %x: T[*B, K], %a: U[K, N], %b: U[K, N]
  match {
    %y = linear(%x, %a)
    %z = linear(%x, %b)
  }
  where parameter(%a), parameter(%b), not_parameter(%x)
  replace {
    %w = concat(%a, %b) {axis=1}
    %yz = linear(%x, %w)
    %z, %y = split(%yz) {axis=-1, sizes=(N, N)}
  }
}
"""


@pytest.fixture(scope="module")
def session():
    with Session(tiny_module(), CPU, SHAPE) as made:
        yield made


class Recorder(Observer):
    def __init__(self):
        self.phases, self.seen = [], []

    def phase(self, text):
        self.phases.append(text)

    def experiment(self, experiment, best):
        self.seen.append(experiment)


@pytest.fixture(scope="module")
def result(session):
    recorder = Recorder()
    plan = Plan(budget=300.0, block_seconds=0.02, check_steps=3, confirm_prompts=2)
    ticks = itertools.count()  # a clock that a loaded machine does not slow down
    optimizer = Optimizer(session, WORKLOAD, PROMPTS, plan, recorder, clock=lambda: next(ticks))
    return optimizer.run(), recorder


def test_every_exact_rule_that_applies_is_tried_and_none_is_wrong(result):
    found, recorder = result
    alone = {item.title for item in found.experiments if item.against == "baseline"}
    assert {"merge_qkv", "merge_linears", "cache_layout", "carry_caches"} <= alone
    assert {item.outcome for item in found.experiments} <= {"faster", "not faster", "undecided"}
    assert list(found.experiments) == recorder.seen


def test_the_winner_replays_from_its_record(result):
    found, _ = result
    again = Candidate.model_validate_json(found.candidate.model_dump_json())
    assert module_hash(replay(again, tiny_module())) == found.candidate.result


def test_the_record_is_json_with_times_and_provenance(result):
    found, _ = result
    plain = json.loads(json.dumps(found.record(), allow_nan=False))
    assert plain["provenance"].startswith("measured")
    assert all(set(item["seconds"]) >= {"rewrite", "compile"} for item in plain["experiments"])
    assert plain["verdict"]["right"]


def test_a_wrong_rule_is_called_wrong_and_never_wins(session, monkeypatch):
    (pattern,) = parse_rules(WRONG)
    wrong = rules.PatternRule.of(pattern)
    monkeypatch.setitem(rules._RULES, wrong.name, wrong)
    monkeypatch.setattr(optimize_run, "moves", lambda approximate: [Move("scale_gate")])
    plan = Plan(budget=20.0, block_seconds=0.01, check_steps=2, confirm_prompts=1)
    found = Optimizer(session, WORKLOAD, PROMPTS, plan, Observer()).run()
    assert [item.outcome for item in found.experiments] == ["wrong"]
    assert "differ" in found.experiments[0].reason
    assert not found.candidate.steps
    assert not found.confirmed


def test_check_sees_a_wrong_program_and_accepts_the_baseline(session):
    session.runtime.swap(session.baseline)
    known = references(session, [PROMPTS[0]], 3)
    verdict = check(session, known)
    assert verdict.right
    assert (verdict.error, verdict.agreement) == (0.0, 1.0)
    broken = [Reference(item.start, item.tokens, item.logits + np.arange(64) % 2) for item in known]
    assert not check(session, broken).right


def test_in_bfloat16_the_baselines_own_rounding_is_what_is_allowed():
    with (
        Session(tiny_module("bfloat16"), CPU, SHAPE) as session,
        oracle(session, "bfloat16") as exact,
    ):
        known = references(session, [PROMPTS[0]], 3, exact)
        rounding = known[0].rounding()
        assert 1e-3 < rounding < 0.1
        verdict = check(session, known)
        assert verdict.right
        assert verdict.error == rounding
        assert verdict.allowed == 2 * rounding
        item, shift = known[0], np.arange(64) % 2  # another model's logits, as precise as these
        other = Reference(item.start, item.tokens, item.logits + shift, item.exact + shift)
        assert "logits differ" in check(session, [other]).reason


def test_float32_needs_no_oracle(session):
    assert oracle(session, "float32") is None


def test_the_search_leaves_time_to_confirm_and_says_what_it_could_not_try(session):
    now = [0.0]

    def clock():
        now[0] += 0.5
        return now[0]

    recorder = Recorder()
    plan = Plan(budget=40.0, block_seconds=0.005, check_steps=2, confirm_prompts=1)
    optimizer = Optimizer(session, WORKLOAD, PROMPTS, plan, recorder, clock=clock)
    optimizer.seconds_per_node = 0.0
    learn = optimizer._learn_compile_cost
    # compiling is said to cost a second a node, so every larger program is too long
    optimizer._learn_compile_cost = lambda proposal, seconds: learn(proposal, 1e4)
    found = optimizer.run()
    assert {item.outcome for item in found.experiments} == {"not tried"}
    assert all("s to compile" in item.reason for item in found.experiments)
    assert not found.confirmed


def test_state_survives_swaps_in_the_middle_of_decoding(session):
    session.runtime.swap(session.baseline)
    start = session.read(PROMPTS[0])
    tokens, _ = session.generate(start, 6)
    module = tiny_module()
    for name in ("merge_qkv", "cache_layout", "carry_caches"):
        module, _ = rules_apply(module, name)
    other = session.compile(module, functions=(PREFILL, DECODE))
    session.runtime.set_state(start.state)
    current, got = start.tokens, []
    for step in range(6):
        session.runtime.swap(other if step % 2 else session.baseline)
        out = session.runtime.step(DECODE, {"tokens": current, "positions": start.positions + step})
        current = out["next_tokens"]
        got.append(np.asarray(current))
    np.testing.assert_array_equal(np.stack(got), tokens)


def rules_apply(module, name):
    from tkcc.ir.rewrite.driver import apply_rule

    return apply_rule(module, rules.get_rule(name))


@pytest.mark.parametrize("prompts", [[[1]], [[1], []], [[1], list(range(1, 9))]])
def test_prompts_that_do_not_fit_are_refused(session, prompts):
    with pytest.raises(TkccError, match="prompt"):
        session.read(prompts)


def test_right_logits_with_wrong_tokens_are_wrong(session):
    """A rewrite may break what picks the token and nothing else."""
    session.runtime.swap(session.baseline)
    (known,) = references(session, [PROMPTS[0]], 3)
    other = Reference(known.start, (known.tokens + 1) % 64, known.logits)
    ran = session.forced(known.start, known.tokens)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "forced", lambda start, tokens: (other.tokens, ran[1]))
        verdict = check(session, [known])
    assert verdict.error == 0
    assert verdict.reason == "its greedy tokens differ"
