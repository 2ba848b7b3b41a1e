"""Every named op refuses what does not fit: which op, which line, from where, what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ir.ops.cases import AXIS, CASES, SOURCE
from tests.ir.samples import function, value
from tkcc.ir.errors import IRError
from tkcc.ir.graph import Function
from tkcc.ir.op import build, named_ops

I8 = np.dtype("int8")
QKV = ("f32[2,4,4,8]", "f32[2,6,2,8]", "f32[2,6,2,6]")
SCALE = {"scale": 1.0}
EXPERTS = ["f32[6,8]", "f32[6,2]", "i32[6,2]", "f32[4,8,6]", "f32[4,8,6]", "f32[4,6,8]"]
GATED = ["f32[2,3,4,6]", "f32[2,3,4,6]", "f32[2,3,4,8]", "f32[2,3,4]", "f32[2,4,6,8]"]
DEVICES = {"axis": AXIS, "size": 2}


def changed(operands: list[str], position: int, text: str) -> list[str]:
    return [*operands[:position], text, *operands[position + 1 :]]


def _identity() -> Function:
    x = value("f32[3]")
    return function((x,), (), x)


# op, operand types, attributes, optional operand types, part of the message
ILL: list[tuple[str, Any, dict[str, Any], dict[str, str], str]] = [
    ("linear", ("f32[2,8]", "f32[4,8]"), {}, {}, "w is f32[4,8], but the last axis of x is 8"),
    ("linear", ("f32[2,8]", "f32[8,4]"), {"transposed": True}, {}, "the last axis of x is 8"),
    ("linear", ("f32[]", "f32[8,4]"), {}, {}, "the last axis of x is missing"),
    ("linear", ("f32[2,8]", "f32[2,8,4]"), {}, {}, "w is f32[2,8,4], not a matrix"),
    ("linear", ("f32[2,8]", "f32[8,4]"), {}, {"bias": "f32[8]"}, "bias is f32[8], not [4]"),
    ("linear", ("bf16[2,8]", "f8e4m3fn[8,4]"), {}, {}, "operands bf16[2,8], f8e4m3fn[8,4]"),
    ("embedding", ("f32[9,4]", "f32[2]"), {}, {}, "ids are f32[2], not integers"),
    ("embedding", ("f32[9]", "i32[2]"), {}, {}, "table is f32[9], not [v, d]"),
    ("rms_norm", ("f32[2,8]", "f32[4]"), {}, {}, "w is (4,), but the last axis of x is (8,)"),
    ("rms_norm", ("f32[]", "f32[]"), {}, {}, "w is ()"),
    ("rms_normalize", ("f32[]",), {}, {}, "x is f32[], which has no last axis"),
    ("residual_rms_norm", ("f32[2,8]", "f32[8]", "f32[8]"), {}, {}, "r is f32[8]"),
    ("residual_rms_norm", ("f32[2,8]", "f32[2,8]", "f32[9]"), {}, {}, "w is (9,)"),
    ("layer_norm", ("f32[2,8]", "f32[8]"), {}, {"bias": "f32[2]"}, "w or bias is (2,)"),
    ("softmax", ("f32[]",), {}, {}, "x is f32[], which has no last axis"),
    ("activation", ("f32[2]",), {"kind": "swish"}, {}, "unknown activation 'swish'"),
    ("swiglu", ("f32[2]", "bf16[2]"), {}, {}, "gate is f32[2], but up is bf16[2]"),
    ("swiglu", ("f32[2]", "f32[2]"), {"activation": "x"}, {}, "unknown activation 'x'"),
    ("rope", ("f32[2,4,8]", "i32[2,4]", "f32[4]"), {}, {}, "x is f32[2,4,8], not [b, t, h, d]"),
    ("rope", ("f32[2,4,2,8]", "i32[4]", "f32[4]"), {}, {}, "positions is i32[4]"),
    ("rope", ("f32[2,4,2,8]", "f32[2,4]", "f32[4]"), {}, {}, "positions is f32[2,4]"),
    ("rope", ("f32[2,4,2,8]", "i32[2,4]", "f32[5]"), {}, {}, "a head has 8 channels"),
    (
        "update_cache",
        ("f32[2,8,2,4]", "f32[2,9,2,4]", "i32[2]"),
        {},
        {},
        "new is f32[2,9,2,4], but the cache is f32[2,8,2,4]",
    ),
    ("update_cache", ("f32[2,8,4]", "f32[2,1,4]", "i32[2]"), {}, {}, "need rank 4"),
    ("update_cache", ("f32[2,8,2,4]", "f32[2,1,2,4]", "i32[]"), {}, {}, "start is i32[]"),
    (
        "update_cache",
        ("f32[2,8,2,4]", "f32[2,1,2,4]", "i32[2]"),
        {"layout": "sbhd"},
        {},
        "unknown layout 'sbhd'",
    ),
    (
        "update_stacked_cache",
        ("f32[2,8,2,4]", "f32[2,1,2,4]", "i32[2]", "i32[]"),
        {},
        {},
        "cache is f32[2,8,2,4], not [l, b, s, h, d]",
    ),
    (
        "update_stacked_cache",
        ("f32[3,2,8,2,4]", "f32[2,1,2,4]", "i32[2]", "i32[1]"),
        {},
        {},
        "index is i32[1]",
    ),
    ("attention", QKV, {}, {}, "attribute ['scale'] is missing"),
    ("attention", ("f32[2,4,8]", *QKV[1:]), SCALE, {}, "need rank 4"),
    ("attention", ("f32[2,4,3,8]", *QKV[1:]), SCALE, {}, "3 query heads for 2 key heads"),
    ("attention", ("f32[2,4,4,9]", *QKV[1:]), SCALE, {}, "q is f32[2,4,4,9], but k is"),
    ("attention", (*QKV[:2], "f32[2,5,2,6]"), SCALE, {}, "v is f32[2,5,2,6], but k is"),
    ("attention", QKV, SCALE, {"positions": "i32[1,4]"}, "positions is i32[1,4], not [2, 4]"),
    ("attention", QKV, SCALE, {"lengths": "i32[1]"}, "lengths is i32[1], not [2]"),
    ("attention", QKV, SCALE, {"sinks": "f32[2]"}, "sinks is f32[2], not [4]"),
    ("attention", QKV, SCALE, {"mask": "bool[3,6]"}, "does not broadcast to [2, 4, 4, 6]"),
    ("attention", QKV, SCALE, {"mask": "f32[4,6]"}, "mask is f32[4,6]"),
    ("attention", QKV, SCALE, {"bias": "f32[1,1,1,1,6]"}, "does not broadcast"),
    ("attention", QKV, {**SCALE, "layout": "thd"}, {}, "unknown layout 'thd'"),
    ("attention_partial", QKV, {**SCALE, "splits": 4}, {}, "6 keys do not split into 4"),
    ("attention_partial", QKV, {**SCALE, "splits": 0}, {}, "6 keys do not split into 0"),
    (
        "attention_partial",
        QKV,
        {**SCALE, "splits": 2},
        {"sinks": "f32[4]"},
        "no optional operand ['sinks']",
    ),
    (
        "attention_merge",
        ("f32[2,1,1,1,4]", "f32[2,1,1,1]", "f32[2,1,1]"),
        {"dtype": np.dtype("float32")},
        {},
        "parts do not fit",
    ),
    (
        "attention_merge",
        ("f32[2,4]", "f32[2]", "f32[2]"),
        {"dtype": np.dtype("float32")},
        {},
        "parts do not fit",
    ),
    ("linear_attention", changed(GATED, 1, "f32[2,3,4,5]"), {}, {}, "q is"),
    ("linear_attention", changed(GATED, 2, "f32[2,2,4,8]"), {}, {}, "v is f32[2,2,4,8]"),
    ("linear_attention", changed(GATED, 3, "f32[2,3]"), {}, {}, "decay is f32[2,3]"),
    ("linear_attention", changed(GATED, 4, "bf16[2,4,6,8]"), {}, {}, "state is bf16[2,4,6,8]"),
    ("linear_attention", ["f32[3]", "f32[3]", *GATED[2:]], {}, {}, "q is f32[3]"),
    ("moe_route", ("f32[2,3,8]",), {"k": 2}, {}, "not [tokens, experts]"),
    ("moe_route", ("f32[3,8]",), {"k": 9}, {}, "k=9 of 8 experts"),
    ("moe_route", ("f32[3,8]",), {"k": 0}, {}, "k=0 of 8 experts"),
    ("moe_route", ("f32[3,8]",), {"k": 2, "scoring": "max"}, {}, "unknown scoring 'max'"),
    ("moe_route", ("f32[3,8]",), {"k": 2, "groups": 3}, {}, "8 experts, groups=3"),
    ("moe_route", ("f32[3,8]",), {"k": 2, "groups": 0}, {}, "8 experts, groups=0"),
    ("moe_route", ("f32[3,8]",), {"k": 2, "groups": 4, "top_groups": 5}, {}, "top_groups=5"),
    ("moe_route", ("f32[3,8]",), {"k": 3, "groups": 4}, {}, "k=3 of 2 experts"),
    ("moe_route", ("f32[3,8]",), {"k": 2}, {"bias": "f32[1]"}, "bias is f32[1], not [8]"),
    ("moe_experts", changed(EXPERTS, 0, "f32[1,6,8]"), {}, {}, "x is f32[1,6,8]"),
    ("moe_experts", changed(EXPERTS, 1, "f32[6,3]"), {}, {}, "weights are f32[6,3]"),
    ("moe_experts", ["f32[5,8]", *EXPERTS[1:]], {}, {}, "but x is f32[5,8]"),
    ("moe_experts", changed(EXPERTS, 2, "f32[6,2]"), {}, {}, "ids are f32[6,2], not integers"),
    ("moe_experts", changed(EXPERTS, 4, "f32[4,8,7]"), {}, {}, "but w_up is f32[4,8,7]"),
    ("moe_experts", changed(EXPERTS, 5, "f32[4,8,6]"), {}, {}, "w_down f32[4,8,6]"),
    ("moe_experts", EXPERTS, {"activation": "x"}, {}, "unknown activation 'x'"),
    ("quantize", ("f32[8,4]",), {"dtype": np.dtype("int16")}, {}, "cannot quantise to i16"),
    ("quantize", ("i32[8,4]",), {"dtype": I8}, {}, "x is i32[8,4], not floating"),
    ("quantize", ("f32[8,4]",), {"dtype": I8, "axis": 2}, {}, "do not fit"),
    ("dequantize", ("i8[8,4]", "f32[1,3]"), {"dtype": np.dtype("float32")}, {}, "do not fit"),
    ("dequantize", ("i8[8,4]", "f32[1,4]"), {}, {}, "attribute ['dtype'] is missing"),
    ("quantized_linear", ("f32[2,8]", "i8[8,4]", "f32[4,1]"), {}, {}, "scale is f32[4,1]"),
    ("quantized_linear", ("f32[2,8]", "i8[4,8]", "f32[1,8]"), {}, {}, "the last axis of x is 8"),
    (
        "quantized_linear",
        ("f32[2,8]", "i8[8,4]", "f32[1,4]"),
        {},
        {"bias": "f32[8]"},
        "bias is f32[8]",
    ),
    ("sample", ("f32[2,3,9]",), {}, {}, "not [b, v]"),
    ("sample", ("f32[2,9]",), {"method": "beam"}, {}, "unknown method 'beam'"),
    ("sample", ("f32[2,9]",), {"method": "categorical"}, {}, "takes 3 operands, got 1"),
    ("sample", ("f32[2,9]",), {}, {"key": "key<fry>[]"}, "greedy takes 1 operands, got 2"),
    (
        "sample",
        ("f32[2,9]",),
        {"method": "categorical"},
        {"key": "key<fry>[]", "temperature": "f32[1]"},
        "temperature is f32[1]",
    ),
    (
        "sample",
        ("f32[2,9]",),
        {"method": "categorical"},
        {"key": "u32[2]", "temperature": "f32[2]"},
        "key is u32[2], not one PRNG key",
    ),
    ("constant", (), {"value": 1.0}, {}, "value is 1.0, not a dense array"),
    ("constant", (), {}, {}, "attribute ['value'] is missing"),
    ("scan", ("f32[3]",), {"length": 4}, {}, "takes 1 regions (body), got 0"),
    ("while", ("f32[3]",), {}, {}, "takes 2 regions (condition, body), got 0"),
    ("cond", ("i32[]",), {}, {}, "has no branch"),
    ("group", ("f32[3]",), {"label": "a"}, {}, "takes 1 regions (body), got 0"),
    ("concat", ("f32[2,3]", "bf16[2,3]"), {}, {}, "operands have different dtypes"),
    ("concat", ("f32[2,3]", "f32[3,3]"), {}, {}, "do not fit"),
    ("concat", ("f32[2,3]",), {"axis": 2}, {}, "axis 2 is not in f32[2,3]"),
    ("split", ("f32[2,6]",), {"sizes": (1, 2)}, {}, "sizes (1, 2) do not add up to 6"),
    ("split", ("f32[2,6]",), {"sizes": (7, -1)}, {}, "do not fit"),
    ("split", ("f32[2,6]",), {"sizes": (2,), "axis": -3}, {}, "axis -3 is not in f32[2,6]"),
    ("stack", ("f32[2]", "f32[3]"), {}, {}, "operands have different types"),
    (
        "update_pages",
        ("f32[3,7,2,2,4]", "f32[2,3,2,5]", "i32[2]", "i32[]", "i32[2,3]"),
        {},
        {},
        "but the pages are",
    ),
    ("gather_pages", ("f32[7,2,2,4]", "i32[]", "i32[2,3]"), {}, {}, "not [l, p, s, h, d]"),
    ("take_row", ("f32[]", "i32[]"), {}, {}, "which has no rows"),
    ("take_row", ("f32[2]", "i32[1]"), {}, {}, "index is i32[1]"),
    ("transpose", ("f32[2]",), {}, {}, "permutation (1, 0) does not fit f32[2]"),
    ("transpose", ("f32[2,3]",), {"permutation": (1, 1)}, {}, "permutation (1, 1)"),
    ("reshape", ("f32[2,6]",), {"shape": (5,)}, {}, "do not fit"),
    ("reshape", ("f32[2,6]",), {"shape": (1,), "keep": 3}, {}, "keep is 3"),
    ("prepared", ("f32[2]", "f32[2]"), {}, {}, "takes 1 operands (x), got 2"),
    ("scale_axis", ("f32[2,6]", "f32[2]"), {}, {}, "s is f32[2], not [6]"),
    ("scale_axis", ("f32[2,6]", "f32[2]"), {"axis": 5}, {}, "axis 5 is not in"),
    ("cast", ("f32[2]",), {"dtype": "f32"}, {}, "do not fit"),
    ("cast", ("key<fry>[]",), {"dtype": I8}, {}, "do not fit"),
    ("all_reduce", ("f32[2]",), {**DEVICES, "reduction": "mean"}, {}, "unknown reduction 'mean'"),
    ("all_reduce", ("f32[2]",), {"axis": AXIS, "size": 0}, {}, "size is 0"),
    ("all_reduce", ("f32[2]",), {"axis": AXIS}, {}, "attribute ['size'] is missing"),
    ("all_gather", ("f32[2]",), {**DEVICES, "dimension": 1}, {}, "dimension is 1, but x is f32[2]"),
    ("reduce_scatter", ("f32[3]",), DEVICES, {}, "dimension 0 of f32[3] does not split into 2"),
    ("all_to_all", ("f32[3,2]",), DEVICES, {}, "dimension 0 of f32[3,2] does not split into 2"),
    ("all_to_all", ("f32[2]",), {**DEVICES, "join": 1}, {}, "join is 1, but x is f32[2]"),
    ("collective_permute", ("f32[2]",), {**DEVICES, "pairs": ((0, 2),)}, {}, "do not fit 2"),
    ("collective_permute", ("f32[2]",), {**DEVICES, "pairs": ((0, 1), (1, 1))}, {}, "do not fit"),
]


def test_every_named_op_has_an_error_case() -> None:
    assert {op for op, *_ in ILL} == set(named_ops()) == {case.op for case in CASES}


@pytest.mark.parametrize(("op", "operands", "attributes", "optional", "message"), ILL)
def test_ill_typed_nodes_are_refused(
    op: str,
    operands: Any,
    attributes: dict[str, Any],
    optional: dict[str, str],
    message: str,
) -> None:
    values = [value(text, f"v{i}") for i, text in enumerate(operands)]
    keyed = {key: value(text, key) for key, text in optional.items()}
    with pytest.raises(IRError) as error:
        build(op, *values, attributes=attributes, optional=keyed, source=SOURCE)
    assert error.value.what.startswith(f"{op}: ")
    assert message in error.value.what
    shown = ", ".join(["%v" + str(i) for i in range(len(values))] + [f"{k}=%{k}" for k in keyed])
    line, operand_types, source = error.value.where.splitlines()
    assert line.startswith(f"{op}({shown}) {{")
    assert operand_types == f"operands: {', '.join([*operands, *optional.values()]) or 'nothing'}"
    assert source == "from layers/attention (model.py:12) ; last changed by tie#3"
    assert error.value.remedy


@pytest.mark.parametrize("op", sorted(set(named_ops()) - {"constant", "scan", "while", "group"}))
def test_an_operand_too_many_or_a_region_is_refused(op: str) -> None:
    case = next(case for case in CASES if case.op == op)
    values = [value(str(type_)) for type_ in case.types()[: len(case.operands)]]
    regions = [*case.regions(case.types()), _identity()]
    with pytest.raises(IRError):
        build(op, *values, attributes=case.attributes, regions=regions)
    with pytest.raises(IRError):
        build(op, attributes=case.attributes)
