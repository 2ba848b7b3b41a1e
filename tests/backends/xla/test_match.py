"""Which kernel a group's body is, on which operands, and every way in which it is not."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.backends.xla.modules import CPU, array, grouped
from tests.tolerances import TOLERANCES
from tkcc.backends.base import Program, Schedule, Site, Target, get_backend
from tkcc.backends.xla import match
from tkcc.backends.xla.backend import XlaBackend
from tkcc.backends.xla.kernel_calls import kernel_call
from tkcc.backends.xla.match import NoFit
from tkcc.frontends.lowering import lower
from tkcc.ir import functional as F
from tkcc.ir.errors import BackendError
from tkcc.ir.evaluate import evaluate
from tkcc.ir.graph import Module

GPU, V6E = Target.parse("xla:gpu"), Target.parse("xla:tpu-v6e")
ROWS = array(2, 3, 128)
SCALE, WEIGHT = 1 + array(128, seed=1), array(128, 256, seed=2, scale=0.1)
GATE, UP = (array(128, 256, seed=i, scale=0.1) for i in (3, 4))
DOWN = array(256, 128, seed=5, scale=0.1)
CACHE = [array(2, 128, 2, 32, seed=i) for i in (6, 7)]
ONE, MANY = array(2, 1, 4, 32, seed=8), array(2, 16, 4, 32, seed=9)
AT, LENGTHS = jnp.asarray([[5], [90]], jnp.int32), jnp.asarray([100, 70], jnp.int32)
MANY_AT = jnp.asarray([[40], [100]], jnp.int32) + jnp.arange(16, dtype=jnp.int32)


def norm_linear(x: Any, scale: Any, w: Any, **keywords: Any) -> Any:
    return F.linear(F.rms_norm(x, scale, **keywords), w)


def mlp(x: Any, gate: Any, up: Any, down: Any, activation: str = "silu") -> Any:
    return F.linear(F.swiglu(F.linear(x, gate), F.linear(x, up), activation), down)


def swiglu_of_one(x: Any) -> Any:
    return F.swiglu(x, x)


def attend(q: Any, k: Any, v: Any, positions: Any = None, lengths: Any = None, **more: Any) -> Any:
    return F.attention(q, k, v, scale=0.2, positions=positions, lengths=lengths, **more)


FITS: dict[str, tuple[str, Any, tuple[Any, ...]]] = {
    "norm_linear": ("norm_linear", norm_linear, (ROWS, SCALE, WEIGHT)),
    "norm_linear, 1 + w, other eps": (
        "norm_linear",
        lambda *xs: norm_linear(*xs, plus_one=True, eps=1e-3),
        (ROWS, SCALE, WEIGHT),
    ),
    "norm_linear, transposed, operands in another order": (
        "norm_linear",
        lambda w, x, s: F.linear(F.rms_norm(x, s), w, transposed=True),
        (WEIGHT.T, ROWS, SCALE),
    ),
    "mlp": ("swiglu_mlp", mlp, (ROWS, GATE, UP, DOWN)),
    "mlp, gelu": (
        "swiglu_mlp",
        lambda *xs: mlp(*xs, activation="gelu_tanh"),
        (ROWS, GATE, UP, DOWN),
    ),
    "mlp, transposed, up before gate": (
        "swiglu_mlp",
        lambda x, u, g, d: F.linear(
            F.swiglu(F.linear(x, g, transposed=True), F.linear(x, u, transposed=True)),
            d,
            transposed=True,
        ),
        (ROWS, UP.T, GATE.T, DOWN.T),
    ),
    "decode": ("decode_attention", attend, (ONE, *CACHE, AT, LENGTHS)),
    "decode at the last key by default": ("decode_attention", attend, (ONE, *CACHE)),
    "decode with a window, lengths only": (
        "decode_attention",
        lambda q, k, v, n: attend(q, k, v, lengths=n, window=80),
        (ONE, *CACHE, LENGTHS),
    ),
    "decode, heads first": (
        "decode_attention",
        lambda q, k, v, at: attend(q, k, v, at, layout="bhsd"),
        (ONE, *(jnp.swapaxes(x, 1, 2) for x in CACHE), AT),
    ),
    "prefill": ("flash_attention", attend, (MANY, *CACHE, MANY_AT, LENGTHS)),
    "prefill, not causal, with a window": (
        "flash_attention",
        lambda q, k, v, at: attend(q, k, v, at, causal=False, window=30),
        (MANY, *CACHE, MANY_AT),
    ),
}


def scheduled(module: Module, entry: dict[str, Any], target: Target = CPU) -> Program:
    return get_backend("xla").compile(module, target, Schedule.of({"it": entry}))


@pytest.mark.parametrize("case", list(FITS))
def test_a_body_that_fits_runs_in_its_kernel_and_means_the_same(case: str) -> None:
    kernel, target, arguments = FITS[case]
    module = grouped(target, *arguments)
    program = scheduled(module, {"kernel": f"pallas:{kernel}", "interpret": True})
    (line,) = program.report
    assert (line.op, line.how) == ("group", f"pallas:{kernel} (interpreted)")
    assert f"name={kernel}" in program.sources["main.it.pallas"]
    (want,) = jax.jit(lambda *xs: evaluate(module.function(), xs))(*arguments)
    with get_backend("xla").start(CPU, {}) as runtime:
        runtime.swap(program)
        (got,) = runtime.step("main", arguments).values()
    relative, absolute = TOLERANCES["f32"]
    np.testing.assert_allclose(got, want, rtol=10 * relative, atol=10 * absolute)


@pytest.mark.parametrize("case", list(FITS))
def test_the_choices_for_a_group_are_entries_that_compile_takes(case: str) -> None:
    kernel, target, arguments = FITS[case]
    module = grouped(target, *arguments)
    (node,) = module.function().nodes
    for where in (CPU, V6E):
        choices = get_backend("xla").choices(node, where)
        assert {"kernel": f"pallas:{kernel}"}.items() <= choices[0].items()
        assert len(choices) == len({str(choice) for choice in choices})
        assert kernel_call(node, Site("main", (0,)), choices[0], where).fit.kernel == kernel
    assert get_backend("xla").choices(node, GPU) == []


BIAS = array(256, seed=10)
NO_FIT: dict[str, tuple[str, Any, tuple[Any, ...], str]] = {
    "another op": ("norm_linear", jnp.sin, (ROWS,), "holds lax.sin"),
    "one op more": (
        "norm_linear",
        lambda *xs: jnp.sin(norm_linear(*xs)),
        (ROWS, SCALE, WEIGHT),
        "holds lax.sin, linear, rms_norm",
    ),
    "a bias": (
        "norm_linear",
        lambda x, s, w, b: F.linear(F.rms_norm(x, s), w, b),
        (ROWS, SCALE, WEIGHT, BIAS),
        "has a bias",
    ),
    "norm and product side by side": (
        "norm_linear",
        lambda x, s, w: (F.rms_norm(x, s), F.linear(x, w))[1] + 0 * F.rms_norm(x, s).sum(),
        (ROWS, SCALE, WEIGHT),
        "the group holds",
    ),
    "the norm is read outside too": (
        "norm_linear",
        lambda x, s, w: (F.linear(F.rms_norm(x, s), w), F.rms_norm(x, s)),
        (ROWS, SCALE, WEIGHT),
        "the group holds",
    ),
    "the norm scales by the product": (
        "norm_linear",
        lambda x, s, w: F.rms_norm(F.linear(x, w), s),
        (array(2, 128), array(256), WEIGHT),
        "does not read the normed rows",
    ),
    "gate and up of different inputs": (
        "swiglu_mlp",
        lambda x, y, g, u, d: F.linear(F.swiglu(F.linear(x, g), F.linear(y, u)), d),
        (ROWS, ROWS, GATE, UP, DOWN),
        "different inputs",
    ),
    "one weight transposed": (
        "swiglu_mlp",
        lambda x, g, u, d: F.linear(F.swiglu(F.linear(x, g), F.linear(x, u)), d, transposed=True),
        (ROWS, GATE, UP, DOWN.T),
        "transposed",
    ),
    "gate is up": (
        "swiglu_mlp",
        lambda x, g, d, e: F.linear(F.linear(swiglu_of_one(F.linear(x, g)), d), e),
        (ROWS, GATE, DOWN, WEIGHT),
        "one linear op",
    ),
    "soft cap": (
        "decode_attention",
        lambda q, k, v, at: attend(q, k, v, at, softcap=30.0),
        (ONE, *CACHE, AT),
        "softcap",
    ),
    "sinks": (
        "flash_attention",
        lambda q, k, v, at, s: attend(q, k, v, at, sinks=s),
        (MANY, *CACHE, MANY_AT, array(4)),
        "takes no sinks",
    ),
    "a mask": (
        "flash_attention",
        lambda q, k, v, m: attend(q, k, v, mask=m),
        (MANY, *CACHE, jnp.ones((16, 128), bool)),
        "takes no mask",
    ),
    "decode that is not causal": (
        "decode_attention",
        lambda q, k, v, at: attend(q, k, v, at, causal=False),
        (ONE, *CACHE, AT),
        "not causal",
    ),
    "decode of many": ("decode_attention", attend, (MANY, *CACHE, MANY_AT), "16 queries"),
}


@pytest.mark.parametrize("case", list(NO_FIT))
def test_a_body_that_differs_is_refused_with_the_difference(case: str) -> None:
    kernel, target, arguments, reason = NO_FIT[case]
    module = grouped(target, *arguments)
    (node,) = module.function().nodes
    with pytest.raises(NoFit, match=reason):
        match.fit(kernel, match.body_of(node))
    with pytest.raises(BackendError, match="does not fit") as caught:
        scheduled(module, {"kernel": f"pallas:{kernel}", "interpret": True})
    assert "main:0 it" in caught.value.where


def test_shapes_and_dtypes_that_a_kernel_does_not_hold_are_refused_with_its_reason() -> None:
    half = grouped(norm_linear, *(x.astype(jnp.float16) for x in (ROWS, SCALE, WEIGHT)))
    with pytest.raises(BackendError, match="float16"):
        scheduled(half, {"kernel": "pallas:norm_linear", "interpret": True})
    values = [CACHE[0], array(2, 128, 2, 16)]
    narrow = grouped(attend, ONE, *values, AT)
    with pytest.raises(BackendError, match="v has shape"):
        scheduled(narrow, {"kernel": "pallas:decode_attention", "interpret": True})
    (node,) = narrow.function().nodes
    assert get_backend("xla").choices(node, CPU) == []


ENTRIES: dict[str, tuple[dict[str, Any], Target, str]] = {
    "no kernel": ({"config": {}}, CPU, "kernel None is not known"),
    "an unknown kernel": ({"kernel": "pallas:nothing"}, CPU, "is not known"),
    "an unknown key": ({"kernel": "pallas:norm_linear", "tile": 1}, CPU, "unknown keys"),
    "no interpreter asked for": ({"kernel": "pallas:norm_linear"}, CPU, "only runs interpreted"),
    "a text for interpret": (
        {"kernel": "pallas:norm_linear", "interpret": "yes"},
        CPU,
        "not true or false",
    ),
    "interpreting for a TPU": (
        {"kernel": "pallas:norm_linear", "interpret": True},
        V6E,
        "interpreting is for xla:cpu",
    ),
    "a GPU": ({"kernel": "pallas:norm_linear"}, GPU, "no GPU target"),
    "an unknown config field": (
        {"kernel": "pallas:norm_linear", "config": {"warps": 4}, "interpret": True},
        CPU,
        "block_m, block_n, block_k",
    ),
    "a config value of another type": (
        {"kernel": "pallas:norm_linear", "config": {"block_m": 16.0}, "interpret": True},
        CPU,
        "block_m is 16.0",
    ),
    "a config value that is wrong": (
        {"kernel": "pallas:norm_linear", "config": {"block_n": 100}, "interpret": True},
        CPU,
        "block_n is 100",
    ),
}


@pytest.mark.parametrize("case", list(ENTRIES))
def test_an_entry_that_cannot_be_followed_is_an_error_and_no_fallback(case: str) -> None:
    entry, target, what = ENTRIES[case]
    module = grouped(norm_linear, ROWS, SCALE, WEIGHT)
    with pytest.raises(BackendError, match=what):
        scheduled(module, entry, target)


def test_blocks_that_a_chip_does_not_hold_are_refused_before_compiling() -> None:
    wide = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((8192, 8192), (8192,), (8192, 8192))]
    module = grouped(norm_linear, *wide)
    config = {"block_m": 8192, "block_n": 8192, "block_k": 8192}
    with pytest.raises(BackendError, match="of VMEM"):
        scheduled(module, {"kernel": "pallas:norm_linear", "config": config}, V6E)


def test_a_group_without_an_entry_takes_the_general_path_and_the_report_says_why() -> None:
    module = grouped(mlp, ROWS, GATE, UP, DOWN)
    program = get_backend("xla").compile(module, CPU)
    first = program.report[0]
    assert first.how == "xla"
    assert first.reason == "no entry in the schedule; pallas:swiglu_mlp would compute it"
    assert [line.op for line in program.report[1:]] == ["linear", "linear", "swiglu", "linear"]
    chosen = scheduled(module, {"kernel": "xla"})
    assert chosen.report[0].reason == "the schedule says so"
    odd = get_backend("xla").compile(grouped(jnp.sin, ROWS), CPU)
    assert odd.report[0].reason == "no entry in the schedule; no kernel computes its body"


def test_every_kernels_reason_can_be_asked_for() -> None:
    backend = get_backend("xla")
    assert isinstance(backend, XlaBackend)
    (node,) = grouped(mlp, ROWS, GATE, UP, DOWN).function().nodes
    reasons = backend.kernel_refusals(node, V6E)
    assert reasons["pallas:swiglu_mlp"] is None
    assert "the group holds" in str(reasons["pallas:norm_linear"])
    assert all("GPU" in str(reason) for reason in backend.kernel_refusals(node, GPU).values())


def test_a_single_op_is_scheduled_by_its_site() -> None:
    module = lower(attend, ONE, *CACHE, AT, recognise=False)
    entry = {"kernel": "pallas:decode_attention", "interpret": True}
    program = get_backend("xla").compile(module, CPU, Schedule.of({"main:0": entry}))
    assert program.report[0].how == "pallas:decode_attention (interpreted)"
    with get_backend("xla").start(CPU, {}) as runtime:
        runtime.swap(program)
        (got,) = runtime.step("main", [ONE, *CACHE, AT]).values()
    np.testing.assert_allclose(got, attend(ONE, *CACHE, AT), rtol=1e-4, atol=1e-5)


def test_a_label_can_be_scheduled_differently_in_each_function() -> None:
    one, other = (grouped(attend, q, *CACHE) for q in (ONE, MANY))
    module = Module({"decode": one.function(), "prefill": other.function()}, "two")
    entries = {
        "decode/it": {"kernel": "pallas:decode_attention", "interpret": True},
        "it": {"kernel": "pallas:flash_attention", "interpret": True},
    }
    program = get_backend("xla").compile(module, CPU, Schedule.of(entries))
    assert {line.site.function: line.how.split()[0] for line in program.report} == {
        "decode": "pallas:decode_attention",
        "prefill": "pallas:flash_attention",
    }


def test_a_kernel_stands_in_the_body_of_a_scan() -> None:
    stacks = tuple(jnp.stack([x, 0.5 * x]) for x in (GATE, UP, DOWN))
    inner = grouped(mlp, ROWS, GATE, UP, DOWN).function()

    def layers(x: Any, *stacked: Any) -> Any:
        return jax.lax.scan(lambda c, w: (mlp(c, *w), None), x, stacked)[0]

    module = lower(layers, ROWS, *stacks, recognise=False)
    function = module.function()
    (scan,) = function.nodes
    body = scan.regions[0]
    inputs = dict(zip("xgud", [None, *body.inputs[1:]], strict=True))
    assert inputs["d"] is not None
    order = [body.nodes[0].operands[0], body.nodes[0].operands[1], body.nodes[1].operands[1]]
    order.append(body.nodes[3].operands[1])
    group = inner.nodes[0].replace(operands=tuple(order), results=body.outputs)
    changed = scan.replace(regions=(body.replace(nodes=(group,)),))
    module = module.with_function("main", function.replace(nodes=(changed,)))
    program = scheduled(module, {"kernel": "pallas:swiglu_mlp", "interpret": True})
    assert [line.how for line in program.report] == ["xla", "pallas:swiglu_mlp (interpreted)"]
    with get_backend("xla").start(CPU, {}) as runtime:
        runtime.swap(program)
        (got,) = runtime.step("main", [ROWS, *stacks]).values()
    np.testing.assert_allclose(got, layers(ROWS, *stacks), rtol=1e-3, atol=1e-4)


def test_a_kernel_cannot_stand_in_a_region_that_jax_traces_whole() -> None:
    def total(x: Any) -> Any:
        return jax.lax.reduce(x, 0.0, lambda a, b: a * b + a, (0,))

    module = lower(total, ROWS, recognise=False)
    program = get_backend("xla").compile(module, CPU)
    inner = next(line.site.key for line in program.report if "." in line.site.key)
    with pytest.raises(BackendError, match="a region of lax.reduce, which JAX traces whole"):
        get_backend("xla").compile(
            module, CPU, Schedule.of({inner: {"kernel": "pallas:norm_linear", "interpret": True}})
        )


def test_compiling_with_kernels_is_cached_under_its_own_key() -> None:
    module = grouped(norm_linear, ROWS, SCALE, WEIGHT)
    entries = [
        {"kernel": "pallas:norm_linear", "interpret": True, "config": {"block_n": n}}
        for n in (128, 256)
    ]
    keys = {scheduled(module, entry).key for entry in entries}
    keys.add(get_backend("xla").compile(module, CPU).key)
    assert len(keys) == 3
