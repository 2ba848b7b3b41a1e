"""Qwen3-MoE: Qwen3 whose MLPs are mixtures of experts, routed by a softmax.

Architecture: "Qwen3 Technical Report", arXiv 2505.09388.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax

from tkcc.ir import functional as F
from tkcc.models.fields import Fields
from tkcc.models.parts import expert_weights, routed_mlp
from tkcc.models.qwen3 import Qwen3Config, Qwen3Layer, read_attention
from tkcc.models.weights import Weight, matrix

DENSE, MIXTURE = "dense", "moe"


@dataclass(frozen=True)
class Qwen3MoeConfig(Qwen3Config):
    """The shape of a Qwen3 mixture; `intermediate_size` is that of its dense layers."""

    moe_intermediate_size: int
    num_experts: int
    num_experts_per_tok: int
    norm_topk_prob: bool


def read_config(fields: Fields) -> Qwen3MoeConfig:
    """The config in the fields of a `config.json`. Raises ModelError."""
    experts = fields.count("num_experts", "num_local_experts")
    return Qwen3MoeConfig(
        **read_attention(fields),
        intermediate_size=fields.count("intermediate_size"),
        moe_intermediate_size=fields.count("moe_intermediate_size"),
        num_experts=experts,
        num_experts_per_tok=fields.count("num_experts_per_tok", most=experts),
        norm_topk_prob=fields.flag("norm_topk_prob", False),
        kinds=_kinds(fields),
    )


def _kinds(fields: Fields) -> tuple[str, ...]:
    """Every `decoder_sparse_step`-th layer is a mixture, unless it is in `mlp_only_layers`."""
    step = fields.count("decoder_sparse_step", default=1)
    dense = set(fields.items("mlp_only_layers", int) or ())
    layers = range(fields.count("num_hidden_layers", most=10_000))
    return tuple(DENSE if i in dense or (i + 1) % step else MIXTURE for i in layers)


class Qwen3MoeLayer(Qwen3Layer):
    """One decoder layer; those of kind `dense` are those of Qwen3."""

    @classmethod
    def weights(cls, config: Any, kind: str) -> dict[str, Weight]:
        dense = super().weights(config, kind)
        if kind == DENSE:
            return dense
        attention = {name: w for name, w in dense.items() if name not in ("gate", "up", "down")}
        hidden, experts = config.hidden_size, config.num_experts
        return {
            **attention,
            "router": matrix(hidden, experts, "mlp.gate.weight"),
            **expert_weights(experts, hidden, config.moe_intermediate_size),
        }

    def mlp(self, h: jax.Array) -> jax.Array:
        if self.kind == DENSE:
            return super().mlp(h)
        matrices: dict[str, Any] = {
            f"w_{name}": self[f"expert_{name}"] for name in ("gate", "up", "down")
        }
        experts = functools.partial(F.moe_experts, **matrices)
        config = self.config
        route = {"k": config.num_experts_per_tok, "normalize": config.norm_topk_prob}
        return routed_mlp(h, F.linear(h, self["router"]), experts, **route)
