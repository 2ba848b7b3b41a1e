"""JAX functions compiled in a hurry: tiny tests spend their time in XLA's optimiser otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

_OPTIONS: dict[str, Any] = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_parallel_codegen_split_count": 1,
}
if jax.__version_info__ < (0, 12):  # newer ones have no such option
    _OPTIONS["xla_cpu_use_fusion_emitters"] = False


def quick_jit(f: Callable[..., Any]) -> Callable[..., Any]:
    """`jax.jit` for the CPU with next to no optimisation."""
    return jax.jit(f, compiler_options=_OPTIONS)
