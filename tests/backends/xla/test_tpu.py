"""Compiling for TPU without a TPU. One child process compiles everything that these tests read."""

from __future__ import annotations

import importlib.util
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.backends.xla import modules
from tests.backends.xla.modules import grouped
from tests.backends.xla.test_match import mlp
from tkcc.backends.base import Program, Schedule, Target, get_backend
from tkcc.backends.xla import tpu
from tkcc.backends.xla.backend import Request, XlaBackend
from tkcc.frontends.lowering import lower
from tkcc.ir import functional as F
from tkcc.ir.cost import function_cost
from tkcc.ir.errors import BackendError
from tkcc.ir.graph import Module

needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed"
)
V5E, V6E, V7X = (Target.parse(f"xla:{chip}") for chip in ("tpu-v5e", "tpu-v6e", "tpu7x"))
MLP_ENTRY = {"kernel": "pallas:swiglu_mlp", "config": {"block_f": 256, "block_k": 256}}
DEPTH, WIDE = 6, 2048


def struct(*shape: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def stacked(unroll: int) -> Module:
    def run(x: Any, w: Any) -> Any:
        step = lambda c, one: (jnp.tanh(F.linear(c, one)), None)  # noqa: E731
        return jax.lax.scan(step, x, w, unroll=unroll)[0]

    return lower(run, struct(16, WIDE), struct(DEPTH, WIDE, WIDE), recognise=False)


def too_large() -> Module:
    return lower(lambda x: x.sum(0), struct(1 << 17, 1 << 17), recognise=False)  # 32 GiB


def one_mlp() -> Module:
    shapes = ((32, 256), (256, 512), (256, 512), (512, 256))
    return grouped(mlp, *(struct(*shape) for shape in shapes))


def requests() -> dict[str, Request]:
    kernel = Schedule.of({"it": MLP_ENTRY})
    options = Schedule.of({"xla": {"compiler_options": {"xla_tpu_scoped_vmem_limit_kib": 32768}}})
    return {
        "v5e": Request(modules.decoder(), V5E),
        "v6e": Request(modules.decoder(), V6E),
        "tpu7x": Request(modules.decoder(), V7X),
        "swapped": Request(modules.swapped_decoder(), V6E),
        "kernel": Request(one_mlp(), V6E, kernel),
        "general": Request(one_mlp(), V6E, options),
        "scan": Request(stacked(1), V5E),
        "unrolled": Request(stacked(DEPTH), V5E),
        "too large": Request(too_large(), V5E),
    }


@pytest.fixture(scope="module")
def answers() -> dict[str, Program | BackendError]:
    wanted = requests()
    backend = get_backend("xla")
    assert isinstance(backend, XlaBackend)
    return dict(zip(wanted, backend.compile_many(list(wanted.values())), strict=True))


def program(answers: dict[str, Program | BackendError], name: str) -> Program:
    found = answers[name]
    assert isinstance(found, Program), found
    return found


@needs_libtpu
@pytest.mark.parametrize("chip", ["v5e", "v6e", "tpu7x"])
def test_one_module_compiles_for_every_chip(answers: Any, chip: str) -> None:
    made = program(answers, chip)
    assert made.report
    assert "stablehlo.while" in made.sources["decode.stablehlo"]
    assert made.sources["decode.hlo"]
    costs = made.costs["decode"]
    assert costs.provenance.kind == "estimated"
    assert costs.provenance.by.startswith("libtpu ")
    assert costs.seconds is not None
    assert 0 < costs.seconds < 1e-2
    state = sum(type_.bytes for type_ in made.module.state.values())
    assert costs.alias_bytes is not None
    assert costs.alias_bytes >= state  # padded to the TPU's tiles
    assert costs.peak_bytes is not None
    assert costs.peak_bytes >= sum(type_.bytes for type_ in made.module.parameters.values())


@needs_libtpu
def test_flops_count_every_step_of_a_scan(answers: Any) -> None:
    made = program(answers, "scan")
    costs = made.costs["main"]
    want = 2 * DEPTH * 16 * WIDE * WIDE
    assert costs.flops == pytest.approx(want, rel=0.05)
    assert function_cost(made.module.function()).flops == pytest.approx(want, rel=0.05)
    assert costs.loops_counted_once == 0


@needs_libtpu
def test_a_scan_and_the_same_layers_unrolled_are_estimated_alike(answers: Any) -> None:
    scan, unrolled = (program(answers, name).costs["main"] for name in ("scan", "unrolled"))
    assert scan.flops == pytest.approx(unrolled.flops, rel=0.05)
    assert scan.seconds == pytest.approx(unrolled.seconds, rel=0.1)


@needs_libtpu
def test_a_scheduled_kernel_is_in_the_compiled_program(answers: Any) -> None:
    made, general = program(answers, "kernel"), program(answers, "general")
    assert [line.how for line in made.report] == ["pallas:swiglu_mlp"]
    assert "tpu_custom_call" in made.sources["main.hlo"]
    assert "tpu_custom_call" not in general.sources["main.hlo"]
    assert "name=swiglu_mlp" in made.sources["main.it.pallas"]
    assert general.report[0].reason.startswith("no entry in the schedule")


@needs_libtpu
def test_conversions_of_state_are_compiled_too(answers: Any) -> None:
    made = program(answers, "swapped")
    assert set(made.costs) == {"decode", "_pack_state", "_unpack_state"}


@needs_libtpu
def test_a_program_that_exceeds_the_chips_memory_says_by_how_much_and_what_to_do(
    answers: Any,
) -> None:
    error = answers["too large"]
    assert isinstance(error, BackendError)
    assert error.what == (
        "main needs 32.00 GiB of HBM on one device, and xla:tpu-v5e has 15.75 GiB"
    )
    assert "xla:tpu-v5p" in error.remedy
    assert "xla:tpu-v6e" not in error.remedy


@needs_libtpu
def test_a_tpu_program_cannot_be_run_without_a_tpu(answers: Any) -> None:
    with pytest.raises(BackendError, match="cannot run here") as caught:
        get_backend("xla").start(V6E, {})
    assert "compiling for TPU works" in caught.value.remedy
    assert not program(answers, "v6e").artifacts


@needs_libtpu
def test_a_second_compilation_starts_no_child(
    answers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tpu, "_run", pytest.fail)
    again = get_backend("xla").compile(modules.decoder(), V6E)
    assert again.key == program(answers, "v6e").key
    assert again.costs == program(answers, "v6e").costs


def test_a_missing_libtpu_is_said_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpu, "libtpu_installed", lambda: False)
    with pytest.raises(BackendError, match="needs libtpu") as caught:
        tpu.compile_jobs([])
    assert "tkcc[tpu]" in caught.value.remedy


@needs_libtpu
def test_a_child_that_takes_too_long_is_stopped() -> None:
    job = tpu.Job(modules.decoder(), V6E, Schedule(), ("decode",))
    with pytest.raises(BackendError, match=r"longer than 0\.05 seconds"):
        tpu.compile_jobs([job], time_limit=0.05)


@needs_libtpu
def test_the_last_words_of_a_child_that_dies_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpu, "CHILD", "tkcc.backends.xla.no_such_module")
    job = tpu.Job(modules.decoder(), V6E, Schedule(), ("decode",))
    with pytest.raises(BackendError, match="ended with 1") as caught:
        tpu.compile_jobs([job])
    assert "no_such_module" in caught.value.where


def test_the_child_sees_only_an_allow_listed_environment() -> None:
    given = {"PATH": "/bin", "API_KEY": "secret", "XLA_FLAGS": "--x", "JAX_PLATFORMS": "cuda"}
    seen = tpu.child_environment(given)
    assert seen["PATH"] == "/bin"
    assert seen["JAX_PLATFORMS"] == "cpu"
    assert not {"API_KEY", "XLA_FLAGS"} & set(seen)
    assert seen["TPU_SKIP_MDS_QUERY"] == "1"
