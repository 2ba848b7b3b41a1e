"""Norms, activations, gated units, rotary embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from tkcc.ir.factors import WHOLE, Factors, batched
from tkcc.ir.graph import Node
from tkcc.ir.op import Attributes, Op, register, require
from tkcc.ir.types import TensorType

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "silu": jax.nn.silu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
}


def require_activation(name: str) -> None:
    require(name in ACTIVATIONS, f"unknown activation {name!r}", f"use one of {list(ACTIVATIONS)}")


def _require_width(what: str, x: TensorType, w: TensorType) -> None:
    width = x.shape[-1:]
    require(
        x.rank >= 1 and w.shape == width,
        f"{what} is {w.shape}, but the last axis of x is {width}",
        f"give {what} one entry per channel",
    )


def _require_last_axis(x: TensorType) -> None:
    require(x.rank >= 1, f"x is {x}, which has no last axis", "reshape it to [.., d]")


def normalise_rms(x: Any, eps: float) -> Any:
    """x / rms(x) over the last axis, in float32 (float64 for float64)."""
    h = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return h * lax.rsqrt(jnp.mean(h * h, axis=-1, keepdims=True) + eps)


@register
class RmsNorm(Op):
    """Scale x by 1/rms over its last axis, then by w (or 1 + w); computed in float32.

    x [.., d], w [d] -> [.., d] in x's dtype.
    """

    name = "rms_norm"
    operands = ("x", "w")
    attributes: ClassVar[dict[str, Any]] = {"eps": 1e-6, "plus_one": False}

    def check(self, types: Sequence[TensorType], attributes: Attributes) -> None:
        _require_width("w", *types)

    def reference(self, *operands: Any, **attributes: Any) -> Any:
        x, w = operands
        h = normalise_rms(x, attributes["eps"])
        scale = w.astype(h.dtype) + 1.0 if attributes["plus_one"] else w.astype(h.dtype)
        return (h * scale).astype(x.dtype)

    def factors(self, node: Node) -> Factors:
        lead = batched(node.operands[0].type.rank - 1)
        return Factors(((*lead, f"d{WHOLE}"), (f"d{WHOLE}",)), ((*lead, f"d{WHOLE}"),))

    def flops(self, node: Node) -> int:
        return 4 * node.operands[0].type.size


@register
class RmsNormalize(Op):
    """x / rms(x) over the last axis: rms_norm without a weight. Computed in float32."""

    name = "rms_normalize"
    operands = ("x",)
    attributes: ClassVar[dict[str, Any]] = {"eps": 1e-6}

    def check(self, types: Sequence[TensorType], attributes: Attributes) -> None:
        _require_last_axis(types[0])

    def reference(self, *operands: Any, **attributes: Any) -> Any:
        return normalise_rms(operands[0], attributes["eps"]).astype(operands[0].dtype)

    def factors(self, node: Node) -> Factors:
        row = (*batched(node.operands[0].type.rank - 1), f"d{WHOLE}")
        return Factors((row,), (row,))

    def flops(self, node: Node) -> int:
        return 3 * node.operands[0].type.size


@register
class ResidualRmsNorm(Op):
    """(x + r, rms_norm(x + r, w)): the sum is rounded to x's dtype before the norm reads it."""

    name = "residual_rms_norm"
    operands = ("x", "r", "w")
    attributes: ClassVar[dict[str, Any]] = {"eps": 1e-6, "plus_one": False}

    def check(self, types: Sequence[TensorType], attributes: Attributes) -> None:
        require(types[0] == types[1], f"x is {types[0]}, but r is {types[1]}", "use equal types")
        _require_width("w", types[0], types[2])

    def reference(self, *operands: Any, **attributes: Any) -> Any:
        x, r, w = operands
        total = x + r
        return total, RmsNorm().reference(total, w, **attributes)

    def factors(self, node: Node) -> Factors:
        row = (*batched(node.operands[0].type.rank - 1), f"d{WHOLE}")
        return Factors((row, row, (f"d{WHOLE}",)), (row, row))

    def flops(self, node: Node) -> int:
        return 5 * node.operands[0].type.size


@register
class LayerNorm(Op):
    """(x - mean) / sqrt(var + eps) * w + bias over the last axis; computed in float32.

    x [.., d], w [d], bias [d] optional -> [.., d] in x's dtype. The variance is the biased one.
    """

    name = "layer_norm"
    operands = ("x", "w")
    optional = ("bias",)
    attributes: ClassVar[dict[str, Any]] = {"eps": 1e-5}

    def check(self, types: Sequence[TensorType], attributes: Attributes) -> None:
        for type_ in types[1:]:
            _require_width("w or bias", types[0], type_)

    def reference(self, *operands: Any, **attributes: Any) -> Any:
        x, w = operands
        h = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        h = h - jnp.mean(h, axis=-1, keepdims=True)
        h = h * lax.rsqrt(jnp.mean(h * h, axis=-1, keepdims=True) + attributes["eps"])
        h = h * w.astype(h.dtype)
        bias = attributes.get("bias")
        return (h if bias is None else h + bias.astype(h.dtype)).astype(x.dtype)

    def factors(self, node: Node) -> Factors:
        row = (*batched(node.operands[0].type.rank - 1), f"d{WHOLE}")
        return Factors((row, *(((f"d{WHOLE}",),) * (len(node.operands) - 1))), (row,))

    def flops(self, node: Node) -> int:
        return 7 * node.operands[0].type.size


@register
class Softmax(Op):
    """softmax(x) over the last axis, in x's dtype."""

    name = "softmax"
    operands = ("x",)

    def check(self, types: Sequence[TensorType], attributes: Attributes) -> None:
        _require_last_axis(types[0])

    def reference(self, *operands: Any, **attributes: Any) -> Any:
        return jax.nn.softmax(operands[0], axis=-1)

    def factors(self, node: Node) -> Factors:
        row = (*batched(node.operands[0].type.rank - 1), f"d{WHOLE}")
        return Factors((row,), (row,))

    def flops(self, node: Node) -> int:
        return 5 * node.operands[0].type.size


@register
class Activation(Op):
    """An activation function, element by element: silu, gelu (erf), gelu_tanh, relu, ..."""

    name = "activation"
    operands = ("x",)
    attributes: ClassVar[dict[str, Any]] = {"kind": "silu"}

    def check(self, types: Sequence[TensorType], attributes: Attributes) -> None:
        require_activation(attributes["kind"])

    def reference(self, *operands: Any, **attributes: Any) -> Any:
        return ACTIVATIONS[attributes["kind"]](operands[0])

    def factors(self, node: Node) -> Factors:
        row = batched(node.operands[0].type.rank)
        return Factors((row,), (row,))

    def flops(self, node: Node) -> int:
        return 4 * node.operands[0].type.size


@register
class Swiglu(Op):
    """activation(gate) * up, element by element: SwiGLU (silu), GeGLU (gelu, gelu_tanh), ReGLU."""

    name = "swiglu"
    operands = ("gate", "up")
    attributes: ClassVar[dict[str, Any]] = {"activation": "silu"}

    def check(self, types: Sequence[TensorType], attributes: Attributes) -> None:
        require(
            types[0] == types[1], f"gate is {types[0]}, but up is {types[1]}", "use equal types"
        )
        require_activation(attributes["activation"])

    def reference(self, *operands: Any, **attributes: Any) -> Any:
        gate, up = operands
        return ACTIVATIONS[attributes["activation"]](gate) * up

    def factors(self, node: Node) -> Factors:
        row = batched(node.operands[0].type.rank)
        return Factors((row, row), (row,))

    def flops(self, node: Node) -> int:
        return 5 * node.operands[0].type.size


@register
class Rope(Op):
    """Rotary position embedding of x [b, t, h, d] at integer positions [b, t].

    `inv_freq` [r / 2] float gives the angles (position * inv_freq); the first r channels of each
    head are rotated, the rest pass. Pairs are (i, i + r / 2), or neighbours if `interleaved`.
    cos and sin are float32 times `scale` (YaRN's attention factor); the result has x's dtype.
    """

    name = "rope"
    operands = ("x", "positions", "inv_freq")
    attributes: ClassVar[dict[str, Any]] = {"interleaved": False, "scale": 1.0}

    def check(self, types: Sequence[TensorType], attributes: Attributes) -> None:
        x, positions, inv_freq = types
        require(x.rank == 4, f"x is {x}, not [b, t, h, d]", "reshape x into heads first")
        fits = positions.shape == x.shape[:2] and positions.dtype[0] in "iu"
        require(fits, f"positions is {positions}, but x is {x}", "integers [b, t]")
        require(
            inv_freq.rank == 1 and 2 * inv_freq.shape[0] <= x.shape[3],
            f"inv_freq is {inv_freq}, but a head has {x.shape[3]} channels",
            "give at most one frequency per pair of channels",
        )

    def reference(self, *operands: Any, **attributes: Any) -> Any:
        x, positions, inv_freq = operands
        angles = positions[..., None].astype(jnp.float32) * inv_freq.astype(jnp.float32)
        cos = (jnp.cos(angles) * attributes["scale"])[:, :, None, :]
        sin = (jnp.sin(angles) * attributes["scale"])[:, :, None, :]
        rotary = 2 * inv_freq.shape[0]
        h = x[..., :rotary].astype(jnp.float32)
        pairs = (h[..., 0::2], h[..., 1::2]) if attributes["interleaved"] else jnp.split(h, 2, -1)
        first = pairs[0] * cos - pairs[1] * sin
        second = pairs[1] * cos + pairs[0] * sin
        if attributes["interleaved"]:
            turned = jnp.stack([first, second], axis=-1).reshape(h.shape)
        else:
            turned = jnp.concatenate([first, second], axis=-1)
        turned = turned.astype(x.dtype)
        return turned if rotary == x.shape[-1] else jnp.concatenate([turned, x[..., rotary:]], -1)

    def factors(self, node: Node) -> Factors:
        d = f"d{WHOLE}"
        return Factors((("b", "t", "h", d), ("b", "t"), (f"f{WHOLE}",)), (("b", "t", "h", d),))

    def flops(self, node: Node) -> int:
        return 3 * node.operands[0].type.size
