"""The built-in rules: `.rules` files hold data rules, the modules here hold Python rules."""

from tkcc.ir.rules import caches, control, groups

__all__ = ["caches", "control", "groups"]
