"""Messages between the supervisor and its worker: JSON objects, each after its length.

Nothing that arrives is ever executed or unpickled: a worker runs candidates, and is not trusted.
"""

from __future__ import annotations

import json
import select
import socket
import struct
from typing import Any

from tkcc.ir.errors import TkccError

MAX_BYTES = 64 << 20
_LENGTH = struct.Struct("!I")
Message = dict[str, Any]


class Closed(TkccError):
    """The other end has gone."""


class Channel:
    """One end of a socket. One thread may send while another receives; not two the same."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._received = bytearray()

    @staticmethod
    def pair() -> tuple[Channel, socket.socket]:
        """Our end, and the socket to hand to a child process."""
        ours, theirs = socket.socketpair()
        return Channel(ours), theirs

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """Raises Closed, or TkccError for a message that is too long."""
        data = json.dumps(message, allow_nan=False, separators=(",", ":")).encode()
        if len(data) > MAX_BYTES:
            raise TkccError(f"a message of {len(data)} bytes", remedy=f"the limit is {MAX_BYTES}")
        try:
            self._socket.sendall(_LENGTH.pack(len(data)) + data)
        except OSError as error:
            raise Closed(f"sending failed: {error}") from error

    def receive(self, timeout: float | None = None) -> Message | None:
        """The next message; None if none has come whole within `timeout` seconds (None: wait).

        Raises Closed at the end of the stream, and TkccError for what is no message.
        """
        while (message := self._whole()) is None:
            ready, _, _ = select.select([self._socket], [], [], timeout)
            if not ready:
                return None
            self._fill()
        return message

    def _fill(self) -> None:
        try:
            data = self._socket.recv(1 << 16)
        except OSError as error:
            raise Closed(f"receiving failed: {error}") from error
        if not data:
            raise Closed("the other end has gone")
        self._received += data

    def _whole(self) -> Message | None:
        if len(self._received) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._received)
        if length > MAX_BYTES:
            raise TkccError(f"a message of {length} bytes", remedy=f"the limit is {MAX_BYTES}")
        end = _LENGTH.size + length
        if len(self._received) < end:
            return None
        data = bytes(self._received[_LENGTH.size : end])
        del self._received[:end]
        return _parsed(data)

    def close(self) -> None:
        self._socket.close()


def _parsed(data: bytes) -> Message:
    try:
        message = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise TkccError(f"a message is not JSON: {error}") from error
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise TkccError("a message is no object with a `kind`")
    return message
