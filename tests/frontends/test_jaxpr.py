"""Import is total: every program lowers, means the same, and survives its text."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import pytest

from tests.frontends.programs import PROGRAMS
from tests.frontends.programs.program import Program
from tests.ir.samples import assert_round_trips
from tests.quick import quick_jit
from tests.tolerances import assert_same_program
from tkcc.frontends.lowering import lower
from tkcc.ir.evaluate import evaluate
from tkcc.ir.graph import Module


def lowered(program: Program) -> Module:
    return lower(program.call, *program.args, recognise=False)


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


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_means_the_same_after_import(name: str) -> None:
    program = PROGRAMS[name]
    with allowed(program):
        module = lowered(program)
        f = module.function()
        got = quick_jit(lambda *xs: evaluate(f, xs))(*inputs_of(module, program.args))
        want = jax.tree.leaves(quick_jit(program.call)(*program.args))
        assert len(got) == len(want)
        for a, b in zip(got, want, strict=True):
            assert_same_program(a, b)
    assert_round_trips(module)
