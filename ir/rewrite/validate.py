"""What a rule must satisfy beyond its grammar; each flaw is named with its place in the text."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Sequence

from jax import lax
from jax.extend.core import Primitive

from tkcc.ir.errors import RuleError, TkccError
from tkcc.ir.op import REQUIRED, Op, lookup
from tkcc.ir.rewrite.conditions import check_condition
from tkcc.ir.rewrite.expression import Expression, is_symbol
from tkcc.ir.rewrite.records import Pattern, PatternNode

MAX_OPTIONS = 64  # combinations of what `choose` allows; a rule is checked with each


class Flaw(RuleError):
    """A flaw of a rule; `at` is its place in the text, or None for the rule as a whole."""

    def __init__(self, what: str, at: int | None, remedy: str) -> None:
        super().__init__(what, remedy=remedy)
        self.at = at


def validate(pattern: Pattern) -> None:
    """Raise Flaw at the first thing that is wrong with a parsed rule."""
    given = _given_names(pattern)
    defined = _check_lines(pattern.match, given, "match")
    if not pattern.outputs:
        at = pattern.replace[0].at
        raise Flaw("replace redefines no value of match", at, "define what is replaced")
    made = _check_lines(pattern.replace, defined, "replace", pattern.outputs)
    _check_given_is_read(pattern)
    _check_connected(pattern)
    _check_conditions(pattern, defined)
    bound = _bound_names(pattern)
    for line in pattern.match:
        _check_expressions([e for _, e in line.attributes], bound, defined, line.at)
    for line in pattern.replace:
        _check_expressions([e for _, e in line.attributes], bound, made, line.at)
    for condition in pattern.conditions:
        _check_expressions(condition.expressions, bound, defined, condition.at)
    _check_header(pattern)


def _check_header(pattern: Pattern) -> None:
    if pattern.kind == "approximate" and not 0 < pattern.error < 1:
        what = "an approximate rule states its relative error, between 0 and 1"
        raise Flaw(what, None, "add: error 0.01")
    names = [name for name, _ in (*pattern.choices, *pattern.samples)]
    if len(set(names)) < len(names):
        raise Flaw("choose or sample names a variable twice", None, "list all of its values once")
    options = math.prod(len(values) for _, values in pattern.choices)
    if options > MAX_OPTIONS:
        raise Flaw(f"choose allows {options} combinations", None, f"at most {MAX_OPTIONS}")


# --- values ------------------------------------------------------------------------------------


def _given_names(pattern: Pattern) -> set[str]:
    names: set[str] = set()
    for name, wanted in pattern.given:
        if name in names:
            raise Flaw(f"%{name} is given twice", wanted.at, "give each value one type")
        names.add(name)
    return names


def _check_given_is_read(pattern: Pattern) -> None:
    read = {name for line in pattern.match for name in line.read}
    for name, wanted in pattern.given:
        if name not in read:
            raise Flaw(f"match does not read %{name}", wanted.at, "leave it out of given")


def _check_lines(
    nodes: Sequence[PatternNode], known: set[str], section: str, redefine: Collection[str] = ()
) -> set[str]:
    """The known names and those that the lines define."""
    fresh: set[str] = set()
    for node in nodes:
        for name in node.read:
            if name not in known and name not in fresh:
                raise Flaw(f"{section}: %{name} is not defined", node.at, "list it in given")
        _check_op(node, section)
        for name in node.results:
            if name in fresh or (name in known and name not in redefine):
                raise Flaw(f"{section}: %{name} is defined twice", node.at, "choose other names")
            fresh.add(name)
    return known | fresh


def _check_connected(pattern: Pattern) -> None:
    """Every pattern node must be reachable from the anchor over shared values."""
    reached = {pattern.anchor}
    frontier = [pattern.anchor]
    while frontier:
        names = _names(pattern.match[frontier.pop()])
        for index, node in enumerate(pattern.match):
            if index not in reached and names & _names(node):
                reached.add(index)
                frontier.append(index)
    for index, node in enumerate(pattern.match):
        if index not in reached:
            raise Flaw("the match is not connected", node.at, "its lines must share values")


def _names(node: PatternNode) -> set[str]:
    return {*node.results, *node.read}


# --- ops ---------------------------------------------------------------------------------------


def _check_op(node: PatternNode, section: str) -> None:
    if not node.op:
        if section == "match" or len(node.results) > 1:
            raise Flaw(f"{section}: a line needs an op", node.at, "write %y = op(%x)")
        return
    try:
        definition = lookup(node.op)
    except TkccError as error:
        raise Flaw(f"{section}: {error.what}", node.at, error.remedy) from None
    if definition.regions or node.op == "cond":
        raise Flaw(f"{section}: {node.op} has regions", node.at, "write a Python rule")
    if node.op.startswith("lax.") and node.op not in _primitives_of_lax():
        remedy = "use named ops and the primitives of jax.lax"
        raise Flaw(f"{section}: rules cannot use {node.op}", node.at, remedy)
    _check_operands(node, definition, section)
    _check_attributes(node, definition, section)


@functools.cache
def _primitives_of_lax() -> frozenset[str]:
    """Those that jax.lax documents: no callbacks and no foreign functions among them."""
    found = (*vars(lax).values(), *vars(lax.linalg).values())
    return frozenset(f"lax.{item.name}" for item in found if isinstance(item, Primitive))


def _check_operands(node: PatternNode, definition: Op, section: str) -> None:
    keys = [key for key, _ in node.optional]
    extra = [key for key in keys if key not in definition.optional]
    if extra:
        remedy = f"its optional operands are {list(definition.optional)}"
        raise Flaw(f"{section}: {node.op} has no operand {extra}", node.at, remedy)
    if len(set(keys)) < len(keys):
        raise Flaw(f"{section}: an operand is given twice", node.at, "give it once")
    count, wanted = len(node.operands), len(definition.operands)
    if count < wanted or (count > wanted and not definition.variadic):
        remedy = f"its operands are {list(definition.operands)}"
        raise Flaw(f"{section}: {node.op} does not take {count} operands", node.at, remedy)


def _check_attributes(node: PatternNode, definition: Op, section: str) -> None:
    given = [key for key, _ in node.attributes]
    if len(set(given)) < len(given):
        raise Flaw(f"{section}: an attribute is given twice", node.at, "give it once")
    if node.any_attributes and section == "replace":
        raise Flaw("replace: `...` says no value", node.at, "write the attributes out")
    if node.op.startswith("lax."):
        return
    known = definition.attributes
    unknown = [key for key in given if key not in known]
    if unknown:
        remedy = f"its attributes are {list(known)}"
        raise Flaw(f"{section}: {node.op} has no attribute {unknown}", node.at, remedy)
    missing = [k for k, v in known.items() if v is REQUIRED and k not in given]
    if missing and not node.any_attributes:
        raise Flaw(f"{section}: {node.op} needs {missing}", node.at, "bind it: {name=$name}")


# --- symbols and variables ---------------------------------------------------------------------


def _check_conditions(pattern: Pattern, defined: set[str]) -> None:
    for condition in pattern.conditions:
        try:
            check_condition(condition)
        except RuleError as error:
            raise Flaw(error.what, condition.at, error.remedy) from None
        for name in condition.values:
            if name not in defined:
                what = f"{condition.name}: %{name} is not defined"
                raise Flaw(what, condition.at, "name a value of given or match")


def _check_expressions(
    expressions: Sequence[Expression], bound: set[str], values: set[str], at: int
) -> None:
    for expression in expressions:
        unbound = sorted(expression.names() - bound)
        if unbound:
            raise Flaw(f"{unbound[0]} is not bound", at, "bind it in the match or in given")
        unknown = sorted(expression.values() - values)
        if unknown:
            raise Flaw(f"%{unknown[0]} is not defined", at, "name a value of given or match")


def _bound_names(pattern: Pattern) -> set[str]:
    """The symbols and variables that have a value after a match."""
    dtypes, leads, sizes = _symbols_of_types(pattern)
    bound = dtypes | leads | sizes | {name for name, _ in pattern.choices}
    for line in pattern.match:
        for _, expression in line.attributes:
            bound |= _bound_by(expression)
    for name, expression in pattern.lets:
        if name in dtypes | leads:
            raise Flaw(f"{name} is no size", None, "let ties sizes together")
        bound |= _solved(name, expression, bound) | {name}
    return bound


def _symbols_of_types(pattern: Pattern) -> tuple[set[str], set[str], set[str]]:
    """The symbols for dtypes, leading sizes and single sizes."""
    dtypes: set[str] = set()
    leads: set[str] = set()
    sizes: set[str] = set()
    for _, wanted in pattern.given:
        dtypes |= {wanted.dtype} if is_symbol(wanted.dtype) else set()
        leads |= {wanted.lead} if wanted.lead else set()
        sizes |= {size for size in wanted.sizes if isinstance(size, str)}
        both = (dtypes & leads) | (dtypes & sizes) | (leads & sizes)
        if both:
            what = f"{sorted(both)[0]} stands for two kinds of things"
            raise Flaw(what, wanted.at, "use one symbol for a dtype, a size or leading sizes")
    return dtypes, leads, sizes


def _bound_by(expression: Expression) -> set[str]:
    """The names that matching the expression with an attribute binds."""
    if expression.kind == "tuple":
        return set().union(*map(_bound_by, expression.pieces))
    return expression.names() if expression.kind in ("variable", "symbol") else set()


def _solved(name: str, expression: Expression, bound: set[str]) -> set[str]:
    """The free size that `let name = expression` is solved for, if there is one."""
    if expression.values():
        raise Flaw("let cannot ask for a value's type", None, "write the size as a symbol in given")
    free = sorted(expression.names() - bound)
    if not free:
        return set()
    product = expression.kind == "*" and expression.parts[1] == Expression("symbol", (free[0],))
    if name not in bound or len(free) > 1 or not product:
        what = f"{free} in a let cannot be solved for"
        raise Flaw(what, None, f"write let {name} = known * FREE, with {name} bound")
    return {free[0]}
