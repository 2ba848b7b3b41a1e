"""What an op is, the registry of ops, and `build`, the only way to make a node.

An op's meaning is its `reference`, a JAX function. Result types are inferred from it, the
evaluator calls it, and every backend is compared with it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import jax

from tkcc.ir.attributes import format_attribute, freeze, thaw
from tkcc.ir.errors import IRError, TkccError
from tkcc.ir.factors import Factors
from tkcc.ir.graph import NO_SOURCE, Function, Node, Source, Value
from tkcc.ir.types import TensorType, type_of


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Any = _Required()

Attributes = Mapping[str, Any]


class Mismatch(Exception):
    """Raised by an op's `check`: what does not fit, and the operand it is about."""

    def __init__(self, what: str, remedy: str = "") -> None:
        self.what, self.remedy = what, remedy
        super().__init__(what)


def require(condition: bool, what: str, remedy: str = "") -> None:
    """For use in `Op.check`: refuse the node with a sentence in the user's terms."""
    if not condition:
        raise Mismatch(what, remedy)


class Op:
    """One op. Subclass it, fill the class fields, and `@register` it.

    `operands` are the required operand names; with `variadic` the last one repeats (one or more
    times). `optional` operands are given by keyword. `attributes` maps names to defaults
    (REQUIRED if there is none). `regions` names the regions an op needs; None means any number.
    """

    name: ClassVar[str] = ""
    operands: ClassVar[tuple[str, ...]] = ()
    variadic: ClassVar[bool] = False
    optional: ClassVar[tuple[str, ...]] = ()
    attributes: ClassVar[dict[str, Any]] = {}
    regions: ClassVar[tuple[str, ...] | None] = ()
    commutative: ClassVar[bool] = False

    def reference(self, *operands: Any, **attributes: Any) -> Any:
        """The op's meaning: arrays in, one array or a tuple out."""
        raise AssertionError(f"{self.name} has no reference")

    def check(self, types: Sequence[TensorType], attributes: Attributes) -> None:
        """Refuse operands that do not fit (with `require`), before types are inferred."""

    def infer(
        self,
        types: Sequence[TensorType],
        keys: tuple[str, ...],
        attributes: Attributes,
        regions: tuple[Function, ...],
    ) -> tuple[TensorType, ...]:
        """Result types; the default traces `reference` on abstract arrays."""
        structs = [type_.struct() for type_ in types]
        out = jax.eval_shape(lambda *xs: self.call(xs, keys, attributes, ()), *structs)
        return tuple(type_of(item) for item in as_tuple(out))

    def call(
        self,
        operands: Sequence[Any],
        keys: tuple[str, ...],
        attributes: Attributes,
        regions: Sequence[Callable[..., Any]],
    ) -> Any:
        """`reference` with a node's operands, optional operands by keyword."""
        split = len(operands) - len(keys)
        optional = dict(zip(keys, operands[split:], strict=True))
        return self.reference(*operands[:split], **optional, **attributes)

    def factors(self, node: Node) -> Factors | None:
        """How the op may be split over devices; None means that it may not be."""
        return None

    def flops(self, node: Node) -> int:
        """Floating-point operations; the default counts one per result element."""
        return sum(value.type.size for value in node.results)

    def complete(self, given: Attributes) -> dict[str, Any]:
        """`given` plus defaults. Raises Mismatch for unknown or missing attributes."""
        unknown = [key for key in given if key not in self.attributes]
        require(not unknown, f"no attribute {unknown}", f"{self.name} has {list(self.attributes)}")
        full = {**self.attributes, **given}
        missing = [key for key, value in full.items() if value is REQUIRED]
        require(not missing, f"attribute {missing} is missing", "every attribute without default")
        return full


_REGISTRY: dict[str, Op] = {}


def register(definition: type[Op]) -> type[Op]:
    """Class decorator: make the op known under its name."""
    assert definition.name not in _REGISTRY, f"op {definition.name} registered twice"
    _REGISTRY[definition.name] = definition()
    return definition


@functools.cache
def _load_all() -> None:
    import tkcc.ir.ops  # noqa: F401  (its modules register themselves)


def lookup(name: str) -> Op:
    """The op of that name. Raises IRError with the nearest known names."""
    if name in _REGISTRY:
        return _REGISTRY[name]
    _load_all()
    if name in _REGISTRY:
        return _REGISTRY[name]
    if name.startswith("lax."):
        from tkcc.ir.lax_op import lax_op

        definition = lax_op(name)
        if definition is not None:
            return _REGISTRY.setdefault(name, definition)
    raise IRError(f"unknown op {name!r}", remedy=f"did you mean {_nearest(name)}?")


def register_primitive(definition: Op) -> None:
    """Make an op for a JAX primitive met during import known."""
    _REGISTRY.setdefault(definition.name, definition)


def named_ops() -> dict[str, Op]:
    """The ops that are not `lax.*`, by name."""
    _load_all()
    return {name: op for name, op in _REGISTRY.items() if not name.startswith("lax.")}


def _nearest(name: str) -> str:
    import difflib

    from tkcc.ir.lax_op import primitive_names

    known = {*_REGISTRY, *(f"lax.{item}" for item in primitive_names())}
    return " or ".join(difflib.get_close_matches(name, known, n=3, cutoff=0.4)) or "nothing near"


def as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def build(
    op: str,
    *operands: Value,
    attributes: Attributes | None = None,
    optional: Mapping[str, Value | None] | None = None,
    regions: Sequence[Function] = (),
    source: Source = NO_SOURCE,
    results: Sequence[Value] | None = None,
) -> Node:
    """Make a node; its result types are inferred here, so an ill-typed node cannot exist.

    `optional` operands that are None are left out; the others stand in the order of the op's
    definition. `results`, if given, are the values that the node defines (their types must equal
    the inferred ones). Raises IRError with the line of IR, the model path and the remedy.
    """
    definition = lookup(op)
    given = {key: value for key, value in (optional or {}).items() if value is not None}
    present = {key: given[key] for key in _in_order(definition, given)}
    everything = (*operands, *present.values())
    try:
        frozen = _freeze_attributes(definition, attributes or {})
        _check_arity(definition, len(operands), present, len(regions))
        types = tuple(value.type for value in everything)
        out = _infer(definition, types, tuple(present), frozen, tuple(regions))
        _check_results(out, results)
    except Mismatch as error:
        where = _where(op, operands, present, attributes or {}, source)
        raise IRError(f"{op}: {error.what}", where=where, remedy=error.remedy) from None
    values = tuple(results) if results is not None else tuple(Value(type_) for type_ in out)
    return Node(op, everything, values, frozen, tuple(regions), tuple(present), source)


def _in_order(definition: Op, given: Attributes) -> list[str]:
    known = [key for key in definition.optional if key in given]
    return known + [key for key in given if key not in known]


def _freeze_attributes(definition: Op, attributes: Attributes) -> tuple[tuple[str, Any], ...]:
    full = definition.complete(attributes)
    return tuple((key, freeze(full[key], f"{definition.name}.{key}")) for key in sorted(full))


def _check_arity(definition: Op, count: int, present: Attributes, regions: int) -> None:
    wanted = len(definition.operands)
    if definition.variadic:
        require(count >= wanted, f"takes at least {wanted} operands, got {count}", "add operands")
    else:
        require(
            count == wanted,
            f"takes {wanted} operands ({', '.join(definition.operands)}), got {count}",
            "add or remove operands",
        )
    _check_regions(definition, regions)
    unknown = [key for key in present if key not in definition.optional]
    require(not unknown, f"no optional operand {unknown}", f"it has {list(definition.optional)}")


def _check_regions(definition: Op, count: int) -> None:
    if definition.regions is not None:
        names = ", ".join(definition.regions)
        require(
            count == len(definition.regions),
            f"takes {len(definition.regions)} regions ({names}), got {count}",
            "add or remove regions",
        )


def _check_results(out: Sequence[TensorType], results: Sequence[Value] | None) -> None:
    if results is None:
        return
    got = [value.type for value in results]
    require(
        list(out) == got,
        f"gives {_types(out)}, but {_types(got)} was written",
        "write the inferred type, or mend the operands",
    )


def _types(types: Sequence[TensorType]) -> str:
    return ", ".join(map(str, types)) or "nothing"


# What checks, references and JAX's own rules raise for operands and attributes that do not fit.
_UNFIT = (
    TypeError,
    ValueError,
    AttributeError,
    LookupError,
    ArithmeticError,
    AssertionError,
    RuntimeError,
)
_INFERRED: dict[Any, tuple[TensorType, ...]] = {}
_MAX_INFERRED = 100_000


def _infer(
    definition: Op,
    types: tuple[TensorType, ...],
    keys: tuple[str, ...],
    frozen: tuple[tuple[str, Any], ...],
    regions: tuple[Function, ...],
) -> tuple[TensorType, ...]:
    if regions:
        return _infer_uncached(definition, types, keys, frozen, regions)
    # By text, because 1 == True == 1.0 would share a cache entry.
    texts = tuple(map(_attribute_text, frozen))
    key = (definition.name, types, keys, texts, _has_64_bit_types())
    if key not in _INFERRED:
        if len(_INFERRED) >= _MAX_INFERRED:
            _INFERRED.clear()
        _INFERRED[key] = _infer_uncached(definition, types, keys, frozen, regions)
    return _INFERRED[key]


def _attribute_text(item: tuple[str, Any]) -> str:
    return f"{item[0]}={format_attribute(item[1])}"


def _infer_uncached(
    definition: Op,
    types: tuple[TensorType, ...],
    keys: tuple[str, ...],
    frozen: tuple[tuple[str, Any], ...],
    regions: tuple[Function, ...],
) -> tuple[TensorType, ...]:
    try:
        attributes = {key: thaw(value) for key, value in frozen}
        definition.check(types, attributes)
        with allow_64_bits(types, frozen):
            return definition.infer(types, keys, attributes, regions)
    except _UNFIT as error:
        raise Mismatch(
            f"operands {_types(types)} do not fit: {_first_line(error)}",
            "mend shapes, dtypes or attributes",
        ) from error
    except TkccError as error:
        raise Mismatch(error.what, error.remedy) from error


_64_BITS = re.compile(r"\b(?:[iuf]64|c128)\b")


def allow_64_bits(
    types: Sequence[TensorType], frozen: tuple[tuple[str, Any], ...]
) -> AbstractContextManager[Any]:
    """A context in which JAX keeps the 64-bit types that are written, whatever its setting."""
    texts = (*map(str, types), *map(_attribute_text, frozen))
    return jax.enable_x64(_has_64_bit_types() or any(map(_64_BITS.search, texts)))


def _has_64_bit_types() -> bool:
    return bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def _where(
    op: str,
    operands: Sequence[Value],
    present: Mapping[str, Value],
    attributes: Attributes,
    source: Source,
) -> str:
    """The line of IR that could not be built, the operands' types under it, and the source."""
    shown = [f"%{value.name or '?'}" for value in operands]
    shown += [f"{key}=%{value.name or '?'}" for key, value in present.items()]
    inner = ", ".join(f"{key}={_safe_text(value)}" for key, value in sorted(attributes.items()))
    types = _types([value.type for value in (*operands, *present.values())])
    return f"{op}({', '.join(shown)}) {{{inner}}}\noperands: {types}\n{source}"


def _safe_text(value: Any) -> str:
    try:
        return format_attribute(freeze(value))
    except IRError:
        return repr(value)


def rebuild(
    node: Node,
    operands: Sequence[Value] | None = None,
    regions: Sequence[Function] | None = None,
    attributes: Attributes | None = None,
    keep_results: bool = True,
) -> Node:
    """The node with changed operands, regions or attributes, type-checked again.

    With `keep_results` the result values live on if their types did not change.
    """
    given = tuple(operands) if operands is not None else node.operands
    split = len(given) - len(node.keys)
    made = build(
        node.op,
        *given[:split],
        attributes={**dict(node.attributes), **(attributes or {})},
        optional=dict(zip(node.keys, given[split:], strict=True)),
        regions=node.regions if regions is None else regions,
        source=node.source,
    )
    same = [v.type for v in made.results] == [v.type for v in node.results]
    return made.replace(results=node.results) if keep_results and same else made
