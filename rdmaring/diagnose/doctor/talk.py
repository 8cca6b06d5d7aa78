"""The conversation of two doctors: proof of the job's secret first, then questions and answers.

Frames are those of the rendezvous (:mod:`rdmaring.rendezvous.protocol`). Who asks (A) and who serves (S):

    A  {"hello": "rdmaring doctor", "protocol", "nonce"}
    S  {"nonce", "proof"}                       the server proves the secret first
    A  {"proof"}
    S  {"welcome": instance}                    a name of this server's run, so that it can be told from another
    A  {"ask": ..., ...}                        any number of times, see serve.py
    S  {...} or {"error"}
"""

from __future__ import annotations

import socket
import time
from typing import Any

from rdmaring.diagnose.doctor.machine import DOCUMENT_BYTES_MAX
from rdmaring.rendezvous.protocol import (
    FRAME_BYTES_MAX_BEFORE_PROOF,
    FrameReader,
    ProtocolError,
    integer,
    job_key,
    new_nonce,
    object_frame,
    parse_object,
    prove,
    proves,
    string,
)
from rdmaring.rendezvous.sockets import keep_alive, resolve

PORT_DEFAULT = 29480
PROTOCOL = 1
HELLO = "rdmaring doctor"
READ_BYTES = 1 << 16
FRAME_BYTES_MAX = DOCUMENT_BYTES_MAX + (1 << 16)
ERROR_CHARS_MAX = 1024
# Segments that every path carries: the conversation must survive the black hole that it is to find.
SEGMENT_BYTES = 512


class DoctorError(RuntimeError):
    """The other end cannot be examined. hint: what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def small_segments(connection: socket.socket) -> None:
    """Both directions, if it is said before connecting or listening."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)


def dial(host: str, port: int, timeout_s: float) -> socket.socket:
    """A connection to the first address of ``host`` that answers. Raises OSError."""
    failed: OSError | None = None
    for family, kind, protocol, _, place in resolve(host, port):
        connection = socket.socket(family, kind, protocol)
        try:
            small_segments(connection)
            connection.settimeout(timeout_s)
            connection.connect(place)
            return connection
        except OSError as error:
            connection.close()
            failed = error
    raise failed or OSError(None, f"{host} has no address")


def doctor_key(secret: bytes) -> bytes:
    """A key of its own: a doctor's proofs are worth nothing at a rendezvous, nor the other way round."""
    return job_key(secret, "doctor")


class Conversation:
    """JSON objects over a connected socket, each bounded in size and in time."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._reader = FrameReader(FRAME_BYTES_MAX_BEFORE_PROOF)
        keep_alive(connection)

    def send(self, fields: dict[str, Any], timeout_s: float) -> None:
        self.socket.settimeout(timeout_s)
        self.socket.sendall(object_frame(fields))

    def receive(self, timeout_s: float) -> dict[str, Any]:
        """Raises ProtocolError, OSError (TimeoutError; ConnectionResetError at the stream's end)."""
        deadline = time.monotonic() + timeout_s
        while (whole := self._reader.next()) is None:
            self.socket.settimeout(max(1e-3, deadline - time.monotonic()))
            data = self.socket.recv(READ_BYTES)
            if not data:
                raise ConnectionResetError("the other end closed the connection")
            self._reader.feed(data)
            if time.monotonic() > deadline:
                raise TimeoutError("timed out")
        kind, body = whole
        if kind != "J":
            raise ProtocolError("raw bytes where words were due")
        return parse_object(body)

    def ask(self, fields: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """A question and its answer. Raises DoctorError if the other end says that it cannot."""
        self.send(fields, timeout_s)
        answer = self.receive(timeout_s)
        if "error" in answer:
            words = string(answer, "error", ERROR_CHARS_MAX)
            raise DoctorError(f"the other end says: {words}", "see its own output")
        return answer

    def trust(self) -> None:
        """The other end has proved the secret: its frames may be as large as a document."""
        self._reader.bytes_max = FRAME_BYTES_MAX

    def close(self) -> None:
        self.socket.close()


def greet(conversation: Conversation, key: bytes, timeout_s: float) -> str:
    """The asking half of the proof; returns the server's instance.

    Raises ProtocolError: what listens there is no doctor, or does not hold the secret. OSError.
    """
    nonce = new_nonce()
    conversation.send({"hello": HELLO, "protocol": PROTOCOL, "nonce": nonce}, timeout_s)
    answer = conversation.receive(timeout_s)
    if "error" in answer:
        raise ProtocolError(string(answer, "error", ERROR_CHARS_MAX))
    server_nonce = string(answer, "nonce")
    if not proves(string(answer, "proof"), prove(key, "server", nonce, server_nonce, HELLO)):
        raise ProtocolError("its proof of the job's secret is wrong: RDMARING_SECRET, or the secret files, differ")
    conversation.send({"proof": prove(key, "client", nonce, server_nonce, HELLO)}, timeout_s)
    instance = string(conversation.receive(timeout_s), "welcome")
    conversation.trust()
    return instance


def be_greeted(conversation: Conversation, key: bytes, instance: str, timeout_s: float) -> None:
    """The serving half. Raises ProtocolError: a stranger. OSError."""
    hello = conversation.receive(timeout_s)
    if string(hello, "hello") != HELLO:
        raise ProtocolError("it is not a doctor")
    nonce = string(hello, "nonce")
    spoken = integer(hello, "protocol", 0, 1 << 31)
    if spoken != PROTOCOL:
        words = f"this doctor speaks protocol {PROTOCOL}, the other {spoken}: install one version of rdmaring on both"
        conversation.send({"error": words}, timeout_s)
        raise ProtocolError(words)
    server_nonce = new_nonce()
    proof = prove(key, "server", nonce, server_nonce, HELLO)
    conversation.send({"nonce": server_nonce, "proof": proof}, timeout_s)
    given = string(conversation.receive(timeout_s), "proof")
    if not proves(given, prove(key, "client", nonce, server_nonce, HELLO)):
        raise ProtocolError("its proof of the job's secret is wrong")
    conversation.trust()
    conversation.send({"welcome": instance}, timeout_s)
