"""What peers send over sockets, and pages of other processes: only documented errors, in bounded time and memory."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import asdict
from typing import Any

import pytest
from fuzz.searching import PROFILES, cut, damaged, search
from hypothesis import strategies as st

from rdmaring._native import lib
from rdmaring.diagnose import segments, why
from rdmaring.recover import page as recovery_page
from rdmaring.recover.agreement import Outcome, Record
from rdmaring.recover.channel import HELLO, VERSION, Channel
from rdmaring.rendezvous.connection import Connection
from rdmaring.rendezvous.protocol import Member, ProtocolError, RendezvousError, frame, object_frame
from rdmaring.transport import wire
from rdmaring.transport.contract import MAGIC, Kind
from rdmaring.transport.reference_edges import CLOSED, FAILED, SETUP, STATE, Edge, WireError
from rdmaring.transport.reference_tcp import TcpLink

WORLD = 3
KEY = bytes(16)


class Script:
    """A socket whose other end says what it was given, piece by piece, and hears nothing."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        self.pieces = deque(cut(data, sizes))

    def recv(self, size: int) -> bytes:
        return self.pieces.popleft()[:size] if self.pieces else b""

    def send(self, data: bytes) -> int:
        return len(data)

    def sendall(self, data: bytes) -> None:
        self.send(data)

    def settimeout(self, seconds: float) -> None:
        pass


SIZES = st.lists(st.integers(1, 4096), max_size=4)


def streams(valid: list[bytes]) -> st.SearchStrategy[tuple[bytes, list[int]]]:
    return st.tuples(damaged(valid), SIZES)


# ---- the rendezvous, as a rank hears it ----

MEMBERS = [Member(rank, WORLD, "0.3.0", "6.5", "host", 100 + rank, 30.0, 300.0) for rank in range(WORLD)]
ASSEMBLED = object_frame({"assembled": [asdict(member) for member in MEMBERS]})
REFUSED = object_frame({"error": "rank 1 left", "hint": "look", "missing_ranks": [1], "timed_out": False})


def connection(given: tuple[bytes, list[int]]) -> Connection:
    return Connection(Script(*given), "[::1]:1")  # type: ignore[arg-type]


def assembled(given: tuple[bytes, list[int]]) -> None:
    one = connection(given)
    one.enter(MEMBERS[0], 1e12, lambda: None)
    one.give(b"12345678", 1e12, 0.0, WORLD)


def greeted(given: tuple[bytes, list[int]]) -> None:
    connection(given).meet(KEY, 1e12)


# ---- recovery ----


def channel(given: tuple[bytes, list[int]], *, called: bool, proven: bool) -> None:
    script = Script(*given)
    one = Channel(script, KEY, 0, None if called else 1, WORLD, 0.0)  # type: ignore[arg-type]
    one.proven = proven
    while not one.closed:
        one.read()
    assert one.closed


def recovered(data: bytes) -> None:
    size = 2 * recovery_page.copy_bytes(WORLD)
    descriptor = os.memfd_create("page")
    os.write(descriptor, data[:size])
    os.ftruncate(descriptor, size)
    page = recovery_page.Page(descriptor, WORLD, 0)
    try:
        page.load(0)
    finally:
        page.close()


def recovery_pages() -> list[bytes]:
    page, descriptor = recovery_page.Page.make(WORLD, 0, 1)
    page.store({1: Record((0, -1), (0, -1), None, False)})
    page.store({1: Record((3, 1), (2, 0), Outcome((0, 2), 17, 4242), True)})
    data = os.pread(descriptor, 2 * recovery_page.copy_bytes(WORLD), 0)
    page.close()
    os.close(descriptor)
    return [data]


# ---- progress pages ----


def page_heads() -> list[bytes]:
    """Beginnings of pages of ranks of a world of 3: magic, version, world, rank, process."""
    magic = 0x45474150474E5252.to_bytes(8, "little")
    heads = []
    for rank in range(WORLD):
        numbers = (wire.PAGE_VERSION, WORLD, rank, os.getpid())
        heads.append(magic + b"".join(number.to_bytes(4, "little") for number in numbers) + bytes(200))
    return heads


@st.composite
def pages(draw: Any) -> list[bytes]:
    size = lib.rr_page_bytes()
    filling = st.sampled_from([bytes(size), bytes([255]) * size, bytes(range(256)) * (size // 256 + 1)])
    return [
        (draw(damaged(page_heads(), size)) + draw(st.binary(max_size=600)) + draw(filling))[:size]
        for _ in range(draw(st.integers(1, 4)))
    ]


def judged(given: list[bytes]) -> None:
    """As `rdmaring why` does, once it has read the bytes."""
    found = segments.Segments()
    seen = [record for data in given if (record := segments.record(data, 1, found)) is not None]
    comms: dict[int, dict[int, Any]] = {}
    for record in seen:
        comms.setdefault(record.comm, {})[record.rank] = record
    for comm, members in comms.items():
        why._group(comm, comm, members).as_dict()


# ---- the reference's links ----


def message(kind: int, body: bytes) -> bytes:
    return wire.MESSAGE_HEAD.pack(kind=kind, bytes=len(body)) + body


ERROR = wire.FAILED.pack(op_done=3, error=wire.ERROR.pack(status=-40, message=b"timed out"))
CONTROL = [
    message(SETUP, b"123") + message(STATE, wire.STATE.pack(op=4)) + message(CLOSED, wire.STATE.pack(op_done=4)),
    message(FAILED, ERROR),
]


def controlled(given: tuple[bytes, list[int]]) -> None:
    edge = Edge(1, Script(*given))  # type: ignore[arg-type]
    for piece in cut(*given):
        edge._input += piece
        edge._take()


def data_frame(kind: Kind, body: bytes, **head: int) -> bytes:
    return wire.FRAME.pack(head, magic=MAGIC, kind=kind, bytes=len(body)) + body


FRAMES = [
    data_frame(Kind.OPEN, wire.OPEN.pack(op=1) + wire.DESCRIPTOR.pack(count=5), op=1)
    + data_frame(Kind.DATA, b"12345678", op=1, order=0, slice=0, serial=0),
    data_frame(Kind.TINY, b"1234", serial=7),
]


def linked(given: tuple[bytes, list[int]]) -> None:
    link = TcpLink.__new__(TcpLink)
    link.peer = 1
    script = Script(*given)
    link._streams, link._unsent = [script], [deque()]  # type: ignore[list-item]
    link._input, link._frames, link._received = [bytearray()], [deque()], 0
    while script.pieces:
        link.take_tiny()
    link.take_open()
    link.take(1, 0, 0, 8)


OPENED = object_frame({"nonce": "00" * 16, "proof": "11" * 32})
CALLED = object_frame({"hello": HELLO, "version": VERSION, "rank": 1, "nonce": "00" * 16}) + object_frame(
    {"proof": "1"}
)
SAID = object_frame({"epoch": 1, "kind": "prepare", "ballot": [1, 1]})
TARGETS: dict[str, tuple[Any, Any, tuple[type[BaseException], ...]]] = {
    "rendezvous": (
        assembled,
        streams([ASSEMBLED + frame("B", bytes(24)), ASSEMBLED + REFUSED, REFUSED]),
        (RendezvousError, ConnectionError),
    ),
    "greeting": (greeted, streams([OPENED, REFUSED]), (RendezvousError, ConnectionError)),
    "recovery, called": (lambda given: channel(given, called=True, proven=False), streams([CALLED]), ()),
    "recovery, calls": (lambda given: channel(given, called=False, proven=False), streams([OPENED]), ()),
    "recovery, proven": (lambda given: channel(given, called=True, proven=True), streams([SAID * 3]), ()),
    "recovery page": (recovered, damaged(recovery_pages()), (ProtocolError,)),
    "progress pages": (judged, pages(), ()),
    "reference, control": (controlled, streams(CONTROL), (WireError,)),
    "reference, frames": (linked, streams(FRAMES), (WireError,)),
}


@pytest.mark.parametrize(("examples", "seed"), PROFILES)
@pytest.mark.parametrize("name", TARGETS)
def test_only_documented_errors(name: str, examples: int, seed: int | None) -> None:
    search(*TARGETS[name], examples, seed)


def test_what_searches_begin_with_is_believed() -> None:
    assembled((ASSEMBLED + frame("B", bytes(24)), [100]))
    linked((FRAMES[0], [50]))
    controlled((CONTROL[0], [9]))
    recovered(recovery_pages()[0])
    found = segments.Segments()
    seen = segments.record(page_heads()[2] + bytes(lib.rr_page_bytes()), 1, found)
    assert seen is not None and (seen.world, seen.rank) == (WORLD, 2)
