"""Collectives over a mesh axis: under vmap against numpy, and under shard_map on four devices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.ir.ops.cases import AXIS, Case
from tests.ir.ops.run import normal

SIZE = 4
X = normal((SIZE, 8, 3))
ROOT = Path(__file__).parents[3]


def collective(op: str, **attributes: Any) -> np.ndarray[Any, Any]:
    """The result of every device, stacked, for the rows of X."""
    given = {"axis": AXIS, "size": SIZE, **attributes}
    case = Case(op, ("f32[8,3]",), given, mesh=SIZE)
    return np.asarray(case.program(case.node())(X)[0])


@pytest.mark.parametrize(
    ("reduction", "want"), [("sum", X.sum(0)), ("max", X.max(0)), ("min", X.min(0))]
)
def test_all_reduce_gives_every_device_the_whole(reduction: str, want: Any) -> None:
    got = collective("all_reduce", reduction=reduction)
    np.testing.assert_allclose(got, np.stack([want] * SIZE), rtol=1e-6)


@pytest.mark.parametrize("dimension", [0, 1])
def test_all_gather_joins_the_pieces(dimension: int) -> None:
    whole = np.concatenate(list(X), axis=dimension)
    got = collective("all_gather", dimension=dimension)
    np.testing.assert_array_equal(got, np.stack([whole] * SIZE))


def test_reduce_scatter_is_all_reduce_cut_into_pieces() -> None:
    want = np.stack(np.split(X.sum(0), SIZE))
    np.testing.assert_allclose(collective("reduce_scatter"), want, rtol=1e-6)


def test_all_to_all_swaps_pieces() -> None:
    got = collective("all_to_all", split=0, join=1)
    pieces = [np.split(x, SIZE) for x in X]
    want = [np.concatenate([pieces[j][i] for j in range(SIZE)], axis=1) for i in range(SIZE)]
    np.testing.assert_array_equal(got, np.stack(want))


def test_collective_permute_moves_arrays() -> None:
    got = collective("collective_permute", pairs=((0, 2), (2, 1), (1, 3), (3, 0)))
    np.testing.assert_array_equal(got, X[[3, 2, 0, 1]])


ON_FOUR_DEVICES = """
import jax, jax.numpy as jnp, numpy as np
from tkcc.ir.op import lookup
mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
spec = jax.sharding.PartitionSpec("d")
def run(op, x, **attributes):
    f = lambda a: lookup(op).reference(a, axis="d", size=4, **attributes)
    return np.asarray(jax.jit(jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec))(x))
x = jnp.arange(32.0).reshape(16, 2)
rows = np.asarray(x).reshape(4, 4, 2)
moved = run("collective_permute", x, pairs=((0, 1), (2, 3))).reshape(4, 4, 2)
np.testing.assert_array_equal(moved, [0 * rows[0], rows[0], 0 * rows[0], rows[2]])
summed = run("reduce_scatter", x, dimension=0)
np.testing.assert_array_equal(summed, rows.sum(0))
np.testing.assert_array_equal(run("all_gather", x, dimension=0), np.tile(x, (4, 1)))
swapped = run("all_to_all", x, split=0, join=0).reshape(4, 4, 2)
np.testing.assert_array_equal(swapped, rows.swapaxes(0, 1))
total = run("all_reduce", x, reduction="max").reshape(4, 4, 2)
np.testing.assert_array_equal(total, np.stack([rows.max(0)] * 4))
"""


def test_they_mean_the_same_on_four_devices_where_permutations_may_be_partial() -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
    }
    done = subprocess.run(
        [sys.executable, "-c", ON_FOUR_DEVICES], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
