"""For every rule of group `rewrite`: a small function where it fires, and changes that stop it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tests.ir.rules.functions import (
    ACTIVATED,
    ATTENTION,
    ATTENTION_BHSD,
    BIASED,
    BRANCHES,
    CACHED,
    CHAIN,
    LOOP,
    MLP,
    NORM,
    NORM_LINEAR,
    NORM_T,
    ONE,
    ONE_BF16,
    ONE_BF16_T,
    ONE_T,
    QKV,
    RESIDUAL,
    THREE,
    THREE_T,
    TWO,
    TWO_T,
)


@dataclasses.dataclass(frozen=True)
class Case:
    """`lines` is where the rule fires, at `sites`; each of `misses` stops it.

    A miss is a reason, and pieces of text, each followed by what stands in its place instead.
    `after` are the ops of the changed function (regions left out).
    """

    lines: str
    sites: tuple[str, ...]
    after: str
    misses: Mapping[str, tuple[str, ...]]
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def missed(self, why: str) -> str:
        text, change = self.lines, self.misses[why]
        for old, new in zip(change[::2], change[1::2], strict=True):
            assert old in text, f"{why}: {old!r} is not in the case"
            text = text.replace(old, new)
        return text


WEIGHT = {"the weight is no parameter": ("param %a", "arg %a")}
STORED = {
    "the weight is stored [out, in]": ("f32[4,6]", "f32[6,4]", "%a)", "%a) {transposed=true}")
}
STORED_T = {"the weight is stored [in, out]": ("f32[6,4]", "f32[4,6]", " {transposed=true}", "")}
BIAS = {"it has a bias": ("param %a", "param %bias: f32[6]\n  param %a", "%a)", "%a, bias=%bias)")}
INTEGERS = {"the input is no float": ("f32[3,", "i32[3,", "f32[4,6]", "i32[4,6]")}


def _single(lines: str, after: str, *misses: Mapping[str, tuple[str, ...]]) -> Case:
    """One linear over a parameter."""
    merged: dict[str, tuple[str, ...]] = dict(WEIGHT)
    for more in misses:
        merged |= more
    return Case(lines, ("main/0",), after, merged)


def _joined(lines: str, after: str, **misses: tuple[str, ...]) -> Case:
    """Linears over one input."""
    named = {why.replace("_", " "): change for why, change in misses.items()}
    return Case(lines, ("main/0",), after, {**WEIGHT, **named})


CASES: dict[str, Case] = {
    "merge_linears": _joined(
        TWO,
        "concat linear split",
        the_input_is_a_parameter=("arg %x", "param %x"),
        the_weight_is_the_same=(
            "[4,5]",
            "[4,6]",
            "3,5]",
            "3,6]",
            "linear(%x, %b)",
            "linear(%x, %a)",
        ),
        the_input_is_another=("param %a", "arg %x2: f32[2,3,4]\n  param %a", "(%x, %b", "(%x2, %b"),
        the_dtypes_differ=("%b: f32", "%b: bf16"),
        one_has_a_bias=("param %a", "param %c: f32[5]\n  param %a", "%b)", "%b, bias=%c)"),
    ),
    "merge_linears_transposed": _joined(
        TWO_T,
        "concat linear split",
        one_is_stored_the_other_way=("f32[5,4]", "f32[4,5]", "%b) {transposed=true}", "%b)"),
        the_input_is_a_parameter=("arg %x", "param %x"),
    ),
    "merge_qkv": _joined(
        THREE,
        "concat linear split",
        one_weight_is_no_parameter=("param %c", "arg %c"),
        one_dtype_differs=("%c: bf16", "%c: f32"),
        the_input_is_a_parameter=("arg %x", "param %x"),
        one_feeds_another=("f32[4]", "f32[5]", "[4,", "[5,", "linear(%x, %c)", "linear(%z, %c)"),
    ),
    "merge_qkv_transposed": _joined(
        THREE_T,
        "concat linear split",
        one_weight_is_no_parameter=("param %c", "arg %c"),
        one_is_stored_the_other_way=("f16[1,4]", "f16[4,1]", "%c) {transposed=true}", "%c)"),
    ),
    "merge_qkv_bias": _joined(
        BIASED,
        "concat concat linear split",
        one_has_no_bias=("%c, bias=%r)", "%c)"),
        one_bias_has_another_dtype=("%r: bf16", "%r: f32"),
    ),
    "transpose_weight": _single(ONE, "transpose linear", STORED, BIAS),
    "untranspose_weight": _single(ONE_T, "transpose linear", STORED_T),
    "widen_weight": _single(
        ONE_BF16,
        "cast prepared cast linear cast",
        {"the input is wide": ("%x: bf16", "%x: f32", "%y: bf16", "%y: f32")},
    ),
    "widen_weight_transposed": _single(
        ONE_BF16_T,
        "cast prepared cast linear cast",
        {"all is wide": ("bf16", "f32")},
    ),
    "halve_linear": _single(
        ONE,
        "split linear linear concat",
        STORED,
        BIAS,
        {"the width is odd": ("[4,6]", "[4,5]", "[3,6]", "[3,5]")},
        {"the input is a parameter": ("arg %x", "param %x")},
    ),
    "halve_linear_transposed": _single(
        ONE_T,
        "split linear linear concat",
        STORED_T,
        {"the width is odd": ("[6,4]", "[5,4]", "[3,6]", "[3,5]")},
    ),
    "int8_weight": _single(ONE, "quantize quantized_linear", STORED, BIAS, INTEGERS),
    "int8_weight_transposed": _single(ONE_T, "quantize quantized_linear", STORED_T),
    "fp8_weight": _single(
        ONE, "quantize quantized_linear", STORED, {"dtypes differ": ("%a: f32", "%a: f16")}
    ),
    "fp8_weight_transposed": _single(ONE_T, "quantize quantized_linear", STORED_T),
    "residual_norm": Case(
        RESIDUAL,
        ("main/0",),
        "residual_rms_norm lax.mul",
        {
            "the norm reads something else": ("rms_norm(%s,", "rms_norm(%x,"),
            "it is another norm": ("rms_norm(%s, %w) {eps=1e-05, plus_one=true}", "softmax(%s)"),
            "it is another sum": ("lax.add(%x, %r)", "lax.sub(%x, %r)"),
            "the weight needs the sum": (
                "param %w: f32[8]",
                "",
                "  %n:",
                "  %l: bf16[8] = lax.reduce_sum(%s) {axes=(0,), out_sharding=none}\n  %n:",
                "%w)",
                "%l)",
            ),
        },
    ),
    "fold_norm_weight": Case(
        NORM,
        ("main/1",),
        "scale_axis rms_normalize linear",
        {
            **WEIGHT,
            "the norm's weight is no parameter": ("param %w", "arg %w"),
            "the norm is read twice": ("return %y", "return %y, %h"),
            "the float is short": ("f32", "bf16"),
            "the dtypes differ": ("%w: f32", "%w: bf16"),
        },
    ),
    "fold_norm_weight_transposed": Case(
        NORM_T,
        ("main/1",),
        "scale_axis rms_normalize linear",
        {**WEIGHT, "the norm is read twice": ("return %y", "return %y, %h")},
    ),
    "rope_qkv": Case(
        QKV,
        ("main/0",),
        "split reshape rope split",
        {
            "one is turned otherwise": (
                "%kh, %p, %f) {interleaved=true",
                "%kh, %p, %f) {interleaved=false",
            ),
            "one is scaled otherwise": (
                "%kh, %p, %f) {interleaved=true, scale=1.5",
                "%kh, %p, %f) {interleaved=true, scale=1.0",
            ),
            "a piece is read twice": ("return %kr", "return %q, %kr"),
            "the pieces are cut along another axis": ("axis=-1", "axis=2"),
            "the pieces stand in another order": (
                "rope(%kh",
                "rope(%qh2",
                "%kr: f32[2,3,2,4]",
                "%kr: f32[2,3,4,4]",
                "  %qr",
                "  %qh2: f32[2,3,4,4] = lax.neg(%qh)\n  %qr",
            ),
        },
    ),
    "split_attention": Case(
        ATTENTION,
        ("main/0",),
        "attention_partial attention_merge",
        {
            "the keys do not split": ("12,", "14,"),
            "a part would be one key": ("12,", "4,"),
            "no positions are given": (", positions=%p", ""),
            "the layout is another": ("[2,12,2,", "[2,2,12,", "{causal", '{layout="bhsd", causal'),
        },
        {"n": 4},
    ),
    "split_attention_bhsd": Case(
        ATTENTION_BHSD,
        ("main/0",),
        "attention_partial attention_merge",
        {
            "the keys do not split": ("12,", "13,"),
            "the layout is another": ("[2,2,12,", "[2,12,2,", 'layout="bhsd", ', ""),
        },
    ),
    "unroll_scan": Case(
        LOOP,
        ("main/0",),
        "scan",
        {
            "it does not divide the length": ("6", "5"),
            "it is the length": ("6", "3"),
            "it is unrolled already": ("length=6", "length=6, unroll=2"),
        },
        {"k": 3},
    ),
    "unroll_layers": Case(
        LOOP,
        ("main/0",),
        "constant take_row prepared " * 6 + "lax.mul lax.sub " * 6 + "stack",
        {
            "it runs backwards": ("length=6", "length=6, reverse=true"),
            "it does not run": ("6", "0"),
        },
    ),
    "share_across_branches": Case(
        BRANCHES,
        ("main/0",),
        "rms_norm lax.exp cond",
        {
            "the attributes differ": (
                "%m: f32[2,4] = rms_norm(%a, %b) {eps=1e-05}",
                "%m: f32[2,4] = rms_norm(%a, %b) {eps=1e-06}",
            ),
            "the operands differ": (
                "rms_norm(%a, %b) {eps=1e-05}\n      %g",
                "rms_norm(%d, %b) {eps=1e-05}\n      %g",
            ),
        },
    ),
    "group_elementwise": Case(
        CHAIN,
        ("main/2",),
        "group",
        {
            "all depends on parameters": ("arg %x", "param %x"),
            "the values are outputs": ("return %c", "return %c, %b, %a"),
            "there is one op": ("lax.exp(%x)", "softmax(%x)", "lax.mul(%a, %a)", "softmax(%a)"),
        },
    ),
    "group_norm_linear": Case(
        NORM_LINEAR,
        ("main/1",),
        "group",
        {
            "the norm is read twice": ("return %y", "return %y, %h"),
            "there is no norm": ("layer_norm(%x, %w)", "lax.exp(%x)"),
        },
    ),
    "group_mlp": Case(
        MLP,
        ("main/3",),
        "group",
        {
            "the unit is read twice": ("return %y", "return %y, %s"),
            "the gate is read twice": ("return %y", "return %y, %p"),
            "there is no unit": ("swiglu(%p, %q)", "lax.mul(%p, %q)"),
            "the gate is no linear": (
                "%p: f32[3,6] = linear(%x, %g)",
                "%p: f32[3,6] = lax.neg(%p0)",
                "arg %x: f32[3,4]",
                "arg %x: f32[3,4]\n  arg %p0: f32[3,6]",
            ),
        },
    ),
    "group_linear_activation": Case(
        ACTIVATED,
        ("main/1",),
        "group",
        {
            "the linear is read twice": ("return %y", "return %y, %h"),
            "there is no linear": (
                "activation(%h)",
                "activation(%h2)",
                "  %y",
                "  %h2: f32[3,6] = lax.neg(%h)\n  %y",
            ),
        },
    ),
    "group_attention": Case(
        ATTENTION, ("main/0",), "group", {"there is none": ("return %o", "return %q")}
    ),
    "group_layer": Case(
        LOOP,
        ("main/0",),
        "scan",
        {
            "the body is one op": (
                "%t: f32[3] = lax.sub(%s, %const)\n",
                "",
                "return %t",
                "return %s",
            )
        },
    ),
    "group_step": Case(
        MLP,
        ("*",),
        "group",
        {"the step is one op": (MLP, ONE), "nothing is computed": ("return %y", "return %x")},
    ),
    "cache_layout": Case(
        CACHED,
        ("*",),
        "scan",
        {
            "something else reads the cache": (
                "%uk, %uv) {scale=0.5}",
                "%ek, %uv) {scale=0.5}",
                "      %a",
                "      %ek: f32[2,5,2,4] = lax.exp(%uk)\n      %a",
            ),
            "only the keys are a cache": (
                "%uv: f32[2,5,2,4] = update_cache(%value, %piece, %start)",
                "%uv: f32[2,5,2,4] = lax.exp(%value)",
            ),
            "the state is no cache": (
                "update_cache(%key, %q, %start)",
                "lax.exp(%key)",
                "update_cache(%value, %piece, %start)",
                "lax.exp(%value)",
            ),
        },
    ),
    "carry_caches": Case(
        CACHED,
        ("main/0",),
        "constant scan",
        {
            "the old cache is read too": ("%uk, %uv) {scale=0.5}", "%key, %value) {scale=0.5}"),
            "the loop runs backwards": ("length=3", "length=3, reverse=true"),
            "the state is no cache": (
                "update_cache(%key, %q, %start)",
                "lax.exp(%key)",
                "update_cache(%value, %piece, %start)",
                "lax.exp(%value)",
            ),
        },
    ),
}
