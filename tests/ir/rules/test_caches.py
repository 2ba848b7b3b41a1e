"""Rules over caches: layouts, carried caches, both together, and what they leave alone."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.ir.rewrite.texts import assert_near, function_of, module_of
from tests.ir.rules.functions import CACHED
from tests.ir.rules.llama import Arrays, arguments, call, generate, step, tiny_llama
from tests.ir.samples import assert_round_trips, random_array
from tkcc.ir.graph import PACK, STATE, UNPACK, Module, Node
from tkcc.ir.hashing import module_hash
from tkcc.ir.passes.clean import clean_module
from tkcc.ir.rewrite.driver import apply_rule, find_sites
from tkcc.ir.rewrite.rule import get_rule

LAYOUT, CARRY = get_rule("cache_layout"), get_rule("carry_caches")
ORDERS = [
    ("cache_layout",),
    ("carry_caches",),
    ("cache_layout", "carry_caches"),
    ("carry_caches", "cache_layout"),
    ("cache_layout", "carry_caches", "cache_layout"),
]


def _applied(module: Module, names: tuple[str, ...]) -> Module:
    for name in names:
        module, fired = apply_rule(module, get_rule(name))
        assert fired
    return module


def _scan(module: Module, name: str) -> Node:
    (node,) = [node for node in module.function(name).nodes if node.op == "scan"]
    return node


# --- a model -----------------------------------------------------------------------------------


@functools.cache
def _baseline(batch: int) -> list[Arrays]:
    return generate(tiny_llama(batch), batch, steps=3)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("names", ORDERS, ids=" then ".join)
def test_generation_is_the_same_in_any_order_of_the_rules(
    names: tuple[str, ...], batch: int
) -> None:
    module = _applied(tiny_llama(batch), names)
    assert_round_trips(module)
    for wanted, got in zip(_baseline(batch), generate(module, batch, steps=3), strict=True):
        assert got.keys() == wanted.keys()
        np.testing.assert_array_equal(got["next_tokens"], wanted["next_tokens"])
        for key in ("logits", "k_cache", "v_cache"):
            assert_near(got[key], wanted[key], "f32")


def test_the_logits_of_the_baseline_come_from_the_caches() -> None:
    """Else the comparison above would see nothing."""
    given = arguments("decode")
    empty = {name: np.zeros_like(given[name]) for name in tiny_llama().state}
    full = step(tiny_llama(), "decode", given)["logits"]
    without = step(tiny_llama(), "decode", {**given, **empty})["logits"]
    assert np.abs(full - without).max() > 0.1


@pytest.mark.parametrize("names", ORDERS, ids=" then ".join)
def test_state_keeps_its_aliases_and_has_one_type_in_all_functions(names: tuple[str, ...]) -> None:
    before, module = tiny_llama(), _applied(tiny_llama(), names)
    swapped = names.count("cache_layout") % 2 == 1
    assert module.state.keys() == before.state.keys()
    for key, type_ in module.state.items():
        layers, batch, length, heads, width = before.state[key].shape
        wanted = (heads, length) if swapped else (length, heads)
        assert type_.shape == (layers, batch, *wanted, width)
    for name, function in module.steps.items():
        old = before.function(name)
        assert (function.aliases, function.output_names) == (old.aliases, old.output_names)
        assert function.roles == old.roles
        for output, taken in function.aliases:
            assert function.outputs[output].type == function.inputs[taken].type


def test_packing_and_unpacking_are_inverse_and_move_data_only() -> None:
    module = _applied(tiny_llama(), ("cache_layout",))
    pack, unpack = module.functions[PACK], module.functions[UNPACK]
    given = {name: random_array(type_, 3) for name, type_ in tiny_llama().state.items()}
    packed = call(pack, given)
    for name, array in packed.items():
        np.testing.assert_array_equal(array, np.swapaxes(given[name], 2, 3))
        np.testing.assert_array_equal(call(unpack, packed)[name], given[name])
    for function in (pack, unpack):
        assert set(function.roles) == {STATE}
        assert set(function.output_names) == set(given)
        assert {node.op for node in function.nodes} == {"transpose"}


def test_the_layout_rule_undoes_itself() -> None:
    twice = _applied(tiny_llama(), ("cache_layout", "cache_layout"))
    steps = Module(dict(twice.steps))
    assert module_hash(steps) == module_hash(Module(dict(tiny_llama().steps)))
    given = {name: random_array(type_, 3) for name, type_ in tiny_llama().state.items()}
    for key in (PACK, UNPACK):
        for name, array in call(twice.functions[key], given).items():
            np.testing.assert_array_equal(array, given[name])


@pytest.mark.parametrize("name", ["prefill", "decode"])
def test_carried_caches_are_written_in_place_and_sliced_for_reading(name: str) -> None:
    old, new = _scan(tiny_llama(), name), _scan(_applied(tiny_llama(), ("carry_caches",)), name)
    assert new.attribute("carry") == old.attribute("carry") + 1 + 2  # a counter and two caches
    assert len(new.operands) == len(old.operands) + 1
    body = [node.op for node in new.regions[0].nodes]
    assert body.count("update_stacked_cache") == body.count("take_row") == 2
    assert "update_cache" not in body
    assert len(new.results) == len(old.results) + 1  # what the counter has come to


def test_carrying_happens_once() -> None:
    assert find_sites(_applied(tiny_llama(), ("carry_caches",)), CARRY) == []


def test_both_rules_work_on_a_cleaned_module_and_after_other_rules() -> None:
    module = clean_module(_applied(tiny_llama(), ("merge_qkv", "residual_norm", "carry_caches")))
    module = _applied(module, ("cache_layout", "split_attention_bhsd"))
    given = arguments("decode")
    wanted, got = step(tiny_llama(), "decode", given), step(module, "decode", given)
    for key in ("logits", "k_cache", "v_cache"):
        assert_near(got[key], wanted[key], "f32")


# --- small functions ---------------------------------------------------------------------------

FLAT = """
  arg %n: f32[2,1,2,4]
  arg %at: i32[2]
  state %k: f32[2,5,2,4]
  state %v: f32[2,5,2,4]
  %uk: f32[2,5,2,4] = update_cache(%k, %n, %at)
  %uv: f32[2,5,2,4] = update_cache(%v, %n, %at)
  %o: f32[2,1,2,4] = attention(%n, %uk, %uv) {scale=0.5}
  return %o as "o", %uk as "k" -> %k, %uv as "v" -> %v
"""


def _results(module: Module) -> Arrays:
    """Of the baseline's inputs: `module` may have its state in another form."""
    inputs = function_of(FLAT).inputs
    return step(module, "main", {v.name: random_array(v.type, i) for i, v in enumerate(inputs)})


def test_caches_outside_of_loops_change_their_layout() -> None:
    module = module_of(FLAT)
    changed = _applied(module, ("cache_layout",))
    assert [node.attribute("layout") for node in changed.function().nodes] == ["bhsd"] * 3
    for name, wanted in _results(module).items():
        assert_near(_results(changed)[name], wanted, "f32")


SEEN = {
    "the new cache leaves by another way too": ("return", 'return %uv as "extra",'),
    "the new cache is no state any more": ('%uv as "v" -> %v', '%uv as "v"'),
    "the old cache is an output": ("return", 'return %v as "extra",'),
    "it is changed before it is read": (
        "  %o: f32[2,1,2,4] = attention(%n, %uk, %uv)",
        "  %t: f32[2,5,2,4] = lax.neg(%uv)\n  %o: f32[2,1,2,4] = attention(%n, %uk, %t)",
    ),
    "it is the query": ("attention(%n, %uk, %uv)", "attention(%uk, %uk, %uv)"),
    "it is written into the other cache": (
        "%uv: f32[2,5,2,4] = update_cache(%v, %n, %at)",
        "%uv: f32[2,5,2,4] = update_cache(%v, %uk, %at)",
    ),
}


@pytest.mark.parametrize("why", SEEN)
def test_the_layout_stays_if(why: str) -> None:
    old, new = SEEN[why]
    assert old in FLAT
    text = FLAT.replace(old, new)
    if "query" in why:
        text = text.replace("%o: f32[2,1,2,4]", "%o: f32[2,5,2,4]")
    assert find_sites(module_of(text), LAYOUT) == []


def test_the_old_and_the_new_cache_may_be_read_together() -> None:
    text = FLAT.replace("attention(%n, %uk, %uv)", "attention(%n, %uk, %v)")
    module = module_of(text)
    changed = _applied(module, ("cache_layout",))
    for name, wanted in _results(module).items():
        assert_near(_results(changed)[name], wanted, "f32")


def test_other_state_is_left_alone() -> None:
    text = FLAT.replace(
        "  state %k", "  state %count: i32[2]\n  state %memory: f32[2,5,2,4]\n  state %k"
    ).replace(
        "  %uk:",
        "  %m: f32[2,5,2,4] = lax.neg(%memory)\n  %c: i32[2] = lax.add(%count, %at)\n  %uk:",
    )
    text = text.replace("return", 'return %m as "memory" -> %memory, %c as "count" -> %count,')
    changed = _applied(module_of(text), ("cache_layout",))
    assert changed.state["memory"] == module_of(text).state["memory"]
    assert changed.state["k"].shape == (2, 2, 5, 4)
    packed = changed.functions[PACK]
    assert dict(zip(packed.output_names, packed.output_types, strict=True)) == changed.state


def test_a_cache_that_is_written_with_itself_is_not_carried() -> None:
    text = CACHED.replace(
        "update_cache(%value, %piece, %start)", "update_cache(%value, %value, %start)"
    )
    module = module_of(text)
    changed, fired = apply_rule(module, CARRY)
    assert fired == ["main/0"]  # the keys are
    assert _scan(changed, "main").attribute("carry") == 1 + 1 + 1


def test_a_loop_of_no_layers_is_left_alone() -> None:
    text = CACHED.replace("[3,2,", "[0,2,").replace("length=3", "length=0")
    assert find_sites(module_of(text), CARRY) == []


def test_only_one_of_two_caches_may_be_carried() -> None:
    text = CACHED.replace(
        "return %a, %uk, %uv", "%w: f32[2,5,2,4] = lax.neg(%uv)\n return %a, %uk, %w"
    )
    module = module_of(text)
    changed = _applied(module, ("carry_caches",))
    inputs = {v.name: random_array(v.type, i) for i, v in enumerate(module.function().inputs)}
    before, after = step(module, "main", inputs), step(changed, "main", inputs)
    for name in before:
        assert_near(after[name], before[name], "f32")
    assert [v.type for v in _scan(changed, "main").results if v.type.rank == 5] == [
        module.state["k"]
    ] * 2
