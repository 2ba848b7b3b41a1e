"""What a scan's steps share is read inside the loop and run outside."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from tests.ir.rules.raising import inputs_for, plain, run, struct
from tests.tolerances import assert_same_program
from tkcc.ir.graph import Module, Node
from tkcc.ir.passes.invariants import lift, sink

X, STEPS = struct("f32", 2, 6), 3


def loop(module: Module) -> Node:
    return next(n for n in module.function().nodes if n.op == "scan")


def inside(module: Module) -> set[str]:
    return {n.op.removeprefix("lax.") for n in loop(module).regions[0].walk()}


def outside(module: Module) -> set[str]:
    return {n.op.removeprefix("lax.") for n in module.function().nodes}


def assert_same(before: Module, after: Module) -> None:
    inputs = inputs_for(before.function(), {})
    pairs = zip(run(before.function(), inputs), run(after.function(), inputs), strict=True)
    for old, new in pairs:
        assert_same_program(new, old)


def with_angles(x: Any, positions: Any, w: Any) -> Any:
    cos, sin = jnp.cos(positions * 0.5), jnp.sin(positions * 0.5)

    def step(x: Any, m: Any) -> Any:
        return jnp.tanh(x * cos + x[:, ::-1] * sin) @ m, None

    return jax.lax.scan(step, x, w)[0]


def angles_module() -> Module:
    args = X, struct("f32", 6), struct("f32", STEPS, 6, 6)
    return plain(with_angles, *args, parameters=("w",))


def test_angles_are_copied_into_the_loop_and_moved_out_again():
    before = angles_module()
    assert {"cos", "sin"} <= outside(before)
    sunk = sink(before)
    assert {"cos", "sin"} <= inside(sunk)
    assert not {"cos", "sin"} & outside(sunk)
    assert_same(before, sunk)
    lifted = lift(sunk)
    assert not {"cos", "sin", "mul"} & (inside(lifted) - inside(before))
    assert {"cos", "sin"} <= outside(lifted)
    assert_same(before, lifted)


def test_a_mask_is_copied_into_the_loop():
    def f(x: Any, lengths: Any) -> Any:
        seen = jnp.arange(6) < lengths[:, None]
        return jax.lax.scan(lambda x, _: (jnp.where(seen, x * 2, x), None), x, None, length=2)[0]

    before = plain(f, X, struct("i32", 2))
    sunk = sink(before)
    assert "lt" in inside(sunk)
    assert_same(before, sunk)


def test_what_does_not_tell_anything_stays_outside():
    def f(x: Any, y: Any) -> Any:
        z = jnp.tanh(y) * 2
        return jax.lax.scan(lambda x, _: (x + z, None), x, None, length=2)[0]

    before = plain(f, X, X)
    assert inside(sink(before)) == inside(before)


def test_a_loop_in_a_loop():
    def f(x: Any, positions: Any) -> Any:
        cos = jnp.cos(positions)

        def outer(x: Any, _: Any) -> Any:
            return jax.lax.scan(lambda x, _: (x * cos, None), x, None, length=2)[0], None

        return jax.lax.scan(outer, x, None, length=2)[0]

    before = plain(f, X, struct("f32", 6))
    sunk = sink(before)
    inner = next(n for n in loop(sunk).regions[0].nodes if n.op == "scan")
    assert "lax.cos" in {n.op for n in inner.regions[0].nodes}
    assert_same(before, sunk)
    lifted = lift(sunk)
    assert "cos" not in inside(lifted)
    assert_same(before, lifted)


def test_large_products_of_parameters_alone_stay_in_the_loop():
    """To keep them for all steps would cost memory; `hoist` decides about parameters."""

    def f(w: Any, x: Any) -> Any:
        return jax.lax.scan(lambda x, _: (x @ (w * 2), None), x, None, length=2)[0]

    before = plain(f, struct("f32", 300, 300), struct("f32", 2, 300), parameters=("w",))
    lifted = lift(before)
    assert inside(lifted) == inside(before)


def test_results_that_are_invariant_are_still_results():
    def f(x: Any, y: Any) -> Any:
        return jax.lax.scan(lambda c, _: (c + 1, jnp.sin(y)), x, None, length=3)

    before = plain(f, X, X)
    lifted = lift(before)
    assert "sin" in outside(lifted)
    assert_same(before, lifted)
