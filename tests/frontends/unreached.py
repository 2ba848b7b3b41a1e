"""Primitives of JAX 0.10 to 0.12 that no program of the table reaches, and why."""

from __future__ import annotations

_REASONS: dict[str, str] = {
    "refused by name (see test_refusals.py)": """
        call_exported check debug_callback debug_print empty_ref ffi_call free_ref freeze
        inspect_sharding io_callback new_ref pure_callback rng_uniform shard_map get swap addupdate
        run_state""",
    "collectives over mesh axes: inside shard_map, which is refused": """
        all_gather all_gather_done all_gather_invariant all_gather_reduced all_gather_reduced_start
        all_gather_start all_to_all all_to_all_done all_to_all_start axis_index pbroadcast
        pbroadcast_done pbroadcast_dynamic pbroadcast_start pmax pmin ppermute ppermute_done
        ppermute_start precv preduced psend psum psum_done psum_invariant psum_invariant_start
        psum_start pvary ragged_all_to_all reduce_scatter reduce_scatter_done reduce_scatter_start
        reduced_vary_cast reduced_vary_cast_p unreduced_pmax unreduced_pmin unreduced_psum
        unreduced_psum_start unreduced_reduce_scatter unreduced_reduce_scatter_start
        vary_unreduced_cast vary_unreduced_cast_p""",
    "mutable references and boxes: refused with new_ref, or not in JAX's public interface": """
        accum_grad_in_ref box_get box_set core_map create_linear log_extend log_read new_box new_log
        pin unpin""",
    "kernels of GPUs and TPUs": """
        cudnn_fusion dot_product_attention_bwd dot_product_attention_bwd_wrapper
        dot_product_attention_fp8_bwd dot_product_attention_fp8_bwd_wrapper
        dot_product_attention_fp8_fwd dot_product_attention_fp8_fwd_wrapper
        dot_product_attention_fwd dot_product_attention_fwd_wrapper scaled_matmul
        scaled_matmul_wrapper with_memory_space_constraint""",
    "symbolic shapes": "dim_as_value dimension_size shape_assertion",
    "made while JAX transforms or compiles, not left in a traced program": """
        after_all call call_hi_primitive call_hi_primitive_linearized closed_call create_token
        custom_jvp_call_jaxpr custom_lin dce_sink eval_jaxpr geqp3 geqrf iota_2x32_shape ormqr
        stage tie unreachable zeros_like""",
    "explicit sharding, whose meshes tkcc does not take": "reshard relayout",
    "no public function of JAX makes them": """
        broadcast_to eq_to from_edtype philox2x32 philox4x32 select_and_scatter threefry4x32
        to_edtype""",
    "its result is undefined": "empty",
}
UNREACHED: dict[str, str] = {name: why for why, text in _REASONS.items() for name in text.split()}
