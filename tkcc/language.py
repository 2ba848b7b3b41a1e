"""Language models as modules of the IR: functions `prefill` and `decode` over shared caches."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from tkcc.frontends.lowering import Call, lower_functions
from tkcc.ir.errors import TkccError
from tkcc.ir.graph import Module

STATE = ("k_cache", "v_cache")
OUTPUTS = ("next_tokens", "logits")


@dataclasses.dataclass(frozen=True)
class StepShape:
    """`batch` rows, caches of `context` tokens, prompts padded to `prompt` tokens."""

    batch: int = 1
    context: int = 256
    prompt: int = 64

    def __post_init__(self) -> None:
        if min(self.batch, self.context, self.prompt) < 1 or self.prompt >= self.context:
            raise TkccError(
                f"batch {self.batch}, context {self.context}, prompt {self.prompt} do not fit",
                remedy="all are at least 1, and the prompt is shorter than the context",
            )


def lower_language_model(
    model: Any, shape: StepShape, *, name: str, recognise: bool = True
) -> Module:
    """The module of a `tkcc.models.causal.CausalModel`: its `prefill` and `decode`.

    Its parameters may be arrays or ShapeDtypeStructs; arrays become the module's `values`.
    """
    caches = model.cache_types(shape.batch, shape.context)
    row = jax.ShapeDtypeStruct((shape.batch,), jnp.int32)  # type: ignore[no-untyped-call]
    prompt = jax.ShapeDtypeStruct((shape.batch, shape.prompt), jnp.int32)  # type: ignore[no-untyped-call]
    calls = {
        "prefill": Call(model.prefill, (prompt, row, *caches), state=STATE, outputs=OUTPUTS),
        "decode": Call(model.decode, (row, row, *caches), state=STATE, outputs=OUTPUTS),
    }
    return lower_functions(calls, name=name, recognise=recognise)
