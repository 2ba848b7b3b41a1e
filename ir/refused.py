"""JAX primitives that no program of the IR may hold, and what to do instead.

They run code that the IR cannot see (host callbacks, foreign calls, kernels) or write to memory
that it does not know. The importer refuses them, and so does a module or rule that comes as text.
"""

from __future__ import annotations

REFUSED = {
    "pallas_call": "its kernel has no IR form; tag the call with jax.lax.composite as tkcc.<op>",
    "shard_map": "pass the unsharded function; tkcc partitions it",
    "ffi_call": "custom calls have no meaning that tkcc could check",
    "pure_callback": "move the host code out of the function",
    "io_callback": "move the host code out of the function",
    "debug_callback": "remove jax.debug.print and jax.debug.callback",
    "debug_print": "remove jax.debug.print",
    "call_exported": "pass the function that was exported",
    "rng_uniform": "use jax.random, whose numbers follow from a key",
    "run_state": "return the new value instead of writing to a Ref",
    "new_ref": "return the new value instead of writing to a Ref",
    "empty_ref": "return the new value instead of writing to a Ref",
    "free_ref": "return the new value instead of writing to a Ref",
    "freeze": "return the new value instead of writing to a Ref",
    "get": "read arrays, not Refs",
    "swap": "return the new value instead of writing to a Ref",
    "addupdate": "return the new value instead of writing to a Ref",
}
