"""Reference: how a rank meets the others, and its control connection to each (docs/WIRE.md, Meeting, Edge)."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import select
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

from rdmaring.rendezvous.interfaces import own_addresses
from rdmaring.transport import wire

GREETING_MAGIC = 0x46525252  # "RRRF"
GREETING_VERSION = 3
CONTROL = 0xFFFF  # the stream number of a control connection
SETUP, STATE, FAILED, CLOSED, WITNESS, COUNTS = 1, 2, 3, 4, 6, 7  # kinds of control messages
BODY_MAX = 4096
TRY_S = 1.0  # for one address of several to answer


class WireError(RuntimeError):
    """Something is not as docs/WIRE.md says, or a peer failed; the text tells who and what."""


class Edge:
    """The control connection to one far rank, its data sockets, and what came over it."""

    def __init__(self, peer: int, control: socket.socket) -> None:
        self.peer = peer
        self.control = control
        self.streams: dict[int, socket.socket] = {}
        self.set_up: list[bytes] = []  # set-up messages that nobody has taken yet
        self.closed = False  # the peer said so
        self._input = bytearray()

    def say(self, kind: int, body: bytes) -> None:
        self.control.settimeout(10)
        self.control.sendall(wire.MESSAGE_HEAD.pack(kind=kind, bytes=len(body)) + body)

    def look(self) -> None:
        """Take what has come.

        Raises:
            WireError: the peer failed, or its connection ended without a word.
        """
        while not self.closed and select.select([self.control], [], [], 0)[0]:
            try:
                got = self.control.recv(1 << 16)
            except OSError as error:
                raise WireError(f"rank {self.peer} died or was cut off: {error}") from error
            if not got:
                raise WireError(f"rank {self.peer} died or was cut off: its connection ended")
            self._input += got
            self._take()

    def _take(self) -> None:
        head_bytes = wire.MESSAGE_HEAD.size
        while len(self._input) >= head_bytes:
            head = wire.MESSAGE_HEAD.unpack(self._input)
            if head.bytes > BODY_MAX:
                raise WireError(f"rank {self.peer} announces a message of {head.bytes} bytes")
            if len(self._input) < head_bytes + head.bytes:
                return
            body = bytes(self._input[head_bytes : head_bytes + head.bytes])
            del self._input[: head_bytes + head.bytes]
            if head.kind == SETUP:
                self.set_up.append(body)
            elif head.kind == FAILED:
                if len(body) != wire.FAILED.size:
                    raise WireError(f"rank {self.peer} tells of its failure in {len(body)} bytes")
                error = wire.ERROR.unpack(wire.FAILED.unpack(body).error)
                raise WireError(f"rank {self.peer} failed: {wire.text_of(error.message)}")
            elif head.kind == CLOSED:
                self.closed = True
            elif head.kind not in (STATE, WITNESS, COUNTS):  # nothing to do for a rank that works
                raise WireError(f"rank {self.peer} sends a message of kind {head.kind}")

    def close(self) -> None:
        for each in [*self.streams.values(), self.control]:
            each.close()


def hear(wire_socket: socket.socket, size: int) -> bytes:
    """Exactly ``size`` bytes; the socket has a time-out."""
    got = b""
    while len(got) < size:
        part = wire_socket.recv(size - len(got))
        if not part:
            raise ConnectionError("the other side left in the middle of a word")
        got += part
    return got


def address_records() -> list[bytes]:
    """This host's addresses as a hello tells them; without prefixes, which only order the tries."""
    records = []
    for text in dict.fromkeys([*own_addresses(), "127.0.0.1"]):
        try:
            address = ipaddress.ip_address(text.split("%")[0])
        except ValueError:
            continue  # a name
        if address.is_link_local:
            continue  # would need the peer's interface
        records.append(
            wire.ADDRESS.pack(
                family=address.version,
                prefix_bits=address.max_prefixlen,
                loopback=int(address.is_loopback),
                bytes=address.packed.ljust(16, b"\0"),
            )
        )
    return records[-wire.ADDRESSES_MAX :]


class Meeting:
    """All ranks' hellos, this rank's listener, and the edges that were joined."""

    def __init__(
        self, rank: int, world: int, exchange: Callable[[bytes], bytes], key: bytes, rails: list[bytes], **hello: int
    ) -> None:
        self.rank = rank
        self.world = world
        self.edges: dict[int, Edge] = {}
        self.listener = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=64)
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        token = os.urandom(16)
        addresses = address_records()
        mine = wire.HELLO.pack(
            hello,
            wire_version=wire.WIRE_VERSION,
            page_version=wire.PAGE_VERSION,
            pid=os.getpid(),
            budget_bytes=512 << 20,
            left_bytes=512 << 20,
            network=os.stat("/proc/self/ns/net").st_ino,
            token=token,
            host_id=f"reference-{token.hex()[:16]}".encode(),  # a node of its own: it maps no shared memory
            boot_id=boot_id.encode(),
            host_name=socket.gethostname()[:39].encode(),
            socket_name=bytes(byte ^ 0x5A for byte in token).hex().encode(),
            port=self.listener.getsockname()[1],
            channels=1,
            address_count=len(addresses),
            addresses=b"".join(addresses),
            rail_reason=b"" if rails else b"the reference was told to use TCP",
            rail_count=len(rails),
            rails=b"".join(rails),
        )
        everyone = exchange(mine)
        self.hellos = [wire.HELLO.unpack(everyone, r * wire.HELLO.size) for r in range(world)]
        for other, said in enumerate(self.hellos):
            if (said.wire_version, said.page_version) != (wire.WIRE_VERSION, wire.PAGE_VERSION):
                raise WireError(f"rank {other} speaks wire version {said.wire_version}.{said.page_version}")
        for _ in range(2):  # two rounds of outcomes, which concern ranks of one node: ours has one
            outcomes = exchange(wire.OUTCOME.pack() + bytes(world))
            for other in range(world):
                outcome = wire.OUTCOME.unpack(outcomes, other * (wire.OUTCOME.size + world))
                if outcome.status < 0:
                    raise WireError(f"rank {other} could not set up: {wire.text_of(outcome.message)}")
        for said in [] if any(key) else self.hellos:  # no key: all tokens together, which only the exchange saw
            key = bytes(a ^ b for a, b in zip(key, said.token, strict=True))
        self.key = key
        self.token = self.hellos[0].token

    @property
    def nodes(self) -> list[int]:
        """Of every rank the number of its node, in order of first ranks."""
        places = [(said.host_id, said.boot_id, said.network) for said in self.hellos]
        known = list(dict.fromkeys(places))
        return [known.index(place) for place in places]

    # ---- joining ----

    def join(self, peer: int, streams: int, deadline: float) -> Edge:
        """The edge to ``peer``, with its data sockets: the lower rank dials."""
        if self.rank < peer and peer not in self.edges:
            self._dial(peer, streams, deadline)
        while peer not in self.edges or len(self.edges[peer].streams) < streams:
            if time.monotonic() > deadline:
                raise WireError(f"rank {peer} did not join in time")
            self.accept(0.05)
        return self.edges[peer]

    def accept(self, wait_s: float = 0.0) -> None:
        """Take connections that wait, as the higher rank does."""
        while select.select([self.listener], [], [], wait_s)[0]:
            wait_s = 0.0
            coming, _ = self.listener.accept()
            try:
                self._prove(coming)
            except (OSError, ConnectionError):
                coming.close()  # a stranger, or a rank that gave up

    def _proof(self, side: bytes, greeting: bytes, challenge: SimpleNamespace) -> int:
        return wire.siphash(self.key, side + greeting + challenge.nonce)

    def _prove(self, coming: socket.socket) -> None:
        coming.settimeout(5)
        greeting = hear(coming, wire.GREETING.size)
        said = wire.GREETING.unpack(greeting)
        peer = getattr(said, "from")
        if (said.magic, said.version, said.token, said.to) != (GREETING_MAGIC, GREETING_VERSION, self.token, self.rank):
            raise ConnectionError("no greeting of this job for this rank")
        if not 0 <= peer < self.rank:
            raise ConnectionError("is no rank below this one")
        challenge = SimpleNamespace(nonce=os.urandom(16))
        coming.sendall(wire.CHALLENGE.pack(nonce=challenge.nonce, proof=self._proof(b"A", greeting, challenge)))
        if hear(coming, 8) != self._proof(b"D", greeting, challenge).to_bytes(8, "little"):
            raise ConnectionError("its proof of the job's key is wrong")
        coming.sendall(self._proof(b"W", greeting, challenge).to_bytes(8, "little"))
        self._keep(peer, said.stream, coming)

    def _dial(self, peer: int, streams: int, deadline: float) -> None:
        address = self._dial_one(peer, CONTROL, self._targets(peer), deadline)
        for stream in range(streams):
            self._dial_one(peer, stream, [address], deadline)

    def _targets(self, peer: int) -> list[tuple[str, int]]:
        said, own = self.hellos[peer], self.hellos[self.rank]
        same_kernel = (said.boot_id, said.network) == (own.boot_id, own.network)
        targets = []
        for at in range(min(said.address_count, wire.ADDRESSES_MAX)):
            record = wire.ADDRESS.unpack(said.addresses, at * wire.ADDRESS.size)
            if record.scoped or (record.loopback and not same_kernel):
                continue
            packed = record.bytes[:4] if record.family == 4 else record.bytes
            targets.append((str(ipaddress.ip_address(packed)), said.port))
        return targets

    def _dial_one(self, peer: int, stream: int, targets: list[tuple[str, int]], deadline: float) -> tuple[str, int]:
        failure: Exception | None = None
        while time.monotonic() < deadline:
            for target in targets:
                try:
                    self._greet(peer, stream, socket.create_connection(target, TRY_S), deadline)
                    return target
                except OSError as error:
                    failure = error
            time.sleep(0.02)
        raise WireError(f"rank {peer} cannot be reached at {targets}: {failure}")

    def _greet(self, peer: int, stream: int, to: socket.socket, deadline: float) -> None:
        with contextlib.ExitStack() as undo:
            undo.callback(to.close)
            to.settimeout(max(0.1, deadline - time.monotonic()))  # the peer looks when it is in an operation
            to.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            fields = {"from": self.rank, "to": peer, "stream": stream, "token": self.token, "nonce": os.urandom(16)}
            greeting = wire.GREETING.pack(fields, magic=GREETING_MAGIC, version=GREETING_VERSION)
            to.sendall(greeting)
            challenge = wire.CHALLENGE.unpack(hear(to, wire.CHALLENGE.size))
            if challenge.proof != self._proof(b"A", greeting, challenge):
                raise ConnectionError("its proof of the job's key is wrong")
            to.sendall(self._proof(b"D", greeting, challenge).to_bytes(8, "little"))
            if hear(to, 8) != self._proof(b"W", greeting, challenge).to_bytes(8, "little"):
                raise ConnectionError("its welcome is wrong")
            undo.pop_all()
        self._keep(peer, stream, to)

    def _keep(self, peer: int, stream: int, proven: socket.socket) -> None:
        proven.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if stream == CONTROL:
            self.edges[peer] = Edge(peer, proven)
        elif peer in self.edges:
            proven.setblocking(False)
            self.edges[peer].streams[stream] = proven
        else:
            raise ConnectionError("a data socket before its control connection")

    def look(self) -> None:
        """What happens beside the data: connections, messages."""
        self.accept()
        for edge in list(self.edges.values()):
            edge.look()

    def close(self, op_done: int) -> None:
        """Tell all that no more operations come from here."""
        for edge in self.edges.values():
            with contextlib.suppress(OSError):
                edge.say(CLOSED, wire.STATE.pack(op_done=op_done))
            edge.close()
        self.listener.close()
