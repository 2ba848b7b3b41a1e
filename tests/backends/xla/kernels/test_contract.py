"""What every kernel folder must export and how it must answer."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import tkcc.backends.xla.kernels as kernels
from tkcc.backends.xla.kernels.platforms import PLATFORMS, VMEM_BYTES, vmem_limit

NAMES = sorted(found.name for found in pkgutil.iter_modules(kernels.__path__) if found.ispkg)

# A plain case of each kernel: shapes of what `refuses` takes.
SHAPES: dict[str, list[tuple[int, ...]]] = {
    "norm_linear": [(64, 1024), (1024,), (1024, 2048)],
    "swiglu_mlp": [(64, 1024), (1024, 2048), (1024, 2048), (2048, 1024)],
    "decode_attention": [(4, 1, 16, 128), (4, 2048, 8, 128), (4, 2048, 8, 128)],
    "flash_attention": [(2, 512, 16, 128), (2, 1024, 8, 128), (2, 1024, 8, 128)],
}


def module(name: str) -> ModuleType:
    return importlib.import_module(f"tkcc.backends.xla.kernels.{name}")


def case(name: str, dtype: Any = jnp.bfloat16) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(shape, dtype) for shape in SHAPES[name]]


def test_every_kernel_folder_has_a_case_here() -> None:
    assert sorted(SHAPES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_folder_exports_the_contract(name: str) -> None:
    found = module(name)
    wanted = {"Config", "reference", "refuses", "schedules", "vmem_bytes", name}
    assert wanted <= set(found.__all__)
    assert all(inspect.getdoc(getattr(found, export)) for export in wanted)


@pytest.mark.parametrize("name", NAMES)
def test_kernel_takes_what_its_reference_takes_and_how_to_run(name: str) -> None:
    found = module(name)
    kernel = list(inspect.signature(getattr(found, name)).parameters)
    assert kernel == [*inspect.signature(found.reference).parameters, "config", "interpret"]


@pytest.mark.parametrize("name", NAMES)
def test_config_is_frozen_and_has_defaults(name: str) -> None:
    config = module(name).Config()
    field = dataclasses.fields(config)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(config, field, 256)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("block", [0, -128, 100])
def test_config_names_a_block_that_is_no_multiple_of_a_tile(name: str, block: int) -> None:
    made = module(name).Config
    for field in dataclasses.fields(made):
        if field.name.startswith("block_"):
            with pytest.raises(ValueError, match=f"Config: {field.name} is {block}"):
                made(**{field.name: block})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("platform", PLATFORMS)
def test_schedules_are_distinct_and_held_except_on_the_gpu(name: str, platform: str) -> None:
    found = module(name).schedules(*case(name), platform=platform)
    refuses = module(name).refuses
    assert len(set(found)) == len(found)
    assert bool(found) == (platform != "gpu")
    for config in found:
        assert refuses(*case(name), config=config, platform=platform) is None


@pytest.mark.parametrize("name", NAMES)
def test_gpu_is_refused_with_a_reason(name: str) -> None:
    reason = module(name).refuses(*case(name), config=module(name).Config(), platform="gpu")
    assert reason == "this kernel is written for the TPU's Mosaic compiler, which has no GPU target"


@pytest.mark.parametrize("name", NAMES)
def test_unknown_platform_is_an_error_that_lists_the_known_ones(name: str) -> None:
    with pytest.raises(ValueError, match="'tpu' is unknown; use one of cpu, gpu, tpu-v4"):
        module(name).refuses(*case(name), config=module(name).Config(), platform="tpu")


@pytest.mark.parametrize("name", NAMES)
def test_float16_is_refused_with_a_reason_and_has_no_schedules(name: str) -> None:
    found, operands = module(name), case(name, jnp.float16)
    reason = found.refuses(*operands, config=found.Config(), platform="cpu")
    assert reason is not None
    assert "is float16; the kernel holds float32 and bfloat16 only" in reason
    assert found.schedules(*operands, platform="cpu") == []


@pytest.mark.parametrize("name", NAMES)
def test_vmem_of_each_schedule_is_positive_and_below_the_chips(name: str) -> None:
    for platform, available in VMEM_BYTES.items():
        for config in module(name).schedules(*case(name), platform=platform):
            needed = module(name).vmem_bytes(*case(name), config=config)
            assert 0 < needed < available
            assert needed <= vmem_limit(needed) <= available


@pytest.mark.parametrize("name", NAMES)
def test_float32_needs_more_vmem_than_bfloat16(name: str) -> None:
    found = module(name)
    narrow, wide = (
        found.vmem_bytes(*case(name, dtype), config=found.Config())
        for dtype in (jnp.bfloat16, jnp.float32)
    )
    assert narrow < wide
