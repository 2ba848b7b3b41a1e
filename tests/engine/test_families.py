"""Every family of models is served: paged, batched, in pieces, with the model's own answers."""

from __future__ import annotations

import numpy as np
import pytest

from tests.engine.toy import heard
from tests.models.tiny_families import VOCABULARY, save
from tkcc.backends.base import Target, get_backend
from tkcc.engine.engine import Engine
from tkcc.engine.programs import ServeShape, serving_module
from tkcc.engine.requests import Request, Sampling
from tkcc.ir.passes.hoist import hoist
from tkcc.models.generate import greedy
from tkcc.models.loading import load_folder

pytestmark = pytest.mark.long
SHAPE = ServeShape(24, 4, 13, decode=(2,), extend=((1, 8),))
TOKENS = 6


@pytest.mark.parametrize("case", ["qwen3", "qwen3-moe", "gpt-oss", "deepseek-v3"])
def test_a_family_is_served_with_its_own_answers(case, tmp_path):
    save(case, tmp_path)
    model = load_folder(tmp_path)
    module = serving_module(model, SHAPE, name=case)
    pools = {type_.shape[1:3] for type_ in module.state.values()}
    assert pools == {(SHAPE.pages, SHAPE.page_size)}
    backend, target = get_backend("xla"), Target.parse("xla:cpu")
    runtime = backend.start(target, module.values)
    draw = np.random.default_rng(0)
    prompts = [tuple(draw.integers(0, VOCABULARY, size).tolist()) for size in (11, 3, 9)]
    try:
        runtime.swap(backend.compile(hoist(module), target))
        engine = Engine(runtime, SHAPE, vocabulary=VOCABULARY)
        for number, prompt in enumerate(prompts):
            engine.submit(Request(str(number), prompt, Sampling(max_tokens=TOKENS)))
        events = []
        while not engine.idle:
            events += engine.step()
    finally:
        runtime.close()
    want = greedy(model, [list(prompt) for prompt in prompts], TOKENS, cache_length=24)
    found = heard(events)
    assert [found[str(number)][0] for number in range(3)] == want
