"""`lax.*` ops: JAX primitives one to one, found by name.

The reference binds the primitive itself. A parameter of a primitive that is a jaxpr becomes a
region of the node; it is turned back into a jaxpr when the primitive is bound.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import jax
import jax.extend as jex

from tkcc.ir.attributes import RegionReference
from tkcc.ir.errors import IRError
from tkcc.ir.factors import Factors
from tkcc.ir.graph import Function, Node
from tkcc.ir.lax_cost import lax_factors, lax_flops
from tkcc.ir.op import Attributes, Op, as_tuple, register_primitive, require
from tkcc.ir.refused import REFUSED
from tkcc.ir.types import TensorType, type_of

_COMMUTATIVE = {"add", "mul", "max", "min", "and", "or", "xor", "eq", "ne", "add_any"}

# Parameters that JAX derives from a jaxpr parameter, as a Python function; rebuilt when bound.
DERIVED_PARAMETERS = {"reduce": {"computation": "jaxpr"}}


class LaxOp(Op):
    """The op of one JAX primitive. Attributes are the primitive's parameters; all but `accuracy`
    are required."""

    variadic: ClassVar[bool] = True
    regions: ClassVar[None] = None

    def __init__(self, primitive: Any) -> None:
        self.primitive = primitive
        self.name = f"lax.{primitive.name}"  # type: ignore[misc]
        self.commutative = primitive.name in _COMMUTATIVE  # type: ignore[misc]
        if _takes_accuracy(primitive.name):
            # read by the lowering alone, which would notice its absence too late
            self.attributes = {"accuracy": None}  # type: ignore[misc]

    def complete(self, given: Attributes) -> dict[str, Any]:
        """JAX has no list of a primitive's parameters; its abstract evaluation asks for them."""
        return {**self.attributes, **given}

    def infer(
        self,
        types: Sequence[TensorType],
        keys: tuple[str, ...],
        attributes: Attributes,
        regions: tuple[Function, ...],
    ) -> tuple[TensorType, ...]:
        parameters = self._parameters(attributes, regions)
        structs = [type_.struct() for type_ in types]
        missing = [k for k, v in parameters.items() if isinstance(v, RegionReference)]
        require(
            not missing,
            f"attribute {missing} refers to a region that is not there",
            "regions are numbered from 0",
        )
        read = {reference.index for reference in _references(tuple(attributes.values()))}
        require(
            read == set(range(len(regions))),
            f"has {len(regions)} regions, but its attributes refer to {sorted(read)}",
            "refer to every region",
        )
        try:
            avals = [jax.core.ShapedArray(s.shape, s.dtype) for s in structs]
            out, effects = self.primitive.abstract_eval(*avals, **parameters)
            require(
                not effects, f"has the effects {_names(effects)}", "programs are pure functions"
            )
            out = out if self.primitive.multiple_results else (out,)
        except (KeyError, AttributeError) as error:
            raise TypeError(f"parameters {sorted(attributes)} are wrong: {error}") from error
        return tuple(type_of(item) for item in out)

    def call(
        self,
        operands: Sequence[Any],
        keys: tuple[str, ...],
        attributes: Attributes,
        regions: Sequence[Any],
    ) -> Any:
        return self.primitive.bind(*operands, **self._parameters(attributes, regions))

    def _parameters(self, attributes: Attributes, regions: Sequence[Any]) -> dict[str, Any]:
        jaxprs = [_closed_jaxpr(region) for region in regions]
        out = {key: _with_jaxprs(value, jaxprs) for key, value in attributes.items()}
        for name, origin in DERIVED_PARAMETERS.get(self.primitive.name, {}).items():
            out[name] = _as_callable(out[origin])
        return out

    def factors(self, node: Node) -> Factors | None:
        return lax_factors(node)

    def flops(self, node: Node) -> int:
        return lax_flops(node)


def _names(effects: Any) -> list[str]:
    return sorted(type(effect).__name__ for effect in effects)


def _closed_jaxpr(region: Function) -> Any:
    from tkcc.ir.evaluate import evaluate

    structs = [value.type.struct() for value in region.inputs]
    return jax.make_jaxpr(lambda *xs: evaluate(region, xs))(*structs)


def _references(value: Any) -> Iterator[RegionReference]:
    if isinstance(value, RegionReference):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _references(item)


def _with_jaxprs(value: Any, jaxprs: Sequence[Any]) -> Any:
    if isinstance(value, RegionReference) and value.index < len(jaxprs):
        closed = jaxprs[value.index]
        return closed if value.closed else closed.jaxpr
    if isinstance(value, tuple):
        items = [_with_jaxprs(item, jaxprs) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return value


def _as_callable(closed: Any) -> Callable[..., Any]:
    def computation(*operands: Any) -> Any:
        out = as_tuple(jex.core.jaxpr_as_fun(closed)(*operands))
        return out[0] if len(out) == 1 else out

    return computation


@functools.cache
def _primitives() -> dict[str, Any]:
    """Every JAX primitive of the lax, random and FFT modules, by name."""
    for module in ("fft", "linalg", "special", "ann", "windowed_reductions", "convolution"):
        importlib.import_module(f"jax._src.lax.{module}")
    found: dict[str, Any] = {}
    for name in sorted(sys.modules):
        if name.startswith(("jax._src.", "jax.extend.core.primitives")):
            for value in vars(sys.modules[name]).values():
                if isinstance(value, jex.core.Primitive):
                    found.setdefault(value.name, value)
    return found


def primitive_names() -> list[str]:
    return sorted(_primitives())


@functools.cache
def _takes_accuracy(name: str) -> bool:
    function = getattr(jax.lax, name, None)
    return callable(function) and "accuracy" in inspect.signature(function).parameters


def lax_op(name: str) -> LaxOp | None:
    """The op for `lax.<primitive>`, or None if this JAX has no such primitive.

    Raises IRError for a primitive that runs code which the IR cannot see.
    """
    short = name.removeprefix("lax.")
    if short in REFUSED:
        raise IRError(f"{name} cannot stand in a program", remedy=REFUSED[short])
    primitive = _primitives().get(short)
    return LaxOp(primitive) if primitive is not None else None


def op_of_primitive(primitive: Any) -> LaxOp:
    """The op of a primitive object met in a jaxpr. Raises IRError if the name is ambiguous."""
    known = _primitives().get(primitive.name)
    if known is not None and known is not primitive:
        raise IRError(
            f"primitive {primitive.name!r} is not JAX's own of that name",
            remedy="rename the custom primitive, or tag it with jax.lax.composite",
        )
    if known is None:
        _primitives()[primitive.name] = primitive
    definition = lax_op(f"lax.{primitive.name}")
    assert definition is not None
    return definition


def register_lax(definition: LaxOp) -> None:
    """Make the op findable by name in this process."""
    register_primitive(definition)
