"""Strangers and mistakes at the rendezvous: turned away, and the job goes on."""

from __future__ import annotations

import json
import logging
import os
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from unit.rendezvous_ranks import LONG_S, MEMBER, all_ranks, enter, serving

from rdmaring.rendezvous import RendezvousError
from rdmaring.rendezvous.protocol import FRAME_BYTES_MAX_BEFORE_PROOF, encode_member, frame


def throw(address: tuple[str, int], data: bytes) -> bytes:
    """Send bytes to the server; what it answers until it closes."""
    with socket.create_connection(address, timeout=LONG_S) as stranger:
        stranger.sendall(data)
        answer = b""
        try:
            while more := stranger.recv(4096):
                answer += more
        except ConnectionResetError:
            pass
        return answer


HELLO = frame("J", b'{"hello": "rdmaring", "protocol": 1, "nonce": "00"}')
STRANGERS = {
    "a web browser": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a length of 2^60": struct.pack("<Q", 1 << 60),
    "just over the bound": struct.pack("<I", FRAME_BYTES_MAX_BEFORE_PROOF + 1),
    "an empty frame": struct.pack("<I", 0),
    "an unknown kind": struct.pack("<I", 1) + b"Z",
    "raw bytes": frame("B", b"x"),
    "no JSON": frame("J", b"\xff\xfe{"),
    "deep JSON": frame("J", b"[" * 4000),
    "another hello": frame("J", b'{"hello": "world", "protocol": 1, "nonce": "00"}'),
    "no nonce": frame("J", b'{"hello": "rdmaring", "protocol": 1}'),
    "a wrong proof": HELLO
    + frame("J", json.dumps({"member": encode_member(MEMBER), "proof": "0" * 64}).encode()),
    "a proof that is no text": HELLO + frame("J", b'{"member": "x", "proof": [1]}'),
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_a_stranger_is_closed_and_logged_once_and_the_job_goes_on(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    def body(rank: int) -> bytes:
        if rank == 1:
            throw(address, STRANGERS[kind])
        return enter(address, rank, 2).exchange(b"%d" % rank)

    with caplog.at_level(logging.WARNING, "rdmaring"), serving(2) as address:
        assert all_ranks(2, body) == [b"01", b"01"]
    assert [record.message.count("stranger") for record in caplog.records] == [1]


def test_a_port_scan_is_logged_and_a_flood_of_them_is_not(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "rdmaring"), serving(2) as address:
        for _ in range(40):
            socket.create_connection(address).close()
        assert all_ranks(2, lambda rank: enter(address, rank, 2).exchange(b"%d" % rank)) == [b"01", b"01"]
    assert len(caplog.records) == 10
    assert "no more of them" in caplog.records[-1].message


def test_many_silent_connections_do_not_keep_the_job_out() -> None:
    with serving(2) as address:
        silent = [socket.create_connection(address) for _ in range(300)]
        try:
            assert all_ranks(2, lambda rank: enter(address, rank, 2).exchange(b"%d" % rank)) == [b"01", b"01"]
        finally:
            for each in silent:
                each.close()


def test_another_secret_is_refused_with_what_to_do() -> None:
    with serving(2) as address:
        with pytest.raises(RendezvousError, match="not this job's rendezvous") as caught:
            enter(address, 0, 2, secret=b"another")
    assert "RDMARING_SECRET" in caught.value.hint


def test_the_server_proves_the_secret_first_and_never_sees_ours() -> None:
    """An impostor that accepts anything learns no proof and no member."""
    heard = []

    def impostor() -> None:
        connection, _ = listener.accept()
        with connection:
            heard.append(connection.recv(4096))
            connection.sendall(frame("J", json.dumps({"nonce": "11", "proof": "0" * 64}).encode()))
            heard.append(connection.recv(4096))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=impostor)
        thread.start()
        with pytest.raises(RendezvousError, match="proof"):
            enter(listener.getsockname(), 0, 2)
        thread.join()
    assert b'"hello"' in heard[0]
    assert heard[1] == b""


def test_a_rank_that_is_taken_is_refused_in_words_and_the_job_goes_on() -> None:
    with serving(2) as address, ThreadPoolExecutor(1) as pool:
        first = pool.submit(lambda: enter(address, 1, 2).exchange(b"1"))
        time.sleep(0.2)
        with pytest.raises(RendezvousError, match=f"rank 1 is taken.*pid {os.getpid()} on the same host"):
            enter(address, 1, 2)
        assert enter(address, 0, 2).exchange(b"0") == b"01"
        assert first.result() == b"01"


def test_another_world_size_is_refused_in_words() -> None:
    with serving(2) as address:
        with pytest.raises(RendezvousError, match="world of 3 ranks, but this job has 2"):
            enter(address, 0, 3)
