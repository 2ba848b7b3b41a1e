"""The functions of all buckets share one paged state and say what the model says."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from flax import nnx

from tests.tiny import CONFIG
from tkcc.backends.base import Target, get_backend
from tkcc.engine.programs import ServeShape, serving_module
from tkcc.ir.errors import TkccError
from tkcc.ir.passes.hoist import hoist
from tkcc.models.generate import greedy
from tkcc.models.llama import Llama

SHAPE = ServeShape(16, 4, 13, decode=(1, 3), extend=((1, 4), (2, 8)), reach=(8, 16))
PROMPTS = [[5, 9, 2, 44, 17, 3, 60], [1, 2]]


@functools.cache
def model() -> Llama:
    return Llama(CONFIG, rngs=nnx.Rngs(0))


@pytest.fixture(scope="module")
def runtime() -> Any:
    module = serving_module(model(), SHAPE, name="tiny")
    backend, target = get_backend("xla"), Target.parse("xla:cpu")
    made = backend.start(target, module.values)
    made.swap(backend.compile(hoist(module), target))
    yield made
    made.close()


def test_pieces_of_a_prompt_in_any_bucket_then_decoding_in_a_batch(runtime: Any) -> None:
    want = [list(greedy(model(), [prompt], 6)[0]) for prompt in PROMPTS]
    runtime.reset_state()
    tables = np.array([[3, 1, 7, 5], [2, 9, 4, 6], [0, 0, 0, 0]], np.int32)
    long, short = PROMPTS
    first = {"tokens": np.array([long[:4]], np.int32), "starts": np.array([0], np.int32)}
    runtime.step(
        "extend_1x4_8", {**first, "counts": np.array([4], np.int32), "tables": tables[:1, :2]}
    )
    rest = np.zeros((2, 8), np.int32)
    rest[0, :3], rest[1, :2] = long[4:], short
    out = runtime.step(
        "extend_2x8_16",
        {
            "tokens": rest,
            "starts": np.array([4, 0], np.int32),
            "counts": np.array([3, 2], np.int32),
            "tables": tables[:2],
        },
    )
    said = [[int(token)] for token in out["next_tokens"]]
    for step in range(5):
        tokens = np.array([said[0][-1], said[1][-1], 0], np.int32)
        positions = np.array([len(long) + step, len(short) + step, 0], np.int32)
        given = {"tokens": tokens, "positions": positions, "tables": tables}
        out = runtime.step("decode_3_16", given)
        for row in range(2):
            said[row].append(int(out["next_tokens"][row]))
    assert said == want


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((15, 4, 13), "multiples of the page size"),
        ((16, 4, 4), "at least 5 pages"),
        ((16, 4, 13, ()), "at least one of each"),
        ((16, 4, 13, (0,)), "above 0"),
        ((16, 4, 13, (1,), ((1, 1),), (8,)), "the context as the largest reach"),
        ((16, 4, 13, (1,), ((1, 1),), (6, 16)), "multiples of the page size"),
    ],
)
def test_shapes_that_cannot_serve_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(TkccError, match=message):
        ServeShape(*arguments)
