"""The server of a rendezvous: one sleeping thread that assembles ranks and serves their rounds."""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

from rdmaring._version import __version__
from rdmaring.rendezvous.groups import Group
from rdmaring.rendezvous.protocol import (
    FRAME_BYTES_MAX,
    FRAME_BYTES_MAX_BEFORE_PROOF,
    PROTOCOL_VERSION,
    FrameReader,
    Member,
    ProtocolError,
    RendezvousError,
    decode_member,
    error_frame,
    integer,
    job_key,
    new_nonce,
    object_frame,
    parse_object,
    prove,
    proves,
    seconds,
    string,
)
from rdmaring.rendezvous.sockets import format_address, keep_alive

if TYPE_CHECKING:
    from collections.abc import Iterable

log = logging.getLogger("rdmaring")

PROOF_TIMEOUT_S = 10.0  # for a connection to prove the secret
UNPROVEN_MAX = 256  # connections; beyond it the oldest makes room
LINGER_S = 2.0  # for a refused peer to read why
STRANGERS_LOGGED_MAX = 10
ACCEPT_PAUSE_S = 0.5  # after accept() failed for want of descriptors or memory
READ_BYTES = 1 << 16

_servers: weakref.WeakSet[Server] = weakref.WeakSet()


class Server:
    """Serves one job's rendezvous on listening sockets that it takes over.

    The thread starts with start(), so a launcher can listen, fork its ranks, and only then have a
    thread. It sleeps while nothing arrives.
    """

    def __init__(self, listeners: Iterable[socket.socket], world: int, secret: bytes, job: str = "") -> None:
        self.world = world
        self.key = job_key(secret, job)
        self._listeners = list(listeners)
        self._selector = selectors.DefaultSelector()
        self._peers: set[_Peer] = set()
        self._groups: list[Group] = []
        self._assembling: Group | None = None
        self._strangers = 0
        self._accept_again: float | None = None
        self._stop_by: float | None = None
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.setblocking(False)
        self._selector.register(self._wake_receiver, selectors.EVENT_READ)
        for listener in self._listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="rdmaring-rendezvous", daemon=True)
        _servers.add(self)

    @property
    def address(self) -> str:
        """``host:port`` of the first listener."""
        return format_address(self._listeners[0].getsockname())

    def start(self) -> None:
        self._thread.start()

    def stop(self, flush_s: float = 5.0) -> None:
        """Send what is still to be sent, for ``flush_s`` seconds at most, then close everything."""
        self._stop_by = time.monotonic() + flush_s
        if self._thread.ident is None:  # never started
            self._close()
        else:
            with contextlib.suppress(OSError):  # the thread has closed its end
                self._wake_sender.send(b"x")
            if not sys.is_finalizing():  # daemon threads stand still then, and go with the process
                self._thread.join()
        self._wake_sender.close()

    # ---- the thread ----

    def _serve(self) -> None:
        try:
            while not self._finished():
                for key, events in self._selector.select(self._sleep_s()):
                    if isinstance(key.data, _Peer):
                        key.data.on_events(events)
                    elif key.fileobj is self._wake_receiver:
                        self._wake_receiver.recv(READ_BYTES)
                    elif isinstance(key.fileobj, socket.socket):
                        self._accept(key.fileobj)
                self._on_time(time.monotonic())
        finally:
            self._close()

    def _finished(self) -> bool:
        if self._stop_by is None:
            return False
        return time.monotonic() >= self._stop_by or not any(peer.unsent for peer in self._peers)

    def _deadlines(self) -> list[float]:
        times = [self._stop_by, self._accept_again]
        times += [group.deadline for group in self._groups]
        times += [peer.deadline for peer in self._peers]
        return [moment for moment in times if moment is not None]

    def _sleep_s(self) -> float | None:
        deadlines = self._deadlines()
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _on_time(self, now: float) -> None:
        for group in list(self._groups):
            if group.deadline is not None and now >= group.deadline:
                group.fail_late()
                if group is self._assembling:
                    self._assembling = None  # who comes later starts anew
        for peer in list(self._peers):
            if peer.deadline is not None and now >= peer.deadline:
                peer.on_deadline()
        if self._accept_again is not None and now >= self._accept_again:
            self._accept_again = None
            for listener in self._listeners:
                self._selector.register(listener, selectors.EVENT_READ)

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, address = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            log.warning("rendezvous: accept failed: %s", error.strerror)
            self._accept_again = time.monotonic() + ACCEPT_PAUSE_S
            for other in self._listeners:
                self._selector.unregister(other)
            return
        connection.setblocking(False)
        keep_alive(connection)
        unproven = [peer for peer in self._peers if peer.member is None]
        if len(unproven) >= UNPROVEN_MAX:
            min(unproven, key=lambda peer: peer.since).turn_away("too many connections that proved nothing")
        peer = _Peer(self, connection, format_address(address))
        self._peers.add(peer)
        self._selector.register(connection, selectors.EVENT_READ, peer)

    # ---- what peers call, on the thread ----

    def admit(self, member: Member) -> Group | RendezvousError:
        """The group that this member is to enter, or why it cannot."""
        group = self._assembling or Group(self.world)
        refused = group.refusal(member)
        if refused is not None:
            log.warning("rendezvous: %s", refused)
            return refused
        if self._assembling is None:
            self._assembling = group
            self._groups.append(group)
        return group

    def entered(self, group: Group) -> None:
        if group.assembled and group is self._assembling:
            self._assembling = None

    def watch(self, peer: _Peer, events: int) -> None:
        self._selector.modify(peer.socket, events, peer)

    def forget(self, peer: _Peer) -> None:
        self._selector.unregister(peer.socket)
        peer.socket.close()
        self._peers.discard(peer)
        group = peer.group
        if group is not None and group.empty:
            self._groups.remove(group)
            if group is self._assembling:
                self._assembling = None

    def log_stranger(self, address: str, why: str) -> None:
        self._strangers += 1
        if self._strangers <= STRANGERS_LOGGED_MAX:
            last = " (no more of them are logged)" if self._strangers == STRANGERS_LOGGED_MAX else ""
            log.warning("rendezvous: turned a stranger at %s away: %s%s", address, why, last)

    def _close(self) -> None:
        for peer in list(self._peers):
            peer.socket.close()
        self._peers.clear()
        for listener in self._listeners:
            listener.close()
        self._selector.close()
        self._wake_receiver.close()

    def close_in_child(self) -> None:
        """After fork(): give up the copies, so that the parent's end of a connection is its only one."""
        self._selector.close()
        sockets = [*self._listeners, *(peer.socket for peer in self._peers)]
        for each in [*sockets, self._wake_receiver, self._wake_sender]:
            each.close()


class _Peer:
    """One connection: hello, then proof, then rounds; or dismissed, until it has read why."""

    def __init__(self, server: Server, connection: socket.socket, address: str) -> None:
        self.socket = connection
        self.since = time.monotonic()
        self.deadline: float | None = self.since + PROOF_TIMEOUT_S
        self.member: Member | None = None
        self.group: Group | None = None
        self._round_timeout_s = 0.0  # the member's, until it says of a round that less is left
        self._server = server
        self._address = address
        self._reader = FrameReader(FRAME_BYTES_MAX_BEFORE_PROOF)
        self._unsent = bytearray()
        self._nonces: tuple[str, str] | None = None
        self._dismissed = False
        self._said_bye = False
        self._open = True

    @property
    def unsent(self) -> bool:
        return bool(self._unsent)

    def on_events(self, events: int) -> None:
        if self._open and events & selectors.EVENT_WRITE:  # an earlier event may have ended it
            self._flush()
        if self._open and events & selectors.EVENT_READ:
            self._read()

    def on_deadline(self) -> None:
        if self._dismissed:
            self._end("was refused")
        else:
            self.turn_away(f"proved nothing within {PROOF_TIMEOUT_S:g} s")

    def turn_away(self, why: str) -> None:
        """End a connection whose other side is not of this job."""
        self._server.log_stranger(self._address, why)
        self._end("broke the protocol")

    def send(self, data: bytes) -> None:
        if not self._open:
            return
        idle = not self._unsent
        self._unsent += data
        if idle:
            self._flush()

    def _read(self) -> None:
        try:
            data = self.socket.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(f"was lost ({error.strerror})")
            return
        if not data:
            if self.member is None and self._nonces is None and not self._dismissed:
                self._server.log_stranger(self._address, "connected and left without a word")
            self._end("has left" if self._said_bye else "was lost (its connection ended)")
            return
        if self._dismissed:
            return
        self._reader.feed(data)
        try:
            while self._open and not self._dismissed and (next_frame := self._reader.next()) is not None:
                self._on_frame(*next_frame)
        except ProtocolError as error:
            self.turn_away(str(error))

    def _on_frame(self, kind: str, body: bytes) -> None:
        if self.member is not None:
            assert self.group is not None  # set together with member
            if kind == "B":
                self.group.give(self.member.rank, body, self._round_timeout_s, time.monotonic())
                return
            fields = parse_object(body)
            if "round_timeout_s" in fields:
                self._round_timeout_s = seconds(fields, "round_timeout_s")
            elif "bye" in fields:
                self._said_bye = True
            return
        if kind != "J":
            raise ProtocolError("raw bytes before a proof")
        if self._nonces is None:
            self._on_hello(body)
        else:
            self._on_proof(body, *self._nonces)

    def _on_hello(self, body: bytes) -> None:
        fields = parse_object(body)
        if fields.get("hello") != "rdmaring":
            raise ProtocolError("no hello of rdmaring")
        protocol = integer(fields, "protocol", 0, 1 << 31)
        if protocol != PROTOCOL_VERSION:
            theirs = f"protocol version {protocol} (rdmaring {_version_of(fields)})"
            self._server.log_stranger(self._address, f"speaks {theirs}")
            self._dismiss(
                RendezvousError(
                    f"the rendezvous speaks protocol version {PROTOCOL_VERSION} (rdmaring {__version__}), "
                    f"this rank {theirs}",
                    hint="install the same version of rdmaring for every rank",
                )
            )
            return
        nonces = (string(fields, "nonce"), new_nonce())
        self._nonces = nonces
        self.send(object_frame({"nonce": nonces[1], "proof": prove(self._server.key, "server", *nonces, "")}))

    def _on_proof(self, body: bytes, client_nonce: str, server_nonce: str) -> None:
        fields = parse_object(body)
        text = string(fields, "member", FRAME_BYTES_MAX_BEFORE_PROOF)
        expected = prove(self._server.key, "client", client_nonce, server_nonce, text)
        if not proves(string(fields, "proof"), expected):
            raise ProtocolError("its proof of the job's secret is wrong")
        member = decode_member(text)
        group = self._server.admit(member)
        if isinstance(group, RendezvousError):
            self._dismiss(group)
            return
        self.member, self.group, self.deadline = member, group, None
        self._round_timeout_s = member.round_timeout_s
        self._reader.bytes_max = FRAME_BYTES_MAX
        log.info("rendezvous: rank %d came from %s, pid %d", member.rank, self._address, member.pid)
        group.enter(member, self, time.monotonic())
        self._server.entered(group)

    def _dismiss(self, error: RendezvousError) -> None:
        self._dismissed = True
        self.deadline = time.monotonic() + LINGER_S
        self.send(error_frame(error))

    def _flush(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self.socket.send(self._unsent)]
        except (BlockingIOError, InterruptedError):
            self._server.watch(self, selectors.EVENT_READ | selectors.EVENT_WRITE)
            return
        except OSError as error:
            self._end(f"was lost ({error.strerror})")
            return
        self._server.watch(self, selectors.EVENT_READ)

    def _end(self, how: str) -> None:
        if not self._open:
            return
        self._open = False
        self._unsent.clear()
        member, group = self.member, self.group
        if member is not None and group is not None:
            log.info("rendezvous: rank %d %s", member.rank, how)
            group.leave(member.rank, how)
        self._server.forget(self)


def _version_of(fields: dict[str, Any]) -> str:
    try:
        return string(fields, "version")
    except ProtocolError:
        return "of an earlier version"


def _close_servers_in_child() -> None:
    for server in list(_servers):
        server.close_in_child()


os.register_at_fork(after_in_child=_close_servers_in_child)
