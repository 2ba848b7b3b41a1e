"""Named ops as functions for model code.

Each call runs the op's reference inside `jax.lax.composite` under the name `tkcc.<op>`: under
plain JAX it is ordinary code (which JAX can neither differentiate nor vmap, as it has no rules for
composites), and `tkcc.lower` turns it into the named op. Shapes, dtypes and errors are those of the
op (see its docstring in `tkcc.ir.ops`).
"""

from __future__ import annotations

from typing import Any

import jax
from jax import lax

from tkcc.ir.graph import Value
from tkcc.ir.op import build, lookup
from tkcc.ir.types import type_of


def call(op: str, *operands: Any, optional: dict[str, Any] | None = None, **attributes: Any) -> Any:
    """Any named op: `call("rms_norm", x, w, eps=1e-6)`; optional operands may be None.

    Raises IRError for operands and attributes that do not fit the op.
    """
    definition = lookup(op)
    given = {key: value for key, value in (optional or {}).items() if value is not None}
    node = build(
        op,
        *map(_value, operands),
        optional={key: _value(value) for key, value in given.items()},
        attributes=attributes,
    )
    keys, full = node.keys, definition.complete(attributes)

    def reference(*xs: Any, **recorded: Any) -> Any:
        return definition.call(xs, keys, full, ())

    tagged = lax.composite(reference, name=f"tkcc.{op}")
    recorded = {**_recordable(full), "optional": ",".join(keys)}
    return tagged(*operands, *(given[key] for key in keys), **recorded)


def _value(array: Any) -> Value:
    return Value(type_of(jax.typeof(array)))


def _recordable(attributes: dict[str, Any]) -> dict[str, Any]:
    """Attributes as text, which `lax.composite` keeps whatever their kind."""
    from tkcc.ir.attributes import format_attribute, freeze

    return {key: format_attribute(freeze(value)) for key, value in attributes.items()}


def embedding(table: Any, ids: Any) -> Any:
    """Rows of table [v, d] for ids [..] -> [.., d]."""
    return call("embedding", table, ids)


def linear(x: Any, w: Any, bias: Any = None, transposed: bool = False) -> Any:
    """x [.., k] @ w [k, n] (or [n, k] if transposed) -> [.., n] in x's dtype."""
    return call("linear", x, w, optional={"bias": bias}, transposed=transposed)


def rms_norm(x: Any, w: Any, eps: float = 1e-6, plus_one: bool = False) -> Any:
    """x [.., d] scaled by 1/rms and w [d], in x's dtype."""
    return call("rms_norm", x, w, eps=eps, plus_one=plus_one)


def layer_norm(x: Any, w: Any, bias: Any = None, eps: float = 1e-5) -> Any:
    """x [.., d] normalised over its last axis, times w [d], plus bias [d]."""
    return call("layer_norm", x, w, optional={"bias": bias}, eps=eps)


def rope(
    x: Any, positions: Any, inv_freq: Any, interleaved: bool = False, scale: float = 1.0
) -> Any:
    """Rotary embedding of x [b, t, h, d] at positions [b, t]."""
    return call("rope", x, positions, inv_freq, interleaved=interleaved, scale=scale)


def swiglu(gate: Any, up: Any, activation: str = "silu") -> Any:
    """activation(gate) * up."""
    return call("swiglu", gate, up, activation=activation)


def update_cache(cache: Any, new: Any, start: Any, layout: str = "bshd") -> Any:
    """cache [b, s, h, d] with new [b, t, h, d] written at start [b]."""
    return call("update_cache", cache, new, start, layout=layout)


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    scale: float,
    positions: Any = None,
    lengths: Any = None,
    mask: Any = None,
    bias: Any = None,
    sinks: Any = None,
    causal: bool = True,
    window: int | None = None,
    softcap: float | None = None,
    layout: str = "bshd",
) -> Any:
    """Softmax attention of q [b, t, h, d] over k [b, s, g, d], v [b, s, g, e] -> [b, t, h, e]."""
    operands = {
        "positions": positions,
        "lengths": lengths,
        "mask": mask,
        "bias": bias,
        "sinks": sinks,
    }
    return call(
        "attention",
        q,
        k,
        v,
        optional=operands,
        scale=scale,
        causal=causal,
        window=window,
        softcap=softcap,
        layout=layout,
    )


def moe_route(logits: Any, k: int, bias: Any = None, **attributes: Any) -> Any:
    """Weights [n, k] and ids [n, k] of the chosen experts for logits [n, e]."""
    return call("moe_route", logits, optional={"bias": bias}, k=k, **attributes)


def moe_experts(
    x: Any,
    weights: Any,
    ids: Any,
    w_gate: Any,
    w_up: Any,
    w_down: Any,
    activation: str = "silu",
    *,
    gate_bias: Any = None,
    up_bias: Any = None,
    down_bias: Any = None,
) -> Any:
    """Routed gated MLPs over x [n, d]."""
    biases = {"gate_bias": gate_bias, "up_bias": up_bias, "down_bias": down_bias}
    matrices = (w_gate, w_up, w_down)
    return call("moe_experts", x, weights, ids, *matrices, optional=biases, activation=activation)


def linear_attention(q: Any, k: Any, v: Any, decay: Any, state: Any) -> Any:
    """Gated linear attention; returns (out, state)."""
    return call("linear_attention", q, k, v, decay, state)


def sample(logits: Any, method: str = "greedy", key: Any = None, temperature: Any = None) -> Any:
    """Next token ids [b] i32 for logits [b, v]."""
    return call("sample", logits, optional={"key": key, "temperature": temperature}, method=method)
