"""One proven connection of two ranks of a job: the handshake, then messages.

The rendezvous' frames and proofs (rdmaring.rendezvous.protocol). Whoever connects is C, who listens S:

    C  {"hello": "rdmaring recovery", "version", "rank", "nonce"}
    S  {"nonce", "proof"}           over the nonces, and both ranks
    C  {"proof"}
    then messages of both, {"epoch", "kind", ...}
"""

from __future__ import annotations

import socket
from collections import deque
from typing import Any, Literal

from rdmaring.rendezvous.protocol import (
    FRAME_BYTES_MAX,
    FRAME_BYTES_MAX_BEFORE_PROOF,
    FrameReader,
    ProtocolError,
    integer,
    new_nonce,
    object_frame,
    parse_object,
    prove,
    proves,
    string,
)

HELLO = "rdmaring recovery"
VERSION = 1
READ_BYTES = 1 << 16
WAITING_MAX = 64  # messages for a peer that does not read; the oldest go: all are sent again by time
UNSENT_BYTES_MAX = 1 << 20


class Channel:
    """One end, on a socket that does not block. ``closed``: in words, why; "" while it is open."""

    def __init__(
        self, connection: socket.socket, key: bytes, rank: int, peer: int | None, world: int, now: float
    ) -> None:
        """peer: whom we called; None: we were called, and learn who it is from its proof."""
        self.socket = connection
        self.peer = peer
        self.since = now
        self.proven = False
        self.closed = ""
        self.connecting = peer is not None
        self._key = key
        self._rank = rank
        self._world = world
        self._called = peer is None
        self._claims: int | None = None
        self._nonce = new_nonce()
        self._other_nonce = ""
        self._reader = FrameReader(FRAME_BYTES_MAX_BEFORE_PROOF)
        self._unsent = bytearray()
        self._waiting: deque[bytes] = deque(maxlen=WAITING_MAX)  # until the peer is proven

    @property
    def wants_to_write(self) -> bool:
        return self.connecting or bool(self._unsent)

    def connected(self) -> None:
        """Of a call: the other side's kernel has answered."""
        self.connecting = False
        hello = {"hello": HELLO, "version": VERSION, "rank": self._rank, "nonce": self._nonce}
        self._put(object_frame(hello))

    def send(self, fields: dict[str, Any]) -> None:
        data = object_frame(fields)
        if not self.proven:
            self._waiting.append(data)
        elif len(self._unsent) < UNSENT_BYTES_MAX:
            self._put(data)

    def flush(self) -> None:
        if self.connecting or self.closed:
            return
        try:
            while self._unsent:
                del self._unsent[: self.socket.send(self._unsent)]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self.close(error.strerror or str(error))

    def read(self) -> list[dict[str, Any]]:
        """Messages that have come from a proven peer."""
        try:
            data = self.socket.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError as error:
            self.close(error.strerror or str(error))
            return []
        if not data:
            self.close("its connection ended")
            return []
        self._reader.feed(data)
        found = []
        try:
            while not self.closed and (whole := self._reader.next()) is not None:
                kind, body = whole
                if kind != "J":
                    raise ProtocolError("raw bytes where words were due")
                fields = parse_object(body)
                if self.proven:
                    found.append(fields)
                else:
                    self._greet(fields)
        except ProtocolError as error:
            self.close(str(error))
        return found

    def close(self, why: str) -> None:
        """Say no more; the socket is its owner's to close."""
        self.closed = self.closed or why

    # ---- the handshake ----

    def _greet(self, fields: dict[str, Any]) -> None:
        if not self._called:
            self._other_nonce = string(fields, "nonce")
            if not proves(string(fields, "proof"), self._proof("server")):
                raise ProtocolError("its proof of the job's secret is wrong")
            self._put(object_frame({"proof": self._proof("client")}))
            self._prove()
        elif self._claims is None:
            if fields.get("hello") != HELLO or fields.get("version") != VERSION:
                raise ProtocolError("no hello of this version of rdmaring")
            self._claims = integer(fields, "rank", 0, self._world - 1)
            self._other_nonce = string(fields, "nonce")
            self._put(object_frame({"nonce": self._nonce, "proof": self._proof("server")}))
        else:
            if not proves(string(fields, "proof"), self._proof("client")):
                raise ProtocolError("its proof of the job's secret is wrong")
            self.peer = self._claims
            self._prove()

    def _prove(self) -> None:
        self.proven = True
        self._reader.bytes_max = FRAME_BYTES_MAX
        while self._waiting:
            self._put(self._waiting.popleft())

    def _proof(self, role: Literal["client", "server"]) -> str:
        ours, theirs = self._nonce, self._other_nonce
        if self._called:
            return prove(self._key, role, theirs, ours, f"{self._claims}>{self._rank}")
        return prove(self._key, role, ours, theirs, f"{self._rank}>{self.peer}")

    def _put(self, data: bytes) -> None:
        self._unsent += data
        self.flush()
