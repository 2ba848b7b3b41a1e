"""tkcc: an open compiler framework for model inference that keeps compiling."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tkcc.api import compare, compile, lower, optimize, replay

__all__ = ["__version__", "compare", "compile", "lower", "optimize", "replay"]


def __getattr__(name: str) -> Any:
    """Import the public functions on first use, so that `import tkcc` does not import JAX."""
    if name in __all__:
        return getattr(importlib.import_module("tkcc.api"), name)
    raise AttributeError(f"module 'tkcc' has no attribute {name!r}")
