from __future__ import annotations

from tkcc.traffic.records import TrafficRequest
from tkcc.traffic.sharing import match_prefixes, reuse_at_capacity, sharing_of


def _request(*blocks: int, tokens: int = 0, arrival: float = 0.0) -> TrafficRequest:
    length = tokens or 10 * len(blocks)
    return TrafficRequest(arrival, length, 1, block_hashes=blocks, block_size=10)


def test_a_prompt_reuses_leading_blocks_only_and_no_more_than_it_is_long() -> None:
    requests = [_request(1, 2, 3), _request(1, 9, 3), _request(1, 2, 3, tokens=25)]
    assert [m.reused_tokens for m in match_prefixes(requests)] == [0, 10, 25]


def test_turns_count_along_the_continued_prompts() -> None:
    requests = [_request(1), _request(1, 2), _request(1, 2, 3), _request(1, 2, 4), _request(7)]
    assert [m.turn for m in match_prefixes(requests)] == [1, 2, 3, 3, 1]
    assert [m.parent for m in match_prefixes(requests)] == [None, 0, 1, 2, None]


def test_a_beginning_of_many_conversations_is_a_root_not_a_continuation() -> None:
    requests = [_request(0, 100 + i, arrival=float(i)) for i in range(20)]
    requests += [_request(0, 100, 200, arrival=30.0)]
    matches = match_prefixes(requests)
    found = sharing_of(requests, matches)
    assert found is not None
    assert [m.continues for m in matches] == [False] * 20 + [True]
    assert [(root.tokens, root.share) for root in found.roots] == [(10, 19 / 20)]
    assert found.continues == 1 / 21
    assert found.share == (19 * 10 + 20) / (20 * 20 + 30)
    assert found.gaps is not None
    assert found.gaps.mean == 30.0


def test_one_long_session_makes_no_root() -> None:
    requests = [
        TrafficRequest(float(i), 10 * i + 10, 1, "a", tuple(range(i + 1)), 10) for i in range(20)
    ]
    found = sharing_of(requests, match_prefixes(requests))
    assert found is not None
    assert found.roots == ()
    assert found.continues == 19 / 20


def test_recorded_reuse_counts_prompts_before_the_trace() -> None:
    request = TrafficRequest(0.0, 100, 1, "a", (1, 2), 10, reused_tokens=80, turn=7)
    (match,) = match_prefixes([request])
    assert (match.reused_tokens, match.turn, match.continues) == (80, 7, True)


def test_a_trace_without_prefixes_has_no_sharing() -> None:
    requests = [TrafficRequest(0.0, 5, 1), TrafficRequest(1.0, 5, 1)]
    assert sharing_of(requests, match_prefixes(requests)) is None


def test_a_full_memory_forgets_what_was_used_longest_ago() -> None:
    requests = [_request(1), _request(2), _request(1), _request(3), _request(1), _request(2)]
    assert reuse_at_capacity(requests, 20) == 2 / 6  # 1 twice; 2 was forgotten for 3
    assert reuse_at_capacity(requests, 30) == 3 / 6
