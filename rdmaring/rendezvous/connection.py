"""A rank's connection to the rendezvous: the client's half of the conversation."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from typing import Any

from rdmaring._version import __version__
from rdmaring.rendezvous.protocol import (
    FRAME_BYTES_MAX,
    FRAME_BYTES_MAX_BEFORE_PROOF,
    PROTOCOL_VERSION,
    TEXT_CHARS_MAX,
    FrameReader,
    Member,
    ProtocolError,
    RendezvousError,
    decode_error,
    decode_member,
    encode_member,
    frame,
    new_nonce,
    object_frame,
    parse_object,
    prove,
    proves,
    string,
)
from rdmaring.rendezvous.sockets import keep_alive

MEMBER_FRAME_BYTES_MAX = 8 * TEXT_CHARS_MAX  # of one member in the answer that tells all of them
READ_BYTES = 1 << 16
CHECK_S = 0.1  # how often a rank that waits for the others asks whether that is in vain


class NotOurServerError(RendezvousError):
    """What listens there proved no knowledge of this job's secret."""


class Connection:
    """A socket and the frames on it."""

    def __init__(self, connection: socket.socket, address: str) -> None:
        self.address = address
        self._socket = connection
        self._reader = FrameReader(FRAME_BYTES_MAX_BEFORE_PROOF)
        self._key = b""
        self._nonces = ("", "")

    def open(self, place: Any, timeout_s: float) -> None:
        self._socket.settimeout(timeout_s)
        self._socket.connect(place)
        if self._socket.getsockname() == self._socket.getpeername():
            # Linux joins a socket to itself when its own port is the one it asks for.
            raise ConnectionRefusedError(None, "Connection refused")
        keep_alive(self._socket)

    def meet(self, key: bytes, deadline: float) -> None:
        """Say hello and check the server's proof. Raises NotOurServerError, ConnectionError."""
        nonce = new_nonce()
        hello = {"hello": "rdmaring", "protocol": PROTOCOL_VERSION, "version": __version__, "nonce": nonce}
        self._send(object_frame(hello), deadline)
        try:
            answer = self._object(deadline)
            server_nonce = string(answer, "nonce")
            if not proves(string(answer, "proof"), prove(key, "server", nonce, server_nonce, "")):
                raise ProtocolError("its proof of the job's secret is wrong")
        except (ProtocolError, TimeoutError, RendezvousError) as error:
            # Its words too are those of a stranger until it has proved the secret.
            why = "it did not answer" if isinstance(error, TimeoutError) else str(error)
            raise NotOurServerError(
                f"what listens at {self.address} is not this job's rendezvous: {why}",
                hint="another program or job has this port, or the secret differs "
                "(RDMARING_SECRET, or the user's secret file)",
            ) from error
        self._key, self._nonces = key, (nonce, server_nonce)

    def enter(self, member: Member, deadline: float, check: Callable[[], None]) -> list[Member]:
        """Introduce ourselves, and wait for the others. check: raises where that is in vain.

        Raises RendezvousError, ConnectionError.
        """
        text = encode_member(member)
        proof = prove(self._key, "client", *self._nonces, text)
        self._reader.bytes_max = FRAME_BYTES_MAX + member.world * MEMBER_FRAME_BYTES_MAX
        self._send(object_frame({"member": text, "proof": proof}), deadline)
        try:
            members = self._object(deadline, check).get("assembled")
            if not isinstance(members, list) or len(members) != member.world:
                raise ProtocolError("the list of members is not one of this world")
            return [decode_member(encode_member(Member(**each))) for each in members]
        except TimeoutError:
            raise self._stopped("answering while the world assembled") from None
        except (ProtocolError, TypeError) as error:
            raise self._broken(error) from error

    def give(self, mine: bytes, left_s: float, slack_s: float, world: int) -> bytes:
        """One round, which has so long; the server's word of it may be later by the slack.

        Raises RendezvousError, ConnectionError.
        """
        deadline = time.monotonic() + left_s + slack_s
        self._reader.bytes_max = 1 + max(world * len(mine), FRAME_BYTES_MAX)
        try:
            self._send(object_frame({"round_timeout_s": left_s}) + frame("B", mine), deadline)
        except BrokenPipeError:
            pass  # why may still be in our socket
        except TimeoutError:
            raise self._stopped("reading") from None
        try:
            kind, body = self._frame(deadline)
            if kind == "J":
                raise decode_error(parse_object(body))
            if len(body) != world * len(mine):
                raise ProtocolError(f"{len(body)} bytes for {world} ranks of {len(mine)}")
            return body
        except TimeoutError:
            raise self._stopped("answering in a round") from None
        except ProtocolError as error:
            raise self._broken(error) from error

    def leave(self) -> None:
        with contextlib.suppress(OSError):  # the server may have gone first
            self._send(object_frame({"bye": True}), time.monotonic() + 1.0)
        self.close()

    def close(self) -> None:
        self._socket.close()

    def _stopped(self, what: str) -> RendezvousError:
        return RendezvousError(
            f"the rendezvous at {self.address} stopped {what}",
            hint="is rank 0's process stopped, or its host overloaded?",
            timed_out=True,
        )

    def _broken(self, error: Exception) -> RendezvousError:
        return RendezvousError(
            f"the rendezvous at {self.address} sent what its protocol forbids: {error}",
            hint="install the same version of rdmaring for every rank",
        )

    def _object(self, deadline: float, check: Callable[[], None] | None = None) -> dict[str, Any]:
        kind, body = self._frame(deadline, check)
        if kind != "J":
            raise ProtocolError("raw bytes where words were due")
        fields = parse_object(body)
        if "error" in fields:
            raise decode_error(fields)
        return fields

    def _frame(self, deadline: float, check: Callable[[], None] | None = None) -> tuple[str, bytes]:
        while (whole := self._reader.next()) is None:
            left_s = max(1e-3, deadline - time.monotonic())
            self._socket.settimeout(min(left_s, CHECK_S) if check else left_s)
            try:
                data = self._socket.recv(READ_BYTES)
            except TimeoutError:
                if check is None or time.monotonic() >= deadline:
                    raise
                check()
                continue
            if not data:
                raise ConnectionResetError(f"{self.address} closed the connection")
            self._reader.feed(data)
        return whole

    def _send(self, data: bytes, deadline: float) -> None:
        self._socket.settimeout(max(1e-3, deadline - time.monotonic()))
        self._socket.sendall(data)
