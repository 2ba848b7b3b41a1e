"""Structural hashes: the same everywhere for the same program, different for different ones."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ir.samples import function, functions, one_node, small_module, value
from tkcc.ir.graph import Function, Module, Source, Value
from tkcc.ir.hashing import function_hash, module_hash, node_key
from tkcc.ir.op import build
from tkcc.ir.text import parse_module, print_module

# What the text form and the meaning of a program are: a change of this number invalidates caches
# and saved candidates, so it is made on purpose.
SMALL_HASH = "823423aad71d4fa39b24a4754d880529024c84903e0f9a62994b9bfad708d80d"
ROOT = Path(__file__).parents[2]
HASH_OF_STDIN = """
import sys
from tkcc.ir.hashing import module_hash
from tkcc.ir.text import parse_module
print(module_hash(parse_module(sys.stdin.read())))
"""


@pytest.mark.parametrize("seed", ["0", "1234"])
def test_the_hash_is_the_same_in_every_process(seed: str) -> None:
    module = small_module()
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", HASH_OF_STDIN],
        input=print_module(module),
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == module_hash(module) == SMALL_HASH


def _branch() -> Function:
    """y = -a + |b|, and a dead node."""
    a, b = value("f32[3]", "a"), value("f32[3]", "b")
    left, right = build("lax.neg", a), build("lax.abs", b)
    total = build("lax.add", left.result, right.result)
    return function((a, b), (left, right, total, build("lax.sign", a)), total.result)


def _renamed(f: Function) -> Function:
    for v in f.inputs:
        v.name += "_renamed"
    return f.replace(output_names=("y",))


def _with_sources(f: Function) -> Function:
    source = Source("here", "file.py:1", ("rule#1",))
    return f.replace(nodes=tuple(node.replace(source=source) for node in f.nodes))


def _reordered(f: Function) -> Function:
    left, right, *rest = f.nodes
    return f.replace(nodes=(right, left, *rest))


def _without_dead(f: Function) -> Function:
    return f.replace(nodes=f.nodes[:3])


@pytest.mark.parametrize("change", [_renamed, _with_sources, _reordered, _without_dead])
def test_names_provenance_order_and_dead_nodes_do_not_count(
    change: Callable[[Function], Function],
) -> None:
    assert function_hash(change(_branch())) == function_hash(_branch())


def _typed(dtype: str, role: str = "arg", outputs: int = 1, alias: bool = False) -> Function:
    x = value(f"{dtype}[3]")
    node = build("lax.neg", x)
    aliases = ((0, 0),) if alias else ()
    return Function((x,), (node,), (node.result,) * outputs, (role,), aliases)


def _constant(array: np.ndarray) -> Function:
    return one_node(build("constant", attributes={"value": array}))


def _norm(**attributes: object) -> Function:
    return one_node(build("rms_norm", value("f32[2]"), value("f32[2]"), attributes=attributes))


def _loop(body_op: str, **attributes: object) -> Function:
    x = value("f32[3]")
    y = value("f32[3]")
    step = build(body_op, y)
    given = {"carry": 1, "length": 4, **attributes}
    body = function((y,), (step,), step.result)
    return one_node(build("scan", x, attributes=given, regions=[body]))


def _optional(key: str) -> Function:
    shapes = {"positions": "i32[1,2]", "lengths": "i32[1]"}
    q, k, v = (value("f32[1,2,1,4]") for _ in range(3))
    given = {key: value(shapes[key])}
    return one_node(build("attention", q, k, v, optional=given, attributes={"scale": 1.0}))


DIFFERENT = [
    (_typed("f32"), _typed("bf16")),
    (_typed("f32"), _typed("f32", role="param")),
    (_typed("f32", role="param"), _typed("f32", role="state")),
    (_typed("f32", role="state"), _typed("f32", role="state", alias=True)),
    (_typed("f32"), _typed("f32", outputs=2)),
    (_norm(eps=1e-6), _norm(eps=1e-5)),
    (_norm(eps=1.0), _norm(eps=1)),
    (_norm(plus_one=True), _norm(plus_one=False)),
    (_constant(np.array([0.0])), _constant(np.array([-0.0]))),
    (_constant(np.zeros(2, np.int32)), _constant(np.zeros((2, 1), np.int32))),
    (_constant(np.zeros(4, np.int8)), _constant(np.zeros(4, np.uint8))),
    (_loop("lax.neg"), _loop("lax.abs")),
    (_loop("lax.neg"), _loop("lax.neg", length=5)),
    (_loop("lax.neg"), _loop("lax.neg", reverse=True)),
    (_optional("positions"), _optional("lengths")),
]


@pytest.mark.parametrize(("a", "b"), DIFFERENT)
def test_types_attributes_roles_aliases_and_regions_count(a: Function, b: Function) -> None:
    assert function_hash(a) != function_hash(b)


def _difference(swap: bool) -> Function:
    a, b = value("f32[]"), value("f32[]")
    node = build("lax.sub", b, a) if swap else build("lax.sub", a, b)
    return function((a, b), (node,), node.result)


def test_the_order_of_operands_counts() -> None:
    assert function_hash(_difference(False)) != function_hash(_difference(True))


def test_the_order_of_optional_operands_does_not_count() -> None:
    def attention(keys: tuple[str, ...]) -> str:
        inputs = {"positions": value("i32[1,2]"), "lengths": value("i32[1]")}
        q, k, v = (value("f32[1,2,1,4]") for _ in range(3))
        optional = {key: inputs[key] for key in keys}
        node = build("attention", q, k, v, optional=optional, attributes={"scale": 1.0})
        return function_hash(function((q, k, v, *inputs.values()), (node,), node.result))

    assert attention(("positions", "lengths")) == attention(("lengths", "positions"))


def test_a_module_hash_counts_function_names_but_not_their_order() -> None:
    f, g = _typed("f32"), _typed("bf16")
    assert module_hash(Module({"f": f, "g": g}, "one")) == module_hash(Module({"g": g, "f": f}))
    assert module_hash(Module({"f": f})) != module_hash(Module({"g": f}))


def test_a_deep_chain_is_hashed_without_recursion() -> None:
    first = v = value("f32[]")
    nodes = []
    for _ in range(5000):
        nodes.append(build("lax.neg", v))
        v = nodes[-1].result
    assert len(function_hash(function((first,), nodes, v))) == 64


def test_node_key_tells_equal_nodes_from_different_ones() -> None:
    x = value("f32[3]")
    assert node_key(build("lax.neg", x)) == node_key(build("lax.neg", x, source=Source("a")))
    assert node_key(build("lax.neg", x)) != node_key(build("lax.neg", Value(x.type)))
    one, true = ({"shape": (3,), "keep": n} for n in (0, False))
    assert node_key(build("reshape", x, attributes=one)) != node_key(
        build("reshape", x, attributes=true)
    )


@settings(max_examples=30)
@given(functions(1), st.randoms(use_true_random=False))
def test_any_topological_order_has_the_same_hash(f: Function, random: object) -> None:
    assert function_hash(_shuffled(f, random)) == function_hash(f)


def _shuffled(f: Function, random: object) -> Function:
    left, done, order = list(f.nodes), set(f.inputs), []
    while left:
        ready = [node for node in left if done.issuperset(node.operands)]
        node = random.choice(ready)  # type: ignore[attr-defined]
        left.remove(node)
        order.append(node)
        done.update(node.results)
    return f.replace(nodes=tuple(order))


def test_parsing_keeps_the_hash() -> None:
    module = small_module()
    assert module_hash(parse_module(print_module(module, sources=False))) == module_hash(module)
