"""Rules that ask for a larger form of a weight get it once, in prepare."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from tkcc.frontends.lowering import lower
from tkcc.ir import functional as F
from tkcc.ir.evaluate import evaluate
from tkcc.ir.graph import PARAMETER
from tkcc.ir.passes.hoist import hoist, run_prepare
from tkcc.ir.rewrite.driver import apply_rule
from tkcc.ir.rewrite.rule import get_rule


def layers(x, w):
    return jax.lax.scan(lambda x, w: (jnp.tanh(F.linear(x, w)), None), x, w)[0]


def test_a_widened_weight_is_kept_wide_and_the_result_is_bit_equal():
    keys = jax.random.split(jax.random.key(0))
    x = jax.random.normal(keys[0], (2, 64), jnp.bfloat16)
    w = jax.random.normal(keys[1], (3, 64, 64), jnp.bfloat16) * 0.1
    module = lower(layers, x, w, parameters=["w"])
    changed, sites = apply_rule(module, get_rule("widen_weight"))
    assert sites
    hoisted = hoist(changed)
    (weight,) = hoisted.function().inputs_of(PARAMETER)
    assert weight.type.dtype == "f32"
    values = run_prepare(hoisted, {"w": w})
    before = evaluate(module.function(), [x, w])[0]
    after = evaluate(hoisted.function(), [x, values[weight.name]])[0]
    np.testing.assert_array_equal(np.asarray(before, np.float32), np.asarray(after, np.float32))
