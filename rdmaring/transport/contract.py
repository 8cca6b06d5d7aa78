"""What a Python class must do to serve edges between nodes."""

from __future__ import annotations

import abc
import enum
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

HEAD = struct.Struct("<IHHQIIIIQII")
HEAD_BYTES = HEAD.size
MAGIC = 0x46545252  # "RRTF"


class Kind(enum.IntEnum):
    """What a message is."""

    OPEN = 1  # the sender has entered an operation, and which
    DATA = 2  # a slice
    TINY = 3  # a whole small vector


class Head(NamedTuple):
    """The first 48 bytes of every message, little-endian; rdmaring makes and checks them (docs/WIRE.md)."""

    magic: int
    kind: int
    row_high: int
    op: int  # of OPEN and DATA
    order: int  # of DATA: this is the order-th row on this link in this operation
    slice: int
    body_bytes: int
    row_low: int
    serial: int  # TINY: its tag; DATA: which transfer of this direction, from 0
    crc: int  # DATA of an operation that checks: CRC32C of the body as its sender read it; else 0
    origin: int  # likewise, as its origin had it

    @classmethod
    def parse(cls, message: bytes | bytearray | memoryview) -> Head:
        """Of the beginning of a message."""
        return cls(*HEAD.unpack_from(message))

    def pack(self) -> bytes:
        return HEAD.pack(*self)


@dataclass(frozen=True)
class Edge:
    """One edge between this rank and a peer on another node, both directions.

    socket: a TCP connection to the peer, both ends of which have proven the job's secret; non-blocking, nothing
        sent on it yet. It is the transport's: to carry the messages, or to set up what does.
    body_bytes_max: of the largest message, either direction, without its head.
    """

    rank: int
    peer: int
    world: int
    socket: socket.socket
    body_bytes_max: int


class Transport(abc.ABC):
    """Serves one edge. ``rr.init(transport=...)`` takes the class, or any callable that makes one from an Edge.

    Each direction of the edge is a sequence of messages, in order, none lost or twice. rdmaring checks their heads;
    a wrong byte in a body is a wrong sum.

    Threads: the methods of one object are never called at the same time, but by different threads: the one that
    calls a collective, and the process's progress thread for ``async_op=True``. They run under the GIL, in the
    middle of the operation: what they wait for, the operation waits for.
    Blocking: none may wait for the peer. They are called in turn while an operation runs, and not at all between
    operations: a message for which send() returned True must reach the peer by itself.
    os.fork(): a child calls nothing of its parent's edges, close() neither. Its copy of ``edge.socket`` is closed when it
    is forked, so that the peer sees the parent's end; what the transport opened itself, it closes there by itself
    (``os.register_at_fork``).
    Errors: ConnectionError and EOFError mean that the wire has ended, as it does when the peer's process does:
    for half a second that is looked for, and told instead where it is the cause. Any other exception is told at
    once, on both ranks, as ``LinkError`` here and ``PeerFailedError`` there, with its text. Afterwards only close()
    is called.
    """

    name: ClassVar[str] = ""  # in comm.links and errors, at most 15 letters; default: the class's

    def __init__(self, edge: Edge) -> None:
        self.edge = edge

    @abc.abstractmethod
    def send(self, head: bytes, body: memoryview) -> bool:
        """Take a message: True once all of it is out of this rank's hands.

        False: not yet; the same message is offered again until True, and no other meanwhile, so that what was sent
        of it may be remembered in the object. body: read-only, up to edge.body_bytes_max bytes; its memory is the
        caller's array, valid during the call, and once more at each repetition.
        """

    @abc.abstractmethod
    def receive(self) -> bytes | bytearray | memoryview | None:
        """The next whole message, head and body in one, copied before the next call; None: it is not there yet."""

    def progress(self) -> None:
        """Called in turn while an operation runs, whether or not there is something to send or receive."""
        return None

    def due_s(self) -> float | None:
        """The time (``time.monotonic()``) at which a rank that sleeps must look here, or None."""
        return None

    def fileno(self) -> int:
        """What wakes a sleeping rank by becoming readable or writable; -1: nothing, and it looks every 10 ms."""
        return self.edge.socket.fileno()

    def close(self) -> None:
        """After the last call. What was sent must still reach the peer."""
        self.edge.socket.close()


Factory = Callable[[Edge], Transport]
