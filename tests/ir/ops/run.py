"""Run one named op on arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from tests.ir.samples import function
from tests.quick import quick_jit
from tkcc.ir.evaluate import evaluate
from tkcc.ir.graph import Value
from tkcc.ir.op import build
from tkcc.ir.types import jax_dtype, type_of

DTYPES = ("f32", "bf16")


def run(
    op: str, *operands: Any, optional: Mapping[str, Any] | None = None, **attributes: Any
) -> Any:
    """The compiled op on these operands: one array, or a tuple."""
    given = {key: item for key, item in (optional or {}).items() if item is not None}
    arrays = [jnp.asarray(x) for x in (*operands, *given.values())]
    values = [Value(type_of(x)) for x in arrays]
    keyed = dict(zip(given, values[len(operands) :], strict=True))
    node = build(op, *values[: len(operands)], optional=keyed, attributes=attributes)
    alone = function(values, (node,), *node.results)
    results = quick_jit(lambda *xs: evaluate(alone, xs))(*arrays)
    return results if len(results) > 1 else results[0]


def normal(shape: tuple[int, ...], dtype: str = "f32", seed: int = 0) -> np.ndarray[Any, Any]:
    """Standard normal numbers, rounded to the dtype."""
    return np.random.default_rng(seed).standard_normal(shape).astype(jax_dtype(dtype))
