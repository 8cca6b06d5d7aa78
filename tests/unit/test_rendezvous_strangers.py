"""Strangers and mistakes at the rendezvous: turned away, and the job goes on."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.rendezvous_ranks import LONG_S, MEMBER, SECRET, all_ranks, enter, free_port, serving

from rdmaring._version import __version__
from rdmaring.rendezvous import RendezvousError, client, join
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


HELLO = frame("J", b'{"hello": "rdmaring", "protocol": 2, "version": "0.1.0", "nonce": "00"}')
STRANGERS = {
    "an old version": frame("J", b'{"hello": "rdmaring", "protocol": 1, "nonce": "00"}'),
    "a web browser": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a length of 2^60": struct.pack("<Q", 1 << 60),
    "just over the bound": struct.pack("<I", FRAME_BYTES_MAX_BEFORE_PROOF + 1),
    "an empty frame": struct.pack("<I", 0),
    "an unknown kind": struct.pack("<I", 1) + b"Z",
    "raw bytes": frame("B", b"x"),
    "no JSON": frame("J", b"\xff\xfe{"),
    "deep JSON": frame("J", b"[" * 4000),
    "another hello": frame("J", b'{"hello": "world", "protocol": 2, "nonce": "00"}'),
    "no nonce": frame("J", b'{"hello": "rdmaring", "protocol": 2}'),
    "a wrong proof": HELLO + frame("J", json.dumps({"member": encode_member(MEMBER), "proof": "0" * 64}).encode()),
    "a proof that is no text": HELLO + frame("J", b'{"member": "x", "proof": [1]}'),
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_a_stranger_is_closed_and_logged_once_and_the_job_goes_on(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    def body(rank: int) -> bytes:
        if rank == 1:
            throw(address, STRANGERS[kind])
        return enter(address, rank, 2).exchange(b"%d" % rank)

    with caplog.at_level(logging.WARNING, "rdmaring"), serving(2) as address:
        assert all_ranks(2, body) == [b"01", b"01"]
    assert [record.message.count("stranger") for record in caplog.records] == [1]


def test_an_old_version_hears_both_versions() -> None:
    with serving(2) as address:
        answer = throw(address, STRANGERS["an old version"])
    error = json.loads(answer[5:])["error"]
    assert re.search(r"speaks protocol version 2 \(rdmaring \d.*\), this rank protocol version 1", error)


@given(data=st.binary(max_size=5000))
@settings(max_examples=60, deadline=None)
def test_random_bytes_are_closed_and_the_job_goes_on(data: bytes) -> None:
    """What a stranger says is answered by nothing but a closed connection."""
    with socket.create_connection(RANDOM_TARGET.address, timeout=LONG_S) as stranger:
        with contextlib.suppress(OSError):  # the server may close before it has read all
            stranger.sendall(data)
            stranger.shutdown(socket.SHUT_WR)
            while more := stranger.recv(4096):
                assert not more


class RandomTarget:
    """A server for all examples of the test above; it is used by a job before and after them."""

    address: tuple[str, int]


RANDOM_TARGET = RandomTarget()


@pytest.fixture(scope="module", autouse=True)
def random_target() -> Iterator[None]:
    with serving(2) as RANDOM_TARGET.address:
        yield
        results = all_ranks(2, lambda rank: enter(RANDOM_TARGET.address, rank, 2).exchange(b"%d" % rank))
        assert results == [b"01", b"01"]


@pytest.mark.parametrize(("wire", "version"), [("wire 9 page 9", __version__), ("wire 1", "0.0.7")])
def test_another_build_is_refused_with_both_named_and_the_job_goes_on(
    wire: str, version: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told so before anything else, such as its wrong world size."""
    with caplog.at_level(logging.INFO, "rdmaring"), serving(2) as address, ThreadPoolExecutor(1) as pool:
        first = pool.submit(lambda: enter(address, 1, 2).exchange(b"1"))
        until = time.monotonic() + LONG_S
        while "rank 1 came" not in caplog.text:
            assert time.monotonic() < until
            time.sleep(0.01)
        monkeypatch.setattr(client, "__version__", version)
        theirs, ours = re.escape(f"rank 0 runs rdmaring {version} ({wire})"), re.escape(f"{__version__} (wire 1)")
        with pytest.raises(RendezvousError, match=f"{theirs}, but rank 1, which came before, runs rdmaring {ours}"):
            enter(address, 0, 3, wire=wire)
        monkeypatch.setattr(client, "__version__", __version__)
        assert enter(address, 0, 2).exchange(b"0") == b"01"
        assert first.result() == b"01"


def test_secrets_are_never_logged_nor_shown(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    secret = "5ec2e7" * 8
    env = {"RDMARING_SECRET": secret}
    shown = []

    def body(rank: int) -> bytes:
        with join(rank, 2, f"127.0.0.1:{port}", LONG_S, env=env) as meeting:
            shown.append(f"{meeting!r} {meeting.members!r} {vars(meeting)!r}")
            return meeting.exchange(b"%d" % rank)

    port = free_port()
    with caplog.at_level(logging.DEBUG):
        assert all_ranks(2, body) == [b"01", b"01"]
        with serving(2) as address:
            throw(address, STRANGERS["a wrong proof"])
            with pytest.raises(RendezvousError) as caught:
                enter(address, 0, 2, secret=secret.encode())
    shown += [caplog.text, *capfd.readouterr(), str(caught.value), caught.value.hint]
    assert "rank 1 came" in caplog.text
    assert "turned a stranger" in caplog.text
    for text in shown:
        assert secret not in text
        assert SECRET.decode() not in text


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
