"""Which of my addresses reach which of the peer's: each pair is tried by connecting."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from rdmaring.diagnose.doctor.interfaces import Address
from rdmaring.diagnose.doctor.machine import Machine
from rdmaring.diagnose.doctor.probes import PAIRS_MAX, Reach
from rdmaring.diagnose.doctor.talk import Conversation, greet, small_segments
from rdmaring.rendezvous.protocol import ProtocolError

CONNECT_TIMEOUT_S = 2.0
AT_ONCE = 16


def candidates(mine: Machine, theirs: Machine) -> list[tuple[Address, Address]]:
    """Pairs of addresses of one family that could reach each other.

    Loopback only on one machine; link-local with link-local, over each interface of ours.
    """
    one_network = mine.boot_id == theirs.boot_id and mine.namespaces.get("net") == theirs.namespaces.get("net")
    pairs = [
        (a.address, b.address)
        for a in mine.interfaces
        for b in theirs.interfaces
        if a.address.ip.version == b.address.ip.version
        and a.address.ip.is_loopback == b.address.ip.is_loopback
        and a.address.is_link_local == b.address.is_link_local
        and (one_network or not a.address.ip.is_loopback)
    ]
    # Where there are too many, those of one subnet are the ones that matter.
    pairs.sort(key=lambda pair: (pair[0].network != pair[1].network, pair[0].is_link_local))
    return pairs[:PAIRS_MAX]


def target_of(source: Address, target: Address) -> str:
    """The peer's address as our socket wants it: a link-local one has the scope of our interface."""
    return f"{target.address}%{source.interface}" if target.is_link_local else target.address


def measure_reach(pairs: Sequence[tuple[Address, Address]], port: int, key: bytes, instance: str) -> list[Reach]:
    """Try every pair; a connection counts if the very server that is meant answers."""
    if not pairs:
        return []
    with ThreadPoolExecutor(min(AT_ONCE, len(pairs)), thread_name_prefix="rdmaring-doctor") as pool:
        return list(pool.map(lambda pair: _try(pair[0], pair[1], port, key, instance), pairs))


def _try(source: Address, target: Address, port: int, key: bytes, instance: str) -> Reach:
    there = target_of(source, target)
    began = time.monotonic()
    spent_us = 0
    try:
        family = socket.AF_INET if source.ip.version == 4 else socket.AF_INET6
        with socket.socket(family, socket.SOCK_STREAM) as connection:
            connection.settimeout(CONNECT_TIMEOUT_S)
            small_segments(connection)
            connection.bind(resolve(source.scoped, 0, family))
            began = time.monotonic()
            connection.connect(resolve(there, port, family))
            spent_us = round(1e6 * (time.monotonic() - began))
            if greet(Conversation(connection), key, CONNECT_TIMEOUT_S) != instance:
                raise ProtocolError("another machine's doctor answers there")
    except ProtocolError as error:
        return Reach(source.scoped, there, spent_us, f"somebody else answers: {error}"[:200])
    except TimeoutError:
        spent_us = round(1e6 * (time.monotonic() - began))
        return Reach(source.scoped, there, spent_us, f"no answer within {CONNECT_TIMEOUT_S:g} s: dropped on the way")
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "?")
        return Reach(source.scoped, there, spent_us, f"{name} {error.strerror or error}"[:200])
    return Reach(source.scoped, there, spent_us, "")


def resolve(address: str, port: int, family: socket.AddressFamily) -> tuple[str, int] | tuple[str, int, int, int]:
    """A socket address of a numeric address, with its scope. Raises OSError."""
    found = socket.getaddrinfo(address, port, family, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST)
    return found[0][4]  # type: ignore[return-value]
