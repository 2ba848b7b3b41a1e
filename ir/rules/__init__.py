"""The built-in rules: `.rules` files hold data rules, the modules here hold Python rules."""

from tkcc.ir.rules import caches, control, groups
from tkcc.ir.rules import raise_activation as raise_activation
from tkcc.ir.rules import raise_attention as raise_attention
from tkcc.ir.rules import raise_embedding as raise_embedding
from tkcc.ir.rules import raise_linear as raise_linear
from tkcc.ir.rules import raise_moe as raise_moe
from tkcc.ir.rules import raise_moe_ragged as raise_moe_ragged
from tkcc.ir.rules import raise_moe_route as raise_moe_route
from tkcc.ir.rules import raise_moe_scan as raise_moe_scan
from tkcc.ir.rules import raise_norm as raise_norm
from tkcc.ir.rules import raise_rope as raise_rope
from tkcc.ir.rules import raise_softmax as raise_softmax
from tkcc.ir.rules import raise_update_cache as raise_update_cache

__all__ = ["caches", "control", "groups"]
