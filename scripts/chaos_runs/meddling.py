"""The simulated wire: sockets that hold, slow, cut, drop or turn a bit, when told to."""

from __future__ import annotations

import errno
import time

from chaos_runs.faults import OP_TIMEOUT_S
from rdmaring.transport import Sockets
from rdmaring.transport.contract import Edge, Head, Kind, Transport

SLOW_BYTES_PER_S = 100_000  # of messages of SLOW_SLOT_BYTES: some get through within each second
SLOW_SLOT_BYTES = 16_384
HOLD_S = 3 * OP_TIMEOUT_S  # longer than an operation may take


class Wire:
    """What all edges of this process do, and to which peer. An instance is the factory for rr.init()."""

    name = "meddled"

    def __init__(self) -> None:
        self.deed = ""
        self.peer = -1
        self.turn = 0
        self.done = False

    def do(self, deed: str, peer: int, turn: int = 0) -> None:
        self.deed, self.peer, self.turn = deed, peer, turn

    def __call__(self, edge: Edge) -> Transport:
        return MeddledEdge(edge, self)


class MeddledEdge(Transport):
    """Deeds are done at the sending end, but for holding."""

    name = "meddled"

    def __init__(self, edge: Edge, wire: Wire) -> None:
        super().__init__(edge)
        self._inner = Sockets(edge)
        self._wire = wire
        self._free_at = 0.0
        self._begun = False
        self._meddle = ""

    def _mine(self, *deeds: str) -> bool:
        return self._wire.deed in deeds and self._wire.peer == self.edge.peer

    def send(self, head: bytes, body: memoryview) -> bool:
        if self._mine("cut"):
            raise OSError(errno.ENOLINK, "the simulated link was cut")
        if self._mine("slow"):
            now = time.monotonic()
            if now < self._free_at:
                return False
            self._free_at = now + (len(head) + len(body)) / SLOW_BYTES_PER_S
        if not self._begun:  # the same message is offered until it is taken
            self._meddle = self._strikes(Head.parse(head), len(body))
        if self._meddle == "dropped":
            return True
        if self._meddle == "corrupted":
            turned = bytearray(body)
            turned[len(turned) // 2] ^= 16
            body = memoryview(bytes(turned))
        taken = self._inner.send(head, body)
        self._begun = not taken
        return taken

    def _strikes(self, head: Head, body_bytes: int) -> str:
        """The deed, once, when the turn of this message has come."""
        if not self._mine("dropped", "corrupted") or self._wire.done or head.kind != Kind.DATA or not body_bytes:
            return ""
        self._wire.turn -= 1
        self._wire.done = self._wire.turn <= 0
        return self._wire.deed if self._wire.done else ""

    def receive(self) -> bytes | bytearray | memoryview | None:
        if self._wire.deed == "credits":
            self._wire.deed = ""
            time.sleep(HOLD_S)
        return self._inner.receive()

    def progress(self) -> None:
        self._inner.progress()

    def due_s(self) -> float | None:
        if self._mine("slow") and time.monotonic() < self._free_at:
            return self._free_at
        return self._inner.due_s()

    def fileno(self) -> int:
        return self._inner.fileno()

    def close(self) -> None:
        self._inner.close()
