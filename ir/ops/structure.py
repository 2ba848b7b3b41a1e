"""Constants, control flow and groups: the ops with regions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import lax

from tkcc.ir.errors import IRError
from tkcc.ir.factors import Factors
from tkcc.ir.graph import Function, Node
from tkcc.ir.op import REQUIRED, Attributes, Op, as_tuple, register, require
from tkcc.ir.types import TensorType

Region = Callable[..., tuple[Any, ...]]


@register
class Constant(Op):
    """A small constant; larger ones are parameters. `value` is a dense attribute."""

    name = "constant"
    attributes: ClassVar[dict[str, Any]] = {"value": REQUIRED}

    def check(self, types: Sequence[TensorType], attributes: Attributes) -> None:
        value = attributes["value"]
        dense = isinstance(value, np.ndarray)
        require(dense, f"value is {value!r}, not a dense array", "write its type: f32[](1.0)")

    def reference(self, *operands: Any, **attributes: Any) -> Any:
        value = attributes["value"]
        array = jnp.asarray(value)
        if array.dtype != value.dtype:
            raise IRError(
                f"a constant of {value.dtype} became {array.dtype}",
                remedy="64-bit types need jax.enable_x64(True)",
            )
        return array

    def flops(self, node: Node) -> int:
        return 0


class RegionOp(Op):
    """An op whose meaning needs its regions."""

    def call(
        self,
        operands: Sequence[Any],
        keys: tuple[str, ...],
        attributes: Attributes,
        regions: Sequence[Any],
    ) -> Any:
        return self.run(operands, regions, **attributes)

    def run(self, operands: Sequence[Any], regions: Sequence[Region], **attributes: Any) -> Any:
        raise AssertionError(f"{self.name} has no meaning")


def _require_types(what: str, wanted: Sequence[TensorType], got: Sequence[TensorType]) -> None:
    wanted_text, got_text = ", ".join(map(str, wanted)), ", ".join(map(str, got))
    require(
        list(wanted) == list(got),
        f"{what} should be ({wanted_text}), but is ({got_text})",
        "mend the region or the operands",
    )


def _input_types(region: Function) -> list[TensorType]:
    return [value.type for value in region.inputs]


@register
class Scan(RegionOp):
    """Run `body` `length` times, as `jax.lax.scan`.

    Operands: `consts` values that every step sees, `carry` values that go from step to step, and
    the rest stacked along their first axis, one slice per step. The body takes (consts, carry,
    slices) and returns (carry, per-step results); the latter are stacked. `unroll` steps are laid
    out one after the other in one iteration of the loop.
    """

    name = "scan"
    variadic = True
    regions = ("body",)
    attributes: ClassVar[dict[str, Any]] = {
        "consts": 0,
        "carry": 0,
        "length": REQUIRED,
        "reverse": False,
        "unroll": 1,
    }

    def check(self, types: Sequence[TensorType], attributes: Attributes) -> None:
        consts, carry, length = (attributes[key] for key in ("consts", "carry", "length"))
        require(
            consts >= 0 and carry >= 0 and consts + carry <= len(types),
            f"has {len(types)} operands for consts={consts} and carry={carry}",
            "consts and carry count the first operands",
        )
        require(
            length >= 0 and attributes["unroll"] >= 1,
            f"length is {length} and unroll is {attributes['unroll']}",
            "length is at least 0, unroll at least 1",
        )
        for type_ in types[consts + carry :]:
            require(
                type_.rank > 0 and type_.shape[0] == length,
                f"a stacked operand is {type_}, but length is {length}",
                "its first dimension must be the length",
            )

    def infer(
        self,
        types: Sequence[TensorType],
        keys: tuple[str, ...],
        attributes: Attributes,
        regions: tuple[Function, ...],
    ) -> tuple[TensorType, ...]:
        (body,) = regions
        first, carry = attributes["consts"], attributes["carry"]
        slices = [t.with_shape(t.shape[1:]) for t in types[first + carry :]]
        _require_types("the body's inputs", [*types[: first + carry], *slices], _input_types(body))
        out = [value.type for value in body.outputs]
        _require_types(
            "the body's first outputs (the carry)", types[first : first + carry], out[:carry]
        )
        length = attributes["length"]
        return (*out[:carry], *(t.with_shape((length, *t.shape)) for t in out[carry:]))

    def run(self, operands: Sequence[Any], regions: Sequence[Region], **attributes: Any) -> Any:
        first, carry = attributes["consts"], attributes["carry"]
        consts = tuple(operands[:first])

        def step(state: Any, slices: Any) -> Any:
            out = regions[0](*consts, *state, *slices)
            return tuple(out[:carry]), tuple(out[carry:])

        state, stacked = lax.scan(
            step,
            tuple(operands[first : first + carry]),
            tuple(operands[first + carry :]),
            length=attributes["length"],
            reverse=attributes["reverse"],
            unroll=attributes["unroll"],
        )
        return (*state, *stacked)

    def flops(self, node: Node) -> int:
        from tkcc.ir.cost import function_cost

        return int(node.attribute("length")) * function_cost(node.regions[0]).flops


@register
class While(RegionOp):
    """Run `body` while `condition` is true, as `jax.lax.while_loop`.

    Operands: `condition_consts` values for the condition, `body_consts` for the body, then the
    carry. The trip count is unknown, so cost counts one iteration.
    """

    name = "while"
    variadic = True
    regions = ("condition", "body")
    attributes: ClassVar[dict[str, Any]] = {"condition_consts": 0, "body_consts": 0}

    def infer(
        self,
        types: Sequence[TensorType],
        keys: tuple[str, ...],
        attributes: Attributes,
        regions: tuple[Function, ...],
    ) -> tuple[TensorType, ...]:
        condition, body = regions
        first, second = attributes["condition_consts"], attributes["body_consts"]
        require(
            first >= 0 and second >= 0 and first + second <= len(types),
            f"has {len(types)} operands for condition_consts={first} and body_consts={second}",
            "they count the first operands",
        )
        carry = list(types[first + second :])
        _require_types("the condition's inputs", [*types[:first], *carry], _input_types(condition))
        _require_types("the condition's output", [TensorType("bool", ())], condition.output_types)
        body_inputs = [*types[first : first + second], *carry]
        _require_types("the body's inputs", body_inputs, _input_types(body))
        _require_types("the body's outputs (the carry)", carry, body.output_types)
        return tuple(carry)

    def run(self, operands: Sequence[Any], regions: Sequence[Region], **attributes: Any) -> Any:
        first, second = attributes["condition_consts"], attributes["body_consts"]
        for_condition, for_body = operands[:first], operands[first : first + second]
        return lax.while_loop(
            lambda carry: regions[0](*for_condition, *carry)[0],
            lambda carry: tuple(regions[1](*for_body, *carry)),
            tuple(operands[first + second :]),
        )

    def flops(self, node: Node) -> int:
        from tkcc.ir.cost import function_cost

        return sum(function_cost(region).flops for region in node.regions)


@register
class Cond(RegionOp):
    """Run the branch numbered by the first operand (an i32, clamped), as `jax.lax.switch`."""

    name = "cond"
    operands = ("index",)
    variadic = True
    regions = None

    def infer(
        self,
        types: Sequence[TensorType],
        keys: tuple[str, ...],
        attributes: Attributes,
        regions: tuple[Function, ...],
    ) -> tuple[TensorType, ...]:
        require(len(regions) > 0, "has no branch", "give at least one region")
        require(
            types[0] in (TensorType("i32", ()), TensorType("bool", ())),
            f"the index is {types[0]}, not i32[]",
            "convert it with lax.convert_element_type",
        )
        for number, region in enumerate(regions):
            _require_types(f"branch {number}'s inputs", types[1:], _input_types(region))
            _require_types(
                f"branch {number}'s outputs", regions[0].output_types, region.output_types
            )
        return regions[0].output_types

    def run(self, operands: Sequence[Any], regions: Sequence[Region], **attributes: Any) -> Any:
        index, *rest = operands
        return lax.switch(
            jnp.int32(index), [lambda *xs, r=r: tuple(r(*xs)) for r in regions], *rest
        )

    def flops(self, node: Node) -> int:
        from tkcc.ir.cost import function_cost

        return max(function_cost(region).flops for region in node.regions)


@register
class Group(RegionOp):
    """A region that a backend must emit as one kernel, or refuse. It means what its body means.

    `label` names the group for schedules; `kind` says what it holds (`elementwise`, `norm_linear`,
    `mlp`, `layer`, `step`, ...).
    """

    name = "group"
    variadic = True
    regions = ("body",)
    attributes: ClassVar[dict[str, Any]] = {"label": REQUIRED, "kind": "elementwise"}

    def infer(
        self,
        types: Sequence[TensorType],
        keys: tuple[str, ...],
        attributes: Attributes,
        regions: tuple[Function, ...],
    ) -> tuple[TensorType, ...]:
        _require_types("the body's inputs", types, _input_types(regions[0]))
        return regions[0].output_types

    def run(self, operands: Sequence[Any], regions: Sequence[Region], **attributes: Any) -> Any:
        return as_tuple(regions[0](*operands))

    def flops(self, node: Node) -> int:
        from tkcc.ir.cost import function_cost

        return function_cost(node.regions[0]).flops

    def factors(self, node: Node) -> Factors | None:
        """Those of the only node of the body, if each input goes into it once."""
        body = node.regions[0]
        if len(body.nodes) != 1:
            return None
        from tkcc.ir.op import lookup

        (inner,) = body.nodes
        found = lookup(inner.op).factors(inner)
        once = sorted(map(id, inner.operands)) == sorted(map(id, body.inputs))
        if found is None or not once or not set(body.outputs) <= set(inner.results):
            return None
        terms = dict(zip(inner.operands, found.operands, strict=True))
        terms.update(zip(inner.results, found.results, strict=True))
        return Factors(tuple(terms[v] for v in body.inputs), tuple(terms[v] for v in body.outputs))
