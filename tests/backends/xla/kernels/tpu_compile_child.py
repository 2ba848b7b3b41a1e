"""Compiles every kernel for TPUs that are not there; a process of its own, started by
test_tpu_compile.py with the path of the JSON file to write.

Kernels are compiled under their own estimate of VMEM as the limit, so compiling proves it enough.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

TOPOLOGIES = {"tpu-v5e": "v5e:2x2", "tpu-v6e": "v6e:2x4", "tpu-v7x": "tpu7x:2x2x1"}


class Job(NamedTuple):
    """A kernel at a shape. config is its fields, or None for the first schedule of the platform;
    planned is how many operands and which keywords schedules, refuses and vmem_bytes take."""

    kernel: str
    operands: list[jax.ShapeDtypeStruct]
    keywords: dict[str, Any]
    planned: tuple[int, tuple[str, ...]]
    config: dict[str, Any] | None = None
    wide_integers: bool = False


def _floats(*shapes: tuple[int, ...], dtype: Any = jnp.bfloat16) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]


def _attention(
    q: tuple[int, ...], cache: tuple[int, ...], dtype: Any = jnp.bfloat16
) -> list[jax.ShapeDtypeStruct]:
    visible = [jax.ShapeDtypeStruct(shape, jnp.int32) for shape in (q[:2], q[:1])]
    return [*_floats(q, cache, cache, dtype=dtype), *visible]


NORM = (3, ("transposed",))
MLP = (4, ("transposed",))
ATTENTION = (3, ("layout",))

JOBS = {
    "norm_linear prefill": Job(
        "norm_linear", _floats((512, 4096), (4096,), (4096, 6144)), {"eps": 1e-6}, NORM
    ),
    "norm_linear decode, [N, K]": Job(
        "norm_linear",
        _floats((8, 4096), (4096,), (6144, 4096)),
        {"eps": 1e-6, "transposed": True},
        NORM,
    ),
    "norm_linear of odd sizes, 64-bit integers on": Job(
        "norm_linear",
        _floats((100, 900), (900,), (900, 1150)),
        {"eps": 1e-6},
        NORM,
        {"block_k": 256},
        wide_integers=True,
    ),
    "swiglu_mlp prefill": Job(
        "swiglu_mlp",
        _floats((256, 4096), (4096, 14336), (4096, 14336), (14336, 4096)),
        {},
        MLP,
        {"block_m": 256},
    ),
    "swiglu_mlp decode, [N, K]": Job(
        "swiglu_mlp",
        _floats((8, 2048), (8192, 2048), (8192, 2048), (2048, 8192)),
        {"activation": "gelu", "transposed": True},
        MLP,
    ),
    "swiglu_mlp of odd sizes": Job(
        "swiglu_mlp",
        _floats((20, 900), (900, 2500), (900, 2500), (2500, 900)),
        {"activation": "gelu_tanh"},
        MLP,
        {"block_k": 256},
    ),
    "decode_attention, 8 key heads": Job(
        "decode_attention",
        _attention((4, 1, 32, 128), (4, 8192, 8, 128)),
        {"scale": 0.1},
        ATTENTION,
    ),
    "decode_attention, 2 key heads": Job(
        "decode_attention",
        _attention((16, 1, 16, 128), (16, 8192, 2, 128)),
        {"scale": 0.1, "window": 4096},
        ATTENTION,
    ),
    "decode_attention, 10 key heads": Job(
        "decode_attention",
        _attention((4, 1, 40, 128), (4, 8192, 10, 128)),
        {"scale": 0.1},
        ATTENTION,
    ),
    "decode_attention, heads first, odd sizes, 64-bit integers on": Job(
        "decode_attention",
        _attention((2, 1, 14, 64), (2, 2, 1000, 64)),
        {"scale": 0.1, "layout": "bhsd"},
        ATTENTION,
        {"block_s": 256},
        wide_integers=True,
    ),
    "flash_attention": Job(
        "flash_attention",
        _attention((2, 512, 32, 128), (2, 2048, 8, 128)),
        {"scale": 0.1},
        ATTENTION,
        {"block_t": 256, "block_s": 1024},
    ),
    "flash_attention, heads first, odd sizes, 64-bit integers on": Job(
        "flash_attention",
        _attention((1, 300, 14, 64), (1, 2, 1000, 64)),
        {"scale": 0.1, "layout": "bhsd", "window": 200},
        ATTENTION,
        {},
        wide_integers=True,
    ),
    "float32 norm_linear": Job(
        "norm_linear",
        _floats((64, 512), (512,), (512, 1024), dtype=jnp.float32),
        {"eps": 1e-6},
        NORM,
    ),
    "float32 swiglu_mlp": Job(
        "swiglu_mlp",
        _floats((16, 512), (512, 1024), (512, 1024), (1024, 512), dtype=jnp.float32),
        {"activation": "relu"},
        MLP,
        {"block_m": 16, "block_f": 256},
    ),
    "float32 decode_attention": Job(
        "decode_attention",
        _attention((4, 1, 16, 128), (4, 2048, 4, 128), jnp.float32),
        {"scale": 0.1},
        ATTENTION,
        {"block_s": 256, "merge_heads": True},
    ),
    "float32 flash_attention": Job(
        "flash_attention",
        _attention((1, 256, 4, 128), (1, 512, 2, 128), jnp.float32),
        {"scale": 0.1},
        ATTENTION,
        {"block_s": 256},
    ),
}

TOO_LITTLE = "norm_linear under a limit of 64 KiB"


def _config(job: Job, platform: str) -> Any:
    package = importlib.import_module(f"tkcc.backends.xla.kernels.{job.kernel}")
    count, names = job.planned
    planned = {name: job.keywords[name] for name in names if name in job.keywords}
    operands = job.operands[:count]
    if job.config is None:
        return package.schedules(*operands, **planned, platform=platform)[0]
    config = package.Config(**job.config)
    assert package.refuses(*operands, **planned, config=config, platform=platform) is None
    return config


@contextlib.contextmanager
def _limit(kernel: str, limit: Callable[[int], int]) -> Iterator[Any]:
    """The kernel's module, with its VMEM limit computed by `limit` from its estimate."""
    module = importlib.import_module(f"tkcc.backends.xla.kernels.{kernel}.pallas")
    usual = module.vmem_limit
    module.vmem_limit = limit  # type: ignore[attr-defined]
    yield module
    module.vmem_limit = usual  # type: ignore[attr-defined]


def _sharding(platform: str) -> NamedSharding:
    found = topologies.get_topology_desc(platform="tpu", topology_name=TOPOLOGIES[platform])
    mesh = Mesh(np.array(found.devices[:1]), ("one",))
    return NamedSharding(mesh, PartitionSpec())


def _compile(job: Job, platform: str, limit: Callable[[int], int]) -> dict[str, Any]:
    sharding, config = _sharding(platform), _config(job, platform)
    operands = [
        jax.ShapeDtypeStruct(operand.shape, operand.dtype, sharding=sharding)
        for operand in job.operands
    ]
    with _limit(job.kernel, limit) as module, jax.enable_x64(job.wide_integers):
        kernel = getattr(module, job.kernel)
        # A new function each time: JAX keeps what it traced under another limit.
        call = functools.partial(kernel, **job.keywords, config=config, interpret=False)
        try:
            compiled = jax.jit(lambda *arrays: call(*arrays)).lower(*operands).compile()
        except jax.errors.JaxRuntimeError as error:
            return {"config": str(config), "error": str(error)}
    text, memory = compiled.as_text(), compiled.memory_analysis()
    assert text is not None
    assert memory is not None
    calls = text.count('custom_call_target="tpu_custom_call"')
    temporary = memory.temp_size_in_bytes
    return {"config": str(config), "error": None, "calls": calls, "temporary": temporary}


def main(answer: str) -> None:
    found: dict[str, dict[str, Any]] = {}
    for platform in TOPOLOGIES:
        found[platform] = {
            name: _compile(job, platform, lambda needed: needed) for name, job in JOBS.items()
        }
    small = JOBS["norm_linear decode, [N, K]"]
    found["tpu-v5e"][TOO_LITTLE] = _compile(small, "tpu-v5e", lambda needed: 64 * 1024)
    Path(answer).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
