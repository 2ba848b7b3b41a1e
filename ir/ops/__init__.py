"""The named ops. Importing this package registers them."""

from tkcc.ir.ops import (
    attention,
    collectives,
    linear,
    moe,
    nn,
    pages,
    quantize,
    sampling,
    structure,
    tensor,
)

__all__ = [
    "attention",
    "collectives",
    "linear",
    "moe",
    "nn",
    "pages",
    "quantize",
    "sampling",
    "structure",
    "tensor",
]
