"""The error that every part of `tkcc.models` raises for a caller's mistake."""

from __future__ import annotations

from tkcc.ir.errors import TkccError


class ModelError(TkccError):
    """A model that cannot be found, read, checked or built."""
