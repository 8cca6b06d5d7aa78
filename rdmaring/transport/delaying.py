"""A transport that wraps another: it delays messages and counts them."""

from __future__ import annotations

import random
import time
from collections import deque
from dataclasses import dataclass

from rdmaring.transport.contract import HEAD_BYTES, Edge, Factory, Head, Kind, Transport
from rdmaring.transport.sockets import Sockets

AHEAD_MAX = 64  # messages that wait here for their time; more stay in the transport below, which is the sender's credit


@dataclass
class Traffic:
    """What went one way. Bytes are of bodies; heads are HEAD_BYTES a message."""

    messages: int = 0
    body_bytes: int = 0
    data_messages: int = 0  # of these, slices of vectors
    data_bytes: int = 0
    tiny_messages: int = 0  # and whole small vectors
    tiny_bytes: int = 0

    def note(self, head: Head) -> None:
        self.messages += 1
        self.body_bytes += head.body_bytes
        if head.kind == Kind.DATA:
            self.data_messages += 1
            self.data_bytes += head.body_bytes
        elif head.kind == Kind.TINY:
            self.tiny_messages += 1
            self.tiny_bytes += head.body_bytes


class Delaying:
    """Makes transports whose messages arrive ``delay_s`` late, or up to ``jitter_s`` more.

    >>> slow = Delaying(delay_s=0.001, jitter_s=0.0005, seed=7)
    >>> comm = rr.init(transport=slow)
    >>> comm.all_reduce(x); print(slow.sent(peer=1).data_bytes)

    The receiver delays, from when it first sees a message; order is kept. jitter is drawn uniformly by a generator
    seeded with (seed, sender, receiver), so that it is the same at every run. inner: what carries the messages.
    """

    name = "delaying"

    def __init__(self, delay_s: float = 0.0, *, jitter_s: float = 0.0, seed: int = 0, inner: Factory = Sockets) -> None:
        if not (0 <= delay_s < 3600 and 0 <= jitter_s < 3600):
            raise ValueError(f"delay_s is {delay_s!r} and jitter_s {jitter_s!r}; accepted are seconds from 0 to 3600")
        self.delay_s = delay_s
        self.jitter_s = jitter_s
        self.seed = seed
        self.inner = inner
        self.edges: list[DelayingEdge] = []  # all that were opened, closed ones too

    def __call__(self, edge: Edge) -> DelayingEdge:
        made = DelayingEdge(edge, self)
        self.edges.append(made)
        return made

    def sent(self, peer: int) -> Traffic:
        """To the peer, over the newest edge; nothing where there was none."""
        return next((each.sent for each in reversed(self.edges) if each.edge.peer == peer), Traffic())

    def received(self, peer: int) -> Traffic:
        """From the peer, over the newest edge."""
        return next((each.received for each in reversed(self.edges) if each.edge.peer == peer), Traffic())


class DelayingEdge(Transport):
    """One edge of a :class:`Delaying`."""

    name = "delaying"

    def __init__(self, edge: Edge, settings: Delaying) -> None:
        super().__init__(edge)
        self.sent = Traffic()
        self.received = Traffic()
        self._settings = settings
        self._inner = settings.inner(edge)
        self._ended: ConnectionError | EOFError | None = None
        self._random = random.Random(f"{settings.seed} {edge.peer} {edge.rank}")
        self._waiting: deque[tuple[float, bytes | bytearray | memoryview]] = deque()  # when due, and the message

    def send(self, head: bytes, body: memoryview) -> bool:
        taken = self._inner.send(head, body)
        if taken:
            self.sent.note(Head.parse(head))
        return taken

    def progress(self) -> None:
        self._inner.progress()
        while len(self._waiting) < AHEAD_MAX:
            try:
                message = None if self._ended else self._inner.receive()
            except (ConnectionError, EOFError) as error:  # what was received before it still counts
                self._ended = error
                return
            if message is None:
                return
            due = time.monotonic() + self._settings.delay_s + self._random.uniform(0, self._settings.jitter_s)
            if self._waiting:
                due = max(due, self._waiting[-1][0])
            self._waiting.append((due, bytes(message)))

    def receive(self) -> bytes | bytearray | memoryview | None:
        if self._ended and not self._waiting:
            raise self._ended
        if not self._waiting or time.monotonic() < self._waiting[0][0]:
            return None
        _, message = self._waiting.popleft()
        self.received.note(Head.parse(message[:HEAD_BYTES]))
        return message

    def due_s(self) -> float | None:
        own = self._waiting[0][0] if self._waiting else None
        below = self._inner.due_s()
        return own if below is None else below if own is None else min(own, below)

    def fileno(self) -> int:
        return self._inner.fileno()

    def close(self) -> None:
        self._inner.close()
