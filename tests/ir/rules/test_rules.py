"""Every rule of group `rewrite`: where it fires, where it must not, and that results stay."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from tests.ir.rewrite.texts import assert_near, module_of, ops
from tests.ir.rules.cases import CASES
from tests.ir.rules.llama import Arrays, arguments, step, tiny_llama
from tests.ir.samples import assert_round_trips, random_array
from tkcc.ir.graph import Module
from tkcc.ir.hashing import module_hash
from tkcc.ir.rewrite.driver import Log, apply_rule, find_sites
from tkcc.ir.rewrite.rule import PatternRule, Rule, all_rules

RULES = all_rules("rewrite")


def test_every_rule_has_a_case() -> None:
    assert sorted(CASES) == sorted(RULES)
    assert sorted(ON_LLAMA) == sorted(RULES)


def _stated_error(rule: Rule) -> float:
    return rule.pattern.error if isinstance(rule, PatternRule) and rule.pattern else 0.0


def _assert_same(before: Arrays, after: Arrays, module: Module, name: str, error: float) -> None:
    assert before.keys() == after.keys()
    function = module.function(name)
    names = function.output_names or tuple(map(str, range(len(function.outputs))))
    for key, value in zip(names, function.outputs, strict=True):
        assert after[key].dtype == before[key].dtype
        assert_near(after[key], before[key], value.type.dtype, error)


@pytest.mark.parametrize("name", CASES)
def test_a_rule_fires_in_its_case_and_keeps_the_results(name: str) -> None:
    case, rule = CASES[name], RULES[name]
    module = module_of(case.lines)
    log = Log()
    changed, fired = apply_rule(module, rule, None, case.options, log)
    assert tuple(fired) == case.sites
    assert [event.site for event in log.events] == fired
    assert sorted(ops(changed.function())) == sorted(case.after.split())
    assert_round_trips(changed)
    again, _ = apply_rule(module, rule, fired, case.options)
    assert module_hash(again) == module_hash(changed) != module_hash(module)
    given = {v.name: random_array(v.type, i) for i, v in enumerate(module.function().inputs)}
    before, after = (step(item, "main", given) for item in (module, changed))
    _assert_same(before, after, module, "main", _stated_error(rule))


@pytest.mark.parametrize(("name", "why"), [(n, why) for n, c in CASES.items() for why in c.misses])
def test_a_rule_does_not_fire_if(name: str, why: str) -> None:
    case = CASES[name]
    module = module_of(case.missed(why))
    assert find_sites(module, RULES[name], case.options) == []


# --- on a model whose parameters are slices of a scan ------------------------------------------

# rule -> (rules applied before, options, number of sites in both functions)
ON_LLAMA: dict[str, tuple[tuple[str, ...], dict[str, Any], int]] = {
    "merge_linears": ((), {}, 2 * 3),  # q and k, those and v, gate and up
    "merge_linears_transposed": (("transpose_weight",), {}, 2 * 3),
    "merge_qkv": ((), {}, 2),
    "merge_qkv_transposed": (("transpose_weight",), {}, 2),
    "merge_qkv_bias": ((), {}, 0),
    "transpose_weight": ((), {}, 2 * 7),
    "untranspose_weight": (("transpose_weight",), {}, 2 * 8),  # and the tied head
    "widen_weight": ((), {}, 0),
    "widen_weight_transposed": ((), {}, 0),
    "halve_linear": ((), {}, 2 * 7),
    "halve_linear_transposed": (("transpose_weight",), {}, 2 * 7),
    "residual_norm": ((), {}, 2),
    "fold_norm_weight": (("merge_qkv", "merge_linears"), {}, 2 * 2),
    "fold_norm_weight_transposed": ((), {}, 2),  # the last norm and the head
    "int8_weight": ((), {}, 2 * 7),
    "int8_weight_transposed": ((), {}, 2),
    "fp8_weight": ((), {}, 2 * 7),
    "fp8_weight_transposed": ((), {}, 2),
    "rope_qkv": (("merge_qkv",), {}, 2),
    "split_attention": ((), {"n": 4}, 2),
    "split_attention_bhsd": (("cache_layout",), {"n": 2}, 2),
    "unroll_scan": ((), {"k": 2}, 2),
    "unroll_layers": ((), {}, 2),
    "share_across_branches": ((), {}, 0),
    "cache_layout": ((), {}, 1),
    "carry_caches": ((), {}, 2),
    "group_elementwise": ((), {}, 2),  # the wrapped indices of the last tokens, in prefill
    "group_norm_linear": (("merge_qkv", "merge_linears"), {}, 2 * 3),
    "group_mlp": ((), {}, 2),
    "group_linear_activation": ((), {}, 2),
    "group_attention": ((), {}, 2),
    "group_layer": ((), {}, 2),
    "group_step": ((), {}, 1),
}
APPLYING = [name for name, (_, _, sites) in ON_LLAMA.items() if sites]


@functools.cache
def _before(name: str) -> Arrays:
    return step(tiny_llama(), name, arguments(name))


@pytest.mark.parametrize("name", RULES)
def test_a_rule_finds_its_sites_in_a_model(name: str) -> None:
    first, options, sites = ON_LLAMA[name]
    assert len(find_sites(_prepared(first), RULES[name], options)) == sites


def _prepared(first: tuple[str, ...]) -> Module:
    module = tiny_llama()
    for name in first:
        module, fired = apply_rule(module, RULES[name])
        assert fired
    return module


@pytest.mark.parametrize("name", APPLYING)
def test_a_model_gives_the_same_results_after_a_rule(name: str) -> None:
    first, options, _ = ON_LLAMA[name]
    changed, _ = apply_rule(_prepared(first), RULES[name], None, options)
    assert_round_trips(changed)
    after = step(changed, "prefill", arguments("prefill"))
    error = _stated_error(RULES[name])
    if not error:
        _assert_same(_before("prefill"), after, tiny_llama(), "prefill", 0.0)
        return
    logits, wanted = after["logits"], _before("prefill")["logits"]
    # A few roundings of that size one after the other, each of which is much smaller than stated.
    assert 0 < np.max(np.abs(logits - wanted)) < 2 * error * np.max(np.abs(wanted))
