"""What JAX puts into jaxprs, read alike in JAX 0.10 and 0.12.

0.10 has the classes ClosedJaxpr and Jaxpr, 0.12 has one class, so jaxprs are told by duck typing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import jax
from jax import lax
from jax.extend.core import jaxpr_as_fun

from tkcc.ir.errors import LoweringError
from tkcc.ir.graph import Source
from tkcc.ir.refused import REFUSED
from tkcc.ir.types import TensorType, type_of

# Calls that only wrap a jaxpr, and the parameters that may hold it.
INLINED = {
    "jit",
    "pjit",
    "closed_call",
    "core_call",
    "call",
    "remat2",
    "remat",
    "checkpoint",
    "custom_jvp_call",
    "custom_vjp_call",
    "custom_vjp_call_jaxpr",
    "custom_vmap_call",
    "composite",
    "linear_call",
    "custom_partitioning",
    "remat_opt",
    "xla_metadata_call",
}
# Placement (which tkcc does itself) and notes to XLA: these return their operands.
IDENTITIES = {
    "device_put",
    "sharding_constraint",
    "layout_constraint",
    "reshard",
    "xla_metadata_value",
}
_BODY_PARAMETERS = ("call_jaxpr", "jaxpr", "fun_jaxpr", "call", "callee", "fwd_jaxpr")


def parts(closed: Any) -> tuple[Any, Sequence[Any]]:
    """(jaxpr with eqns, constants) of either JAX's closed or open jaxprs."""
    consts = getattr(closed, "consts", ()) or ()
    return getattr(closed, "jaxpr", closed), consts


def scan_counts(parameters: Any) -> tuple[int, int]:
    """(consts, carry): named in JAX 0.10; in 0.12 the shape of the input tree says it."""
    if "num_consts" in parameters:
        return int(parameters["num_consts"]), int(parameters["num_carry"])
    consts, carry, _ = parameters["ft_in"].unpack()
    return len(tuple(consts.vals)), len(tuple(carry.vals))


def single_predicate(parameters: Any) -> tuple[Any, Any, int, int]:
    """A while loop's condition and body, and how many constants each has.

    `vmap` leaves loops with one predicate per row. Such a loop runs while any predicate is true,
    and changes only the rows whose own one is; its body reads the condition's constants too.
    """
    condition, body = parameters["cond_jaxpr"], parameters["body_jaxpr"]
    first, second = parameters["cond_nconsts"], parameters["body_nconsts"]
    predicate = parts(condition)[0].outvars[0].aval
    if predicate.shape == ():
        return condition, body, first, second
    holds, step = jaxpr_as_fun(condition), jaxpr_as_fun(body)

    def any_holds(*inputs: Any) -> Any:
        return holds(*inputs)[0].any()

    def step_where_it_holds(*inputs: Any) -> Any:
        (rows,), carry = holds(*inputs[:first], *inputs[first + second :]), inputs[first + second :]
        return [
            _where(rows, new, old) for new, old in zip(step(*inputs[first:]), carry, strict=True)
        ]

    structs, own = _input_structs(condition), _input_structs(body)[:second]
    changed = jax.make_jaxpr(step_where_it_holds)(*structs[:first], *own, *structs[first:])
    return jax.make_jaxpr(any_holds)(*structs), changed, first, first + second


def _where(rows: Any, new: Any, old: Any) -> Any:
    return lax.select(lax.broadcast_in_dim(rows, new.shape, range(rows.ndim)), new, old)


def _input_structs(closed: Any) -> list[jax.ShapeDtypeStruct]:
    return [aval_type(variable).struct() for variable in parts(closed)[0].invars]


def body_of(equation: Any) -> Any:
    for key in _BODY_PARAMETERS:
        if key in equation.params:
            return equation.params[key]
    raise LoweringError(
        f"{equation.primitive.name} holds no jaxpr that tkcc knows",
        remedy="report the primitive and the JAX version",
    )


def expanded(equation: Any) -> Any:
    """The body of one of JAX's high-level primitives, traced from its own definition."""
    primitive = equation.params["_prim"]

    def body(*leaves: Any) -> Any:
        inputs = jax.tree.unflatten(primitive.in_tree, leaves)
        return jax.tree.leaves(primitive.expand(*inputs))

    structs = [aval_type(variable).struct() for variable in equation.invars]
    return jax.make_jaxpr(body)(*structs)


def aval_type(variable: Any) -> TensorType:
    """The IR type of a jaxpr variable. Raises LoweringError for Refs and tokens."""
    aval = variable.aval
    if not hasattr(aval, "shape") or not hasattr(aval, "dtype"):
        raise LoweringError(f"a value of kind {aval} has no IR type", remedy="pass arrays only")
    return type_of(aval)


def is_closed(value: Any) -> bool:
    """0.10 tells closed from open jaxprs by class; in 0.12 there is one class."""
    return hasattr(value, "jaxpr")


def holds_jaxpr(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(holds_jaxpr(item) for item in value)
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")


def refuse(equation: Any, source: Source) -> None:
    name = equation.primitive.name
    if name in REFUSED:
        raise LoweringError(f"{name} cannot be lowered", where=str(source), remedy=REFUSED[name])
    effects = sorted(type(effect).__name__ for effect in equation.effects)
    if effects and name not in INLINED and name not in ("scan", "while", "cond"):
        raise LoweringError(
            f"{name} has the effects {effects}",
            where=str(source),
            remedy="tkcc lowers pure functions; move the effect out of the function",
        )


def live_equations(jaxpr: Any, wanted: Sequence[bool]) -> list[tuple[Any, list[bool]]]:
    """The equations that a wanted output needs (or that have effects), with their live results."""
    live = {v for v, keep in zip(jaxpr.outvars, wanted, strict=True) if keep and not _literal(v)}
    kept: list[tuple[Any, list[bool]]] = []
    for equation in reversed(jaxpr.eqns):
        results = [variable in live for variable in equation.outvars]
        if any(results) or equation.effects:
            kept.append((equation, results))
            live.update(v for v in equation.invars if not _literal(v))
    return kept[::-1]


def _literal(variable: Any) -> bool:
    return hasattr(variable, "val")


def join_paths(path: str, stack: str) -> str:
    return "/".join(part for part in (path, stack) if part)


_FILES: dict[int, tuple[Any, str]] = {}


def file_of(equation: Any) -> str:
    """`folder/file.py:line` of the user's code (no absolute paths: they are not portable)."""
    traceback = equation.source_info.traceback
    if traceback is None:
        return ""
    cached = _FILES.get(id(traceback))
    if cached is not None and cached[0] is traceback:
        return cached[1]
    from jax._src import source_info_util

    text = ""
    for frame in source_info_util.user_frames(traceback):
        name = frame.file_name.replace(os.sep, "/")
        text = f"{'/'.join(name.split('/')[-2:])}:{frame.start_line}"
        if not name.endswith("/ir/functional.py"):
            break  # a tag is called by the line that the user wants to see
    if len(_FILES) > 100_000:
        _FILES.clear()
    _FILES[id(traceback)] = (traceback, text)
    return text
