"""Connections among a job's ranks, made when one has something to say; whoever is not to be reached is told of."""

from __future__ import annotations

import errno
import logging
import os
import selectors
import socket
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rdmaring.recover.channel import Channel
from rdmaring.recover.peer import Peer
from rdmaring.rendezvous.sockets import format_address, keep_alive, resolve

log = logging.getLogger("rdmaring")

CONNECT_TIMEOUT_S = 1.5  # of one address: longer than one lost SYN takes to repeat
PROOF_TIMEOUT_S = 10.0
SILENT_S = 4.0  # a host that answers no SYN for so long is not waited for, as one whose keepalives fail
REDIAL_S = 0.2
UNPROVEN_MAX = 64

_meshes: weakref.WeakSet[Mesh] = weakref.WeakSet()


@dataclass
class _Line:
    """To one peer: where it is tried next, and how it went."""

    addresses: list[tuple[str, int]]
    next: int = 0
    again_at: float = 0.0
    failed: set[int] = field(default_factory=set)  # addresses, since one answered
    refused: bool = False  # by one of them
    failed_since: float | None = None
    trouble: str = ""  # the last, in the system's words


class Mesh:
    """Of one rank. One thread at a time. Sockets: the listeners until close(), connections until hang_up()."""

    def __init__(self, listeners: Sequence[socket.socket], rank: int, peers: Sequence[Peer], key: bytes) -> None:
        """Takes the listeners over. peers: of all ranks, by rank. key: proves the job."""
        self._rank = rank
        self._world = len(peers)
        self._key = key
        self._listeners = list(listeners)
        self._lines = [_Line([(host, peer.port) for host in peer.hosts]) for peer in peers]
        self._channels: set[Channel] = set()
        self._selector = selectors.DefaultSelector()
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_sender.setblocking(False)
        for each in (*self._listeners, self._wake_receiver):
            each.setblocking(False)
            self._selector.register(each, selectors.EVENT_READ)
        _meshes.add(self)

    def send(self, rank: int, fields: dict[str, Any], now: float) -> None:
        """To that rank, by the connection there is, else by one that is made. Lost where it cannot be reached."""
        channel = self._channel(rank) or self._dial(rank, now)
        if channel is not None:
            channel.send(fields)
            self._attend(channel, now)

    @property
    def busy(self) -> bool:
        """Whether there are connections."""
        return bool(self._channels)

    def poll(self, timeout_s: float | None, now: Callable[[], float]) -> list[tuple[int, dict[str, Any]]]:
        """Wait for something to come, at most ``timeout_s`` (None: for ever): (rank, message) of proven peers."""
        found: list[tuple[int, dict[str, Any]]] = []
        for key, events in self._selector.select(timeout_s):
            if isinstance(key.data, Channel):
                found += self._on_events(key.data, events, now())
            elif key.fileobj is self._wake_receiver:
                self._wake_receiver.recv(4096)
            elif isinstance(key.fileobj, socket.socket):
                self._accept(key.fileobj, now())
        self._on_time(now())
        return found

    def wake(self) -> None:
        """poll() returns; from any thread."""
        try:
            self._wake_sender.send(b"x")
        except BlockingIOError:
            pass  # it is awake

    def missed(self, now: float) -> list[int]:
        """Ranks where nobody listens any more, or whose host is silent."""
        return [rank for rank, line in enumerate(self._lines) if rank != self._rank and self._is_missed(line, now)]

    def trouble(self, rank: int) -> str:
        """Why that rank could not be reached, "" where it could."""
        return self._lines[rank].trouble

    def hang_up(self) -> None:
        """End all connections; the listeners stay."""
        for channel in list(self._channels):
            self._drop(channel, "hung up")

    def close(self) -> None:
        self.hang_up()
        self._selector.close()
        for each in (*self._listeners, self._wake_receiver, self._wake_sender):
            each.close()

    def close_in_child(self) -> None:
        """After fork(): give up the copies, so that this rank's death is seen."""
        self._selector.close()
        sockets = [*self._listeners, *(channel.socket for channel in self._channels)]
        for each in (*sockets, self._wake_receiver, self._wake_sender):
            each.close()

    # ---- inside ----

    def _is_missed(self, line: _Line, now: float) -> bool:
        if len(line.failed) < len(line.addresses):
            return False
        return line.refused or line.failed_since is None or now - line.failed_since >= SILENT_S

    def _channel(self, rank: int) -> Channel | None:
        ours = [channel for channel in self._channels if channel.peer == rank]
        return next((channel for channel in ours if channel.proven), ours[0] if ours else None)

    def _dial(self, rank: int, now: float) -> Channel | None:
        line = self._lines[rank]
        if now < line.again_at or not line.addresses:
            return None
        host, port = line.addresses[line.next]
        try:
            family, kind, protocol, _, place = resolve(host, port)[0]
            connection = socket.socket(family, kind, protocol)
        except OSError as error:
            self._failed(rank, error.errno, error.strerror or str(error), now)
            return None
        connection.setblocking(False)
        keep_alive(connection)
        channel = Channel(connection, self._key, self._rank, rank, self._world, now)
        self._channels.add(channel)
        self._selector.register(connection, selectors.EVENT_WRITE, channel)
        number = connection.connect_ex(place)
        if number not in (0, errno.EINPROGRESS):
            self._drop(channel, os.strerror(number))
            self._failed(rank, number, os.strerror(number), now)
            return None
        return channel

    def _failed(self, rank: int, number: int | None, words: str, now: float) -> None:
        """The address that was tried leads nowhere: the next one."""
        line = self._lines[rank]
        line.trouble = f"{format_address(line.addresses[line.next])}: {words}"
        line.failed.add(line.next)
        line.refused = line.refused or number == errno.ECONNREFUSED
        if line.failed_since is None:
            line.failed_since = now - (CONNECT_TIMEOUT_S if number == errno.ETIMEDOUT else 0)
        line.next = (line.next + 1) % len(line.addresses)
        line.again_at = now if line.next else now + REDIAL_S  # a round through all is over

    def _answered(self, rank: int) -> None:
        """Its kernel lives."""
        line = self._lines[rank]
        line.failed.clear()
        line.refused = False
        line.failed_since = None
        line.trouble = ""

    def _accept(self, listener: socket.socket, now: float) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:  # it has gone, or there is no descriptor: it calls again
            return
        connection.setblocking(False)
        keep_alive(connection)
        unproven = [channel for channel in self._channels if channel.peer is None]
        if len(unproven) >= UNPROVEN_MAX:
            self._drop(min(unproven, key=lambda channel: channel.since), "too many connections that proved nothing")
        channel = Channel(connection, self._key, self._rank, None, self._world, now)
        self._channels.add(channel)
        self._selector.register(connection, selectors.EVENT_READ, channel)

    def _on_events(self, channel: Channel, events: int, now: float) -> list[tuple[int, dict[str, Any]]]:
        found: list[tuple[int, dict[str, Any]]] = []
        if channel not in self._channels:
            return found
        if channel.connecting and events & selectors.EVENT_WRITE:
            number = channel.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            assert channel.peer is not None
            if number:
                self._drop(channel, os.strerror(number))
                self._failed(channel.peer, number, os.strerror(number), now)
                return found
            if channel.socket.getsockname() == channel.socket.getpeername():  # Linux joins a socket to itself
                self._drop(channel, "Connection refused")
                self._failed(channel.peer, errno.ECONNREFUSED, "Connection refused", now)
                return found
            self._answered(channel.peer)
            channel.connected()
        elif events & selectors.EVENT_WRITE:
            channel.flush()
        if events & selectors.EVENT_READ and not channel.closed:
            found = [(channel.peer, fields) for fields in channel.read() if channel.peer is not None]
        self._attend(channel, now)
        return found

    def _attend(self, channel: Channel, now: float) -> None:
        """After something was done with it."""
        if channel.closed:
            self._drop(channel, channel.closed)
            if channel.peer is None:
                log.info("recovery: turned a stranger away: %s", channel.closed)
            elif not channel.proven:  # whatever listens there, it is not that rank
                self._failed(channel.peer, None, channel.closed, now)
            return
        events = selectors.EVENT_WRITE if channel.wants_to_write else 0
        if not channel.connecting:
            events |= selectors.EVENT_READ
        self._selector.modify(channel.socket, events, channel)

    def _on_time(self, now: float) -> None:
        for channel in list(self._channels):
            if channel.connecting and now - channel.since > CONNECT_TIMEOUT_S:
                assert channel.peer is not None
                self._drop(channel, "no answer")
                self._failed(channel.peer, errno.ETIMEDOUT, "no answer from its host", now)
            elif channel.peer is None and now - channel.since > PROOF_TIMEOUT_S:
                self._drop(channel, "it proved nothing in time")

    def _drop(self, channel: Channel, why: str) -> None:
        if channel in self._channels:
            self._channels.discard(channel)
            channel.close(why)
            self._selector.unregister(channel.socket)
            channel.socket.close()


def _close_in_child() -> None:
    for each in list(_meshes):
        each.close_in_child()


os.register_at_fork(after_in_child=_close_in_child)
