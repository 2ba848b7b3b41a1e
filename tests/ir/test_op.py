"""Building nodes: arity, attributes, regions, lookup, rebuilding, and the registry."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ir.samples import function, type_from, value
from tkcc.ir.errors import IRError, ParseError
from tkcc.ir.evaluate import evaluate_node
from tkcc.ir.graph import Source
from tkcc.ir.lax_op import lax_op, op_of_primitive, primitive_names
from tkcc.ir.op import build, lookup, named_ops, rebuild
from tkcc.ir.text import parse_module


def _x() -> Any:
    return value("f32[2]", "x")


@pytest.mark.parametrize(
    ("make", "message", "remedy"),
    [
        (lambda: build("rms_norm", _x()), "takes 2 operands (x, w), got 1", "add or remove"),
        (lambda: build("concat"), "takes at least 1 operands, got 0", "add operands"),
        (lambda: build("softmax", _x(), attributes={"axis": 1}), "no attribute ['axis']", "has []"),
        (lambda: build("cast", _x()), "attribute ['dtype'] is missing", "without default"),
        (
            lambda: build("linear", _x(), value("f32[2,3]"), optional={"b": _x()}),
            "no optional operand ['b']",
            "it has ['bias']",
        ),
        (
            lambda: build("softmax", _x(), regions=[function((), ())]),
            "takes 0 regions (), got 1",
            "add or remove regions",
        ),
        (
            lambda: build("lax.neg", _x(), regions=[function((), ())]),
            "has 1 regions, but its attributes refer to []",
            "refer to every region",
        ),
        (
            lambda: build("softmax", _x(), results=[value("f32[3]")]),
            "gives f32[2], but f32[3] was written",
            "write the inferred type",
        ),
        (lambda: build("lax.add", _x(), value("i32[2]")), "do not fit", "mend"),
        (lambda: build("lax.add", _x()), "do not fit", "mend"),
        (lambda: build("lax.iota"), "missing 4 required", "mend"),
        (lambda: build("split", _x(), attributes={"sizes": 2}), "do not fit", "mend"),
    ],
)
def test_a_node_that_does_not_fit_is_refused_with_a_remedy(
    make: Any, message: str, remedy: str
) -> None:
    with pytest.raises(IRError) as error:
        make()
    assert message in error.value.what
    assert remedy in error.value.remedy
    assert "operands: " in error.value.where


@pytest.mark.parametrize(
    ("name", "near"),
    [("rms_nrm", "rms_norm"), ("lax.ad", "lax.add"), ("lax.", "lax.or"), ("@@@", "nothing near")],
)
def test_an_unknown_op_is_refused_with_the_nearest_names(name: str, near: str) -> None:
    with pytest.raises(IRError, match="unknown op") as error:
        lookup(name)
    assert near in error.value.remedy


def test_optional_operands_that_are_none_are_left_out() -> None:
    x, w, bias = value("f32[4]"), value("f32[4,2]"), value("f32[2]")
    node = build("linear", x, w, optional={"bias": None})
    assert (node.operands, node.keys) == ((x, w), ())
    assert node.optional("bias") is None
    node = build("linear", x, w, optional={"bias": bias})
    assert (node.operands, node.keys) == ((x, w, bias), ("bias",))
    assert node.positional == (x, w)
    assert node.optional("bias") is bias


def test_attributes_are_completed_frozen_and_sorted() -> None:
    node = build("rms_norm", _x(), _x(), attributes={"plus_one": True})
    assert node.attributes == (("eps", 1e-6), ("plus_one", True))
    assert node.attribute("eps") == 1e-6
    with pytest.raises(KeyError, match="no attribute 'scale'"):
        node.attribute("scale")


def test_types_of_equal_attributes_of_other_kinds_are_not_mixed_up() -> None:
    x = value("i8[2]")
    true = build("reshape", x, attributes={"keep": True, "shape": ()})
    one = build("reshape", x, attributes={"keep": 1, "shape": ()})
    assert true.attributes != one.attributes or str(true.attributes) != str(one.attributes)
    assert one.result.type == type_from("i8[2]")


def test_rebuild_keeps_results_while_types_stay() -> None:
    x, y = value("f32[4]"), value("bf16[4]")
    w = value("f32[4]")
    node = build("rms_norm", x, w, source=Source("norm"))
    same = rebuild(node, attributes={"eps": 1e-3})
    assert same.results == node.results
    assert same.attribute("eps") == 1e-3
    assert same.source == node.source
    other = rebuild(node, operands=(y, w))
    assert other.results != node.results
    assert other.result.type == type_from("bf16[4]")
    with pytest.raises(IRError):
        rebuild(node, operands=(x, y, w))


def test_rebuild_keeps_optional_operands_and_regions() -> None:
    x, w, bias = value("f32[4]"), value("f32[4,2]"), value("f32[2]")
    node = build("linear", x, w, optional={"bias": bias})
    assert rebuild(node).keys == ("bias",)
    body = function((w,), (), w)
    group = build("group", w, attributes={"label": "g"}, regions=[body])
    assert rebuild(group).regions == (body,)


def test_every_named_op_has_operands_docs_and_no_lax_prefix() -> None:
    for name, op in named_ops().items():
        assert op.name == name
        assert not name.startswith("lax.")
        assert type(op).__doc__


def test_a_primitive_is_found_by_name_even_after_it_was_once_unknown() -> None:
    from jax.extend.core import Primitive

    name = "tkcc_test_only"
    assert lax_op(f"lax.{name}") is None
    primitive = Primitive(name)
    primitive.def_abstract_eval(lambda x: x)
    op = op_of_primitive(primitive)
    assert op.name == f"lax.{name}"
    assert lax_op(op.name) is not None
    assert build(op.name, _x()).result.type == type_from("f32[2]")


@pytest.mark.parametrize("name", ["ffi_call", "pure_callback", "pallas_call", "swap"])
def test_text_cannot_name_a_primitive_that_runs_code_of_its_own(name: str) -> None:
    text = f'module "m"\n\nfunc main {{\n  arg %x: f32[3]\n  %y: f32[3] = lax.{name}(%x)\n'
    with pytest.raises(ParseError, match=f"lax.{name} cannot stand in a program"):
        parse_module(text + "  return %y\n}\n")


def test_a_primitive_with_effects_is_refused() -> None:
    from jax.extend.core import Primitive

    class Write:
        pass

    primitive = Primitive("tkcc_test_effect")
    primitive.def_effectful_abstract_eval(lambda x: (x, {Write()}))
    with pytest.raises(IRError, match=r"has the effects \['Write'\]"):
        build(op_of_primitive(primitive).name, _x())


@pytest.mark.parametrize("name", ["sin", "exp", "tanh", "log1p", "rsqrt"])
def test_accuracy_may_be_left_out(name: str) -> None:
    node = build(f"lax.{name}", _x())
    assert node.attribute("accuracy") is None
    (got,) = evaluate_node(node, [np.full(2, 0.5, np.float32)])
    np.testing.assert_allclose(
        got, getattr(np, name, lambda x: x**-0.5)(np.float32(0.5)), rtol=1e-6
    )


def test_a_primitive_that_borrows_a_name_of_jax_is_refused() -> None:
    from jax.extend.core import Primitive

    with pytest.raises(IRError, match="'add' is not JAX's own of that name"):
        op_of_primitive(Primitive("add"))


def test_the_registry_has_the_primitives_of_lax() -> None:
    names = set(primitive_names())
    assert {"add", "dot_general", "scatter-add", "conv_general_dilated", "fft", "lu"} <= names
    assert {"random_bits", "threefry2x32", "sort", "top_k", "ragged_dot_general"} <= names
