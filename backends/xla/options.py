"""Compiler settings that a schedule may give under its key `xla`.

    {"xla": {"compiler_options": {"xla_cpu_prefer_vector_width": 512}}}

Only settings of this list are taken: those that choose between ways to compute the same. Settings
that write files, switch checks off or trade accuracy (fast math) are not among them.
"""

from __future__ import annotations

from typing import Any

from tkcc.backends.base import Schedule, Target
from tkcc.ir.errors import BackendError

KEY = "xla"
ENTRY = "compiler_options"

_ANY = {
    "xla_backend_optimization_level": int,
    "xla_llvm_disable_expensive_passes": bool,
}
ALLOWED: dict[str, dict[str, type]] = {
    "cpu": {
        **_ANY,
        "xla_cpu_copy_insertion_use_region_analysis": bool,
        "xla_cpu_enable_concurrency_optimized_scheduler": bool,
        "xla_cpu_multi_thread_eigen": bool,
        "xla_cpu_parallel_codegen_split_count": int,
        "xla_cpu_prefer_vector_width": int,
    },
    "gpu": {
        **_ANY,
        "xla_gpu_autotune_level": int,
        "xla_gpu_cudnn_gemm_fusion_level": int,
        "xla_gpu_dot_merger_threshold_mb": int,
        "xla_gpu_enable_command_buffer": str,
        "xla_gpu_enable_cublaslt": bool,
        "xla_gpu_enable_latency_hiding_scheduler": bool,
        "xla_gpu_enable_triton_gemm": bool,
        "xla_gpu_enable_while_loop_double_buffering": bool,
        "xla_gpu_exhaustive_tiling_search": bool,
        "xla_gpu_graph_min_graph_size": int,
        "xla_gpu_triton_gemm_any": bool,
    },
    "tpu": {
        "xla_jf_conv_input_fusion": bool,
        "xla_tpu_dot_dot_fusion": bool,
        "xla_tpu_enable_experimental_fusion_cost_model": bool,
        "xla_tpu_enable_latency_hiding_scheduler": bool,
        "xla_tpu_enforce_prefetch_fifo_order": bool,
        "xla_tpu_nested_dot_fusion": bool,
        "xla_tpu_order_dot_after_layout": bool,
        "xla_tpu_rwb_fusion": bool,
        "xla_tpu_scoped_vmem_limit_kib": int,
        "xla_tpu_use_repeated_instance_for_preferred_prefetch_time": bool,
    },
}


def compiler_options(schedule: Schedule, target: Target) -> dict[str, Any]:
    """The schedule's compiler settings for the target; {} if it has none. Raises BackendError."""
    found = schedule.get(KEY)
    if found is None:
        return {}
    _, entry = found
    options = entry.get(ENTRY)
    if set(entry) != {ENTRY} or not isinstance(options, dict):
        raise BackendError(
            f"schedule entry {KEY!r} is {entry}",
            remedy=f'it has one key: {{"{ENTRY}": {{setting: value}}}}',
        )
    allowed = ALLOWED[target.facts["platform"]]
    for name, value in options.items():
        _check(name, value, allowed, target)
    return options


def _check(name: str, value: Any, allowed: dict[str, type], target: Target) -> None:
    if name not in allowed:
        raise BackendError(
            f"compiler setting {name!r} is not taken for {target}",
            remedy=f"use one of {', '.join(sorted(allowed))}",
        )
    wanted = allowed[name]
    if type(value) is not wanted:
        raise BackendError(
            f"compiler setting {name} is {value!r}, a {type(value).__name__}",
            remedy=f"give a JSON value of type {wanted.__name__}",
        )
