"""Messages arrive whole and in order; what is no message is refused."""

from __future__ import annotations

import struct
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tkcc.engine.frames import MAX_BYTES, Channel, Closed
from tkcc.ir.errors import TkccError

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, width=32),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
).filter(lambda value: "inf" not in str(value))


def _pair() -> tuple[Channel, Channel]:
    ours, theirs = Channel.pair()
    return ours, Channel(theirs)


@given(st.lists(PLAIN, max_size=5))
def test_messages_arrive_as_they_were_sent(bodies: list[object]) -> None:
    ours, theirs = _pair()
    for body in bodies:
        ours.send({"kind": "test", "body": body})
    got = [theirs.receive(1.0) for _ in bodies]
    assert got == [{"kind": "test", "body": body} for body in bodies]
    ours.close()
    theirs.close()


def test_a_long_message_arrives_in_parts() -> None:
    ours, theirs = _pair()
    body = "x" * (5 << 20)
    sender = threading.Thread(target=ours.send, args=({"kind": "long", "body": body},))
    sender.start()
    assert theirs.receive(10.0) == {"kind": "long", "body": body}
    sender.join()


def test_waiting_ends_with_none_and_loses_nothing() -> None:
    ours, theirs = _pair()
    assert theirs.receive(0.01) is None
    ours._socket.sendall(struct.pack("!I", 14) + b'{"kind"')
    assert theirs.receive(0.01) is None
    ours._socket.sendall(b': "ok"}')
    assert theirs.receive(1.0) == {"kind": "ok"}


def _send_often(channel: Channel) -> None:
    for _ in range(3):  # the first may still go into the buffer of a closed socket
        channel.send({"kind": "late"})


def test_the_end_of_the_stream_is_told() -> None:
    ours, theirs = _pair()
    ours.close()
    with pytest.raises(Closed):
        theirs.receive(1.0)
    with pytest.raises(Closed):
        _send_often(theirs)


@pytest.mark.parametrize("data", [b"{", b"[1]", b'{"kind": 3}', b"\xff", b"[" * 100_000])
def test_what_is_no_message_is_refused(data: bytes) -> None:
    ours, theirs = _pair()
    ours._socket.sendall(struct.pack("!I", len(data)) + data)
    with pytest.raises(TkccError, match="a message is"):
        theirs.receive(1.0)


def test_lengths_have_a_limit() -> None:
    ours, theirs = _pair()
    ours._socket.sendall(struct.pack("!I", MAX_BYTES + 1))
    with pytest.raises(TkccError, match="limit"):
        theirs.receive(1.0)
    with pytest.raises(TkccError, match="limit"):
        ours.send({"kind": "x" * (MAX_BYTES + 1)})
