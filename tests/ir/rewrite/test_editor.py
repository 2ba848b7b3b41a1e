"""The editor: use lists, replacing values, dropping dead nodes, order, parameters."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ir.rewrite.texts import function_of, named, node, ops
from tests.ir.samples import function, functions, value
from tkcc.ir.errors import IRError
from tkcc.ir.graph import Function, Node, Source, Value
from tkcc.ir.hashing import function_hash
from tkcc.ir.op import build
from tkcc.ir.rewrite.editor import Editor
from tkcc.ir.text import print_function

SQUARES = """
  arg %x: f32[4]
  arg %y: f32[4]
  %a: f32[4] = lax.neg(%x)
  %b: f32[4] = lax.mul(%a, %a)
  %c: f32[4] = lax.add(%a, %y)
  %d: f32[4] = lax.sub(%b, %c)
  return %d, %b, %b
"""


def _edited() -> tuple[Editor, dict[str, Value]]:
    f = function_of(SQUARES)
    return Editor(f), named(f)


def _maker(editor: Editor, value: Value) -> Node:
    found = editor.node_of(value)
    assert found is not None
    return found


# --- reading -----------------------------------------------------------------------------------


def test_readers_are_listed_in_program_order_and_once_each() -> None:
    editor, v = _edited()
    assert [n.op for n in editor.users(v["a"])] == ["lax.mul", "lax.add"]
    assert [n.op for n in editor.users(v["b"])] == ["lax.sub"]
    assert editor.users(v["d"]) == []
    assert editor.users(Value(v["a"].type)) == []


def test_a_use_is_a_reading_node_or_an_output() -> None:
    editor, v = _edited()
    counts = {name: editor.use_count(item) for name, item in v.items()}
    assert counts == {"x": 1, "y": 1, "a": 2, "b": 3, "c": 1, "d": 1}


def test_readers_of_one_op_are_found_without_the_others() -> None:
    editor, v = _edited()
    assert [n.results[0].name for n in editor.users_with_op(v["a"], "lax.add")] == ["c"]
    assert editor.count_users_with_op(v["a"], "lax.mul") == 1
    assert editor.count_users_with_op(v["a"], "lax.sub") == 0
    editor.replace(v["a"], v["x"])
    assert editor.count_users_with_op(v["a"], "lax.mul") == 0
    assert [n.results[0].name for n in editor.users_with_op(v["x"], "lax.add")] == ["c"]


def test_nodes_are_found_by_result_and_by_op() -> None:
    editor, v = _edited()
    pieces = editor.add("split", v["x"], attributes={"sizes": (1, 3)})
    assert editor.node_of(v["x"]) is None
    assert _maker(editor, v["c"]).op == "lax.add"
    assert [editor.result_index(piece) for piece in pieces] == [0, 1]
    assert editor.nodes_with_op("split") == [_maker(editor, pieces[1])]
    assert editor.nodes_with_op("lax.exp") == []


def test_a_constant_is_read_as_an_array_and_other_values_are_none() -> None:
    f = function_of("  %k: i32[2] = constant() {value=i32[2](3, 4)}\n  return %k")
    editor = Editor(f)
    np.testing.assert_array_equal(editor.constant(f.outputs[0]), [3, 4])
    editor, v = _edited()
    assert editor.constant(v["x"]) is None
    assert editor.constant(v["a"]) is None


def test_depends_on_follows_operands_and_counts_the_value_itself() -> None:
    editor, v = _edited()
    assert editor.depends_on([v["d"]], [v["y"]])
    assert editor.depends_on([v["b"]], [v["b"]])
    assert editor.depends_on([v["y"], v["b"]], [v["a"], v["c"]])
    assert not editor.depends_on([v["b"]], [v["y"], v["c"], v["d"]])
    assert not editor.depends_on([], [v["x"]])


# --- replacing ---------------------------------------------------------------------------------


def test_replacing_a_value_changes_every_reader_and_every_output() -> None:
    editor, v = _edited()
    editor.replace(v["b"], v["y"])
    edited = editor.freeze()
    assert edited.outputs == (v["d"], v["y"], v["y"])
    assert node(edited, "lax.sub").operands == (v["y"], v["c"])
    assert editor.use_count(v["y"]) == 4


def test_what_only_a_replaced_value_needed_is_dropped() -> None:
    editor, v = _edited()
    editor.replace(v["a"], v["y"])
    assert ops(editor.freeze()) == ["lax.mul", "lax.add", "lax.sub"]
    editor.replace(v["c"], v["y"])
    assert ops(editor.freeze()) == ["lax.mul", "lax.sub"]
    assert not editor.holds(node(editor.function, "lax.neg"))


def test_a_node_stays_while_one_of_its_results_is_read() -> None:
    x = value("f32[4]", "x")
    pieces = build("split", x, attributes={"sizes": (2, 2)})
    total = build("lax.add", *pieces.results)
    editor = Editor(function([x], [pieces, total], total.result))
    editor.replace(pieces.results[0], pieces.results[1])
    assert editor.holds(pieces)
    assert editor.freeze().nodes[1].operands == (pieces.results[1],) * 2


def test_dropping_leaves_outputs_and_read_values_alone() -> None:
    editor, v = _edited()
    for item in v.values():
        editor.drop_if_dead(item)
    assert editor.freeze().nodes == editor.function.nodes


def test_replacing_a_value_by_itself_changes_nothing() -> None:
    editor, v = _edited()
    editor.replace(v["a"], v["a"])
    assert editor.freeze().nodes == editor.function.nodes


def test_a_replacement_of_another_type_is_refused() -> None:
    editor, v = _edited()
    (short,) = editor.add("cast", v["a"], attributes={"dtype": np.dtype("float16")})
    with pytest.raises(IRError, match=r"type f32\[4\] by one of type f16\[4\]") as caught:
        editor.replace(v["a"], short)
    assert "same types" in caught.value.remedy


def test_a_replacement_that_is_no_value_of_the_function_is_refused() -> None:
    editor, v = _edited()
    with pytest.raises(IRError, match="no value of the function"):
        editor.replace(v["a"], Value(v["a"].type))
    editor.replace(v["c"], v["y"])
    with pytest.raises(IRError, match="no value of the function"):
        editor.replace(v["b"], v["c"])


def test_values_replaced_together_are_dropped_only_when_all_are_replaced() -> None:
    f = function_of("""
      arg %x: f32[2]
      %p: f32[2] = lax.abs(%x)
      %q: f32[2] = lax.neg(%p)
      %r: f32[2] = lax.neg(%q)
      return %q, %r
    """)
    editor, v = Editor(f), named(f)
    (new,) = editor.add("lax.exp", v["x"])
    editor.replace_all({v["q"]: new, v["r"]: v["p"]})
    edited = editor.freeze()
    assert edited.outputs == (new, v["p"])
    assert sorted(ops(edited)) == ["lax.abs", "lax.exp"]


def test_two_values_that_replace_each_other_stay_defined() -> None:
    f = function_of("""
      arg %x: f32[2]
      %p: f32[2] = lax.neg(%x)
      %q: f32[2] = lax.neg(%x)
      return %p, %q
    """)
    editor, v = Editor(f), named(f)
    editor.replace_all({v["p"]: v["q"], v["q"]: v["p"]})
    edited = editor.freeze()
    assert set(edited.outputs) <= {value for n in edited.nodes for value in n.results}


def test_a_new_node_inherits_the_name_that_it_replaces() -> None:
    editor, v = _edited()
    (new,) = editor.add("lax.exp", v["x"])
    editor.replace(v["b"], new)
    assert new.name == "b"


def test_editing_does_not_rename_values_of_the_unedited_function() -> None:
    x, y = value("f32[2]", "x"), Value(value("f32[2]").type)
    total, product = build("lax.add", x, y), build("lax.mul", x, y)
    product.result.name = "product"
    f = function([x, y], [total, product], total.result, product.result)
    before = print_function(f)
    editor = Editor(f)
    editor.replace(product.result, total.result)
    assert print_function(f) == before
    assert editor.freeze().outputs == (total.result, total.result)


def test_a_changed_node_is_current_under_its_old_record() -> None:
    editor, v = _edited()
    old = _maker(editor, v["c"])
    editor.replace(v["a"], v["x"])
    assert editor.current(old).operands == (v["x"], v["y"])
    assert old.operands == (v["a"], v["y"])


def test_a_node_can_be_replaced_by_a_record_with_the_same_results() -> None:
    editor, v = _edited()
    old = _maker(editor, v["c"])
    editor.replace_node(old, old.replace(source=Source("layers.3")))
    edited = editor.freeze()
    assert ops(edited) == ops(editor.function)
    assert node(edited, "lax.add").source.path == "layers.3"


def test_added_nodes_carry_the_source_of_their_place_and_the_rewrite() -> None:
    x = value("f32[2]", "x")
    old = build("lax.neg", x, source=Source("mlp", "model.py:3", ("first#1",)))
    editor = Editor(function([x], [old], old.result))
    editor.at(old, "second#2")
    editor.add("lax.abs", x)
    assert [made.source for made in editor.added] == [
        Source("mlp", "model.py:3", ("first#1", "second#2"))
    ]
    editor.at(old, "")
    assert editor.added == []
    assert editor.source == old.source


def test_an_ill_typed_node_cannot_be_added() -> None:
    editor, v = _edited()
    with pytest.raises(IRError, match="lax.add"):
        editor.add("lax.add", v["x"], editor.add("cast", v["x"], attributes={"dtype": "i4"})[0])


# --- order -------------------------------------------------------------------------------------


def test_an_unedited_function_keeps_its_nodes_in_order() -> None:
    f = function_of(SQUARES)
    assert Editor(f).freeze().nodes == f.nodes


def test_new_nodes_stand_at_the_place_of_the_node_that_they_replace() -> None:
    editor, v = _edited()
    old = _maker(editor, v["c"])
    editor.at(old, "rule")
    (flipped,) = editor.add("lax.neg", v["y"])
    (total,) = editor.add("lax.sub", v["a"], flipped)
    editor.replace(v["c"], total)
    edited = editor.freeze()
    assert ops(edited) == ["lax.neg", "lax.mul", "lax.neg", "lax.sub", "lax.sub"]
    assert [n.results[0] for n in editor.nodes()] == [n.results[0] for n in edited.nodes]


def test_a_new_node_that_reads_a_later_value_moves_its_readers_behind_it() -> None:
    editor, v = _edited()
    editor.at(_maker(editor, v["b"]), "rule")  # b stands before c
    (new,) = editor.add("lax.exp", v["c"])
    editor.replace(v["b"], new)
    assert_topological(editor.freeze())
    assert ops(editor.freeze()) == ["lax.neg", "lax.add", "lax.exp", "lax.sub"]


def test_a_cycle_is_refused_when_frozen() -> None:
    editor, v = _edited()
    (after,) = editor.add("lax.exp", v["d"])
    editor.replace(v["a"], after)
    with pytest.raises(IRError, match="cycle"):
        editor.freeze()
    assert ops(editor.function) == ["lax.neg", "lax.mul", "lax.add", "lax.sub"]


def assert_topological(f: Function) -> None:
    known = set(f.inputs)
    for n in f.nodes:
        assert set(n.operands) <= known
        known |= set(n.results)
    assert set(f.outputs) <= known


@settings(max_examples=60)
@given(functions(), st.lists(st.integers(0, 10_000), max_size=6))
def test_rebuilding_any_nodes_keeps_the_program_and_a_valid_order(
    f: Function, choices: list[int]
) -> None:
    editor = Editor(f)
    for choice in choices:
        nodes = editor.nodes()
        if not nodes:
            break
        old = nodes[choice % len(nodes)]
        editor.at(old, "copy")
        made = editor.add(
            old.op, *old.operands, attributes=dict(old.attributes), regions=old.regions
        )
        editor.replace_all(dict(zip(old.results, made, strict=True)))
    edited = editor.freeze()
    assert_topological(edited)
    assert function_hash(edited) == function_hash(f)
    assert_indices_are_those_of(editor, edited)


def assert_indices_are_those_of(editor: Editor, edited: Function) -> None:
    """The kept-up indices equal those of a new editor on the edited function."""
    again = Editor(edited)
    values = {*edited.inputs, *(v for n in edited.nodes for v in n.results)}
    for item in values:
        assert set(editor.users(item)) == set(again.users(item))
        assert editor.use_count(item) == again.use_count(item)
    for op in {n.op for n in edited.nodes}:
        assert set(editor.nodes_with_op(op)) == set(again.nodes_with_op(op))


# --- parameters --------------------------------------------------------------------------------

PARAMETERS = """
  arg %x: f32[4]
  param %w: f32[4]
  state %s: f32[4]
  %one: f32[4] = constant() {value=f32[4](1, 1, 1, 1)}
  %derived: f32[4] = lax.neg(%w)
  %shifted: f32[4] = lax.add(%derived, %one)
  %twice: f32[4] = lax.add(%shifted, %w)
  %mixed: f32[4] = lax.mul(%twice, %x)
  %ones: f32[4] = lax.add(%one, %one)
  %stated: f32[4] = lax.add(%w, %s)
  return %mixed, %ones, %stated
"""


@pytest.mark.parametrize(
    ("name", "is_parameter"),
    [
        ("w", True),
        ("derived", True),
        ("shifted", True),
        ("twice", True),
        ("x", False),
        ("s", False),
        ("mixed", False),
        ("stated", False),
        ("one", False),
        ("ones", False),
    ],
)
def test_a_parameter_is_what_depends_on_parameters_and_constants_alone(
    name: str, is_parameter: bool
) -> None:
    f = function_of(PARAMETERS)
    assert Editor(f).is_parameter(named(f)[name]) is is_parameter


def test_the_caller_may_say_which_inputs_hold_parameters() -> None:
    f = function_of(PARAMETERS)
    v = named(f)
    editor = Editor(f, [v["s"]])
    assert editor.is_parameter(v["s"])
    assert not editor.is_parameter(v["twice"])


def test_added_values_are_parameters_if_their_operands_are() -> None:
    f = function_of(PARAMETERS)
    editor, v = Editor(f), named(f)
    joined = editor.add("concat", v["twice"], v["w"])[0]
    assert editor.is_parameter(joined)
    assert not editor.is_parameter(editor.add("concat", v["twice"], v["x"])[0])


def test_a_chain_of_any_length_is_followed() -> None:
    w = value("f32[1]", "w")
    nodes = []
    last = w
    for _ in range(5_000):
        nodes.append(build("lax.neg", last))
        last = nodes[-1].result
    f = Function((w,), tuple(nodes), (last,), ("param",))
    editor = Editor(f)
    assert editor.is_parameter(last)
    assert editor.depends_on([last], [w])
    assert editor.freeze().nodes == f.nodes
    editor.replace(last, w)
    assert editor.freeze().nodes == ()
