"""The shortest whole transport: messages over the edge's own socket."""

from __future__ import annotations

from rdmaring.transport.contract import HEAD_BYTES, Edge, Head, Transport


class Sockets(Transport):
    """Heads tell how long bodies are, so the connection carries them one after the other, with nothing between."""

    name = "sockets"

    def __init__(self, edge: Edge) -> None:
        super().__init__(edge)
        self._sent = 0  # bytes of the message that is offered
        self._message = bytearray(HEAD_BYTES)  # that is being received
        self._got = 0

    def send(self, head: bytes, body: memoryview) -> bool:
        while self._sent < len(head) + len(body):
            parts = [memoryview(head)[self._sent :], body[max(0, self._sent - len(head)) :]]
            try:
                self._sent += self.edge.socket.sendmsg(parts)
            except BlockingIOError:
                return False
        self._sent = 0
        return True

    def receive(self) -> bytearray | None:
        if not self._fill(HEAD_BYTES):
            return None
        total = HEAD_BYTES + Head.parse(self._message).body_bytes
        if total > HEAD_BYTES + self.edge.body_bytes_max:
            raise ValueError(f"rank {self.edge.peer} sends {total} bytes: no rank does")
        if len(self._message) < total:
            self._message.extend(bytes(total - len(self._message)))
        if not self._fill(total):
            return None
        whole, self._message, self._got = self._message, bytearray(HEAD_BYTES), 0
        return whole

    def _fill(self, size: int) -> bool:
        """Whether the first ``size`` bytes of the message are there."""
        while self._got < size:
            try:
                got = self.edge.socket.recv_into(memoryview(self._message)[self._got : size])
            except BlockingIOError:
                return False
            if got == 0:
                raise ConnectionError(f"rank {self.edge.peer} closed the connection")
            self._got += got
        return True
