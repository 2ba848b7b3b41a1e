"""Random sequences of rules on random graphs: results, validity, replay."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.ir.rewrite.texts import run
from tests.ir.rules.graphs import modules
from tests.ir.samples import assert_round_trips, random_inputs
from tests.tolerances import TOLERANCES
from tkcc.ir.graph import Function, Module
from tkcc.ir.hashing import module_hash
from tkcc.ir.rewrite.driver import apply_rule, find_sites
from tkcc.ir.rewrite.rule import EXACT, all_rules

RULES = all_rules("rewrite")
MAX_STEPS = 6
Steps = list[tuple[str, dict[str, Any], list[str]]]


def _apply(module: Module, data: Any) -> tuple[Module, Steps]:
    """The module after rules in random order, each at some of its sites, and what was done."""
    steps: Steps = []
    order = data.draw(st.permutations(sorted(RULES)))
    if data.draw(st.booleans()):  # as rules are meant to be used: groups are formed last
        order = sorted(order[: len(order) // 2], key=lambda name: name.startswith("group"))
    for name in order:
        options = {k: data.draw(st.sampled_from(v)) for k, v in RULES[name].options.items()}
        sites = find_sites(module, RULES[name], options)
        if not sites:
            continue
        chosen = data.draw(st.lists(st.sampled_from(sites), min_size=1, unique=True))
        module, fired = apply_rule(module, RULES[name], chosen, options)
        steps.append((name, options, fired))
        if len(steps) == MAX_STEPS:
            break
    return module, steps


def _replayed(module: Module, steps: Steps) -> Module:
    for name, options, sites in steps:
        module, fired = apply_rule(module, RULES[name], sites, options)
        assert fired == sites
    return module


def _assert_near(before: Function, after: Function, error: float) -> None:
    inputs = [(x / 2).astype(x.dtype) for x in random_inputs(before)]
    results = zip(before.outputs, run(before, inputs), run(after, inputs), strict=True)
    for value, wanted, got in results:
        scale = max(1.0, float(np.abs(wanted).max()))
        allowed = 4 * TOLERANCES[value.type.dtype][0] + error
        assert np.abs(got - wanted).max() <= allowed * scale


@settings(max_examples=25)
@given(modules(), st.data())
def test_any_sequence_of_rules_keeps_the_results_and_can_be_replayed(
    module: Module, data: Any
) -> None:
    changed, steps = _apply(module, data)
    for name, _, _ in steps:
        event(name)
    assert_round_trips(changed)
    assert module_hash(_replayed(module, steps)) == module_hash(changed)
    approximate = [name for name, _, _ in steps if RULES[name].kind != EXACT]
    _assert_near(module.function(), changed.function(), 0.3 * bool(approximate))
