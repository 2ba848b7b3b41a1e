"""`lower`: a JAX function or a Flax module becomes a module of the IR."""

from __future__ import annotations

import collections
import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from tkcc.frontends.equations import aval_type, parts
from tkcc.frontends.flax import Functional, functional, linen_call
from tkcc.frontends.jaxpr import Constants, Importer, all_live
from tkcc.ir.errors import IRError, LoweringError
from tkcc.ir.graph import ARGUMENT, PARAMETER, STATE, Function, Module, Value
from tkcc.ir.passes.clean import remove_dead
from tkcc.ir.types import type_of


@dataclasses.dataclass(frozen=True)
class Call:
    """One function to lower: the callable and its example arguments (arrays, ShapeDtypeStructs,
    or pytrees of them).

    `parameters` and `state` name arguments that hold parameters and state. The function must
    return the new state after its other outputs, in the order of `state`. `outputs` names the
    other outputs.
    """

    target: Callable[..., Any]
    args: tuple[Any, ...]
    parameters: Sequence[str] = ()
    state: Sequence[str] = ()
    outputs: Sequence[str] = ()


def lower(
    target: Any,
    *args: Any,
    parameters: Sequence[str] = (),
    state: Sequence[str] = (),
    outputs: Sequence[str] = (),
    name: str | None = None,
    function: str = "main",
    recognise: bool = True,
) -> Module:
    """The IR of `target` called with `args`.

    `target` is a JAX function, a Flax nnx module (or a bound method of one), or a linen module
    (then the first argument is its variables). Arrays give shapes and dtypes only; use
    `jax.ShapeDtypeStruct` to lower without data. nnx parameters become parameters under their
    path; other nnx variables become state. With `recognise`, plain code is raised to named ops.
    Raises LoweringError, naming the primitive or argument that cannot be lowered.
    """
    call = Call(target, args, parameters, state, outputs)
    return lower_functions({function: call}, name=name, recognise=recognise)


def lower_functions(
    calls: Mapping[str, Call], *, name: str | None = None, recognise: bool = True
) -> Module:
    """One module of several functions (`prefill`, `decode`) that share parameters by name.

    An array that several functions close over is one parameter, too.
    """
    flat = {key: _flatten(call) for key, call in calls.items()}
    leaves = [leaf for _, found in flat.values() for leaf in found]
    constants = Constants(taken={leaf.name for leaf in leaves})
    functions = {key: _trace(call, *flat[key], constants) for key, call in calls.items()}
    values = {leaf.name: leaf.value for leaf in leaves if leaf.role == PARAMETER}
    values.update(constants.values)
    title = name or _title(next(iter(calls.values())).target)
    module = Module(functions, title, {k: v for k, v in values.items() if _is_array(v)})
    _ = module.parameters, module.state  # raises if the functions disagree on a type
    if recognise:
        from tkcc.ir.passes.recognise import recognise as raise_ops

        module = raise_ops(module)
    return module


def _title(target: Any) -> str:
    owner = getattr(target, "__self__", None)
    name = getattr(target, "__name__", None) or type(target).__name__
    return type(owner).__name__ if owner is not None else name


def _is_array(value: Any) -> bool:
    return hasattr(value, "__array__") or isinstance(value, jax.Array)


@dataclasses.dataclass(frozen=True)
class _Leaf:
    """One flat input: its role, name, array (or struct), and the argument it is part of."""

    role: str
    name: str
    value: Any
    argument: str = ""


def _flatten(call: Call) -> tuple[Callable[..., Any], list[_Leaf]]:
    """The target as a function of flat inputs, and these."""
    pure = functional(call.target)
    flat, leaves = _plain_inputs(call) if pure is None else _nnx_inputs(pure, call)
    _check_names(leaves)
    return flat, leaves


def _trace(
    call: Call, flat: Callable[..., Any], leaves: Sequence[_Leaf], constants: Constants
) -> Function:
    structs = [_struct(leaf) for leaf in leaves]
    try:
        closed, shape = jax.make_jaxpr(flat, return_shape=True)(*structs)
    except jax.errors.JAXTypeError as error:
        raise LoweringError(
            f"the function cannot be traced: {str(error).splitlines()[0]}",
            remedy="it must be a pure JAX function of its arguments",
        ) from error
    function = _import(closed, leaves, constants)
    states = _in_order([leaf for leaf in leaves if leaf.role == STATE], call.state)
    function = _with_outputs(function, shape, states, call)
    return remove_dead(_drop_unused_parameters(function))


def _check_names(leaves: Sequence[_Leaf]) -> None:
    """Parameters and state are matched by name, so no two may share one."""
    counts = collections.Counter(leaf.name for leaf in leaves if leaf.role != ARGUMENT)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise LoweringError(
            f"two parameters or states are named {twice[0]!r}",
            remedy="rename the dictionary keys whose dotted paths are equal",
        )


def _struct(leaf: _Leaf) -> jax.ShapeDtypeStruct:
    if not hasattr(leaf.value, "shape") and not isinstance(leaf.value, (bool, int, float, complex)):
        raise LoweringError(
            f"argument {leaf.name} is a {type(leaf.value).__name__}, not an array",
            remedy="close over it, or pass arrays, numbers and pytrees of them",
        )
    is_struct = isinstance(leaf.value, jax.ShapeDtypeStruct)
    return type_of(leaf.value if is_struct else jax.typeof(leaf.value)).struct()


def _import(closed: Any, leaves: Sequence[_Leaf], constants: Constants) -> Function:
    jaxpr, _ = parts(closed)  # its types are those that JAX gives the arguments
    inputs = tuple(
        Value(aval_type(variable), leaf.name)
        for variable, leaf in zip(jaxpr.invars, leaves, strict=True)
    )
    importer = Importer(constants)
    try:
        outputs = importer.run(closed, inputs, "")
    except IRError as error:
        raise LoweringError(error.what, where=error.where, remedy=error.remedy) from error
    captured = tuple(importer.captured.values())
    roles = (*(leaf.role for leaf in leaves), *((PARAMETER,) * len(captured)))
    return Function((*inputs, *captured), tuple(importer.nodes), all_live(outputs), roles)


def _drop_unused_parameters(function: Function) -> Function:
    used = {value for node in function.nodes for value in node.operands} | set(function.outputs)
    keep = [
        i
        for i, (value, role) in enumerate(zip(function.inputs, function.roles, strict=True))
        if role != PARAMETER or value in used
    ]
    place = {old: new for new, old in enumerate(keep)}
    return function.replace(
        inputs=tuple(function.inputs[i] for i in keep),
        roles=tuple(function.roles[i] for i in keep),
        aliases=tuple((out, place[i]) for out, i in function.aliases),
    )


def _nnx_inputs(pure: Functional, call: Call) -> tuple[Callable[..., Any], list[_Leaf]]:
    names = _argument_names(call.target, len(call.args))
    argument_leaves, tree = _argument_leaves(call, names)
    parameters = [_Leaf(PARAMETER, name, value) for name, value in pure.parameters.items()]
    own_state = [_Leaf(STATE, name, value) for name, value in pure.state.items()]
    leaves = [*parameters, *own_state, *argument_leaves]
    first, second = len(parameters), len(parameters) + len(own_state)

    def flat(*values: Any) -> Any:
        held = dict(zip(pure.parameters, values[:first], strict=True))
        state = dict(zip(pure.state, values[first:second], strict=True))
        args = jax.tree.unflatten(tree, values[second:])
        outputs, changed = pure.call(held, state, *args)
        return outputs, [changed[name] for name in pure.state]

    return flat, leaves


def _plain_inputs(call: Call) -> tuple[Callable[..., Any], list[_Leaf]]:
    linen = linen_call(call.target)
    target = linen or call.target
    if not callable(target):
        raise LoweringError(
            f"{type(call.target).__name__} is not callable",
            remedy="pass a JAX function, a Flax module, or a bound method of one",
        )
    names = _argument_names(call.target, len(call.args))
    if linen is not None:
        call = dataclasses.replace(call, parameters=(*call.parameters, "variables"))
        names = ["variables", *[f"arg{i}" for i in range(1, len(call.args))]]
    leaves, tree = _argument_leaves(call, names)
    return lambda *values: (target(*jax.tree.unflatten(tree, values)), []), leaves


def _argument_names(target: Any, count: int) -> list[str]:
    """The names of the function's positional arguments (arg0, ... where it has none)."""
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        return [f"arg{i}" for i in range(count)]
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in signature.parameters.values() if p.kind in plain][:count]
    return names + [f"arg{i}" for i in range(len(names), count)]


def _argument_leaves(call: Call, names: list[str]) -> tuple[list[_Leaf], Any]:
    unknown = [name for name in (*call.parameters, *call.state) if name not in names]
    if unknown:
        raise LoweringError(f"no argument {unknown}", remedy=f"the arguments are {names}")
    leaves = []
    for name, value in zip(names, call.args, strict=True):
        role = PARAMETER if name in call.parameters else STATE if name in call.state else ARGUMENT
        for path, leaf in jax.tree_util.tree_leaves_with_path(value):
            leaves.append(_Leaf(role, name + _path_text(path), leaf, name))
    return leaves, jax.tree.structure(call.args)


def _path_text(path: Any) -> str:
    keys = [getattr(k, "key", getattr(k, "idx", getattr(k, "name", k))) for k in path]
    return "".join(f".{key}" for key in keys)


def _with_outputs(function: Function, shape: Any, states: Sequence[_Leaf], call: Call) -> Function:
    """Name outputs, and alias the new state to the state inputs."""
    returned, _ = shape
    own = len(function.outputs) - len(jax.tree.leaves(returned))  # nnx's own state comes last
    plain = len(function.outputs) - len(states)
    if plain < 0 or own > len(states):
        raise LoweringError(
            f"the function returns {len(function.outputs)} arrays for {len(states)} states",
            remedy="return the new value of every state argument, after the other outputs",
        )
    # Own (nnx) state stands first among the inputs but last among the outputs.
    order = [*states[own:], *states[:own]]
    at = {
        value.name: i
        for i, (value, role) in enumerate(zip(function.inputs, function.roles, strict=True))
        if role == STATE
    }
    aliases = tuple((plain + i, at[leaf.name]) for i, leaf in enumerate(order))
    _check_state_types(function, aliases)
    names = _output_names(returned, plain, call) + [leaf.name for leaf in order]
    return function.replace(aliases=aliases, output_names=tuple(names))


def _in_order(states: list[_Leaf], names: Sequence[str]) -> list[_Leaf]:
    """Own (nnx) state first, then that of the named arguments, in the order of `names`."""
    place = {name: position for position, name in enumerate(names)}
    return sorted(states, key=lambda leaf: place.get(leaf.argument, -1))


def _check_state_types(function: Function, aliases: Sequence[tuple[int, int]]) -> None:
    for output, position in aliases:
        old, new = function.inputs[position], function.outputs[output]
        if old.type != new.type:
            raise LoweringError(
                f"state {old.name} is {old.type}, but its new value is {new.type}",
                remedy="return new state last, in the order of `state`, with unchanged types",
            )


def _output_names(returned: Any, plain: int, call: Call) -> list[str]:
    if call.outputs:
        if len(call.outputs) != plain:
            raise LoweringError(
                f"{len(call.outputs)} output names for {plain} outputs",
                remedy="name every output but the state",
            )
        return list(call.outputs)
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(returned)][:plain]
    return [_path_text(path).lstrip(".") or "out" for path in paths]
