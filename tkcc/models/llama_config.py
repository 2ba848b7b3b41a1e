"""The sizes and constants of a Llama model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tkcc.models.errors import ModelError


@dataclass(frozen=True)
class Llama3RopeScaling:
    """The "llama3" stretch of the rotary frequencies (see `LlamaConfig.inverse_frequencies`)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int  # tokens


@dataclass(frozen=True)
class LlamaConfig:
    """The shape of one Llama model.

    Raises:
        ModelError: sizes that no model can have.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool
    rope_scaling: Llama3RopeScaling | None = None

    def __post_init__(self) -> None:
        sizes = "vocab_size hidden_size intermediate_size num_layers num_kv_heads head_dim"
        for name in sizes.split():
            require(getattr(self, name) > 0, f"{name} is {getattr(self, name)}; it must be > 0")
        require(
            self.num_heads > 0 and self.num_heads % self.num_kv_heads == 0,
            f"num_heads ({self.num_heads}) is not a multiple of num_kv_heads ({self.num_kv_heads})",
        )
        require(self.head_dim % 2 == 0, f"head_dim is {self.head_dim}; rope needs an even one")

    def inverse_frequencies(self) -> np.ndarray:
        """The rotary frequencies, f32[head_dim / 2], in radians per position.

        theta^(-2i / head_dim), RoFormer (arXiv 2104.09864) section 3.2.2. With `rope_scaling`,
        wavelengths longer than original / low_freq_factor are stretched by `factor`, those shorter
        than original / high_freq_factor are kept, and those between are interpolated in the number
        of turns per original context: the rule published with Llama 3.1.
        """
        exponent = np.arange(0, self.head_dim, 2, dtype=np.float32) / np.float32(self.head_dim)
        frequencies = np.float32(1.0) / np.float32(self.rope_theta) ** exponent
        if self.rope_scaling is None:
            return frequencies
        return llama3_frequencies(frequencies, self.rope_scaling)


def llama3_frequencies(frequencies: np.ndarray, scaling: Llama3RopeScaling) -> np.ndarray:
    """Plain rotary frequencies, f32[n], stretched (see `LlamaConfig.inverse_frequencies`)."""
    turns = scaling.original_max_position_embeddings * frequencies / (2 * np.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)  # 1 keeps, 0 stretches
    blended = (1 - kept) * frequencies / scaling.factor + kept * frequencies
    return np.asarray(blended, np.float32)


def require(condition: bool, message: str) -> None:
    """Raise a ModelError about a Llama config unless `condition` holds."""
    if not condition:
        raise ModelError(
            message,
            where="Llama config",
            remedy="use a plain Llama checkpoint, or add the model (docs/add-a-model.md)",
        )
