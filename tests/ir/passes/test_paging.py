"""A paged model says what the plain one says, wherever its pages lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.tiny import PROMPTS, SHAPE, tiny_module
from tkcc.backends.base import Target, get_backend
from tkcc.ir.errors import IRError
from tkcc.ir.graph import Module
from tkcc.ir.passes.clean import clean_module
from tkcc.ir.passes.hoist import hoist
from tkcc.ir.passes.paging import PageShape, page_caches
from tkcc.ir.rewrite.driver import apply_rule
from tkcc.ir.rewrite.rule import get_rule
from tkcc.ir.text import parse_module, print_module

PAGES = PageShape(pages=11, size=4)
TABLES = np.array([[7, 2, 9, 4], [1, 10, 3, 8]], np.int32)


def carried(*rules: str) -> Module:
    module = tiny_module()
    for name in ("carry_caches", *rules):
        module, fired = apply_rule(module, get_rule(name))
        assert fired
    return module


def said(module: Module, tables: Any = None, steps: int = 5) -> tuple[Any, Any]:
    """Greedy tokens and logits after the first prompts."""
    backend, target = get_backend("xla"), Target.parse("xla:cpu")
    more = {} if tables is None else {"tables": tables}
    tokens = np.zeros((SHAPE.batch, SHAPE.prompt), np.int32)
    lengths = np.array([len(prompt) for prompt in PROMPTS[0]], np.int32)
    for row, prompt in zip(tokens, PROMPTS[0], strict=True):
        row[: len(prompt)] = prompt
    runtime = backend.start(target, module.values)
    try:
        runtime.swap(backend.compile(hoist(module), target))
        out = runtime.step("prefill", {"tokens": tokens, "lengths": lengths, **more})
        found = [np.asarray(out["logits"])]
        for step in range(steps):
            given = {"tokens": out["next_tokens"], "positions": lengths + step, **more}
            out = runtime.step("decode", given)
            found.append(np.asarray(out["logits"]))
    finally:
        runtime.close()
    return np.asarray(out["next_tokens"]), np.stack(found)


@pytest.mark.parametrize("rules", [(), ("merge_qkv",), ("unroll_layers",)])
def test_a_paged_model_says_what_the_plain_one_says(rules: tuple[str, ...]) -> None:
    module = page_caches(carried(*rules), PAGES)
    assert {type_.shape[1:3] for type_ in module.state.values()} == {(PAGES.pages, PAGES.size)}
    tokens, logits = said(module, TABLES)
    want_tokens, want = said(tiny_module())
    np.testing.assert_allclose(logits, want, atol=1e-6)
    np.testing.assert_array_equal(tokens, want_tokens)


def test_a_pool_of_the_caches_own_shape_is_still_a_pool() -> None:
    module = tiny_module()
    batch, positions = module.state["k_cache"].shape[1:3]
    paged = page_caches(carried(), PageShape(batch, positions))
    assert paged.state == module.state
    assert "update_pages" in {node.op for node in paged.functions["decode"].walk()}
    assert "take_row" not in {node.op for node in paged.functions["decode"].walk()}


def test_a_paged_module_round_trips_and_can_be_cleaned() -> None:
    module = page_caches(carried(), PAGES)
    text = print_module(module)
    assert print_module(parse_module(text)) == text
    assert clean_module(module).state == module.state


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: page_caches(tiny_module(), PAGES), "apply the rule carry_caches first"),
        (lambda: page_caches(carried(), PageShape(4, 5)), "does not divide into pages of 5"),
        (lambda: page_caches(carried("cache_layout"), PAGES), "cannot be kept in pages|divide"),
        (lambda: PageShape(1, 4), "at least 2 pages"),
        (lambda: PageShape(4, 0), "at least 1 token"),
    ],
)
def test_what_cannot_be_paged_is_refused_with_a_remedy(make: Any, message: str) -> None:
    with pytest.raises(IRError, match=message):
        make()
