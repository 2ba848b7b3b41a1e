from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pytest

from tkcc.ir.errors import TkccError
from tkcc.traffic.readers import lines as limits
from tkcc.traffic.readers import (
    read_agentic,
    read_azure,
    read_mooncake,
    read_openai_log,
    read_servegen,
)
from tkcc.traffic.records import TrafficRequest

Read = Callable[[Path], Sequence[TrafficRequest]]

MOONCAKE = (
    '{"timestamp": 6000, "input_length": 600, "output_length": 5, "hash_ids": [0, 7]}\n'
    '{"timestamp": 3000, "input_length": 512, "output_length": 9, "hash_ids": [0]}\n'
)
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.5,4808,10\n"
AZURE += "2023-11-16 18:17:03.9799600,3180,8\n"
AGENTIC = (
    "tp,users,offload,request_idx,trace_id,input_tokens,output_tokens_expected,"
    "cache_hit_blocks,cache_miss_blocks,ttlt,delay_expected,request_start_time\n"
    "8,2,off,4,a,640,7,8,2,1.5,3,10\n"
    "8,2,off,5,a,800,8,10,2,1.5,4,15\n"
    "8,4,off,5,a,800,8,10,2,2.5,4,15\n"
    "8,2,off,0,b,70,9,0,1,1.5,0,12\n"
)
CHAT = {"messages": [{"role": "user", "content": "hello there"}], "created": 1700000000}
USAGE = {"prompt_tokens": 12, "completion_tokens": 3}


def _write(folder: Path, text: str, name: str = "trace") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def _encode(text: str) -> list[int]:
    return list(text.encode())


def test_mooncake_requests_come_by_time_from_0_with_their_blocks(tmp_path: Path) -> None:
    first, second = read_mooncake(_write(tmp_path, MOONCAKE))
    assert first == TrafficRequest(0.0, 512, 9, block_hashes=(0,), block_size=512)
    assert second == TrafficRequest(3.0, 600, 5, block_hashes=(0, 7), block_size=512)


def test_compressed_files_read_like_plain_ones(tmp_path: Path) -> None:
    packed = tmp_path / "trace.gz"
    packed.write_bytes(gzip.compress(MOONCAKE.encode()))
    assert read_mooncake(packed) == read_mooncake(_write(tmp_path, MOONCAKE))


def test_azure_requests_have_lengths_and_times_to_the_microsecond(tmp_path: Path) -> None:
    first, second = read_azure(_write(tmp_path, AZURE))
    assert first == TrafficRequest(0.0, 4808, 10)
    assert second.arrival == pytest.approx(0.47996, abs=1e-6)
    assert (second.input_tokens, second.output_tokens) == (3180, 8)


def test_agentic_turns_share_the_recorded_blocks(tmp_path: Path) -> None:
    early, late, other = read_agentic(_write(tmp_path, AGENTIC))
    assert len(early.block_hashes) == 10
    assert late.block_hashes[:10] == early.block_hashes
    assert len(late.block_hashes) == 12
    assert not set(other.block_hashes) & set(late.block_hashes)
    assert (early.reused_tokens, late.reused_tokens, other.reused_tokens) == (512, 640, 0)
    assert (early.turn, late.turn, other.turn) == (5, 6, 1)
    assert (late.think, other.think) == (4.0, None)


def test_one_agentic_replay_has_its_own_times(tmp_path: Path) -> None:
    found = read_agentic(_write(tmp_path, AGENTIC), run=(8, 2, "off"))
    assert [(r.session, r.arrival, r.latency) for r in found] == [
        ("a", 0.0, 1.5),
        ("b", 2.0, 1.5),
        ("a", 5.0, 1.5),
    ]


def test_a_log_with_usage_needs_no_tokenizer(tmp_path: Path) -> None:
    rows = [
        CHAT | {"usage": USAGE, "session_id": "s"},
        {"request": CHAT | {"created": 1700000002.5}, "response": {"usage": USAGE}, "latency": 2},
    ]
    text = "\n".join(map(json.dumps, rows))
    first, second = read_openai_log(_write(tmp_path, text))
    assert first == TrafficRequest(0.0, 12, 3, session="s")
    assert second == TrafficRequest(2.5, 12, 3, latency=2.0)


def test_a_log_with_a_tokenizer_knows_what_prompts_share(tmp_path: Path) -> None:
    hello = {"role": "user", "content": "hello there"}
    more = [hello, {"role": "assistant", "content": [{"type": "text", "text": "hi"}]}]
    rows = [CHAT | {"max_tokens": 8}, CHAT | {"messages": more, "max_tokens": 4}]
    path = _write(tmp_path, "\n".join(map(json.dumps, rows)))
    first, second = read_openai_log(path, encode=_encode, block_size=4)
    assert first.input_tokens == len("user\nhello there\n")
    assert second.block_hashes[:4] == first.block_hashes
    assert (first.output_tokens, second.output_tokens) == (8, 4)


def test_a_log_of_token_ids_knows_what_prompts_share(tmp_path: Path) -> None:
    rows = [{"prompt": [1, 2, 3, 4, n], "max_tokens": 2} for n in (5, 6)]
    path = _write(tmp_path, "\n".join(map(json.dumps, rows)))
    first, second = read_openai_log(path, block_size=2)
    assert first.block_hashes == second.block_hashes
    assert len(first.block_hashes) == 2
    assert (first.arrival, second.arrival) == (0.0, 1.0)


RATES = (
    "category,client,t,rate,cv,pattern,arg1,arg2\n"
    "x,0,0,5,1,Gamma,1,0.2\nx,0,600,1,1,Gamma,1,1\nx,1,0,2,2,Weibull,0.5,0.25\ny,0,0,1,1,Gamma,1,1\n"
)
LENGTHS = {
    "x": {
        "fields": {
            "input_tokens": {"mean": 10, "quantiles": {"0.01": 1, "0.99": 20}},
            "output_tokens": {"mean": 3, "quantiles": {"0.01": 3, "0.99": 3}},
        }
    }
}


def test_servegen_clients_send_at_their_rates(tmp_path: Path) -> None:
    rates = _write(tmp_path, RATES, "rates")
    lengths = _write(tmp_path, json.dumps(LENGTHS, indent=1), "lengths")
    clients = read_servegen(rates, lengths, "x")
    assert clients.span == 1200.0
    assert clients.rate(10.0) == 7.0
    assert clients.rate(700.0) == 1.0
    found = clients.requests(0.0, 1200.0, seed=1)
    early = [r for r in found if r.arrival < 600]
    sent = [sum(r.session == f"client-{c}" for r in early) / 600 for c in (0, 1)]
    assert sent[0] == pytest.approx(5, rel=0.1)
    assert sent[1] == pytest.approx(2, rel=0.25)  # CV 2.2: 600 gaps tell the rate to 9 %
    assert len(found) - len(early) == pytest.approx(600, rel=0.15)
    assert all(1 <= r.input_tokens <= 20 and r.output_tokens == 3 for r in found)
    assert found == clients.requests(0.0, 1200.0, seed=1)


def test_servegen_refuses_unknown_categories_and_empty_stretches(tmp_path: Path) -> None:
    rates = _write(tmp_path, RATES, "rates")
    lengths = _write(tmp_path, json.dumps(LENGTHS), "lengths")
    with pytest.raises(TkccError, match="no category 'z'"):
        read_servegen(rates, lengths, "z")
    with pytest.raises(TkccError, match="no category 'y'") as caught:
        read_servegen(rates, lengths, "y")
    assert caught.value.where == str(lengths)
    with pytest.raises(TkccError, match="0 requests"):
        read_servegen(rates, lengths, "x").requests(5000.0, 10.0)


BAD = [
    (read_mooncake, "{", 1, "not JSON"),
    (read_mooncake, "[" * 100_000, 1, "not JSON"),
    (read_mooncake, "[]", 1, "not a JSON object"),
    (read_mooncake, '{"timestamp": 0, "input_length": 5}', 1, "no output_length"),
    (read_mooncake, MOONCAKE.replace("512", "-1"), 2, "input_length is -1"),
    (read_mooncake, MOONCAKE.replace("512", "true"), 2, "input_length is True"),
    (read_mooncake, MOONCAKE.replace("512", "9" * 400), 2, "input_length is a number of more"),
    (read_mooncake, MOONCAKE.replace("6000", "NaN"), 1, "timestamp is nan"),
    (read_mooncake, MOONCAKE.replace("[0, 7]", '"x"'), 1, "hash_ids is 'x'"),
    (read_mooncake, MOONCAKE.replace("[0, 7]", "[0, 1.5]"), 1, "an item of hash_ids is 1.5"),
    (read_mooncake, MOONCAKE.replace("[0, 7]", "[0, 7, 8]"), 1, "3 hash_ids for 600 tokens"),
    (read_azure, "a,b\n1,2\n", 1, "no column TIMESTAMP"),
    (read_azure, AZURE + "2023-11-16 18:17:04,1\n", 4, "2 cells"),
    (read_azure, AZURE + "yesterday,1,1\n", 4, "TIMESTAMP is 'yesterday'"),
    (read_azure, AZURE + "2023-11-16 18:17:04,1e3,1\n", 4, "ContextTokens is '1e3'"),
    (read_azure, AZURE + '2023-11-16 18:17:04,"1,1\n', 4, "not CSV"),
    (read_agentic, AGENTIC.replace("8,2,1.5,3", "9,2,1.5,3"), 2, "9 \\+ 2 blocks for 640 tokens"),
    (read_agentic, AGENTIC.replace(",10\n", ",inf\n"), 2, "request_start_time is 'inf'"),
    (read_openai_log, json.dumps({"model": "m"}), 1, "neither messages nor a prompt"),
    (read_openai_log, json.dumps({"prompt": ["a", "b"]}), 1, "neither messages nor a prompt"),
    (read_openai_log, json.dumps({"prompt": [1, -2], "max_tokens": 1}), 1, "a token of prompt"),
    (read_openai_log, json.dumps(CHAT), 1, "the prompt's length is unknown"),
    (read_openai_log, json.dumps({"prompt": [1]}), 1, "the answer's length is unknown"),
    (read_openai_log, json.dumps({"messages": ["x"], "usage": USAGE}), 1, "a message is 'x'"),
    (
        read_openai_log,
        json.dumps(CHAT | {"usage": USAGE}) + "\n" + json.dumps({"prompt": "x", "usage": USAGE}),
        2,
        "no time, but other lines have one",
    ),
]


@pytest.mark.parametrize(("read", "text", "line", "what"), BAD)
def test_a_malformed_line_is_named(
    tmp_path: Path, read: Read, text: str, line: int, what: str
) -> None:
    path = _write(tmp_path, text)
    with pytest.raises(TkccError, match=what) as caught:
        read(path)
    assert caught.value.where == f"{path}:{line}"
    assert caught.value.remedy


@pytest.mark.parametrize("read", [read_mooncake, read_azure, read_agentic, read_openai_log])
def test_missing_empty_and_damaged_files_are_refused(tmp_path: Path, read: Read) -> None:
    with pytest.raises(TkccError, match="cannot read"):
        read(tmp_path / "missing")
    with pytest.raises(TkccError, match="cannot read"):
        read(tmp_path)
    with pytest.raises(TkccError, match="no requests"):
        read(_write(tmp_path, "\n\n"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TkccError, match="not UTF-8"):
        read(tmp_path / "binary")
    for damaged in (gzip.compress(MOONCAKE.encode())[:-20], b"\x1f\x8bxxxxxxxxxxxxxxxxxx"):
        (tmp_path / "damaged").write_bytes(damaged)
        with pytest.raises(TkccError, match="damaged"):
            read(tmp_path / "damaged")


def test_long_lines_and_large_files_are_refused_before_they_fill_memory(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b"x" * (limits.MAX_LINE + 10)))
    with pytest.raises(TkccError, match="the line is longer"):
        read_mooncake(path)
    many = _write(tmp_path, "line\n" * 100)
    with pytest.raises(TkccError, match="more than 50 bytes"):
        list(limits.read_lines(many, max_bytes=50))


@hypothesis.given(st.data())
@hypothesis.settings(max_examples=150)
def test_any_change_to_a_file_reads_or_is_refused_in_words(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    log = json.dumps(CHAT | {"usage": USAGE}) + "\n" + json.dumps({"prompt": [1], "max_tokens": 1})
    texts = {read_mooncake: MOONCAKE, read_azure: AZURE, read_agentic: AGENTIC}
    read, text = data.draw(st.sampled_from([*texts.items(), (read_openai_log, log)]))
    raw = bytearray(text.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(raw) - 1))
        raw[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
        if not raw:
            raw = bytearray(b" ")
    path = tmp_path_factory.mktemp("fuzz") / "trace"
    path.write_bytes(raw)
    try:
        found = read(path)
    except TkccError as error:
        found, remedy = [], error.remedy
    else:
        remedy = "none is needed"
    assert remedy
    assert all(r.input_tokens >= 1 and r.arrival >= 0 for r in found)
