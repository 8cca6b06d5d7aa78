"""The end that listens: `rdmaring doctor --serve`, and, while it examines a peer, the asking end too."""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from rdmaring.diagnose.doctor.interfaces import Address
from rdmaring.diagnose.doctor.machine import Document, Machine, bounded_dict, decode, examine
from rdmaring.diagnose.doctor.path_mtu import TOKEN_BYTES, Receiver, Sender, measure_path
from rdmaring.diagnose.doctor.probes import PATHS_MAX, PathMtu, Probes, Reach
from rdmaring.diagnose.doctor.reach import candidates, measure_reach, target_of
from rdmaring.diagnose.doctor.roots import Roots
from rdmaring.diagnose.doctor.talk import Conversation, DoctorError, be_greeted, dial, doctor_key, greet, small_segments
from rdmaring.rendezvous.protocol import ProtocolError, integer, string
from rdmaring.rendezvous.sockets import format_address, listen_everywhere

log = logging.getLogger("rdmaring")

GREETING_TIMEOUT_S = 5.0
IDLE_TIMEOUT_S = 300.0  # between two questions of a peer that proved the secret
ANSWER_TIMEOUT_S = 30.0
CONVERSATIONS_MAX = 128  # the peer tries all pairs of addresses at once
RECEIVERS_MAX = PATHS_MAX
STRANGERS_LOGGED_MAX = 10
WAIT_S_MAX = 2.0


class Server:
    """Answers peers that prove the secret. A context manager: leaving it closes everything."""

    def __init__(
        self, port: int, secret: bytes, roots: Roots, told: Callable[[Document, Document], None] | None = None
    ) -> None:
        """Listen on all addresses.

        port: 0 takes a free one. told: called with our document and the peer's, for each peer that examines us.

        Raises OSError: the port is taken.
        """
        self.key = doctor_key(secret)
        self.instance = secrets.token_hex(8)
        self._roots = roots
        self._told = told
        self._listeners = listen_everywhere(port)
        for listener in self._listeners:
            small_segments(listener)
        self.port = int(self._listeners[0].getsockname()[1])
        self._room = threading.BoundedSemaphore(CONVERSATIONS_MAX)
        self._open: set[Conversation] = set()
        self._lock = threading.Lock()
        self.examined = threading.Event()  # a peer that asked for our document has left
        self._closing = False
        self._strangers = 0
        self._threads = [
            threading.Thread(target=self._accept, args=(each,), name="rdmaring-doctor", daemon=True)
            for each in self._listeners
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening and end all conversations."""
        with self._lock:
            self._closing = True
            open_now = list(self._open)
        for listener in self._listeners:
            with contextlib.suppress(OSError):  # wakes accept(), which closing alone would not
                listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for listener in self._listeners:
            listener.close()
        for conversation in open_now:
            with contextlib.suppress(OSError):
                conversation.socket.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        while not self._closing:
            try:
                connection, address = listener.accept()
            except OSError:
                if not self._closing:  # out of descriptors, or a peer that left at once
                    time.sleep(0.1)
                continue
            if not self._room.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._converse, args=(connection, format_address(address)), daemon=True).start()

    def _converse(self, connection: socket.socket, address: str) -> None:
        conversation = Conversation(connection)
        answers = Answers(self)
        with self._lock:
            self._open.add(conversation)
        proven = False
        try:
            be_greeted(conversation, self.key, self.instance, GREETING_TIMEOUT_S)
            proven = True
            while True:
                asked = conversation.receive(IDLE_TIMEOUT_S)
                conversation.send(answers.answer(asked, connection), ANSWER_TIMEOUT_S)
        except ProtocolError as error:
            self._log_stranger(address, str(error))
        except OSError:
            if not proven and not self._closing:
                self._log_stranger(address, "it left, or fell silent, before it proved the secret")
            # Else it has left: that is how conversations end.
        finally:
            answers.close()
            conversation.close()
            if answers.were_asked:
                self.examined.set()
            with self._lock:
                self._open.discard(conversation)
            self._room.release()

    def _log_stranger(self, address: str, why: str) -> None:
        with self._lock:
            self._strangers += 1
            count = self._strangers
        if count <= STRANGERS_LOGGED_MAX:
            more = "; no more of them will be logged" if count == STRANGERS_LOGGED_MAX else ""
            log.warning("rdmaring doctor: a stranger at %s was turned away: %s%s", address, why, more)

    def addresses(self) -> list[Address]:
        return self._roots.system.addresses()

    def exchange(self, theirs: Document) -> Document:
        """Our document for theirs."""
        mine = examine(self._roots)
        if self._told is not None:
            self._told(mine, theirs)
        return mine


class Answers:
    """The answers of one conversation, and the sockets that it opened."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._receivers: dict[int, Receiver] = {}
        self._mine: Machine | None = None
        self._theirs: Machine | None = None

    @property
    def were_asked(self) -> bool:
        return self._theirs is not None

    def close(self) -> None:
        for receiver in self._receivers.values():
            receiver.close()

    def answer(self, asked: dict[str, Any], connection: socket.socket) -> dict[str, Any]:
        """One question. Raises ProtocolError for what nobody who proved the secret would ask."""
        question = string(asked, "ask")
        if question == "time":
            return {"time_ns": time.time_ns()}
        if question == "documents":
            return self._documents(asked)
        if question == "receiver":
            return self._receiver(string(asked, "address"))
        if question == "arrived":
            return self._arrived(asked)
        if question == "probe":
            return self._probe(asked, connection)
        raise ProtocolError(f"it asks {question!r}")

    def _documents(self, asked: dict[str, Any]) -> dict[str, Any]:
        theirs = decode(asked.get("document"))
        mine = self._server.exchange(theirs)
        self._mine, self._theirs = mine.machine, theirs.machine
        return {"document": bounded_dict(mine)}

    def _receiver(self, address: str) -> dict[str, Any]:
        found = next((each for each in self._server.addresses() if each.address == address.partition("%")[0]), None)
        if found is None or len(self._receivers) >= RECEIVERS_MAX:
            return {"error": f"{address} is no address of this machine, or too many were asked for"}
        try:
            receiver = Receiver(found.scoped, socket.AF_INET if found.ip.version == 4 else socket.AF_INET6)
        except OSError as error:
            return {"error": f"no datagrams can be received at {address}: {error.strerror}"}
        self._receivers[receiver.port] = receiver
        return {"port": receiver.port, "token": receiver.token.hex()}

    def _arrived(self, asked: dict[str, Any]) -> dict[str, Any]:
        receiver = self._receivers.get(integer(asked, "port", 1, 65535))
        if receiver is None:
            return {"error": "no such receiver"}
        wait_ms = integer(asked, "wait_ms", 0, round(1000 * WAIT_S_MAX))
        return {"arrived": receiver.has(integer(asked, "payload_bytes", 0, 65535), wait_ms / 1000)}

    def _probe(self, asked: dict[str, Any], connection: socket.socket) -> dict[str, Any]:
        """Measure towards the asking end, which listens too."""
        if self._mine is None or self._theirs is None:
            return {"error": "documents come first"}
        port, instance = integer(asked, "port", 1, 65535), string(asked, "instance")
        try:
            probes = probe_towards(self._mine, self._theirs, _host(connection), port, self._server.key, instance)
        except (DoctorError, OSError) as error:
            return {"error": f"measuring towards you failed: {error}"[:1000]}
        return {"probes": probes.as_dict()}


def _host(connection: socket.socket) -> str:
    """The other end's address, with its scope."""
    return socket.getnameinfo(connection.getpeername(), socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)[0]


def probe_towards(mine: Machine, theirs: Machine, host: str, port: int, key: bytes, instance: str) -> Probes:
    """Measure from this machine to the peer, whose server ``instance`` listens at ``port``.

    host: an address of the peer that is known to work from here, in case no other does.
    """
    pairs = candidates(mine, theirs)
    reach = measure_reach(pairs, port, key, instance)
    wanted = _paths_of(mine, theirs, pairs, reach)
    if not wanted:
        return Probes(tuple(reach), ())
    with dial(host, port, GREETING_TIMEOUT_S) as connection:
        conversation = Conversation(connection)
        greet(conversation, key, GREETING_TIMEOUT_S)
        paths = [_measure(conversation, source, target) for source, target in wanted]
    return Probes(tuple(reach), tuple(paths))


End = tuple[Address, int]


def _paths_of(
    mine: Machine, theirs: Machine, pairs: Sequence[tuple[Address, Address]], reach: Sequence[Reach]
) -> list[tuple[End, End]]:
    """One path for each pair of interfaces that reach each other, with the MTU of both ends."""
    works = {(each.source, each.target) for each in reach if each.works}
    here = {each.address: each.mtu for each in mine.interfaces}
    there = {each.address: each.mtu for each in theirs.interfaces}
    found: dict[tuple[str, str], tuple[End, End]] = {}
    for a, b in pairs:
        if (a.scoped, target_of(a, b)) in works and here[a] > 0 and there[b] > 0:
            found.setdefault((a.interface, b.interface), ((a, here[a]), (b, there[b])))
    return list(found.values())[:PATHS_MAX]


def _measure(conversation: Conversation, source: End, target: End) -> PathMtu:
    answer = conversation.ask({"ask": "receiver", "address": target[0].address}, ANSWER_TIMEOUT_S)
    port = integer(answer, "port", 1, 65535)
    token = bytes.fromhex(string(answer, "token", 2 * TOKEN_BYTES))

    def arrived(payload_bytes: int, wait_s: float) -> bool:
        asked = {"ask": "arrived", "port": port, "payload_bytes": payload_bytes, "wait_ms": round(1000 * wait_s)}
        return conversation.ask(asked, ANSWER_TIMEOUT_S).get("arrived") is True

    try:
        with contextlib.closing(Sender(source[0], target[0], port, token)) as sender:
            return measure_path(source, target, sender, arrived)
    except OSError as error:  # of sending: the conversation's own errors end it
        if isinstance(error, ConnectionError | TimeoutError):
            raise
        why = f"this host's kernel: {error.strerror}"
        return PathMtu(source[0].scoped, target_of(source[0], target[0]), source[1], target[1], 0, 0, why)
