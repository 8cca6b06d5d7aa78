"""What a bed and the agents on its hosts say to each other: kind, rank, length, payload."""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator

HEADER = struct.Struct("!BII")
NO_RANK = 0xFFFFFFFF


class Kind(enum.IntEnum):
    HELLO = 0  # from the agent: it runs
    PLAN = 1  # to it: JSON, see agent.py
    READY = 2  # from it: the plan's set-up is done
    START = 3  # to it: start the ranks
    OUT = 4  # from it: bytes that a rank wrote to its standard output
    ERR = 5  # the same of standard error
    STATUS = 6  # from it: a rank's exit status in decimal digits, minus the signal that killed it
    SIGNAL = 7  # to it: a signal number in decimal digits, for all ranks
    FAILED = 8  # from it: the set-up failed; the text says how


def pack(kind: Kind, rank: int = NO_RANK, payload: bytes = b"") -> bytes:
    return HEADER.pack(kind, rank, len(payload)) + payload


class Reader:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Kind, int, bytes]]:
        self._buffer += data
        while len(self._buffer) >= HEADER.size:
            kind, rank, length = HEADER.unpack_from(self._buffer)
            end = HEADER.size + length
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[HEADER.size : end])
            del self._buffer[:end]
            yield Kind(kind), rank, payload
