"""Compiling for the CPU: results, report, sources, costs, cache, schedule."""

from __future__ import annotations

import functools
import threading
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.backends.xla import modules
from tests.backends.xla.modules import CPU, array
from tests.tolerances import assert_same_program
from tkcc.backends.base import Program, Runtime, Schedule, Target, get_backend
from tkcc.backends.xla.backend import Request, XlaBackend
from tkcc.backends.xla.compile import Settings, compile_function
from tkcc.backends.xla.loops import Figures, copies, unrolls, with_loops
from tkcc.backends.xla.placement import place
from tkcc.frontends.lowering import lower
from tkcc.ir import functional as F
from tkcc.ir.cost import function_cost
from tkcc.ir.errors import BackendError
from tkcc.ir.evaluate import evaluate
from tkcc.ir.graph import Function, Module, Value
from tkcc.ir.op import build
from tkcc.ir.text import parse_function, parse_module
from tkcc.ir.types import TensorType


def backend() -> XlaBackend:
    found = get_backend("xla")
    assert isinstance(found, XlaBackend)
    return found


def run(program: Program, parameters: dict[str, Any], *arguments: Any) -> list[Any]:
    runtime: Runtime
    with backend().start(CPU, parameters) as runtime:
        runtime.swap(program)
        return list(runtime.step(program.functions[0], arguments).values())


def plain(x: Any, y: Any) -> tuple[Any, Any]:
    return F.linear(x, y), jnp.sin(x)


def with_cond(x: Any, y: Any) -> Any:
    return jax.lax.cond(x.sum() > 0, lambda: x @ y, lambda: x - 1)


def with_while(x: Any, y: Any) -> Any:
    return jax.lax.while_loop(lambda s: s.sum() < 100, lambda s: jnp.abs(s @ y) + 1, x)


def with_nested_scans(x: Any, y: Any) -> Any:
    def outer(carry: Any, row: Any) -> Any:
        inner, _ = jax.lax.scan(lambda c, _: (jnp.tanh(c @ y), None), carry, None, length=3)
        return inner + row, inner.sum()

    return jax.lax.scan(outer, x, y)


@pytest.mark.parametrize("target", [plain, with_cond, with_while, with_nested_scans])
def test_a_compiled_function_gives_what_evaluate_gives(target: Any) -> None:
    x, y = array(4, 4, seed=1), array(4, 4, seed=2)
    module = lower(target, x, y, recognise=False)
    program = backend().compile(module, CPU)
    want = jax.jit(lambda *xs: evaluate(module.function(), xs))(x, y)
    for got, wanted in zip(run(program, {}, x, y), want, strict=True):
        assert_same_program(got, wanted)


def test_bfloat16_and_integers_pass_through_a_program_unchanged_in_type() -> None:
    x, i = array(3, 8, dtype=jnp.bfloat16), jnp.arange(3, dtype=jnp.int8)
    module = lower(lambda x, i: (F.rms_norm(x, x[0]), i + 1), x, i, recognise=False)
    got = run(backend().compile(module, CPU), {}, x, i)
    assert [item.dtype for item in got] == [jnp.bfloat16, jnp.int8]


def test_the_report_names_every_op_down_into_regions() -> None:
    program = backend().compile(modules.decoder(), CPU)
    function = program.module.function("decode")
    assert [line.op for line in program.report] == [node.op for node in function.walk()]
    assert {line.how for line in program.report} == {"xla"}
    sites = [line.site.key for line in program.report]
    assert len(set(sites)) == len(sites)
    assert any(key.count(".") == 2 for key in sites)  # an op of the scan's body


def test_sources_hold_what_went_into_xla_and_what_came_out() -> None:
    program = backend().compile(modules.decoder(), CPU)
    assert "stablehlo.while" in program.sources["decode.stablehlo"]
    assert "HloModule jit_decode" in program.sources["decode.hlo"]


def test_state_is_donated_and_its_new_value_written_in_place() -> None:
    module = modules.decoder()
    costs = backend().compile(module, CPU).costs["decode"]
    state = sum(type_.bytes for type_ in module.state.values())
    assert costs.alias_bytes == state
    assert costs.argument_bytes is not None
    assert costs.peak_bytes is not None
    assert costs.peak_bytes >= costs.argument_bytes


def test_costs_count_every_step_of_a_scan_and_name_their_source() -> None:
    program = backend().compile(modules.decoder(), CPU)
    costs = program.costs["decode"]
    assert costs.flops == function_cost(program.module.function("decode")).flops
    assert costs.flops > 2 * modules.LAYERS * 3 * modules.BATCH * modules.WIDTH * modules.HIDDEN
    assert costs.provenance.kind == "estimated"


def test_each_state_is_paired_with_its_own_successor_whatever_the_order_of_outputs() -> None:
    text = """func main {
      state %a: f32[8]
      state %b: f32[8]
      arg %x: f32[8]
      %1: f32[8] = lax.add(%a, %x)
      %2: f32[8] = lax.mul(%b, %x)
      %3: f32[8] = lax.sub(%a, %b)
      return %2 -> %b, %3, %1 -> %a
    }"""
    function = parse_function(text)
    settings = Settings(jax.devices("cpu")[0], {})
    made = compile_function("main", function, place("main", function, Schedule(), CPU), settings)
    assert made.executable.order == (2, 0, 1)
    header = made.sources["main.hlo"].splitlines()[0]
    assert "{0}: (0, {}" in header  # the new a over the old a, the new b over the old b
    assert "{1}: (1, {}" in header


def test_two_outputs_may_not_replace_one_state() -> None:
    text = """module "m" func main {
      state %a: f32[2]
      %1: f32[2] = lax.neg(%a)
      return %1 -> %a, %1 -> %a
    }"""
    with pytest.raises(BackendError, match="two outputs"):
        backend().compile(parse_module(text), CPU)


def test_equal_requests_share_one_compilation_and_different_ones_do_not() -> None:
    fresh = XlaBackend()
    first = fresh.compile(modules.decoder(), CPU)
    again = fresh.compile(modules.decoder(), CPU)
    assert again.key == first.key
    assert again.artifacts["decode"] is first.artifacts["decode"]
    options = Schedule.of({"xla": {"compiler_options": {"xla_cpu_prefer_vector_width": 128}}})
    assert fresh.compile(modules.decoder(), CPU, options).key != first.key


def test_modules_that_differ_in_names_only_are_not_mixed_up() -> None:
    def module(name: str) -> Module:
        text = f'module "m" func main {{ param %{name}: f32[2] return %{name} as "{name}" }}'
        return parse_module(text)

    one, other = (backend().compile(module(name), CPU) for name in ("a", "b"))
    assert one.key != other.key
    assert_same_program(run(other, {"b": jnp.ones(2)})[0], jnp.ones(2))


def test_only_the_functions_named_are_compiled() -> None:
    module = modules.decoder().with_function(
        "other", parse_function("func other { arg %x: f32[2] return %x }")
    )
    program = backend().compile(module, CPU, functions=["other"])
    assert program.functions == ("other",)
    assert set(program.artifacts) == {"other"}
    with pytest.raises(BackendError, match="no step function") as caught:
        backend().compile(module, CPU, functions=["nothing"])
    assert "decode" in caught.value.remedy


def test_several_threads_can_compile_at_once() -> None:
    found: dict[int, Any] = {}

    def work(number: int) -> None:
        x = array(2, 3 + number)
        module = lower(lambda x: jnp.tanh(x) * number, x, recognise=False)
        found[number] = run(XlaBackend().compile(module, CPU), {}, x)[0], jnp.tanh(x) * number

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for got, want in found.values():
        assert_same_program(got, want)


def test_a_failing_request_does_not_take_the_others_with_it() -> None:
    good = Request(lower(jnp.sin, array(3), recognise=False), CPU)
    bad = Request(good.module, CPU, Schedule.of({"nothing": {"kernel": "pallas:norm_linear"}}))
    answers = backend().compile_many([bad, good])
    assert isinstance(answers[0], BackendError)
    assert isinstance(answers[1], Program)


def test_compiler_settings_come_from_the_schedule() -> None:
    module = lower(lambda x: jnp.exp(x) @ x, array(8, 8), recognise=False)
    entry = {"compiler_options": {"xla_backend_optimization_level": 1}}
    program = backend().compile(module, CPU, Schedule.of({"xla": entry}))
    assert_same_program(run(program, {}, array(8, 8))[0], jnp.exp(array(8, 8)) @ array(8, 8))


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        ({"compiler_options": {"xla_dump_to": "/tmp"}}, "xla_dump_to"),
        ({"compiler_options": {"xla_cpu_enable_fast_math": True}}, "fast_math"),
        ({"compiler_options": {"xla_cpu_multi_thread_eigen": 1}}, "multi_thread_eigen is 1"),
        ({"compiler_options": {"xla_gpu_autotune_level": 1}}, "xla_gpu_autotune_level"),
        ({"options": {}}, "schedule entry"),
    ],
)
def test_compiler_settings_outside_the_list_are_refused(entry: Any, what: str) -> None:
    module = lower(jnp.sin, array(3), recognise=False)
    with pytest.raises(BackendError, match=what):
        backend().compile(module, CPU, Schedule.of({"xla": entry}))


def test_an_entry_for_a_group_that_is_not_there_is_refused_with_the_groups_that_are() -> None:
    x = array(4, 8)
    module = modules.grouped(lambda x: jnp.sin(x), x, label="waves")
    with pytest.raises(BackendError, match="wave'") as caught:
        backend().compile(module, CPU, Schedule.of({"wave": {"kernel": "xla"}}))
    assert "waves" in caught.value.remedy


def test_collectives_are_refused_with_the_op_and_its_place() -> None:
    x = Value(TensorType("f32", (4,)), "x")
    node = build("all_reduce", x, attributes={"axis": "model", "size": 2})
    module = Module({"main": Function((x,), (node,), node.results)}, "split")
    assert "mesh" in str(backend().refuses(node, CPU))
    with pytest.raises(BackendError, match="all_reduce") as caught:
        backend().compile(module, CPU)
    assert "main:0" in caught.value.where


def test_a_gpu_program_needs_a_gpu() -> None:
    if any(device.platform == "gpu" for device in jax.devices()):
        pytest.skip("this machine has a GPU")
    module = lower(jnp.sin, array(3), recognise=False)
    with pytest.raises(BackendError, match="cannot run here"):
        backend().compile(module, Target.parse("xla:gpu"))


def test_a_target_of_another_backend_is_refused() -> None:
    module = lower(jnp.sin, array(3), recognise=False)
    with pytest.raises(BackendError, match="not a target"):
        backend().compile(module, Target("cuda", "sm_90"))


def sines(function: Function, override: Any) -> Figures:
    """How many sines a compiler counts that takes a loop's body once."""
    inputs = [value.type.struct() for value in function.inputs]
    closed = jax.make_jaxpr(lambda *xs: evaluate(function, xs, override))(*inputs)
    return Figures(float(_sines(closed.jaxpr)), 0.0, None)


def _sines(jaxpr: Any) -> int:
    found = 0
    for equation in jaxpr.eqns:
        inner = equation.params.get("jaxpr")
        inside = _sines(getattr(inner, "jaxpr", inner)) if inner is not None else 0
        if equation.primitive.name == "scan":
            inside *= copies(equation.params["length"], equation.params["unroll"])
        found += inside + (equation.primitive.name == "sin")
    return found


def deep(x: Any, y: Any) -> Any:
    def inner(c: Any, row: Any) -> Any:
        return jnp.sin(c) * row, jnp.sin(jnp.sin(row))

    def outer(c: Any, row: Any) -> Any:
        c, rows = jax.lax.scan(inner, c, y)
        d, _ = jax.lax.scan(lambda c, _: (jnp.sin(c), None), c, None, length=5)
        return jnp.sin(d) + row, rows.sum()

    x, kept = jax.lax.scan(outer, jnp.sin(x), y)
    return jax.lax.scan(inner, x, y[:1])[0], kept


def test_figures_of_loops_are_counted_as_often_as_the_loops_run() -> None:
    function = lower(deep, array(3), array(7, 3), recognise=False).function()
    placement = place("main", function, Schedule(), CPU)
    once = sines(function, placement.override)
    assert once.flops == 1 + (3 + 1 + 1) + 1
    measure = functools.partial(sines, function)
    corrected = with_loops(function, once, placement, measure)
    assert corrected.flops == pytest.approx(1 + 7 * (7 * 3 + 5 + 1) + 1)
    assert corrected.seconds is None


@pytest.mark.parametrize("unroll", [2, 3, 4, 12])
@pytest.mark.parametrize("length", [2, 3, 7, 12])
def test_a_loop_that_is_unrolled_in_part_is_counted_as_often_as_it_runs(
    length: int, unroll: int
) -> None:
    def unrolled(x: Any, y: Any) -> Any:
        def step(c: Any, row: Any) -> Any:
            c, _ = jax.lax.scan(lambda c, _: (jnp.sin(c), None), c, None, length=5, unroll=2)
            return jnp.sin(c) * row, None

        return jax.lax.scan(step, x, y, unroll=unroll)[0]

    function = lower(unrolled, array(3), array(length, 3), recognise=False).function()
    placement = place("main", function, Schedule(), CPU)
    once = sines(function, placement.override)
    assert once.flops == copies(length, unroll) * (copies(5, 2) + 1)
    got = with_loops(function, once, placement, functools.partial(sines, function))
    assert got.flops == pytest.approx(length * 6)


def test_two_unrollings_of_a_loop_leave_the_same_rest() -> None:
    for runs in (*range(2, 130), 1023, 1024):
        few, many = unrolls(runs, 1)
        assert 1 <= few < many
        assert copies(runs, many) > copies(runs, few)
        assert (many == runs and runs < 8) or (runs % few == runs % many and many <= runs // 2)


def test_a_function_without_loops_is_measured_once() -> None:
    function = lower(lambda x: jnp.sin(x), array(3), recognise=False).function()
    never = pytest.fail
    once = Figures(1.0, 2.0, 3.0)
    assert with_loops(function, once, place("main", function, Schedule(), CPU), never) == once
