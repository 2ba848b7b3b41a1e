"""The module that an engine serves: one decode and one prefill function per bucket, over pages."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from tkcc.frontends.lowering import Call, lower_functions
from tkcc.ir.errors import IRError, TkccError
from tkcc.ir.graph import Module
from tkcc.ir.passes.paging import PageShape, page_caches
from tkcc.ir.rewrite.driver import apply_rule
from tkcc.ir.rewrite.rule import get_rule
from tkcc.language import OUTPUTS, STATE


@dataclasses.dataclass(frozen=True)
class ServeShape:
    """What an engine is compiled for.

    `context`: the most tokens of a request, prompt and answer. `page_size`: tokens a page.
    `pages`: in the pool, page 0 (which holds nothing of use) among them. `decode`: batch sizes.
    `extend`: (rows, tokens) of the pieces that prompts are read in. `reach`: tokens that a step
    attends to, `context` among them: short requests do not pay for the longest one's reach.
    """

    context: int
    page_size: int
    pages: int
    decode: tuple[int, ...] = (1, 4, 16)
    extend: tuple[tuple[int, int], ...] = ((1, 16), (1, 128))
    reach: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.reach:
            object.__setattr__(self, "reach", (self.context,))
        if min(self.context, self.page_size, *self.reach) < 1 or max(self.reach) != self.context:
            raise TkccError(
                f"a context of {self.context} tokens, reaches {self.reach}",
                remedy="give sizes above 0, the context as the largest reach",
            )
        if any(reach % self.page_size for reach in self.reach):
            raise TkccError(
                f"reaches {self.reach} in pages of {self.page_size} tokens",
                remedy="give a context and reaches that are multiples of the page size",
            )
        if self.pages <= self.columns(self.context):
            raise TkccError(
                f"{self.pages} pages do not hold one request of {self.context} tokens",
                remedy=f"give at least {self.columns(self.context) + 1} pages",
            )
        sizes = [*self.decode, *(size for pair in self.extend for size in pair)]
        if not self.decode or not self.extend or min(sizes) < 1:
            raise TkccError(
                f"buckets decode={self.decode}, extend={self.extend}",
                remedy="give at least one of each, of sizes above 0",
            )

    def columns(self, reach: int) -> int:
        """Pages of that many tokens."""
        return reach // self.page_size

    def decode_name(self, batch: int, reach: int) -> str:
        return f"decode_{batch}_{reach}"

    def extend_name(self, rows: int, tokens: int, reach: int) -> str:
        return f"extend_{rows}x{tokens}_{reach}"


def serving_module(model: Any, shape: ServeShape, *, name: str) -> Module:
    """The functions of every bucket, over one paged state.

    `decode_B_S`: tokens i32[B], positions i32[B], tables i32[B, S / page_size] -> next_tokens,
    logits. `extend_RxT_S`: tokens i32[R, T], starts i32[R], counts i32[R], tables -> the same, of
    each row's last valid token. The model is a `tkcc.models.causal.CausalModel`. Raises
    IRError if its caches cannot be paged.
    """
    modules = [
        _decode(model, shape, batch, reach, name) for batch in shape.decode for reach in shape.reach
    ]
    modules += [
        _extend(model, shape, pair, reach, name) for pair in shape.extend for reach in shape.reach
    ]
    functions = {key: f for module in modules for key, f in module.functions.items()}
    whole = Module(functions, name, modules[0].values)
    _ = whole.parameters, whole.state  # raises if the functions disagree on a type
    return whole


def _decode(model: Any, shape: ServeShape, batch: int, reach: int, name: str) -> Module:
    row = _integers(batch)
    caches = model.cache_types(batch, reach)
    call = Call(model.decode, (row, row, *caches), (), STATE, OUTPUTS)
    return _paged(shape, shape.decode_name(batch, reach), call, name)


def _extend(model: Any, shape: ServeShape, pair: tuple[int, int], reach: int, name: str) -> Module:
    rows, tokens = pair
    given = (_integers(rows, tokens), _integers(rows), _integers(rows))
    call = Call(model.extend, (*given, *model.cache_types(rows, reach)), (), STATE, OUTPUTS)
    return _paged(shape, shape.extend_name(rows, tokens, reach), call, name)


def _paged(shape: ServeShape, function: str, call: Call, name: str) -> Module:
    module = lower_functions({function: call}, name=name)
    module, fired = apply_rule(module, get_rule("carry_caches"))
    if not fired:
        raise IRError(
            f"{name}: no loop over layers passes the caches {', '.join(STATE)} on",
            remedy="write the model with stacked caches in one scan over its layers",
        )
    return page_caches(module, PageShape(shape.pages, shape.page_size))


def _integers(*dims: int) -> Any:
    return jax.ShapeDtypeStruct(dims, jnp.int32)  # type: ignore[no-untyped-call]
