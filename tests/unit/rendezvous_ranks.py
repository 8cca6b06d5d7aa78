"""Ranks of a rendezvous as threads of one process, on loopback."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from rdmaring.rendezvous import Rendezvous, RendezvousError, join
from rdmaring.rendezvous.protocol import Member
from rdmaring.rendezvous.server import Server
from rdmaring.rendezvous.sockets import listen, parse_address

SECRET = b"a secret of this test"
LONG_S = 20.0


@contextmanager
def serving(world: int, host: str = "127.0.0.1", port: int = 0, job: str = "") -> Iterator[tuple[str, int]]:
    server = Server(listen(host, port), world, SECRET, job)
    server.start()
    try:
        yield parse_address(server.address)
    finally:
        server.stop()


def enter(
    address: tuple[str, int],
    rank: int,
    world: int,
    timeout_s: float = LONG_S,
    secret: bytes = SECRET,
    job: str = "",
    wire: str = "wire 1",
) -> Rendezvous:
    return Rendezvous.connect([address], rank, world, secret, timeout_s, host="here", job=job, wire=wire)


def all_ranks(world: int, body: Callable[[int], object], ranks: list[int] | None = None) -> list[object]:
    """What body(rank) returns or raises, each rank on its own thread."""
    ranks = list(range(world)) if ranks is None else ranks

    def outcome(rank: int) -> object:
        try:
            return body(rank)
        except RendezvousError as error:
            return error

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(outcome, ranks))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


MEMBER = Member(3, 4, "0.1.0", "wire 1", "host", 77, 5.0, 6.0)


class DictStore:
    """A store over a dictionary, which may be one that processes share."""

    def __init__(self, shared: MutableMapping[str, bytes], timeout_s: float = LONG_S) -> None:
        self.shared, self.timeout_s = shared, timeout_s

    def set(self, key: str, value: bytes) -> None:
        self.shared[key] = value

    def get(self, key: str) -> bytes:
        until = time.monotonic() + self.timeout_s
        while key not in self.shared:
            if time.monotonic() > until:
                raise TimeoutError(f"no key {key}")
            time.sleep(0.01)
        return self.shared[key]


def store_rank(rank: int, world: int, shared: MutableMapping[str, bytes], answers: Any) -> None:
    """A process that joins twice by one store, the second time while the first is open."""
    store = DictStore(shared)
    with (
        join(rank, world, None, LONG_S, {}, store=store) as first,
        join(rank, world, None, LONG_S, {}, store=store) as second,
    ):
        answers.put((rank, first.exchange(b"%d" % rank), second.exchange(b"%d" % (9 - rank))))
