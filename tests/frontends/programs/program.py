"""What a program of the table is, and the arrays that several of them take."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Program:
    """A function and its arguments; `wide` runs it with 64-bit types allowed."""

    call: Callable[..., Any]
    args: tuple[Any, ...]
    wide: bool = False


def program(call: Callable[..., Any], *args: Any, wide: bool = False) -> Program:
    return Program(call, args, wide)


_generator = np.random.default_rng(0)
X = _generator.standard_normal((3, 4)).astype(np.float32)
Y = _generator.standard_normal((3, 4)).astype(np.float32)
UNIT = _generator.uniform(0.1, 0.9, (3, 4)).astype(np.float32)  # inside (0, 1)
SQUARE = _generator.standard_normal((4, 4)).astype(np.float32)
SPD = SQUARE @ SQUARE.T + 4 * np.eye(4, dtype=np.float32)  # symmetric, positive definite
VECTOR = _generator.standard_normal(4).astype(np.float32)
INTS = _generator.integers(-100, 100, (3, 4)).astype(np.int32)
WORDS = _generator.integers(0, 2**32, (3, 4), dtype=np.uint32)
BOOLS = X > 0
LARGE = _generator.standard_normal((10, 10)).astype(np.float32)  # too large for a constant
