"""FLOPs and split factors of `lax.*` ops, by primitive name."""

from __future__ import annotations

import math
from typing import Any

from tkcc.ir.factors import WHOLE, Factors, elementwise
from tkcc.ir.graph import Node

# Moves or reinterprets data only: no arithmetic.
_MOVES = {
    "broadcast_in_dim",
    "reshape",
    "transpose",
    "slice",
    "squeeze",
    "concatenate",
    "pad",
    "gather",
    "scatter",
    "dynamic_slice",
    "dynamic_update_slice",
    "convert_element_type",
    "bitcast_convert_type",
    "copy",
    "copy_p",
    "iota",
    "rev",
    "select_n",
    "split",
    "stack",
    "unstack",
    "tile",
    "stop_gradient",
    "expand_dims",
    "real",
    "imag",
    "optimization_barrier",
    "random_wrap",
    "random_unwrap",
    "reduce_precision",
}
_REDUCTIONS = {
    "reduce_sum",
    "reduce_max",
    "reduce_min",
    "reduce_prod",
    "reduce_and",
    "reduce_or",
    "reduce_xor",
    "argmax",
    "argmin",
    "reduce",
}
_CUMULATIVE = {"cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"}


def lax_flops(node: Node) -> int:
    """Operations of a `lax.*` node; a multiply-add counts two, other arithmetic one per element."""
    name = node.op.removeprefix("lax.")
    out = sum(value.type.size for value in node.results)
    if name in _MOVES:
        return 0
    if name in _REDUCTIONS:
        return node.operands[0].type.size
    special = _SPECIAL.get(name)
    return special(node) if special else out


def _dot_general_flops(node: Node) -> int:
    (contract, _), _ = node.attribute("dimension_numbers")
    depth = math.prod(node.operands[0].type.shape[d] for d in contract)
    return 2 * node.results[0].type.size * depth


def _convolution_flops(node: Node) -> int:
    kernel = node.operands[1].type
    out_features = kernel.shape[node.attribute("dimension_numbers").rhs_spec[0]]
    return 2 * node.results[0].type.size * kernel.size // max(1, out_features)


def _fft_flops(node: Node) -> int:
    """5 n log2 n per transform of n points (the usual count for a complex FFT)."""
    points = math.prod(node.attribute("fft_lengths"))
    batches = node.results[0].type.size // max(1, node.results[0].type.shape[-1])
    total = max(batches * node.results[0].type.shape[-1], 1)
    return int(5 * total * max(1.0, math.log2(max(points, 2))))


def _sort_flops(node: Node) -> int:
    shape = node.operands[0].type.shape
    length = shape[node.attribute("dimension")] if shape else 1
    return int(node.operands[0].type.size * max(1.0, math.log2(max(length, 2))))


def _ragged_dot_flops(node: Node) -> int:
    return 2 * node.results[0].type.size * node.operands[0].type.shape[-1]


def _cubic_flops(node: Node) -> int:
    """n^3 per matrix: the leading order of the dense factorisations, constants left out."""
    shape = node.operands[0].type.shape
    return node.operands[0].type.size * (shape[-1] if shape else 1)


_SPECIAL: dict[str, Any] = {
    "dot_general": _dot_general_flops,
    "conv_general_dilated": _convolution_flops,
    "fft": _fft_flops,
    "sort": _sort_flops,
    "ragged_dot": _ragged_dot_flops,
    "ragged_dot_general": _ragged_dot_flops,
    **dict.fromkeys(("lu", "cholesky", "qr", "eigh", "svd", "triangular_solve"), _cubic_flops),
}


def lax_factors(node: Node) -> Factors | None:
    """Split factors of a `lax.*` node, or None where no split is known."""
    name = node.op.removeprefix("lax.")
    rule = _FACTORS.get(name)
    if rule is not None:
        return rule(node)  # type: ignore[no-any-return]
    shapes = {value.type.shape for value in (*node.operands, *node.results) if value.type.shape}
    if name in _ELEMENTWISE and len(shapes) <= 1:
        return elementwise([v.type.rank for v in node.operands], len(node.results))
    return None


# Result element i depends on element i of each operand alone, where all have one shape.
_ELEMENTWISE_NAMES = """
abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e
bitcast_convert_type cbrt ceil clamp clz complex conj convert_element_type copy copy_p cos cosh
digamma div eq eq_to erf erf_inv erfc exp exp2 expm1 floor ge gt igamma igamma_grad_a igammac
imag integer_pow is_finite le le_to lgamma log log1p logistic lt lt_to max min mul mulhi name ne
neg nextafter not optimization_barrier or polygamma population_count pow real reduce_precision
regularized_incomplete_beta rem round rsqrt select_n shift_left shift_right_arithmetic
shift_right_logical sign sin sinh sqrt square stop_gradient sub tan tanh xor zeta
"""
_ELEMENTWISE = frozenset(_ELEMENTWISE_NAMES.split())


def _names(rank: int) -> list[str]:
    return [f"d{i}" for i in range(rank)]


def _dot_general(node: Node) -> Factors:
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = node.attribute("dimension_numbers")
    lhs = [f"m{i}" for i in range(node.operands[0].type.rank)]
    rhs = [f"n{i}" for i in range(node.operands[1].type.rank)]
    for number, (left, right) in enumerate(zip(lhs_contract, rhs_contract, strict=True)):
        lhs[left] = rhs[right] = f"k{number}"
    for number, (left, right) in enumerate(zip(lhs_batch, rhs_batch, strict=True)):
        lhs[left] = rhs[right] = f"b{number}"
    free_l = [n for i, n in enumerate(lhs) if i not in (*lhs_contract, *lhs_batch)]
    free_r = [n for i, n in enumerate(rhs) if i not in (*rhs_contract, *rhs_batch)]
    out = [lhs[i] for i in lhs_batch] + free_l + free_r
    return Factors((tuple(lhs), tuple(rhs)), (tuple(out),))


def _broadcast_in_dim(node: Node) -> Factors:
    out = _names(node.results[0].type.rank)
    shape = node.operands[0].type.shape
    operand = []
    for position, dim in enumerate(node.attribute("broadcast_dimensions")):
        same = shape[position] == node.results[0].type.shape[dim]
        operand.append(out[dim] if same else f"one{position}{WHOLE}")
    extra = [()] * (len(node.operands) - 1)
    return Factors((tuple(operand), *extra), (tuple(out),))


def _transpose(node: Node) -> Factors:
    operand = _names(node.operands[0].type.rank)
    return Factors((tuple(operand),), (tuple(operand[i] for i in node.attribute("permutation")),))


def _reduce(node: Node) -> Factors:
    operand = _names(node.operands[0].type.rank)
    dropped = node.attribute("axes") if _has(node, "axes") else node.attribute("dimensions")
    if node.op in ("lax.argmax", "lax.argmin", "lax.reduce"):
        operand = [n + WHOLE if i in dropped else n for i, n in enumerate(operand)]
    out = tuple(n for i, n in enumerate(operand) if i not in dropped)
    initial = len(node.results) if node.op == "lax.reduce" else 0  # scalars, after the operands
    arrays = (tuple(operand),) * (len(node.operands) - initial)
    return Factors((*arrays, *((),) * initial), (out,) * len(node.results))


def _has(node: Node, name: str) -> bool:
    return any(key == name for key, _ in node.attributes)


def _along_axis(attribute: str) -> Any:
    """Every dimension goes along, but the one named by the attribute stays whole."""

    def rule(node: Node) -> Factors:
        axis = node.attribute(attribute)
        axis %= max(1, node.operands[0].type.rank)
        names = [
            n + WHOLE if i == axis else n for i, n in enumerate(_names(node.operands[0].type.rank))
        ]
        return Factors((tuple(names),) * len(node.operands), (tuple(names),) * len(node.results))

    return rule


def _slice(node: Node) -> Factors:
    source, out = node.operands[0].type.shape, node.results[0].type.shape
    names = tuple(
        n if a == b else n + WHOLE for n, a, b in zip(_names(len(source)), source, out, strict=True)
    )
    scalars = [()] * (len(node.operands) - 1)
    return Factors((names, *scalars), (names,))


def _squeeze(node: Node) -> Factors:
    rank = node.operands[0].type.rank
    dropped = {d % rank for d in node.attribute("dimensions")}
    names = [n + WHOLE if i in dropped else n for i, n in enumerate(_names(rank))]
    return Factors((tuple(names),), (tuple(n for i, n in enumerate(names) if i not in dropped),))


def _reshape(node: Node) -> Factors | None:
    """Leading dimensions that keep their size may be split; the rest stays whole."""
    source, out = node.operands[0].type.shape, node.results[0].type.shape
    same = 0
    while same < min(len(source), len(out)) and source[same] == out[same]:
        same += 1
    lead = tuple(f"d{i}" for i in range(same))
    rest_in = tuple(f"i{i}{WHOLE}" for i in range(same, len(source)))
    rest_out = tuple(f"o{i}{WHOLE}" for i in range(same, len(out)))
    return Factors((lead + rest_in,), (lead + rest_out,))


_FACTORS: dict[str, Any] = {
    "dot_general": _dot_general,
    "broadcast_in_dim": _broadcast_in_dim,
    "transpose": _transpose,
    "slice": _slice,
    "dynamic_slice": _slice,
    "squeeze": _squeeze,
    "reshape": _reshape,
    "concatenate": _along_axis("dimension"),
    "sort": _along_axis("dimension"),
    "split": _along_axis("axis"),
    **dict.fromkeys(_CUMULATIVE, _along_axis("axis")),
    **dict.fromkeys(_REDUCTIONS, _reduce),
}
