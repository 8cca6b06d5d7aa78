"""The switch between guests: learns where who is, floods what it does not know, never waits for one guest."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
from collections.abc import Iterator

import pytest
from beds import SCRIPTS

BROADCAST = b"\xff" * 6
A, B, C = (bytes([2, 0, 0, 0, 0, number]) for number in (1, 2, 3))
QUEUE_BYTES = 4 << 20


class Guest:
    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        connection.settimeout(10)

    def send(self, to: bytes, source: bytes, payload: bytes) -> None:
        self.connection.sendall(struct.pack("!I", 12 + len(payload)) + to + source + payload)

    def receive(self) -> tuple[bytes, bytes, bytes]:
        length = struct.unpack("!I", self._exactly(4))[0]
        frame = self._exactly(length)
        return frame[:6], frame[6:12], frame[12:]

    def _exactly(self, count: int) -> bytes:
        data = self.connection.recv(count, socket.MSG_WAITALL)
        assert len(data) == count
        return data


@pytest.fixture
def guests() -> Iterator[list[Guest]]:
    pairs = [socket.socketpair() for _ in range(3)]
    far = [pair[1].fileno() for pair in pairs]
    line = [sys.executable, "-m", "beds.switch", *map(str, far)]
    with subprocess.Popen(line, cwd=SCRIPTS, pass_fds=far) as process:
        for _, theirs in pairs:
            theirs.close()
        yield [Guest(ours) for ours, _ in pairs]
        for ours, _ in pairs:
            ours.close()
        assert process.wait(10) == 0


def test_a_frame_for_all_reaches_all_but_its_sender(guests: list[Guest]) -> None:
    guests[0].send(BROADCAST, A, b"who is there")
    assert [guest.receive() for guest in guests[1:]] == [(BROADCAST, A, b"who is there")] * 2
    guests[1].send(A, B, b"I am")
    assert guests[0].receive() == (A, B, b"I am")


def test_a_known_guest_alone_gets_its_frames(guests: list[Guest]) -> None:
    guests[0].send(C, A, b"unknown yet")
    assert [guest.receive()[2] for guest in guests[1:]] == [b"unknown yet"] * 2
    guests[2].send(A, C, b"here")
    assert guests[0].receive()[2] == b"here"
    guests[0].send(C, A, b"only for C")
    guests[0].send(BROADCAST, A, b"for all")
    assert [guests[2].receive()[2] for _ in range(2)] == [b"only for C", b"for all"]
    assert guests[1].receive()[2] == b"for all"


def test_many_frames_of_all_lengths_arrive_in_order(guests: list[Guest]) -> None:
    guests[1].send(BROADCAST, B, b"")
    for guest in (guests[0], guests[2]):
        guest.receive()
    payloads = [bytes([number % 256]) * (number * 37 % 9000) for number in range(100)]
    for payload in payloads:
        guests[0].send(B, A, payload)
    assert [guests[1].receive()[2] for _ in payloads] == payloads


def test_a_guest_that_does_not_read_stops_nobody(guests: list[Guest]) -> None:
    for number, guest in enumerate(guests):
        guest.send(BROADCAST, (A, B, C)[number], b"")
    for guest in guests:
        assert [guest.receive()[2] for _ in range(2)] == [b"", b""]
    for _ in range(2 * QUEUE_BYTES // 8000):
        guests[0].send(C, A, bytes(8000))
    guests[0].send(B, A, b"still here")
    assert guests[1].receive() == (B, A, b"still here")
