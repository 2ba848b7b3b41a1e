"""Checking rules before they are used: right ones pass, wrong ones are found, none runs long."""

from __future__ import annotations

import dataclasses
import functools
import math
import random
import re
from typing import Any

import pytest

from tests.ir.rewrite.texts import pattern_of, rule_text
from tkcc.ir.errors import RuleError, TkccError
from tkcc.ir.rewrite.cases import MAX_ELEMENTS
from tkcc.ir.rewrite.check import EXACT_ERROR, RuleReport, check_rule
from tkcc.ir.rewrite.records import Pattern
from tkcc.ir.rewrite.rule import PatternRule, all_rules

BUILT_IN: dict[str, Pattern] = {
    name: rule.pattern
    for name, rule in all_rules().items()
    if isinstance(rule, PatternRule) and rule.pattern is not None
}
APPROXIMATE = [name for name, pattern in BUILT_IN.items() if pattern.kind == "approximate"]


def _check(match: str, replace: str, *, trials: int = 2, **parts: Any) -> RuleReport:
    return check_rule(pattern_of(rule_text(match, replace, **parts)), trials=trials)


def _assert_passes(pattern: Pattern, report: RuleReport) -> None:
    assert report.ok, [(t.types, t.error, t.allowed) for t in report.trials if not t.ok]
    assert (report.rule, report.kind) == (pattern.name, pattern.kind)
    for dtype, error in report.worst().items():
        assert error <= pattern.error + EXACT_ERROR[dtype]


@functools.cache
def _quick_report(name: str) -> RuleReport:
    """A few cases with the first value of each option; the long test tries all of them."""
    pattern = BUILT_IN[name]
    choices = tuple((option, values[:1]) for option, values in pattern.choices)
    first = dataclasses.replace(pattern, choices=choices)
    return check_rule(first, trials=3 if name in APPROXIMATE else 1)


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_built_in_data_rule_passes(name: str) -> None:
    _assert_passes(BUILT_IN[name], _quick_report(name))


@pytest.mark.long
@pytest.mark.parametrize("name", BUILT_IN)
def test_every_built_in_data_rule_passes_on_many_cases(name: str) -> None:
    pattern = BUILT_IN[name]
    report = check_rule(pattern, trials=8, seed=7)
    options = [len(values) for _, values in pattern.choices]
    assert len(report.trials) == 8 * math.prod(options)
    _assert_passes(pattern, report)


@pytest.mark.parametrize("name", APPROXIMATE)
def test_an_approximate_rule_is_off_by_less_than_it_states_and_by_more_than_rounding(
    name: str,
) -> None:
    worst = max(trial.error for trial in _quick_report(name).trials)
    assert EXACT_ERROR["f32"] < worst < BUILT_IN[name].error


# --- wrong rules -------------------------------------------------------------------------------

LINEARS = "%x: T[*B, K], %a: T[K, N], %b: T[K, N]"
PAIR = "%y = linear(%x, %a) %z = linear(%x, %b)"
ATTENTION = "%q: T[B, Q, H, D], %k: T[B, S, H, D], %v: T[B, S, H, D], %p: i32[B, Q]"
PARTIAL = (
    "%s, %m, %d = attention_partial(%q, %k, %v, positions=%p)"
    " {{splits=2, scale=1.0, window={window}}} %o = attention_merge(%s, %m, %d) {{dtype=dtype(%q)}}"
)

WRONG: dict[str, tuple[str, str, dict[str, Any]]] = {
    "results swapped": (
        PAIR,
        "%w = concat(%a, %b) {axis=1} %yz = linear(%x, %w) %z, %y = split(%yz) {sizes=(N, N)}",
        {"given": LINEARS},
    ),
    "joined along the wrong axis": (
        "%y = linear(%x, %a) %z = linear(%x, %b) %s = lax.add(%y, %z)",
        "%w = concat(%b, %b) {axis=0} %xx = concat(%x, %x) %s = linear(%xx, %w)",
        {"given": LINEARS},
    ),
    "the wrong axis of a square weight": (
        "%y = linear(%x, %a)",
        "%y = linear(%x, %a) {transposed=true}",
        {"given": "%x: T[*B, K], %a: T[K, K]"},
    ),
    "a window that is one too wide": (
        "%o = attention(%q, %k, %v, positions=%p) {scale=1.0, window=3}",
        PARTIAL.format(window=4),
        {"given": ATTENTION, "more": "let S = 2 * L where less(3, L)"},
    ),
    "an attribute forgotten": (
        "%y = rms_norm(%x, %w) {eps=$e, plus_one=$one}",
        "%y = rms_norm(%x, %w) {eps=$e}",
        {"given": "%x: T[*B, K], %w: T[K]"},
    ),
    "an attribute that dots let through": (
        "%y = linear(%x, %a) {...}",
        "%y = linear(%x, %a)",
        {"given": "%x: T[*B, K], %a: T[K, K]"},
    ),
    "an operand forgotten": (
        "%y = linear(%x, %a, bias=%b)",
        "%y = linear(%x, %a)",
        {"given": "%x: T[*B, K], %a: T[K, N], %b: T[N]"},
    ),
    "the sign of infinity": (
        "%o = lax.sub(%x, %x) %y = lax.div(%w, %o)",
        "%n = lax.neg(%o) %y = lax.div(%w, %n)",
        {"given": "%x: T[K], %w: T[K]"},
    ),
    "not a number instead of infinity": (
        "%o = lax.sub(%x, %x) %y = lax.div(%w, %o)",
        "%y = lax.div(%o, %o)",
        {"given": "%x: T[K], %w: T[K]"},
    ),
    "the imaginary part": (
        "%y = lax.complex(%x, %w)",
        "%n = lax.neg(%w) %y = lax.complex(%x, %n)",
        {"given": "%x: f32[K], %w: f32[K]"},
    ),
    "one of several results": (
        "%y = lax.neg(%x) %z = lax.exp(%x)",
        "%y = lax.neg(%x) %z = lax.abs(%x)",
        {},
    ),
    "an integer": ("%y = lax.neg(%x)", "%y = lax.add(%x, %x)", {"given": "%x: i32[K]"}),
    "a truth value": ("%y = lax.not(%x)", "%y = lax.and(%x, %x)", {"given": "%x: bool[K, 16]"}),
    "a little": (
        "%y = rms_norm(%x, %w) {eps=1e-5}",
        "%y = rms_norm(%x, %w) {eps=1e-3}",
        {"given": "%x: f32[*B, K], %w: f32[K]"},
    ),
    "a little, in a short float": (
        "%y = lax.mul(%x, %w)",
        "%e = lax.exp(%w) %y = lax.mul(%x, %e)",
        {"given": "%x: bf16[K], %w: bf16[K]"},
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rule_is_reported_with_its_error(name: str) -> None:
    match, replace, parts = WRONG[name]
    report = _check(match, replace, **parts)
    assert not report.ok
    bad = [trial for trial in report.trials if not trial.ok]
    assert all(trial.error > trial.allowed for trial in bad)
    assert max(report.worst().values()) == max(trial.error for trial in report.trials)


def test_sizes_that_are_swapped_make_an_ill_typed_rule() -> None:
    with pytest.raises(RuleError, match="ill-typed"):
        _check(
            PAIR,
            "%w = concat(%a, %b) {axis=1} %yz = linear(%x, %w) %y, %z = split(%yz) {sizes=(M, N)}",
            given="%x: T[*B, K], %a: T[K, N], %b: T[K, M]",
        )


def test_a_rule_that_holds_only_while_dtypes_are_equal_is_found() -> None:
    with pytest.raises(RuleError, match=r"type \w+\[.*\] by one of type"):
        _check(
            "%y = linear(%x, %a)",
            "%c = cast(%a) {dtype=T} %y = linear(%x, %c)",
            given="%x: T[*B, K], %a: U[K, N]",
            trials=12,
        )


def test_an_error_beyond_the_stated_bound_is_reported() -> None:
    text = BUILT_IN["int8_weight"].text.replace("error 0.03", "error 0.00001")
    report = check_rule(pattern_of(text), trials=3)
    assert not report.ok
    assert all(trial.allowed < 0.05 for trial in report.trials)


@pytest.mark.parametrize(
    ("condition", "what"),
    [
        ("less(K, 1)", "no sizes and dtypes satisfy"),
        ("dtype_in(%x, i32)", "no sizes and dtypes satisfy"),
        ("less(dim(%h, -1), 1)", "no sizes and dtypes satisfy"),
        ("distinct(%x, %x)", "does not match its own pattern"),
        ("parameter(%x), not_parameter(%x)", "does not match its own pattern"),
        ("used_once(%h), not_parameter(%h), parameter(%x)", "does not match its own pattern"),
        ("constant(%x)", "does not match its own pattern"),
    ],
)
def test_a_contradiction_in_the_conditions_is_an_error(condition: str, what: str) -> None:
    with pytest.raises(RuleError, match=what) as caught:
        _check("%h = lax.neg(%x) %y = lax.neg(%h)", "%y = %x", more=f"where {condition}")
    assert "conditions" in caught.value.remedy


def test_conditions_on_results_of_the_match_hold_in_every_case() -> None:
    report = _check(
        "%y = linear(%x, %a)",
        "%y = linear(%x, %a)",
        given="%x: T[*B, K], %a: U[K, N]",
        more="where dtype_in(%y, bf16), less(dim(%y, -1), 4)",
    )
    for trial in report.trials:
        assert {trial.bindings["T"].name, trial.bindings["U"].name} == {"bf16"}
        assert trial.bindings["N"] < 4


def test_attributes_without_a_value_to_try_are_named() -> None:
    with pytest.raises(RuleError, match=r"no value to try for \['\$scale'\]") as caught:
        _check(
            "%o = attention(%q, %k, %v, positions=%p) {scale=$scale}",
            "%o = attention(%q, %k, %v, positions=%p) {scale=$scale}",
            given=ATTENTION,
        )
    assert "sample $scale" in caught.value.remedy


def test_a_pattern_that_names_too_few_results_is_an_error() -> None:
    with pytest.raises(RuleError, match="2 results, but 1 names"):
        _check("%y = split(%x) {sizes=(N, M)}", "%y = lax.neg(%x)", more="let K = N + M")


def test_every_option_is_checked() -> None:
    more = "choose $a in (0, 1) choose $n in (1, 2, 3) let K = $n * L"
    report = _check("%y = lax.neg(%x)", "%y = lax.neg(%x)", given="%x: T[K]", more=more, trials=1)
    tried = [(trial.bindings["$a"], trial.bindings["$n"]) for trial in report.trials]
    assert tried == [(a, n) for a in (0, 1) for n in (1, 2, 3)]


def test_cases_depend_on_the_seed_alone() -> None:
    pattern = BUILT_IN["transpose_weight"]
    first, again = (check_rule(pattern, trials=2, seed=3) for _ in range(2))
    other = check_rule(pattern, trials=2, seed=4)
    assert first == again
    assert [t.types for t in first.trials] != [t.types for t in other.trials]


def test_types_of_64_bits_are_checked_as_such() -> None:
    good = _check("%y = lax.add(%x, %w)", "%y = lax.add(%w, %x)", given="%x: f64[K], %w: f64[K]")
    assert good.ok
    assert good.worst() == {"f64": 0.0}
    bad = _check(
        "%y = lax.neg(%x)",
        "%s = cast(%x) {dtype=f32} %w = cast(%s) {dtype=f64} %y = lax.neg(%w)",
        given="%x: f64[K, 8]",
    )
    assert not bad.ok


# --- hostile rules -----------------------------------------------------------------------------

HOSTILE: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "a huge new value": (
        "%y = lax.neg(%x)",
        "%z = lax.broadcast_in_dim(%x) {shape=(1000000, 1000000, K), broadcast_dimensions=(2,),"
        " sharding=none} %y = lax.reduce_max(%z) {axes=(0, 1), out_sharding=none}",
        "too large to try",
        {"given": "%x: T[K]"},
    ),
    "a huge given value": (
        "%y = lax.neg(%x)",
        "%y = lax.abs(%x)",
        "no sizes and dtypes satisfy",
        {"given": f"%x: T[{2 * MAX_ELEMENTS}]"},
    ),
    "a huge value in the match": (
        "%z = lax.broadcast_in_dim(%x) {shape=(2000000, K), broadcast_dimensions=(1,),"
        " sharding=none} %y = lax.neg(%z)",
        "%y = lax.abs(%z)",
        "no sizes and dtypes satisfy",
        {"given": "%x: T[K]"},
    ),
    "sizes that grow and grow": (
        "%y = lax.neg(%x)",
        "%y = lax.abs(%x)",
        "no sizes and dtypes satisfy",
        {
            "given": "%x: T[N9]",
            "more": "let N0 = 7 + 9 " + " ".join(f"let N{i + 1} = N{i} * N{i}" for i in range(9)),
        },
    ),
    "a collective": (
        "%y = lax.neg(%x)",
        '%y = all_reduce(%x) {axis="model", size=2}',
        "cannot be tried",
        {},
    ),
    "readers of one value": (
        " ".join(f"%y{i} = lax.neg(%x)" for i in range(12)) + " %z = lax.mul(%y11, %w)",
        "%y0 = lax.abs(%x)",
        "steps to match",
        {"given": "%x: T[K], %w: T[K]", "more": "where distinct(%y0, %y0)"},
    ),
    "a tuple for a size": (
        "%y = lax.neg(%x)",
        "%y = lax.abs(%x)",
        "no sizes and dtypes satisfy",
        {"given": "%x: T[N]", "more": "let N = (1, 2) + (3, 4)"},
    ),
    "a negative size": (
        "%y = lax.neg(%x)",
        "%y = lax.abs(%x)",
        "no sizes and dtypes satisfy",
        {"given": "%x: T[N]", "more": "let N = 1 - 2"},
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_rule_is_refused_without_running_it(name: str) -> None:
    match, replace, what, parts = HOSTILE[name]
    with pytest.raises(RuleError, match=what) as caught:
        _check(match, replace, trials=1, **parts)
    assert caught.value.remedy


_WORDS = re.compile(r"%\w+|\$\w+|\w+(?:\.\w+)?|\s+|.")


def _swapped(generator: random.Random, text: str) -> str:
    """The text with a word of its match or replacement in the place of another of its kind."""
    words = _WORDS.findall(text)
    places = [i for i in range(words.index("match"), len(words)) if words[i][-1].isalnum()]
    for _ in range(generator.randint(1, 2)):
        at = generator.choice(places)
        alike = [words[i] for i in places if words[i][0] in "%$" or words[at][0] not in "%$"]
        words[at] = generator.choice(alike)
    return "".join(words)


def _outcome(text: str) -> str:
    """What checking gives; any exception that is no TkccError is a failure."""
    try:
        report = check_rule(pattern_of(text), trials=1)
    except TkccError:
        return "refused"
    return "right" if report.ok else "wrong"


FERTILE = rule_text(  # all values are alike, so most of its mutations are well-typed
    "%p = lax.add(%x, %a) %q = lax.mul(%p, %b) %y = lax.sub(%q, %x)",
    "%r = lax.add(%a, %x) %s = lax.mul(%b, %r) %y = lax.sub(%s, %x)",
    given="%x: T[K], %a: T[K], %b: T[K]",
)


def test_mutated_rules_are_refused_wrong_or_right_but_never_crash() -> None:
    generator = random.Random(5)
    names = ("merge_linears", "residual_norm", "int8_weight", "transpose_weight", "widen_weight")
    texts = [BUILT_IN[name].text for name in names] * 10 + [FERTILE] * 40
    outcomes = [_outcome(_swapped(generator, text)) for text in texts]
    assert set(outcomes) == {"refused", "wrong", "right"}
