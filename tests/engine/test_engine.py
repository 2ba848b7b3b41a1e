"""The engine on a tiny model: what requests hear, whatever else it does at the same time."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from flax import nnx

from tests.engine.toy import heard
from tests.tiny import CONFIG
from tkcc.backends.base import Program, Target, get_backend
from tkcc.engine.engine import Engine
from tkcc.engine.programs import ServeShape, serving_module
from tkcc.engine.requests import Event, Request, Sampling
from tkcc.ir.errors import BackendError
from tkcc.ir.graph import Module
from tkcc.ir.passes.hoist import hoist
from tkcc.ir.rewrite.driver import apply_rule
from tkcc.ir.rewrite.rule import get_rule
from tkcc.models.generate import greedy
from tkcc.models.llama import Llama

SHAPE = ServeShape(24, 4, 16, decode=(1, 4), extend=((1, 4), (2, 8)))
CPU = Target.parse("xla:cpu")
TOKENS = 8


@functools.cache
def model() -> Llama:
    return Llama(CONFIG, rngs=nnx.Rngs(0))


@functools.cache
def module() -> Module:
    return serving_module(model(), SHAPE, name="tiny")


@functools.cache
def program(*rules: str) -> Program:
    changed = module()
    for name in rules:
        changed, fired = apply_rule(changed, get_rule(name))
        assert fired
    return get_backend("xla").compile(hoist(changed), CPU)


@pytest.fixture(scope="module")
def runtime() -> Iterator[Any]:
    made = get_backend("xla").start(CPU, module().values)
    made.swap(program())
    yield made
    made.close()


@pytest.fixture
def engine(runtime: Any) -> Engine:
    runtime.swap(program())
    runtime.reset_state()
    return Engine(runtime, SHAPE, vocabulary=CONFIG.vocab_size)


def prompts(count: int, seed: int = 0) -> list[tuple[int, ...]]:
    draw = np.random.default_rng(seed)
    shared = draw.integers(1, 64, 9).tolist()
    made = []
    for _ in range(count):
        own = draw.integers(1, 64, draw.integers(1, 6)).tolist()
        made.append(tuple(shared[: draw.integers(0, 10)] + own))
    return made


@functools.cache
def alone(prompt: tuple[int, ...]) -> list[int]:
    return greedy(model(), [list(prompt)], TOKENS, cache_length=SHAPE.context)[0]


def drain(engine: Engine) -> list[Event]:
    events: list[Event] = []
    while not engine.idle:
        events += engine.step()
    return events


def test_each_request_hears_what_the_model_says_to_it_alone(engine: Engine) -> None:
    asked = prompts(10)
    for number, prompt in enumerate(asked):
        engine.submit(Request(str(number), prompt, Sampling(max_tokens=TOKENS)))
    found = heard(drain(engine))
    assert {name: tokens for name, (tokens, _) in found.items()} == {
        str(number): alone(prompt) for number, prompt in enumerate(asked)
    }
    assert engine.scheduler.pool.held == 0
    assert engine.scheduler.pool.counts.hits > 0
    assert engine.clock.tokens_drawn == 10 * TOKENS


def test_exact_swaps_in_the_middle_change_no_answer(engine: Engine) -> None:
    others = [program("merge_qkv"), program("unroll_layers"), program()]
    asked, events, pauses = prompts(8, seed=1), [], []
    for number, prompt in enumerate(asked):
        engine.submit(Request(str(number), prompt, Sampling(max_tokens=TOKENS)))
    while not engine.idle:
        pauses.append(engine.swap(others[len(pauses) % 3]).pause_seconds)
        events += engine.step()
    found = heard(events)
    assert len(pauses) > 20
    assert all(found[str(n)][0] == alone(prompt) for n, prompt in enumerate(asked))


def test_a_repeated_prompt_reads_its_new_tokens_only(engine: Engine) -> None:
    prompt = tuple(range(1, 18))
    engine.submit(Request("a", prompt, Sampling(max_tokens=1)))
    drain(engine)
    assert engine.clock.tokens_read == 17
    engine.submit(Request("b", (*prompt, 5), Sampling(max_tokens=1)))
    (event,) = drain(engine)
    assert engine.clock.tokens_read == 17 + 2
    assert event.cached_tokens == 16


def test_a_swap_that_is_not_exact_forgets_what_nobody_holds(engine: Engine) -> None:
    prompt = tuple(range(1, 18))
    engine.submit(Request("a", prompt, Sampling(max_tokens=1)))
    drain(engine)
    engine.swap(program("int8_weight"), exact=False)
    engine.submit(Request("b", prompt, Sampling(max_tokens=1)))
    (event,) = drain(engine)
    assert event.cached_tokens == 0


def test_a_seeded_answer_does_not_depend_on_the_company(engine: Engine) -> None:
    seeded = Sampling(max_tokens=TOKENS, temperature=2.0, top_k=20, seed=11)
    engine.submit(Request("alone", (1, 2, 3), seeded))
    want = heard(drain(engine))["alone"][0]
    for number, prompt in enumerate(prompts(5, seed=2)):
        engine.submit(Request(str(number), prompt, Sampling(max_tokens=TOKENS, temperature=1.0)))
    engine.submit(Request("among", (1, 2, 3), seeded))
    assert heard(drain(engine))["among"][0] == want
    assert want != alone((1, 2, 3))


def test_cancelling_frees_pages_and_leaves_the_others_alone(engine: Engine) -> None:
    asked = prompts(3, seed=3)
    for number, prompt in enumerate(asked):
        engine.submit(Request(str(number), prompt, Sampling(max_tokens=TOKENS)))
    events = [event for _ in range(3) for event in engine.step()]
    (ended,) = engine.cancel("1")
    assert ended.finish == "cancelled"
    assert engine.cancel("1") == []
    found = heard([*events, ended, *drain(engine)])
    assert found["0"][0] == alone(asked[0])
    assert found["2"][0] == alone(asked[2])
    assert found["1"][1] == ["cancelled"]
    assert engine.scheduler.pool.held == 0
    assert not engine._salts


def test_a_failed_step_ends_what_was_in_flight_and_the_engine_goes_on(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.submit(Request("a", (1, 2, 3), Sampling(max_tokens=TOKENS)))
    engine.step()

    def broken(*_: Any) -> Any:
        raise BackendError("the device failed while testing")

    with monkeypatch.context() as patch:
        patch.setattr(engine.runtime, "step", broken)
        (event,) = engine.step()
    assert (event.finish, event.error) == ("error", "the device failed while testing")
    engine.submit(Request("b", (1, 2, 3), Sampling(max_tokens=TOKENS)))
    found = heard(drain(engine))
    assert found["b"][0] == alone((1, 2, 3))
    assert engine.scheduler.pool.held == 0


@pytest.mark.long
def test_a_thousand_swaps_under_load_change_and_lose_nothing(engine: Engine) -> None:
    others = [program("merge_qkv"), program()]
    asked, events, swaps, number = prompts(8, seed=5), [], 0, 0
    while swaps < 1000:
        while len(engine.scheduler.running) + len(engine.scheduler.waiting) < 6:
            prompt = asked[number % len(asked)]
            engine.submit(Request(str(number), prompt, Sampling(max_tokens=TOKENS)))
            number += 1
        engine.swap(others[swaps % 2])
        swaps += 1
        events += engine.step()
    found = heard([*events, *drain(engine)])
    assert len(found) == number
    assert all(found[str(n)] == (alone(asked[n % 8]), ["length"]) for n in range(number))
    assert engine.scheduler.pool.held == 0
