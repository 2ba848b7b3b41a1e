"""Which axes of an attention are batch, heads, queries and keys."""

from __future__ import annotations

from collections.abc import Iterable

from tkcc.ir.reading.axes import Axis, Dim, axes_in, flat
from tkcc.ir.reading.bounds import Groups
from tkcc.ir.reading.forms import index_of, resolved
from tkcc.ir.reading.masks import Test
from tkcc.ir.reading.views import Reader, View


def find_groups(
    reader: Reader,
    q: View,
    k: View,
    v: View,
    *,
    scores: View,
    repeated: set[Axis],
    keys: Dim,
    channels: Dim,
    outputs: Dim,
    tests: Iterable[Test],
) -> Groups | None:
    """The groups of axes, or None if the operands do not fit together.

    What k and v share besides the keys is batch and heads: the leading dimension of q is the
    batch. The other axes of q are queries, but for those that k was repeated over (`repeated`),
    those that no bound on the keys reads while it reads others, and those that stand beside the
    key heads (or, without key heads, not beside the keys in the scores).
    """
    shared = k.axes - axes_in((keys, channels))
    if shared != v.axes - axes_in((keys, outputs)) or not _distinct(k, v):
        return None
    own = [
        d for d in flat(q.dims) if isinstance(d, Axis) and d not in shared | axes_in((channels,))
    ]
    if axes_in((keys,)) & set(own):
        return None
    batch = _leading(q, shared) or _leading(k, shared - q.axes)  # queries that all rows share
    heads = tuple(d for d in flat(k.dims) if d in shared and d not in batch)
    bounded = _bounded(reader, tests, keys) & set(own)
    repeats = {d for d in own if d in repeated}
    left = [d for d in own if d not in repeats and d not in bounded]
    repeats |= set(left) if bounded else _beside_heads(q, left, heads, scores)
    return Groups(
        batch=batch,
        queries=tuple(d for d in own if d not in repeats),
        heads=heads,
        repeats=tuple(d for d in own if d in repeats),
        keys=keys,
        channels=channels,
        outputs=outputs,
    )


def _distinct(k: View, v: View) -> bool:
    """Only whole axes, each once (a diagonal or a fixed index is no plain operand)."""
    return all(
        len(set(flat(view.dims))) == len(flat(view.dims)) == len(view.axes) for view in (k, v)
    )


def _leading(view: View, among: set[Axis]) -> Dim:
    """The leading axes of the view's first dimension that are among the given ones."""
    found: list[Axis] = []
    for digit in view.dims[0] if view.dims else ():
        if digit not in among or not isinstance(digit, Axis):
            break
        found.append(digit)
    return tuple(found)


def _bounded(reader: Reader, tests: Iterable[Test], keys: Dim) -> set[Axis]:
    """Axes that bound the keys: those in comparisons with the key's index."""
    found: set[Axis] = set()
    for test in tests:
        if test.form is not None and keys:
            form = resolved(reader, test.form)
            last = keys[-1]
            factor = form.factor(last) if isinstance(last, Axis) else 0
            if factor:
                found |= form.plus(index_of(keys), -factor).axes
    return found


def _beside_heads(q: View, left: list[Axis], heads: Dim, scores: View) -> set[Axis]:
    """Axes of q that stand in one dimension with a key head, or (where there are others) are the
    first after the key heads."""
    if not heads:
        order = [d for d in flat(scores.dims[:-1]) if d in left]
        return {d for d in order[:-1] if isinstance(d, Axis)}
    merged = axes_in(dim for dim in q.dims if set(dim) & set(heads)) & set(left)
    if merged or len(left) < 2:
        return merged
    following = [d for d in flat(q.dims) if d in left or d in heads]
    after = following.index(heads[-1]) + 1
    return axes_in((tuple(following[after : after + 1]),)) & set(left)
