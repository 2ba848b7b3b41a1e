"""Generated traffic against the profile it is made from. All draws are seeded."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tkcc.engine.pages import PagePool, block_hashes
from tkcc.ir.errors import TkccError
from tkcc.traffic.arrivals import dispersion
from tkcc.traffic.generate import generate
from tkcc.traffic.profiles import built_in, built_in_names
from tkcc.traffic.quantiles import GRID, Quantiles
from tkcc.traffic.sharing import match_prefixes, reuse_at_capacity, sharing_of
from tkcc.traffic.text import Words

SHARING = ("long-conversation", "agentic-coding")


def _distance(table: Quantiles, sample: np.ndarray) -> float:
    """Kolmogorov-Smirnov's, at the table's values."""
    below = np.searchsorted(np.sort(sample), table.values, side="right") / len(sample)
    expected = [np.interp(value, table.values, GRID) for value in table.values]
    return float(np.abs(below - expected)[1:-1].max())


@pytest.mark.parametrize("name", built_in_names())
def test_lengths_follow_the_profile(name: str) -> None:
    profile = built_in(name)
    made = generate(profile, 2000, seed=3)
    # two samples of 2,000 differ by 0.03 or less in 95 of 100 cases
    assert _distance(profile.input, np.array([r.input_tokens for r in made])) < 0.05
    assert _distance(profile.output, np.array([r.output_tokens for r in made])) < 0.05


@pytest.mark.parametrize("name", built_in_names())
def test_scaled_lengths_have_scaled_quantiles(name: str) -> None:
    profile = built_in(name)
    made = generate(profile, 2000, seed=4, scale=0.05)
    for table, lengths in (
        (profile.input, [r.input_tokens for r in made]),
        (profile.output, [r.output_tokens for r in made]),
    ):
        for at in (0.25, 0.5, 0.75, 0.9):
            low, high = (0.05 * table.at(min(1, max(0, at + d))) for d in (-0.05, 0.05))
            assert math.floor(low) - 1 <= np.quantile(lengths, at) <= math.ceil(high) + 1


@pytest.mark.parametrize("name", built_in_names())
def test_arrivals_follow_the_profile(name: str) -> None:
    profile = built_in(name)
    found = profile.arrivals
    count = 100_000
    times = found.draw(count, np.random.default_rng(6))
    gaps = np.diff(times)
    error = found.cv / math.sqrt(count)  # of a mean of independent gaps
    assert 1 / gaps.mean() == pytest.approx(found.rate, rel=0.05 + 3 * error)
    assert _distance(found.gaps, gaps / gaps.mean() / found.rate) < 0.05
    assert gaps.std() / gaps.mean() == pytest.approx(found.cv, rel=0.15)
    got = dispersion(times)
    assert got is not None
    assert found.dispersion is not None
    if name == "agentic-coding":  # 50 windows tell its dispersion to 20 %
        assert got == pytest.approx(found.dispersion, rel=0.4)
    else:
        assert got == pytest.approx(found.dispersion, rel=0.2)


@pytest.mark.parametrize("scale", [1.0, 0.125])
@pytest.mark.parametrize("name", SHARING)
def test_prefixes_are_shared_as_in_the_profile(name: str, scale: float) -> None:
    profile = built_in(name)
    assert profile.sharing is not None
    size = round(profile.sharing.block_size * scale)
    made = [r.record(size) for r in generate(profile, 1500, seed=5, scale=scale)]
    matches = match_prefixes(made)
    found = sharing_of(made, matches)
    assert found is not None
    assert found.share == pytest.approx(profile.sharing.share, abs=0.03)
    assert found.continues == pytest.approx(profile.sharing.continues, abs=0.03)
    new = [r.input_tokens - m.reused_tokens for r, m in zip(made, matches, strict=True)]
    assert _distance(profile.new, np.array(new) / scale) < 0.1
    for root, known in zip(found.roots, profile.sharing.roots, strict=True):
        assert root.tokens == round(known.tokens * scale)
        assert root.share == pytest.approx(known.share, abs=0.03)


def test_a_limited_cache_reuses_about_as_much_as_of_the_trace() -> None:
    """Conversations come back after as long a time: not only the share is right, also when."""
    profile = built_in("long-conversation")
    assert profile.sharing is not None
    made = [r.record(512) for r in generate(profile, 6000, seed=1)]
    for tokens in (512_000, 5_120_000):
        expected = profile.sharing.at_capacity[tokens]
        assert reuse_at_capacity(made, tokens) == pytest.approx(expected, abs=0.06)


@pytest.mark.parametrize("name", ["chat", "code"])
def test_a_profile_without_sharing_gives_prompts_that_share_nothing(name: str) -> None:
    made = [r.record(16) for r in generate(built_in(name), 200, seed=1)]
    assert not any(m.reused_tokens for m in match_prefixes(made))


def _letters(text: str) -> list[int]:
    return list(text.encode())


@pytest.mark.parametrize("source", [None, Words(_letters)])
def test_the_tokens_themselves_are_shared_as_planned(source: Words | None) -> None:
    profile = built_in("agentic-coding")
    made = generate(profile, 150, seed=2, scale=0.02, source=source)
    planned = [m.reused_tokens for m in match_prefixes([r.record(16) for r in made])]
    pool, shared = PagePool(100_000), []
    for request in made:
        prompt = request.prompt()
        assert len(prompt) == request.input_tokens
        keys = block_hashes(prompt, 16)
        known = pool.match(keys)
        shared.append(16 * len(known))
        fresh = pool.allocate(len(keys) - len(known))
        assert fresh is not None
        for page, key in zip(fresh, keys[len(known) :], strict=True):
            pool.remember(page, key)
    # the plan counts a partial last block too
    assert all(0 <= p - s < 16 for p, s in zip(planned, shared, strict=True))
    assert sum(shared) > 0.5 * sum(r.input_tokens for r in made)


def test_words_are_text_and_no_two_stretches_begin_alike() -> None:
    words = Words(_letters, seed=1)
    text = bytes(words(3, 400).tolist()).decode()
    assert " the " in text
    assert bytes(words(3, 100).tolist()).decode() == text[:100]
    assert len({tuple(words(n, 13)) for n in range(300)}) == 300


def test_the_same_seed_gives_the_same_traffic_and_another_gives_other() -> None:
    profile = built_in("long-conversation")
    first, again, other = (generate(profile, 40, seed=s, scale=0.01) for s in (1, 1, 2))
    assert [r.prompt() for r in first] == [r.prompt() for r in again]
    assert [r.arrival for r in first] == [r.arrival for r in again]
    assert [r.prompt() for r in first] != [r.prompt() for r in other]


def test_a_rate_replaces_the_profiles_and_a_limit_holds() -> None:
    made = generate(built_in("chat"), 3000, seed=1, rate=50.0, longest=600)
    # busy and quiet spells of 1,659 requests each: two of them do not average out
    assert 2999 / made[-1].arrival == pytest.approx(50.0, rel=0.2)
    assert max(r.input_tokens + r.output_tokens for r in made) == 600
    assert min(r.input_tokens for r in made) >= 1
    coding = generate(built_in("agentic-coding"), 200, seed=1, scale=0.01, longest=500)
    assert max(r.input_tokens + r.output_tokens for r in coding) <= 500


@pytest.mark.parametrize(
    "given", [{"count": 0}, {"rate": 0.0}, {"scale": float("inf")}, {"longest": 1}]
)
def test_arguments_without_sense_are_refused(given: dict[str, float]) -> None:
    (name,) = given
    with pytest.raises(TkccError, match=name):
        generate(built_in("chat"), **{"count": 5, **given})  # type: ignore[arg-type]
