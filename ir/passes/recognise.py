"""Raise plain code to named ops.

`recognise` writes code in one spelling (`canonicalise`) and applies the rules of group `raise` in
the stages below, each to a fixed point. Stages keep rules for small patterns from taking apart
what rules for larger ones look for: norms before activations (a variance may be clamped by what
looks like a relu), experts and one-hot look-ups before linear.
"""

from __future__ import annotations

from tkcc.ir.graph import Module
from tkcc.ir.passes.canonicalise import canonicalise, tidy
from tkcc.ir.passes.invariants import lift, sink
from tkcc.ir.rewrite.driver import Log, rewrite
from tkcc.ir.rewrite.rule import Rule, all_rules

# Rules by the start of their names; rules that are not listed run in the last stage.
STAGES: tuple[tuple[str, ...], ...] = (
    ("raise_softmax", "raise_norm", "raise_narrow_norm"),
    (
        "raise_activation",
        "raise_attention",
        "raise_embedding",
        "raise_narrow_attention",
        "raise_one_hot_embedding",
        "raise_rope",
        "raise_swiglu",
        "raise_update_cache",
    ),
    ("raise_moe_experts",),
    ("raise_moe_route",),
)


def recognise(module: Module, log: Log | None = None) -> Module:
    """The module with plain code raised to named ops, and dead code removed.

    Results are the same up to reassociation in float32; roundings of intermediate values to a
    short float may be left out, never added. Indices must be in range: ids in their table,
    positions not negative, lengths at least one. `log` records what fired.
    """
    log = log if log is not None else Log()
    module = canonicalise(sink(tidy(module)))
    for rules in _stages():
        module = tidy(rewrite(module, rules, log))
    return canonicalise(lift(module))


def _stages() -> list[list[Rule]]:
    left = dict(all_rules("raise"))
    stages = []
    for names in STAGES:
        chosen = [name for name in left if name.startswith(names)]
        stages.append([left.pop(name) for name in chosen])
    return [*stages, list(left.values())]
