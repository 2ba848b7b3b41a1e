"""Random numbers: typed and legacy keys of several implementations, and the distributions."""

from __future__ import annotations

from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jax import lax, random

from tests.frontends.programs.program import UNIT, VECTOR, X, program

KEY = random.key(3)
LEGACY = random.PRNGKey(3)
IMPLEMENTATIONS = ("threefry2x32", "rbg", "unsafe_rbg")


def _all_operations(key: Any) -> Any:
    """Every operation on keys, and numbers from the results."""
    first, second = random.split(key)
    folded = random.fold_in(first, 7)
    many = random.split(second, (2, 2))
    return folded, many[1], random.key_data(folded), random.uniform(folded, (3,)), many.shape[0]


def _by_seed(seed: Any) -> Any:
    return random.normal(random.key(seed), (2,)), random.PRNGKey(seed)


def _in_a_loop(key: Any) -> Any:
    def step(key: Any, _: Any) -> Any:
        key, sub = random.split(key)
        return key, random.normal(sub)

    return lax.scan(step, key, None, length=3)


def _wrapped(data: Any) -> Any:
    key = random.wrap_key_data(data, impl="threefry2x32")
    return random.bits(random.clone(key), (3,)), key


PROGRAMS = {
    **{
        f"operations on {name} keys": program(_all_operations, random.key(1, impl=name))
        for name in IMPLEMENTATIONS
    },
    "legacy keys": program(
        lambda key: (random.split(key, 3), random.normal(key, (4,)), random.fold_in(key, 1)), LEGACY
    ),
    "seeds": program(_by_seed, np.int32(5)),
    "a constant key": program(lambda x: x + random.normal(random.key(0), x.shape), X),
    "wrapped key data": program(_wrapped, np.array([1, 2], np.uint32)),
    "keys in a loop": program(_in_a_loop, KEY),
    "a batch of keys": program(
        lambda key: jax.vmap(lambda k: random.normal(k, (2,)))(random.split(key, 3)), KEY
    ),
    "bits": program(
        lambda key: [
            random.bits(key, (5,), dtype) for dtype in (jnp.uint8, jnp.uint16, jnp.uint32)
        ],
        KEY,
    ),
    "uniform and integers": program(
        lambda key: (random.uniform(key, (3,), minval=-1), random.randint(key, (3,), 0, 10)), KEY
    ),
    "normal": program(
        lambda key: (random.normal(key, (3,)), random.normal(key, (2,), jnp.bfloat16)), KEY
    ),
    "complex normal": program(lambda key: random.normal(key, (3,), jnp.complex64), KEY),
    "truncated normal": program(lambda key: random.truncated_normal(key, -1, 1, (4,)), KEY),
    "categorical": program(lambda key, x: random.categorical(key, x), KEY, X),
    "categorical without replacement": program(
        lambda key, x: random.categorical(key, x, shape=(2, 3), replace=False), KEY, X
    ),
    "permutation and choice": program(
        lambda key, x: (random.permutation(key, x), random.choice(key, x[0], (2,))), KEY, X
    ),
    "weighted choice": program(
        lambda key, p: random.choice(key, 4, (3,), p=p / p.sum(), replace=False),
        KEY,
        UNIT[0].copy(),
    ),
    "gumbel and exponential": program(
        lambda key: (random.gumbel(key, (3,)), random.exponential(key, (3,))), KEY
    ),
    "gamma and beta": program(
        lambda key, a: (random.gamma(key, a), random.beta(key, a, 2.0)), KEY, UNIT[0].copy()
    ),
    "poisson": program(lambda key, a: random.poisson(key, a * 3), KEY, UNIT[0].copy()),
    "bernoulli and signs": program(
        lambda key: (random.bernoulli(key, 0.3, (4,)), random.rademacher(key, (4,))), KEY
    ),
    "dropout": program(
        lambda key, x: jnp.where(random.bernoulli(key, 0.5, x.shape), x / 0.5, 0), KEY, X
    ),
    "multivariate normal": program(
        lambda key, v: random.multivariate_normal(key, v, jnp.eye(4)), KEY, VECTOR
    ),
    "the generator itself": program(
        lambda counts: jax.extend.random.threefry_2x32((np.uint32(1), np.uint32(2)), counts),
        np.arange(5, dtype=np.uint32),
    ),
    "hardware bits": program(
        lambda state: lax.rng_bit_generator(
            state, (4,), algorithm=lax.RandomAlgorithm.RNG_THREE_FRY
        ),
        np.array([1, 2, 3, 4], np.uint32),
    ),
}
