"""Rotary frequencies, plain and stretched for long contexts, from the fields of a config."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tkcc.models.fields import Fields
from tkcc.models.llama_config import Llama3RopeScaling, llama3_frequencies


@dataclass(frozen=True)
class YarnScaling:
    """YaRN (arXiv 2309.00071): long waves are stretched by `factor`, short ones kept."""

    factor: float
    original_max_position_embeddings: int  # tokens
    beta_fast: float = 32.0  # turns per original context from which a wave is kept
    beta_slow: float = 1.0  # turns below which it is stretched
    truncate: bool = True  # round the channels between which it is blended outwards
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None


@dataclass(frozen=True)
class Rope:
    """Rotary embedding of `dim` channels."""

    dim: int
    theta: float
    scaling: Llama3RopeScaling | YarnScaling | None = None

    def frequencies(self) -> np.ndarray:
        """f32[dim / 2], radians per position: theta^(-2i / dim), RoFormer (arXiv 2104.09864)."""
        exponent = np.arange(0, self.dim, 2, dtype=np.float32) / np.float32(self.dim)
        plain = np.float32(1.0) / np.float32(self.theta) ** exponent
        if isinstance(self.scaling, Llama3RopeScaling):
            return llama3_frequencies(plain, self.scaling)
        if isinstance(self.scaling, YarnScaling):
            return _yarn_frequencies(plain, self.theta, self.scaling)
        return plain

    @property
    def scale(self) -> float:
        """What cos and sin are multiplied by: YaRN's attention factor (its section 3.4)."""
        yarn = self.scaling
        if not isinstance(yarn, YarnScaling):
            return 1.0
        if yarn.attention_factor is not None:
            return yarn.attention_factor
        if yarn.mscale and yarn.mscale_all_dim:
            over = yarn_magnitude(yarn.factor, yarn.mscale_all_dim)
            return yarn_magnitude(yarn.factor, yarn.mscale) / over
        return yarn_magnitude(yarn.factor, 1.0)


def yarn_magnitude(factor: float, weight: float) -> float:
    """0.1 * weight * ln(factor) + 1 for a stretch, 1 otherwise (YaRN, equation 22)."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _yarn_frequencies(plain: np.ndarray, theta: float, yarn: YarnScaling) -> np.ndarray:
    """YaRN's "NTK by parts": a ramp over channels from that of beta_fast turns to beta_slow's."""
    half = len(plain)

    def channel(turns: float) -> float:
        wavelength = yarn.original_max_position_embeddings / (turns * 2 * math.pi)
        return half * math.log(wavelength) / math.log(theta)

    low, high = channel(yarn.beta_fast), channel(yarn.beta_slow)
    if yarn.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * half - 1)
    high = high + 0.001 if low == high else high  # the published code avoids 0 / 0 this way
    ramp = np.clip((np.arange(half, dtype=np.float32) - low) / (high - low), 0, 1)
    return np.asarray(plain / yarn.factor * ramp + plain * (1 - ramp), np.float32)


def read_rope(fields: Fields, dim: int) -> Rope:
    """The rope of `dim` channels; transformers 5 writes `rope_parameters`, older files the others.

    Raises:
        ModelError: a type or field of rope scaling that is not implemented, by name.
    """
    if dim % 2:
        fields.refuse(f"rope needs an even number of channels, not {dim}")
    table = {**fields.table("rope_scaling"), **fields.table("rope_parameters")}
    kind = table.pop("rope_type", table.pop("type", "default"))
    table.pop("type", None)
    top = fields.number("rope_theta", default=10000.0)
    rope = Fields(table, f"{fields.model_type} rope")
    theta = rope.number("rope_theta", default=top)
    readers = {"default": lambda _: None, "llama3": _llama3, "yarn": _yarn}
    if not isinstance(kind, str) or kind not in readers:
        fields.refuse(f"rope type {kind!r} is not implemented")
    scaling = readers[kind](rope)
    rope.only("partial_rotary_factor", 1.0, None)
    rope.refuse_others()
    return Rope(dim, theta, scaling)


def _llama3(rope: Fields) -> Llama3RopeScaling:
    return Llama3RopeScaling(
        factor=rope.number("factor"),
        low_freq_factor=rope.number("low_freq_factor"),
        high_freq_factor=rope.number("high_freq_factor"),
        original_max_position_embeddings=rope.count("original_max_position_embeddings"),
    )


def _yarn(rope: Fields) -> YarnScaling:
    def optional(name: str) -> float | None:
        return rope.number(name) if rope.given(name) else None

    return YarnScaling(
        factor=rope.number("factor"),
        original_max_position_embeddings=rope.count("original_max_position_embeddings"),
        beta_fast=rope.number("beta_fast", default=32.0),
        beta_slow=rope.number("beta_slow", default=1.0),
        truncate=rope.flag("truncate", True),
        attention_factor=optional("attention_factor"),
        mscale=optional("mscale"),
        mscale_all_dim=optional("mscale_all_dim"),
    )
