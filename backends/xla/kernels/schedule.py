"""The order in which a search should try a kernel's configurations."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax.numpy as jnp

Candidate = TypeVar("Candidate")

STEP_BYTES = 350_000
"""What one grid step costs beside its work, as bytes that HBM moves meanwhile: about 0.35 us, the
overhead that JAX's Pallas documentation ("Pipelining and BlockSpecs" for TPU) gives, at 1 TB/s."""

STEP_PRODUCTS = {"bfloat16": 1 << 28, "float32": 1 << 25}
"""By dtype, the most multiply-adds of one grid step. Mosaic unrolls a step, so larger ones take
many seconds to compile; a float32 product is unrolled into six bfloat16 ones and more."""


@dataclass(frozen=True)
class Traffic:
    """What a configuration moves: bytes between HBM and VMEM in all, of them the first block's,
    which nothing hides, and how many grid steps it takes."""

    moved: int
    first: int
    steps: int

    @property
    def cost(self) -> int:
        """A rank in bytes, to compare configurations of one case by; no prediction of time."""
        return self.moved + self.first + self.steps * STEP_BYTES


def quick_to_compile(
    candidates: Iterable[Candidate], products: Callable[[Candidate], int], dtype: Any
) -> list[Candidate]:
    """Candidates of which one grid step multiplies no more than STEP_PRODUCTS."""
    limit = STEP_PRODUCTS.get(jnp.dtype(dtype).name, 0)
    return [candidate for candidate in candidates if products(candidate) <= limit]


def cheapest_first(
    candidates: Iterable[Candidate], traffic: Callable[[Candidate], Traffic]
) -> list[Candidate]:
    """Candidates by the rank of their traffic; equals keep their order."""
    return sorted(candidates, key=lambda candidate: traffic(candidate).cost)
