"""Join the job's ranks, by arguments or by what a launcher has set."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rdmaring._version import __version__
from rdmaring.rendezvous.boards import (
    Board,
    MpiBoard,
    Record,
    StoreBoard,
    decode_record,
    encode_failure,
    encode_record,
    proof_of,
)
from rdmaring.rendezvous.client import Rendezvous
from rdmaring.rendezvous.environment import detect, host_identity, is_described, started
from rdmaring.rendezvous.interfaces import nearest_first, own_addresses
from rdmaring.rendezvous.place import Place
from rdmaring.rendezvous.pmi import PmiBoard
from rdmaring.rendezvous.protocol import WORLD_MAX, RendezvousError, new_nonce
from rdmaring.rendezvous.secret import load_secret, new_secret
from rdmaring.rendezvous.server import Server
from rdmaring.rendezvous.sockets import format_address, listen, listen_everywhere, own_address, parse_address

LISTEN_RETRY_S = 0.1


def join(
    rank: int | None = None,
    world: int | None = None,
    address: str | None = None,
    timeout_s: float = 300.0,
    env: Mapping[str, str] | None = None,
    *,
    store: Any = None,
    mpi: Any = None,
    wire: str = f"rdmaring {__version__}",
) -> Rendezvous:
    """Meet the other ranks of the job; returns when all ``world`` of them have come.

    rank, world: given together, or both taken from the environment.
    address: ``host:port`` where rank 0 shall listen; without it the environment's.
    timeout_s: seconds for the assembly, and as many again for all rounds that follow.
    env: the environment, by default this process's.
    store, mpi: by which rank 0 tells the others where it listens (see boards.py); instead of ``address``.
    wire: what this build's links speak, up to 256 characters; ranks that differ do not meet.

    Raises:
        ValueError: an argument is out of range, or one is missing that the others need.
        RendezvousError: the world did not assemble in time (it names the missing ranks), or this rank was
            refused.
    """
    env = os.environ if env is None else env
    if not timeout_s > 0:
        raise ValueError(f"timeout_s is {timeout_s!r}, expected a positive number of seconds")
    given = [name for name, value in (("address", address), ("store", store), ("mpi", mpi)) if value is not None]
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)} are given: each says where the ranks meet, so give one")
    board: Board | None = None
    if mpi is not None:
        board = MpiBoard(mpi)
        place = _place_in_mpi(rank, world, board)
    elif store is not None:
        board = StoreBoard(store)
        place = _place_by_store(rank, world, env)
    else:
        place = _place(rank, world, address, env)
        board = PmiBoard(env) if place.pmi else None
    deadline = time.monotonic() + timeout_s
    host = host_identity(env)
    if place.world == 1:
        return Rendezvous.alone(host, timeout_s)
    hosted: _Hosted | None = None
    if board is not None:
        place, secret, hosted = _meet_by(board, place, host, env, timeout_s)
    else:
        secret = load_secret(env)
        if place.hosted_by == "rank 0" and place.rank == 0:
            hosted = _host(place, secret, deadline)
    try:
        return Rendezvous.connect(
            [hosted.address] if hosted else place.addresses,
            place.rank,
            place.world,
            secret,
            max(0.05, deadline - time.monotonic()),
            host=host,
            wire=wire,
            job=place.job,
            patient=place.hosted_by != "launcher",
            on_close=hosted.release if hosted else None,
        )
    except BaseException:
        if hosted:
            hosted.release()
        raise


# ---- who and where we are ----


def _check_rank(rank: int | None, world: int | None) -> tuple[int, int] | None:
    """Both, checked, or None where neither is given. Raises ValueError."""
    if rank is None and world is None:
        return None
    if rank is None or world is None:
        present, missing = ("rank", "world") if world is None else ("world", "rank")
        raise ValueError(f"{present} is given without {missing}: give both, or neither under a launcher")
    if not 1 <= world <= WORLD_MAX:
        raise ValueError(f"world is {world}, expected 1 to {WORLD_MAX}")
    if not 0 <= rank < world:
        raise ValueError(f"rank is {rank}, expected 0 to {world - 1} (world is {world})")
    return rank, world


def _place(rank: int | None, world: int | None, address: str | None, env: Mapping[str, str]) -> Place:
    numbers = _check_rank(rank, world)
    if numbers is None and address is None:
        return detect(env)
    if numbers is None:
        found = started(env)
        if found is None:
            raise ValueError("address is given without rank and world, and no launcher has set them")
        numbers = found.rank, found.world
    alone = Place(*numbers, numbers[0], (), "nobody")
    if numbers[1] == 1:
        return alone
    if address is not None:
        return replace(alone, addresses=(parse_address(address),), hosted_by="rank 0")
    place = detect(env) if is_described(env) else alone
    if not place.addresses and not place.pmi:
        raise ValueError(f"address is missing: {numbers[1]} ranks need host:port of rank 0, or a launcher that sets it")
    return replace(place, rank=numbers[0], world=numbers[1])


def _place_in_mpi(rank: int | None, world: int | None, board: MpiBoard) -> Place:
    numbers = _check_rank(rank, world)
    if numbers not in (None, (board.rank, board.world)):
        raise ValueError(
            f"rank and world are {numbers}, but in the given MPI communicator ({board.rank}, {board.world}): "
            f"leave them out"
        )
    return Place(board.rank, board.world, board.rank, (), "rank 0" if board.world > 1 else "nobody")


def _place_by_store(rank: int | None, world: int | None, env: Mapping[str, str]) -> Place:
    numbers = _check_rank(rank, world)
    if numbers is None:
        found = started(env)
        if found is None:
            raise ValueError("store is given without rank and world, and no launcher has set them")
        numbers = found.rank, found.world
    return Place(*numbers, numbers[0], (), "rank 0" if numbers[1] > 1 else "nobody")


# ---- rank 0 tells the others where it listens ----


def _meet_by(
    board: Board, place: Place, host: str, env: Mapping[str, str], timeout_s: float
) -> tuple[Place, bytes, _Hosted | None]:
    """The place with addresses and job, the job's secret, and on rank 0 its server."""
    if place.rank == 0:
        try:
            hosted, record, secret = _serve_for(board, place, host, env)
            told = encode_record(record, board.record_bytes_max)
        except RendezvousError as error:
            board.pass_on(encode_failure(error, board.record_bytes_max), timeout_s)
            raise
        try:
            board.pass_on(told, timeout_s)
        except BaseException:
            hosted.release()
            raise
        return replace(place, job=record.job), secret, hosted
    # Without a secret of its own a trusted board needs ours only where RDMARING_SECRET is set on all ranks.
    known = load_secret(env) if not board.trusted or env.get("RDMARING_SECRET") else None
    record, secret = decode_record(board.pass_on(None, timeout_s), known)
    hosts = nearest_first(record.hosts, own_addresses())
    if record.host == host:
        hosts.insert(0, "127.0.0.1")
    addresses = tuple((each, record.port) for each in hosts)
    return replace(place, addresses=addresses, job=record.job), secret, None


def _serve_for(board: Board, place: Place, host: str, env: Mapping[str, str]) -> tuple[_Hosted, Record, bytes]:
    """Listen at a free port of every address of this host."""
    fresh = board.trusted and not env.get("RDMARING_SECRET")
    secret = new_secret().encode() if fresh else load_secret(env)
    job = new_nonce()
    try:
        hosts = tuple(dict.fromkeys([*own_addresses(), socket.gethostname()]))
        listeners = listen_everywhere(0)
    except OSError as error:
        raise RendezvousError(
            f"rank 0 cannot listen: {error.strerror or error}",
            hint="is the limit on open files reached (ulimit -n), or are all ports in use (ss -s)?",
        ) from error
    server = Server(listeners, place.world, secret, job)
    server.start()
    hosted = _Hosted(server, own_address(listeners[0]))
    hosted.users = 1
    text = secret.decode() if fresh else ""
    record = Record(hosts, hosted.address[1], host, job, proof_of(secret, job), text)
    return hosted, record, secret


# ---- rank 0 listens where all ranks know it ----


class _Hosted:
    """A server of this process, shared by all its communicators of one job and stopped with the last."""

    def __init__(self, server: Server, address: tuple[str, int]) -> None:
        self.server = server
        self.address = address
        self.users = 0
        self.pid = os.getpid()

    def release(self) -> None:
        with _hosted_lock:
            self.users -= 1
            if self.users:
                return
            for key in [key for key, hosted in _hosted.items() if hosted is self]:
                del _hosted[key]
        self.server.stop()


_hosted: dict[tuple[tuple[tuple[str, int], ...], int, str], _Hosted] = {}
_hosted_lock = threading.Lock()


def _host(place: Place, secret: bytes, deadline: float) -> _Hosted:
    """Listen at the first free address of ``place``, or use the server that already serves this job."""
    key = (place.addresses, place.world, place.job)
    with _hosted_lock:
        hosted = _hosted.get(key)
        if hosted is None or hosted.pid != os.getpid():
            hosted = _hosted[key] = _listen_and_serve(place, secret, deadline)
        hosted.users += 1
    return hosted


def _listen_and_serve(place: Place, secret: bytes, deadline: float) -> _Hosted:
    while True:
        for host, port in place.addresses:
            try:
                listeners = listen(host, port)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    continue
                raise RendezvousError(
                    f"rank 0 cannot listen at {format_address((host, port))}: {error.strerror or error}",
                    hint="the address must be one of rank 0's host",
                ) from error
            server = Server(listeners, place.world, secret, place.job)
            server.start()
            # Through a socket's own name: a name such as "node7" may lead here by way of another host.
            return _Hosted(server, own_address(listeners[0]))
        if time.monotonic() >= deadline:
            where = ", ".join(format_address(address) for address in place.addresses)
            raise RendezvousError(
                f"rank 0 cannot listen: {where} taken by another process",
                hint="an earlier job may still run; end it, or use another port",
                timed_out=True,
            )
        time.sleep(LISTEN_RETRY_S)
