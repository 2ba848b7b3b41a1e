"""The slot: steps, swaps, rollback, state, derived parameters, and what failures leave behind."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.backends.xla import modules
from tests.backends.xla.modules import CPU, WIDTH, WORDS, decode_arguments
from tests.tolerances import TOLERANCES, assert_identical, assert_same_program
from tkcc.backends.base import Program, Runtime, Target, get_backend
from tkcc.ir.errors import BackendError
from tkcc.ir.graph import PACK, PREPARE, UNPACK, Module
from tkcc.ir.text import parse_module

TIED_BYTES = 4 * WORDS * WIDTH


def compiled(module: Module) -> Program:
    return get_backend("xla").compile(module, CPU)


def started(module: Module, budget: int | None = None) -> Runtime:
    return get_backend("xla").start(CPU, module.values, prepare_budget_bytes=budget)


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    """A runtime with the decoder in its slot."""
    module = modules.decoder()
    with started(module) as made:
        made.swap(compiled(module))
        yield made


def logits(runtime: Runtime, *steps: int) -> list[Any]:
    return [np.asarray(runtime.step("decode", decode_arguments(i))["logits"]) for i in steps]


@functools.cache
def wanted(*steps: int) -> list[Any]:
    outputs, _ = modules.reference_steps(modules.decoder(), [decode_arguments(i) for i in steps])
    return [item["logits"] for item in outputs]


def same(got: list[Any], want: list[Any]) -> None:
    """Equal up to reordered sums, which err by the largest terms."""
    relative, _ = TOLERANCES["f32"]
    for one, other in zip(got, want, strict=True):
        largest = float(np.abs(other).max())
        np.testing.assert_allclose(one, other, rtol=relative, atol=relative * largest)


def test_steps_give_what_evaluate_gives_and_state_goes_from_step_to_step(runtime: Runtime) -> None:
    same(logits(runtime, *range(5)), wanted(*range(5)))
    _, state = modules.reference_steps(modules.decoder(), [decode_arguments(i) for i in range(5)])
    got = runtime.get_state()
    assert set(got) == set(state) == {"k_cache", "v_cache"}
    same([got[name] for name in state], list(state.values()))


def test_a_step_takes_arguments_by_name_or_in_order_and_returns_no_state(runtime: Runtime) -> None:
    by_name = decode_arguments(3)
    first = runtime.step("decode", by_name)
    runtime.reset_state()
    second = runtime.step("decode", list(by_name.values()))
    assert set(first) == {"logits"}
    assert_identical(first["logits"], second["logits"])


@pytest.mark.parametrize(
    "module",
    [modules.swapped_decoder, modules.prepared_decoder],
    ids=["another form of state", "derived parameters"],
)
def test_a_swap_between_steps_changes_nothing_but_the_program(module: Any) -> None:
    base, other = modules.decoder(), module()
    with started(base) as runtime:
        runtime.swap(compiled(base))
        got = logits(runtime, 0, 1)
        runtime.swap(compiled(other))
        got += logits(runtime, 2, 3)
        report = runtime.rollback()
        got += logits(runtime, 4, 5)
        same(got, wanted(*range(6)))
        assert report.prepare_bytes == 0
        assert runtime.program is not None
        assert PACK not in runtime.program.module.functions


def test_only_state_that_changes_form_is_rewritten_by_a_swap() -> None:
    base, swapped = modules.decoder(), modules.swapped_decoder()
    one_cache = base.state["v_cache"].bytes
    with started(base) as runtime:
        assert runtime.swap(compiled(base)).converted_state_bytes == 0
        assert runtime.swap(compiled(swapped)).converted_state_bytes == one_cache
        assert runtime.swap(compiled(swapped)).converted_state_bytes == 0
        assert runtime.rollback().converted_state_bytes == 0
        assert runtime.swap(compiled(base)).converted_state_bytes == one_cache


def test_state_is_read_and_written_in_the_baselines_form() -> None:
    base, swapped = modules.decoder(), modules.swapped_decoder()
    with started(base) as runtime:
        runtime.swap(compiled(swapped))
        first = logits(runtime, 0, 1)
        state = runtime.get_state()
        assert {n: x.shape for n, x in state.items()} == {n: t.shape for n, t in base.state.items()}
        want = logits(runtime, 2)
        runtime.reset_state()
        same(logits(runtime, 0), first[:1])
        runtime.set_state(state)
        same(logits(runtime, 2), want)
        runtime.swap(compiled(base))
        runtime.set_state({"v_cache": state["v_cache"], "k_cache": state["k_cache"]})
        same(logits(runtime, 2), want)


def test_a_part_of_the_state_can_be_written(runtime: Runtime) -> None:
    logits(runtime, 0, 1)
    before = runtime.get_state()
    runtime.set_state({"k_cache": np.ones_like(before["k_cache"])})
    after = runtime.get_state()
    assert_identical(after["v_cache"], before["v_cache"])
    assert (after["k_cache"] == 1).all()


def test_state_read_from_the_runtime_and_given_to_it_is_a_copy(runtime: Runtime) -> None:
    given = jnp.ones(runtime.get_state()["k_cache"].shape)
    runtime.set_state({"k_cache": given})
    kept = runtime.get_state()["k_cache"]
    before = kept.copy()
    logits(runtime, 0, 1)
    runtime.wait()
    assert_identical(kept, before)
    assert not given.is_deleted()
    assert (np.asarray(given) == 1).all()


def test_the_callers_arguments_survive_a_step_that_puts_them_into_state() -> None:
    text = """module "m" func keep {
      state %s: f32[4]
      param %w: f32[4]
      arg %x: f32[4]
      return %s as "old", %w as "w", %x as "new" -> %s
    }"""
    module = parse_module(text)
    x, w = jnp.arange(4.0), jnp.ones(4)
    with get_backend("xla").start(CPU, {"w": w}) as runtime:
        runtime.swap(compiled(module))
        for _ in range(3):
            out = runtime.step("keep", {"x": x})
        assert_identical(out["old"], x)
        assert_identical(out["w"], w)
        assert_identical(x, jnp.arange(4.0))


def test_derived_parameters_are_computed_once_and_shared_by_programs_that_derive_the_same() -> None:
    module = modules.prepared_decoder()
    narrow = module.with_function("extra", module.function("decode"))
    with started(module) as runtime:
        first = runtime.swap(compiled(module))
        assert first.prepare_bytes == TIED_BYTES
        assert first.prepare_seconds > 0
        assert runtime.swap(compiled(narrow)).prepare_bytes == 0
        assert runtime.swap(compiled(modules.decoder())).prepare_bytes == 0
        assert runtime.rollback().prepare_bytes == 0


def test_derived_parameters_that_no_near_program_needs_are_freed() -> None:
    one, two, three = (modules.prepared_decoder(copies=i) for i in (1, 2, 3))
    with started(one) as runtime:
        for module in (one, two, three):
            runtime.swap(compiled(module))
        assert runtime.swap(compiled(one)).prepare_bytes == TIED_BYTES
        assert runtime.swap(compiled(three)).prepare_bytes == 0  # the one before is kept


def test_the_budget_refuses_and_the_old_program_stays() -> None:
    base, large = modules.prepared_decoder(), modules.prepared_decoder(copies=4)
    with started(base, budget=3 * TIED_BYTES) as runtime:
        runtime.swap(compiled(base))
        got = logits(runtime, 0, 1)
        with pytest.raises(BackendError, match=rf"{4 * TIED_BYTES} bytes") as caught:
            runtime.swap(compiled(large))
        assert "prepare_budget_bytes" in caught.value.remedy
        got += logits(runtime, 2, 3)
        same(got, wanted(*range(4)))
        assert runtime.program is not None
        assert runtime.program.key == compiled(base).key


def test_a_budget_for_two_programs_makes_room_by_freeing_the_one_before_them() -> None:
    one, two, three = (modules.prepared_decoder(copies=i) for i in (1, 2, 3))
    with started(one, budget=5 * TIED_BYTES) as runtime:
        for module in (one, two, three):
            runtime.swap(compiled(module))
        assert runtime.rollback().prepare_bytes == 0
        same(logits(runtime, 0, 1), wanted(0, 1))


def test_hoisting_is_part_of_compiling() -> None:
    text = """module "m" func main {
      param %a: f32[512,4]
      param %b: f32[512,4]
      arg %x: f32[2,512]
      %0: f32[512,4] = lax.add(%a, %b)
      %1: f32[2,4] = linear(%x, %0)
      return %1 as "y"
    }"""
    parameters = {"a": modules.array(512, 4, seed=1), "b": modules.array(512, 4, seed=2)}
    x = modules.array(2, 512, seed=3)
    program = compiled(parse_module(text))
    assert PREPARE in program.module.functions
    assert [line.op for line in program.report if line.site.function == "main"] == ["linear"]
    with get_backend("xla").start(CPU, parameters) as runtime:
        assert runtime.swap(program).prepare_bytes == 4 * 512 * 4
        got = runtime.step("main", [x])["y"]
        np.testing.assert_allclose(got, x @ (parameters["a"] + parameters["b"]), rtol=1e-4)


def unfit_programs() -> dict[str, tuple[Any, str]]:
    other_state = """module "m" func decode {
      state %s: f32[4] arg %x: f32[4]
      %0: f32[4] = lax.add(%s, %x)
      return %0 -> %s
    }"""
    other_type = """module "m" func decode {
      state %k_cache: f32[4] arg %x: f32[4]
      %0: f32[4] = lax.add(%k_cache, %x)
      return %0 -> %k_cache
    }"""
    return {
        "state that is not there": (other_state, "needs state 's'"),
        "state of another type": (other_type, "state k_cache"),
        "a parameter that is not there": (
            'module "m" func decode { param %missing: f32[4] return %missing }',
            "no parameter 'missing'",
        ),
        "a parameter of another type": (
            'module "m" func decode { param %w.norm: f32[4] return %w.norm }',
            "parameter w.norm",
        ),
    }


@pytest.mark.parametrize("case", list(unfit_programs()))
def test_a_program_that_does_not_fit_is_refused_and_the_old_one_runs_on(
    case: str, runtime: Runtime
) -> None:
    text, what = unfit_programs()[case]
    got = logits(runtime, 0)
    with pytest.raises(BackendError, match=what):
        runtime.swap(compiled(parse_module(text)))
    got += logits(runtime, 1)
    same(got, wanted(0, 1))


def test_a_program_for_another_target_or_without_executables_is_refused(runtime: Runtime) -> None:
    import dataclasses

    program = runtime.program
    assert program is not None
    for changes, what in (
        ({"target": Target.parse("xla:tpu-v6e")}, "is for xla:tpu-v6e"),
        ({"artifacts": {}}, "nothing to run"),
    ):
        with pytest.raises(BackendError, match=what):
            runtime.swap(dataclasses.replace(program, **changes))
    same(logits(runtime, 0), wanted(0))


def test_a_prepare_that_fails_on_the_device_leaves_the_old_program(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = compiled(modules.prepared_decoder())

    def broken(*_: Any) -> Any:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")

    monkeypatch.setattr("tkcc.backends.xla.prepared.call_by_name", broken)
    got = logits(runtime, 0)
    with pytest.raises(BackendError, match="out of memory"):
        runtime.swap(program)
    monkeypatch.undo()
    got += logits(runtime, 1)
    assert runtime.swap(program).prepare_bytes == TIED_BYTES  # nothing half-made was kept
    got += logits(runtime, 2)
    same(got, wanted(0, 1, 2))


def test_a_conversion_that_fails_on_the_device_leaves_state_and_program(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = compiled(modules.swapped_decoder())

    def broken(*_: Any) -> Any:
        raise jax.errors.JaxRuntimeError("INTERNAL: broken")

    monkeypatch.setattr("tkcc.backends.xla.state.call_by_name", broken)
    got = logits(runtime, 0)
    with pytest.raises(BackendError, match="broken"):
        runtime.swap(program)
    got += logits(runtime, 1)
    same(got, wanted(0, 1))


def test_a_rollback_undoes_one_swap_only(runtime: Runtime) -> None:
    with pytest.raises(BackendError, match="no program to go back to"):
        runtime.rollback()
    runtime.swap(compiled(modules.swapped_decoder()))
    runtime.rollback()
    with pytest.raises(BackendError, match="no program to go back to"):
        runtime.rollback()


def test_state_lost_by_a_failing_device_is_said_and_can_be_reset(runtime: Runtime) -> None:
    logits(runtime, 0)
    loaded = runtime._current.functions["decode"]  # type: ignore[attr-defined]
    call = loaded._call

    def broken(*_: Any) -> Any:
        raise jax.errors.JaxRuntimeError("INTERNAL: the device is on fire")

    loaded._call = broken
    with pytest.raises(BackendError, match="on fire"):
        runtime.step("decode", decode_arguments(1))
    loaded._call = call
    with pytest.raises(BackendError, match="lost"):
        runtime.step("decode", decode_arguments(1))
    with pytest.raises(BackendError, match="v_cache"):
        runtime.set_state({"k_cache": np.zeros(modules.decoder().state["k_cache"].shape, "f4")})
    runtime.reset_state()
    same(logits(runtime, 0), wanted(0))


@pytest.mark.parametrize(
    ("function", "arguments", "what"),
    [
        ("prefill", {}, "no function 'prefill'"),
        ("decode", {"ids": np.zeros(2, np.int32)}, "takes the arguments"),
        ("decode", [1], "got 1 of them"),
        ("decode", [np.zeros(3, np.int32), np.zeros(2, np.int32)], "argument ids of decode"),
        ("decode", [np.zeros(2, np.float32), np.zeros(2, np.int32)], r"got float32\[2\]"),
        ("decode", ["text", np.zeros(2, np.int32)], "got str"),
    ],
)
def test_a_wrong_call_is_refused_and_changes_no_state(
    runtime: Runtime, function: str, arguments: Any, what: str
) -> None:
    got = logits(runtime, 0)
    with pytest.raises(BackendError, match=what):
        runtime.step(function, arguments)
    got += logits(runtime, 1)
    same(got, wanted(0, 1))


@pytest.mark.parametrize(
    ("values", "what"),
    [({"cache": 0}, "no state 'cache'"), ({"k_cache": np.zeros(3, np.float32)}, "state k_cache")],
)
def test_wrong_state_is_refused(runtime: Runtime, values: Any, what: str) -> None:
    with pytest.raises(BackendError, match=what):
        runtime.set_state({name: jnp.asarray(value) for name, value in values.items()})


def test_an_empty_and_a_closed_runtime_say_so() -> None:
    module = modules.decoder()
    runtime = started(module)
    with pytest.raises(BackendError, match="no program in the slot"):
        runtime.step("decode", decode_arguments(0))
    with pytest.raises(BackendError, match="no program in the slot"):
        runtime.get_state()
    runtime.close()
    runtime.close()
    for call in (
        lambda: runtime.swap(compiled(module)),
        lambda: runtime.step("decode", decode_arguments(0)),
        runtime.wait,
        runtime.reset_state,
        runtime.rollback,
    ):
        with pytest.raises(BackendError, match="closed"):
            call()


def test_a_number_is_taken_for_a_scalar_argument() -> None:
    text = """module "m" func main {
      arg %x: f32[] arg %n: i32[]
      %0: f32[] = lax.neg(%x) %1: i32[] = lax.neg(%n)
      return %0, %1
    }"""
    with get_backend("xla").start(CPU, {}) as runtime:
        runtime.swap(compiled(parse_module(text)))
        out = runtime.step("main", [2, 3])
    assert {name: float(x) for name, x in out.items()} == {"0": -2.0, "1": -3.0}


def test_swapping_from_another_thread_while_steps_run_loses_no_step() -> None:
    base, swapped = modules.decoder(), modules.swapped_decoder()
    programs = [compiled(base), compiled(swapped), compiled(modules.prepared_decoder())]
    failures: list[BaseException] = []
    with started(base) as runtime:
        runtime.swap(programs[0])
        done = threading.Event()

        def swap_around() -> None:
            try:
                for i in range(9):
                    runtime.swap(programs[i % 3])
            except BaseException as error:  # noqa: BLE001  (a thread's error must reach the test)
                failures.append(error)
            finally:
                done.set()

        thread = threading.Thread(target=swap_around)
        thread.start()
        got = []
        while not done.is_set() or len(got) < 8:
            got += logits(runtime, len(got))
        thread.join()
    assert not failures
    same(got, wanted(*range(len(got))))


def test_keys_of_a_random_generator_can_be_state() -> None:
    key = jax.random.key(3)

    def draw(key: Any) -> Any:
        key, used = jax.random.split(key)
        return jax.random.normal(used, (4,)), key

    from tkcc.frontends.lowering import lower

    module = lower(draw, key, state=["key"], outputs=["numbers"], recognise=False)
    with get_backend("xla").start(CPU, {}) as runtime:
        runtime.swap(compiled(module))
        runtime.set_state({"key": key})
        saved = runtime.get_state()
        numbers, _ = draw(key)
        assert_same_program(runtime.step("main")["numbers"], numbers)
        assert_identical(saved["key"], key)
        runtime.reset_state()
        assert not np.asarray(jax.random.key_data(runtime.get_state()["key"])).any()


@pytest.mark.parametrize(
    ("functions", "what"),
    [
        ((PACK,), "only one of"),
        ((UNPACK,), "only one of"),
    ],
)
def test_a_module_with_one_conversion_only_is_refused(
    functions: tuple[str, ...], what: str
) -> None:
    module = modules.swapped_decoder()
    kept = {n: f for n, f in module.functions.items() if n == "decode" or n in functions}
    with pytest.raises(BackendError, match=what):
        compiled(module.replace(functions=kept))


def test_conversions_that_do_not_give_the_modules_state_are_refused() -> None:
    module = modules.swapped_decoder()
    base = modules.decoder()
    with pytest.raises(BackendError, match="_pack_state gives"):
        compiled(module.with_function("decode", base.function("decode")))


def test_a_runtime_says_on_what_it_measures(runtime: Runtime) -> None:
    assert runtime.provenance.kind == "measured"
    assert f"jax {jax.__version__}" in runtime.provenance.by
