"""Example nodes of every named op, for tests that hold for all ops.

`F` in an operand's type stands for the floating dtype under test.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.ir.samples import function, one_node, random_array, type_from, value
from tests.quick import quick_jit
from tkcc.ir.evaluate import evaluate
from tkcc.ir.graph import Function, Node, Source
from tkcc.ir.op import as_tuple, build
from tkcc.ir.types import TensorType

AXIS = "devices"
Types = Sequence[TensorType]
SOURCE = Source("layers/attention", "model.py:12", ("tie#3",))


@dataclasses.dataclass(frozen=True)
class Case:
    """One node: its operands' types, attributes and regions (made from the operands' types).

    `data` gives operands by position that random numbers do not suit. `mesh` is the number of
    devices of a collective. `not_summed` says why partial results do not add up, and `shifted`
    names, per reduced index, the operand whose values count along that index.
    """

    op: str
    operands: tuple[str, ...]
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    optional: Mapping[str, str] = dataclasses.field(default_factory=dict)
    regions: Callable[[Types], list[Function]] = lambda types: []
    data: Mapping[int, Callable[[TensorType], Any]] = dataclasses.field(default_factory=dict)
    mesh: int = 0
    not_summed: str = ""
    shifted: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def types(self, dtype: str = "f32") -> list[TensorType]:
        texts = (*self.operands, *self.optional.values())
        return [type_from(text.replace("F", dtype)) for text in texts]

    def node(self, types: Types | None = None, dtype: str = "f32") -> Node:
        """The node; with `types`, for other operand types."""
        given = list(types or self.types(dtype))
        values = [value(str(type_)) for type_ in given]
        count = len(self.operands)
        return build(
            self.op,
            *values[:count],
            attributes=self.attributes,
            optional=dict(zip(self.optional, values[count:], strict=True)),
            regions=self.regions(given),
            source=SOURCE,
        )

    def inputs(self, dtype: str = "f32", seed: int = 0) -> list[Any]:
        """Arrays for the operands; with a mesh, one row per device."""
        return [
            self._input(position, type_, seed + 10 * position)
            for position, type_ in enumerate(self.types(dtype))
        ]

    def _input(self, position: int, type_: TensorType, seed: int) -> Any:
        if self.mesh:
            type_ = type_.with_shape((self.mesh, *type_.shape))
        if position in self.data:
            return self.data[position](type_)
        return random_array(type_, seed)

    def program(self, node: Node) -> Callable[..., tuple[Any, ...]]:
        """The compiled node: arrays in, results out."""
        f = one_node(node)
        meaning = lambda *xs: evaluate(f, xs)  # noqa: E731
        if self.mesh:
            meaning = jax.vmap(meaning, axis_name=AXIS, axis_size=self.mesh)
        compiled = quick_jit(meaning)
        return lambda *arrays: as_tuple(compiled(*map(jnp.asarray, arrays)))


def below(limit: int) -> Callable[[TensorType], Any]:
    """Integers from -1 to `limit`: both ends are outside the valid range."""
    return lambda t: (np.arange(t.size).reshape(t.shape) * 7 % (limit + 2) - 1).astype(np.int32)


def positive(type_: TensorType) -> Any:
    """Floats in (0, 1)."""
    return np.random.default_rng(5).uniform(0.1, 0.9, type_.shape).astype(type_.struct().dtype)


def counting(type_: TensorType) -> Any:
    return np.arange(type_.size, dtype=np.int32).reshape(type_.shape)


def from_one(type_: TensorType) -> Any:
    return counting(type_) + 1


def all_visible(type_: TensorType) -> Any:
    """A mask that hides some keys but never all."""
    mask = random_array(type_, 3)
    mask[..., 0] = True
    return mask


def _same_region(op: str) -> Callable[[Types], list[Function]]:
    """A body of one node that reads all inputs in order."""

    def make(types: Types) -> list[Function]:
        inputs = [value(str(type_)) for type_ in types]
        node = build(op, *inputs)
        return [function(inputs, (node,), node.result)]

    return make


def _loop_body(types: Types) -> list[Function]:
    """(w, carry, row) -> (carry + w * row, carry): operands are w, carry, rows."""
    w, carry = value(str(types[0])), value(str(types[1]))
    row = value(str(types[2].with_shape(types[2].shape[1:])))
    product = build("lax.mul", w, row)
    total = build("lax.add", carry, product.result)
    return [function((w, carry, row), (product, total), total.result, carry)]


def _halve_until_small(types: Types) -> list[Function]:
    """while carry > limit: carry = carry * factor; operands are limit, factor, carry."""
    limit, carry = value(str(types[0])), value(str(types[2]))
    larger = build("lax.gt", carry, limit)
    condition = function((limit, carry), (larger,), larger.result)
    return [condition, *_same_region("lax.mul")(types[1:])]


def _two_branches(types: Types) -> list[Function]:
    return [*_same_region("lax.neg")(types[1:]), *_same_region("lax.abs")(types[1:])]


SCALE = {"scale": 0.35}
NORM = ("F[2,4,8]", "F[8]")
CACHE = ("F[2,8,2,4]", "F[2,3,2,4]", "i32[2]")
CACHE_T = ("F[2,2,8,4]", "F[2,3,2,4]", "i32[2]")
STACKED = ("F[3,2,8,2,4]", "F[2,3,2,4]", "i32[2]", "i32[]")
PAGES = ("F[3,7,2,2,4]", "F[2,3,2,4]", "i32[2]", "i32[]", "i32[2,3]")
QKV = ("F[2,4,4,8]", "F[2,6,2,8]", "F[2,6,2,6]")
QKV_T = ("F[2,4,4,8]", "F[2,2,6,8]", "F[2,2,6,6]")
EXPERTS = ("F[6,8]", "f32[6,2]", "i32[6,2]", "F[4,8,6]", "F[4,8,6]", "F[4,6,8]")
BIAS_ONCE = "the bias is added once, by one of the devices"

CASES = [
    Case("linear", ("F[2,4,8]", "F[8,4]")),
    Case("linear", ("F[2,8]", "F[4,8]"), {"transposed": True}),
    Case("linear", ("F[2,8]", "F[8,4]"), optional={"bias": "F[4]"}, not_summed=BIAS_ONCE),
    Case("linear", ("F[8]", "F[8,4]")),
    Case("embedding", ("F[9,4]", "i32[2,6]"), data={1: below(9)}),
    Case("embedding", ("F[9,4]", "u8[4]")),
    Case("rms_norm", NORM),
    Case("rms_norm", NORM, {"eps": 1e-3, "plus_one": True}),
    Case("rms_normalize", NORM[:1]),
    Case("residual_rms_norm", ("F[2,4,8]", "F[2,4,8]", "F[8]")),
    Case("layer_norm", NORM),
    Case("layer_norm", NORM, optional={"bias": "F[8]"}),
    Case("softmax", ("F[2,4,8]",)),
    *(
        Case("activation", ("F[2,4]",), {"kind": kind})
        for kind in ("silu", "gelu", "gelu_tanh", "relu", "sigmoid", "tanh")
    ),
    Case("swiglu", ("F[2,4]", "F[2,4]")),
    Case("swiglu", ("F[2,4]", "F[2,4]"), {"activation": "gelu_tanh"}),
    Case("rope", ("F[2,4,2,8]", "i32[2,4]", "f32[4]"), data={1: counting, 2: positive}),
    Case(
        "rope",
        ("F[2,4,2,8]", "i32[2,4]", "f32[2]"),
        {"interleaved": True, "scale": 1.2},
        data={1: counting, 2: positive},
    ),
    Case("update_cache", CACHE, data={2: below(5)}),
    Case("update_cache", CACHE_T, {"layout": "bhsd"}, data={2: below(5)}),
    Case("update_cache", ("F[1,8,2,4]", "F[1,3,2,4]", "i32[1]")),
    Case("update_stacked_cache", STACKED, data={2: below(5)}),
    Case(
        "update_stacked_cache",
        ("F[3,2,2,8,4]", *STACKED[1:]),
        {"layout": "bhsd"},
        data={2: below(5)},
    ),
    Case("update_pages", PAGES, data={2: lambda _: np.array([1, 4], np.int32), 4: from_one}),
    Case("gather_pages", (PAGES[0], *PAGES[3:]), data={2: below(7)}),
    Case("attention", QKV, SCALE),
    Case("attention", QKV_T, {**SCALE, "layout": "bhsd", "causal": False}),
    Case("attention", QKV, {**SCALE, "causal": False, "window": 3}),
    Case(
        "attention",
        QKV,
        {**SCALE, "window": 4, "softcap": 2.0},
        {
            "positions": "i32[2,4]",
            "lengths": "i32[2]",
            "mask": "bool[2,1,4,6]",
            "bias": "F[4,1,6]",
            "sinks": "F[4]",
        },
        data={3: lambda t: counting(t) % 6, 4: lambda t: counting(t) + 4, 5: all_visible},
    ),
    Case("attention", QKV, {**SCALE, "causal": False}, {"mask": "bool[2,4,4,6]", "bias": "F[6]"}),
    Case("attention_partial", QKV, {**SCALE, "splits": 3}),
    Case(
        "attention_partial",
        QKV_T,
        {**SCALE, "splits": 2, "layout": "bhsd"},
        {"positions": "i32[2,4]", "lengths": "i32[2]"},
        data={3: counting, 4: counting},
    ),
    Case(
        "attention_merge",
        ("f32[3,2,4,4,6]", "f32[3,2,4,4]", "f32[3,2,4,4]"),
        {"dtype": np.dtype("float32")},
        data={2: positive},
    ),
    Case(
        "linear_attention",
        ("F[2,3,4,6]", "F[2,3,4,6]", "F[2,3,4,8]", "F[2,3,4]", "f32[2,4,6,8]"),
        data={3: positive},
    ),
    Case("moe_route", ("F[6,8]",), {"k": 2}),
    Case("moe_route", ("F[6,8]",), {"k": 3, "scoring": "softmax_topk"}),
    Case(
        "moe_route",
        ("F[6,8]",),
        {"k": 2, "scoring": "sigmoid", "groups": 4, "top_groups": 2, "scale": 2.5},
        {"bias": "f32[8]"},
    ),
    Case("moe_experts", EXPERTS, data={2: lambda t: counting(t) % 4}, shifted={"e": 2}),
    Case(
        "moe_experts",
        EXPERTS,
        {"activation": "gelu"},
        data={2: lambda t: counting(t) % 3},
        shifted={"e": 2},
    ),
    Case(
        "moe_experts",
        EXPERTS,
        {"activation": "clamped_swiglu"},
        {"gate_bias": "F[4,6]", "up_bias": "F[4,6]", "down_bias": "F[4,8]"},
        data={2: lambda t: counting(t) % 4},
        shifted={"e": 2},
    ),
    Case("quantize", ("F[8,4]",), {"dtype": np.dtype("int8")}),
    Case("quantize", ("F[8,4]",), {"dtype": jnp.int4, "axis": -1}),
    Case("quantize", ("F[2,8,4]",), {"dtype": jnp.float8_e4m3fn, "axis": 1}),
    Case("quantize", ("F[8,4]",), {"dtype": jnp.float8_e5m2}),
    Case("dequantize", ("i8[8,4]", "f32[1,4]"), {"dtype": jnp.bfloat16}),
    Case("quantized_linear", ("F[2,8]", "i8[8,4]", "f32[1,4]")),
    Case("quantized_linear", ("F[2,8]", "i4[4,8]", "f32[4,1]"), {"transposed": True}),
    Case(
        "quantized_linear",
        ("F[2,8]", "f8e4m3fn[8,4]", "f32[1,4]"),
        optional={"bias": "F[4]"},
        not_summed=BIAS_ONCE,
    ),
    Case("sample", ("F[4,9]",)),
    Case(
        "sample",
        ("F[4,9]",),
        {"method": "categorical"},
        {"key": "key<fry>[]", "temperature": "f32[4]"},
        data={2: positive},
    ),
    Case("constant", (), {"value": np.arange(6, dtype=np.int16).reshape(2, 3)}),
    Case(
        "scan",
        ("F[4]", "F[4]", "F[3,4]"),
        {"consts": 1, "carry": 1, "length": 3},
        regions=_loop_body,
    ),
    Case(
        "while",
        ("F[]", "F[]", "F[]"),
        {"condition_consts": 1, "body_consts": 1},
        regions=_halve_until_small,
        data={
            0: lambda t: np.full((), 0.1, t.struct().dtype),
            1: lambda t: np.full((), 0.5, t.struct().dtype),
        },
    ),
    Case("cond", ("i32[]", "F[4]"), regions=_two_branches),
    Case("group", ("F[2,8]", "F[8,4]"), {"label": "mlp"}, regions=_same_region("linear")),
    Case("concat", ("F[2,3,4]", "F[2,1,4]"), {"axis": 1}),
    Case("concat", ("i8[2,4]",)),
    Case("split", ("F[2,6]",), {"sizes": (1, 2, 3)}),
    Case("split", ("F[6,4]",), {"sizes": (2, 4), "axis": 0}),
    Case("stack", ("F[2,4]", "F[2,4]", "F[2,4]")),
    Case("take_row", ("F[3,2,4]", "i32[]")),
    Case("transpose", ("F[2,4,6]",)),
    Case("transpose", ("F[2,4,6]",), {"permutation": (2, 0, 1)}),
    Case("reshape", ("F[2,4,6]",), {"shape": (8, 3), "keep": 1}),
    Case("reshape", ("F[2,4,6]",), {"shape": (-1,), "keep": -1}),
    Case("prepared", ("F[4,6]",)),
    Case("prepared", ("F[4,6]",)),
    Case("scale_axis", ("F[4,6]", "f32[6]")),
    Case("scale_axis", ("F[4,6]", "F[4]"), {"axis": 0, "plus_one": True}),
    Case("cast", ("F[4]",), {"dtype": jnp.float16}),
    Case("cast", ("F[4]",), {"dtype": np.dtype("int32")}),
    Case("all_reduce", ("F[2,4]",), {"axis": AXIS, "size": 4}, mesh=4),
    Case("all_reduce", ("F[2,4]",), {"axis": AXIS, "size": 2, "reduction": "max"}, mesh=2),
    Case("all_gather", ("F[2,4]",), {"axis": AXIS, "size": 4, "dimension": 1}, mesh=4),
    Case("reduce_scatter", ("F[8,2]",), {"axis": AXIS, "size": 4}, mesh=4),
    Case("all_to_all", ("F[4,2]",), {"axis": AXIS, "size": 4, "split": 0, "join": 1}, mesh=4),
    Case(
        "collective_permute",
        ("F[2]",),
        {"axis": AXIS, "size": 4, "pairs": ((0, 1), (1, 2), (2, 3), (3, 0))},
        mesh=4,
    ),
]


def name(case: Case) -> str:
    """A readable test id."""
    details = [f"{key}={item}" for key, item in case.attributes.items()]
    return " ".join([case.op, *case.optional, *details])[:60]
