"""Import is total: every program lowers, means the same, and survives its text."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.frontends.programs import PROGRAMS
from tests.frontends.programs.program import LARGE, VECTOR, Program, X
from tests.frontends.unreached import UNREACHED
from tests.ir.samples import assert_round_trips
from tests.quick import quick_jit
from tests.tolerances import assert_same_program
from tkcc.frontends.lowering import lower
from tkcc.ir.evaluate import evaluate
from tkcc.ir.graph import Function, Module


def inputs_of(module: Module, args: tuple[Any, ...]) -> list[Any]:
    """The arguments' leaves, then the values of captured constants."""
    given = iter(jax.tree.leaves(args))
    f = module.function()
    return [
        next(given) if role == "arg" else module.values[value.name]
        for value, role in zip(f.inputs, f.roles, strict=True)
    ]


def allowed(program: Program) -> contextlib.AbstractContextManager[Any]:
    return jax.enable_x64(True) if program.wide else contextlib.nullcontext()


@functools.cache
def imported(name: str) -> Module:
    program = PROGRAMS[name]
    with allowed(program):
        return lower(program.call, *program.args, recognise=False)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_means_the_same_after_import(name: str) -> None:
    program, module = PROGRAMS[name], imported(name)
    with allowed(program):
        f = module.function()
        got = quick_jit(lambda *xs: evaluate(f, xs))(*inputs_of(module, program.args))
        want = jax.tree.leaves(quick_jit(program.call)(*program.args))
        for a, b in zip(got, want, strict=True):
            assert_same_program(a, b)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_survives_its_text_whatever_types_jax_allows(name: str) -> None:
    assert_round_trips(imported(name))


def _called(program: Program) -> Iterator[str]:
    """The primitives of the traced program, those that import replaces by their bodies too."""
    with allowed(program):
        yield from _primitives(jax.make_jaxpr(program.call)(*program.args))


def _primitives(closed: Any) -> Iterator[str]:
    for equation in getattr(closed, "jaxpr", closed).eqns:
        yield equation.primitive.name
        for item in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_jaxpr):
            if _is_jaxpr(item):
                yield from _primitives(item)


def _is_jaxpr(item: Any) -> bool:
    return hasattr(item, "eqns") or hasattr(item, "jaxpr")


PRINT_REGISTRY = "from tkcc.ir.lax_op import primitive_names; print(*primitive_names())"


def _registry() -> set[str]:
    """JAX's primitives in a process of its own: other tests of this one import more of JAX."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", PRINT_REGISTRY]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_every_primitive_is_reached_or_has_a_reason_not_to_be() -> None:
    reached = {name for program in PROGRAMS.values() for name in _called(program)}
    for name in PROGRAMS:
        reached |= {node.op.removeprefix("lax.") for node in imported(name).function().walk()}
    registry = _registry()
    assert len(registry) > 200
    assert registry - reached - set(UNREACHED) == set()


def ops(f: Function) -> list[str]:
    return [node.op for node in f.nodes]


def test_dead_equations_are_dropped_at_import() -> None:
    def f(x: Any) -> Any:
        jnp.linalg.svd(x)  # nobody reads it
        return jax.jit(lambda y: (jnp.exp(y), -y))(x)[1]

    assert ops(lower(f, X, recognise=False).function()) == ["lax.neg"]


def test_dead_results_of_loops_are_dropped_at_import() -> None:
    def f(x: Any) -> Any:
        return lax.scan(lambda c, row: (c + row, jnp.exp(row)), x[0], x)[0]

    (zero_or_scan,) = lower(f, X, recognise=False).function().nodes[-1:]
    assert [inner.op for inner in zero_or_scan.regions[0].nodes] == ["lax.add"]
    assert len(zero_or_scan.results) == 1


def test_small_constants_are_constants_and_large_ones_parameters() -> None:
    small = jnp.arange(64.0)
    large = np.arange(65, dtype=np.float32)
    module = lower(lambda x: (x + small, x[0] + large, x[1] * large), jnp.ones(64), recognise=False)
    f = module.function()
    assert [v.name for v in f.inputs_of("param")] == ["const0"]
    np.testing.assert_array_equal(module.values["const0"], large)
    assert sum(node.op == "constant" for node in f.nodes if node.results[0].type.size == 64) == 1


def test_one_large_array_is_one_parameter_wherever_it_is_read() -> None:
    weight = jnp.asarray(LARGE)

    def f(v: Any) -> Any:
        looped = lax.fori_loop(0, 3, lambda i, c: jnp.tanh(c @ weight), v)
        return lax.cond(v[0] > 0, lambda: looped @ weight, lambda: looped)

    module = lower(f, LARGE[0].copy(), recognise=False)
    assert list(module.parameters) == ["const0"]
    assert list(module.values) == ["const0"]


def test_a_captured_constant_gets_a_name_that_no_argument_has() -> None:
    module = lower(lambda const0: const0 @ LARGE, LARGE[0].copy(), recognise=False)
    assert [v.name for v in module.function().inputs] == ["const0", "const1"]


def test_provenance_is_the_named_scope_and_a_short_file_name() -> None:
    def f(x: Any) -> Any:
        with jax.named_scope("block"):
            return jax.jit(jax.named_call(lambda y: jnp.sin(y), name="wave"))(x)

    (node,) = lower(f, X, recognise=False).function().nodes
    assert node.source.path.startswith("block")
    assert "wave" in node.source.path
    assert node.source.file.startswith("frontends/test_jaxpr.py:")


def test_while_loops_of_batched_predicates_have_one_predicate() -> None:
    def count(n: Any) -> Any:
        return lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * 2), (0, 1.0))

    limits = np.array([0, 3, 5], np.int32)
    module = lower(jax.vmap(count), limits, recognise=False)
    (loop,) = [node for node in module.function().nodes if node.op == "while"]
    assert [str(v.type) for v in loop.regions[0].outputs] == ["bool[]"]
    counts, powers = evaluate(module.function(), [jnp.asarray(limits)])
    np.testing.assert_array_equal(counts, limits)
    np.testing.assert_array_equal(powers, [1, 8, 32])


def test_constants_of_a_batched_predicate_reach_the_body() -> None:
    table = jnp.asarray(LARGE)

    def walk(i: Any) -> Any:
        def step(c: Any) -> Any:
            return c[0] + 1, c[1] + table[c[0], 1] ** 2

        return lax.while_loop(lambda c: table[c[0], 0] + c[1] < 2, step, (i, 0.0))

    starts = np.array([0, 1, 2], np.int32)
    module = lower(jax.vmap(walk), starts, recognise=False)
    got = evaluate(module.function(), inputs_of(module, (starts,)))
    for a, b in zip(got, jax.vmap(walk)(starts), strict=True):
        assert_same_program(a, b)


def test_vectors_of_64_bits_need_no_setting_to_be_read_again() -> None:
    text = assert_round_trips(imported("arithmetic: float64"))
    assert "f64[3,4]" in text


def test_literals_are_shared() -> None:
    module = lower(lambda v: v * 2 + v / 2 - 2, VECTOR, recognise=False)
    assert ops(module.function()).count("constant") == 1
