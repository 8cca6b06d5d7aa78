"""Two doctors on loopback: the command at both ends, and what strangers do to the one that listens."""

from __future__ import annotations

import json
import logging
import os
import random
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from unit.doctor.fake import FakeMachine
from unit.rendezvous_ranks import free_port

from rdmaring.diagnose.doctor import DoctorError, Server, State, examine_pair
from rdmaring.diagnose.doctor.talk import HELLO, PROTOCOL, Conversation, doctor_key, greet
from rdmaring.rendezvous.protocol import FRAME_BYTES_MAX_BEFORE_PROOF, frame, job_key, object_frame

SECRET = "a secret of the tests, long enough"
COMMAND = str(Path(sys.executable).parent / "rdmaring")
ENV = {name: value for name, value in os.environ.items() if not name.startswith("RDMARING_")} | {
    "RDMARING_SECRET": SECRET
}


@contextmanager
def serving(port: int, **env: str) -> Iterator[subprocess.Popen[str]]:
    """`rdmaring doctor --serve --once`, once it listens."""
    command = [COMMAND, "doctor", "--serve", "--once", "--port", str(port)]
    with subprocess.Popen(command, env=ENV | env, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert f"listening on port {port}" in process.stderr.readline()
            yield process
        finally:
            process.kill()


def ask(port: int, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [COMMAND, "doctor", "--peer", f"127.0.0.1:{port}", *arguments]
    return subprocess.run(command, env=ENV | env, capture_output=True, text=True, timeout=90)


def test_two_processes_examine_both_ends_and_the_path() -> None:
    port = free_port()
    with serving(port) as server:
        result = ask(port, "--json")
        assert server.wait(timeout=10) == 0  # --once: it ends when the peer has left
        assert server.stderr is not None
        assert "examined by" in server.stderr.read()
    assert result.stderr == ""
    document = json.loads(result.stdout)
    assert document["kind"] == "pair"
    assert document["mine"]["machine"]["boot_id"] == document["theirs"]["machine"]["boot_id"]
    pair = {finding["id"]: finding for finding in document["pair"]}
    assert pair["pair-version"]["state"] == pair["pair-reach"]["state"] == pair["pair-path-mtu"]["state"] == "ok"
    assert pair["pair-clock"]["state"] == "ok"
    assert abs(pair["pair-clock"]["data"]["offset_us"]) <= 1000 + pair["pair-clock"]["data"]["error_us"]
    tried = {(row["source"], row["target"]): row["error"] for row in pair["pair-reach"]["data"]["there"]}
    assert tried["127.0.0.1", "127.0.0.1"] == ""
    # Loopback's MTU is one more than an IP packet can have.
    loop = [row for row in pair["pair-path-mtu"]["data"]["paths"] if row["source"] == "127.0.0.1"]
    assert [row["arrived"] for row in loop] == [65535, 65535]
    failures = [each["id"] for each in document["mine"]["findings"] if each["state"] == "failure"]
    assert result.returncode == (1 if failures else 0)


def test_another_secret_is_refused_at_both_ends_and_it_is_said() -> None:
    port = free_port()
    with serving(port):
        result = ask(port, RDMARING_SECRET="quite another secret than theirs")
    assert result.returncode == 1
    assert result.stdout == ""
    assert "its proof of the job's secret is wrong" in result.stderr
    assert "RDMARING_SECRET" in result.stderr


def test_nobody_there_is_told_with_what_to_run() -> None:
    port = free_port()
    result = ask(port)
    assert result.returncode == 1
    assert "Connection refused" in result.stderr
    assert f"rdmaring doctor --serve --port {port}" in result.stderr


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    machine = FakeMachine(tmp_path / "there")
    machine.env["RDMARING_HOST_ID"] = "there"
    with Server(0, SECRET.encode(), machine.roots) as made:
        yield made


STRANGERS = {
    "a web browser": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a length of 2^60": struct.pack("<Q", 1 << 60),
    "just over the bound": struct.pack("<I", FRAME_BYTES_MAX_BEFORE_PROOF + 1),
    "an unknown kind": struct.pack("<I", 1) + b"Z",
    "deep JSON": frame("J", b"[" * 4000),
    "a rank": frame("J", b'{"hello": "rdmaring", "protocol": 1, "nonce": "00"}'),
    "another version": object_frame({"hello": HELLO, "protocol": PROTOCOL + 1, "nonce": "00"}),
    "a wrong proof": object_frame({"hello": HELLO, "protocol": PROTOCOL, "nonce": "00"})
    + object_frame({"proof": "0" * 64}),
    "noise": random.Random(3).randbytes(4096),
    "a port scan": b"",
}


def throw(port: int, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as stranger:
        stranger.sendall(data)
        if not data:
            return b""
        answer = b""
        try:
            while more := stranger.recv(4096):
                answer += more
        except ConnectionResetError:
            pass
        return answer


@pytest.mark.parametrize("kind", STRANGERS)
def test_a_stranger_is_closed_and_logged_once(server: Server, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "rdmaring"):
        answer = throw(server.port, STRANGERS[kind])
        deadline = time.monotonic() + 10
        while not caplog.records and time.monotonic() < deadline:
            time.sleep(0.01)
    assert b"machine" not in answer  # no document
    assert [record.message.count("stranger") for record in caplog.records] == [1]


def test_after_strangers_a_peer_is_served(server: Server, tmp_path: Path) -> None:
    for data in STRANGERS.values():
        throw(server.port, data)
    here = FakeMachine(tmp_path / "here")
    here.env["RDMARING_HOST_ID"] = "here"
    report = examine_pair("127.0.0.1", server.port, SECRET.encode(), here.roots)
    assert report.theirs.machine.host == "there"
    assert server.examined.wait(10)
    # The faked addresses cannot be bound on this machine: that is what reach says.
    reach = next(finding for finding in report.findings if finding.id == "pair-reach")
    assert reach.state in (State.OK, State.WARNING)  # loopback works, as both are one machine
    assert any("EADDRNOTAVAIL" in each.error for each in report.there.reach)


def test_a_question_that_nobody_asks_ends_the_conversation(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "rdmaring"), socket.create_connection(("127.0.0.1", server.port)) as wire:
        conversation = Conversation(wire)
        assert greet(conversation, server.key, 5.0) == server.instance
        assert "error" not in conversation.ask({"ask": "time"}, 5.0)
        with pytest.raises(DoctorError, match="no address of this machine"):
            conversation.ask({"ask": "receiver", "address": "203.0.113.9"}, 5.0)
        with pytest.raises(DoctorError, match="documents come first"):
            conversation.ask({"ask": "probe", "port": 1, "instance": "x"}, 5.0)
        with pytest.raises(ConnectionError):
            conversation.ask({"ask": "shell"}, 5.0)
    assert "'shell'" in caplog.text


def test_an_impostor_learns_nothing_from_the_asking_end() -> None:
    """Who listens must prove the secret before a document is sent."""
    heard: list[bytes] = []

    def impostor() -> None:
        connection, _ = listener.accept()
        with connection:
            heard.append(connection.recv(4096))
            connection.sendall(object_frame({"nonce": "11", "proof": "0" * 64}))
            heard.append(connection.recv(4096))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=impostor)
        thread.start()
        with pytest.raises(DoctorError, match="proof of the job's secret is wrong"):
            examine_pair("127.0.0.1", listener.getsockname()[1], SECRET.encode())
        thread.join()
    assert heard[1] == b""


def test_a_rendezvous_proof_is_worth_nothing_here() -> None:
    """The doctor's key is its own."""
    assert doctor_key(SECRET.encode()) not in (job_key(SECRET.encode(), ""), SECRET.encode())
