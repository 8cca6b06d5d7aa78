"""What each rank tells of itself when the world is made, so that it can be found, or proven dead, later."""

from __future__ import annotations

import json
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

from rdmaring.rendezvous.interfaces import nearest_first, own_addresses
from rdmaring.rendezvous.protocol import ProtocolError, integer, parse_object, string

HELLO_BYTES = 2048
HOSTS_MAX = 16


@dataclass(frozen=True, slots=True)
class Peer:
    """One rank. hosts: its addresses, to be tried in order, with ``port``.

    start_time: of its process, in clock ticks since boot; with the pid it names the process for ever.
    descriptor, inode: of the page that it made for its node's ranks; 0 where another did.
    """

    rank: int
    node: int
    pid: int
    start_time: int
    hosts: tuple[str, ...]
    port: int
    descriptor: int
    inode: int


def own_hosts() -> tuple[str, ...]:
    return tuple(dict.fromkeys([*own_addresses(), socket.gethostname()]))[:HOSTS_MAX]


def encode(peer: Peer) -> bytes:
    """HELLO_BYTES bytes."""
    text = json.dumps({**asdict(peer), "hosts": list(peer.hosts)}).encode()
    return text.ljust(HELLO_BYTES)


def decode(text: bytes, rank: int, own_node: int) -> Peer:
    """Where to try that rank from here. Raises ProtocolError."""
    fields = parse_object(text)
    hosts = fields.get("hosts")
    if not isinstance(hosts, list) or len(hosts) > HOSTS_MAX:
        raise ProtocolError("hosts is not a list of addresses")
    told = [string({"host": host}, "host") for host in hosts]
    node = integer(fields, "node", 0, 1 << 31)
    near = ["127.0.0.1", "::1"] if node == own_node else []
    return Peer(
        rank=rank,
        node=node,
        pid=integer(fields, "pid", 1, 1 << 31),
        start_time=integer(fields, "start_time", 0, 1 << 62),
        hosts=tuple(near or nearest_first(told, own_addresses())),
        port=integer(fields, "port", 1, 65535),
        descriptor=integer(fields, "descriptor", 0, 1 << 31),
        inode=integer(fields, "inode", 0, 1 << 63),
    )


def start_time(pid: int | str) -> int | None:
    """In clock ticks since boot; None where there is no such process, or where it has ended and waits to be reaped.

    Raises OSError: /proc does not say.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name before may hold anything
    ended = fields[0] in "ZX" and int(fields[17]) <= 1  # state, threads: of a leader's last thread nothing runs
    return None if ended else int(fields[19])


def has_ended(peer: Peer) -> bool:
    """Of a process on this node that was seen under its pid before: whether it has ended, whoever has the pid now.

    Raises OSError: /proc does not say.
    """
    return start_time(peer.pid) != peer.start_time
