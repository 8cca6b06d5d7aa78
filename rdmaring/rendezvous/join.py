"""Join the job's ranks, by arguments or by what a launcher has set."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import replace

from rdmaring.rendezvous.client import Rendezvous
from rdmaring.rendezvous.environment import Place, detect, host_identity, is_described
from rdmaring.rendezvous.protocol import WORLD_MAX, RendezvousError
from rdmaring.rendezvous.secret import load_secret
from rdmaring.rendezvous.server import Server
from rdmaring.rendezvous.sockets import format_address, listen, parse_address

LISTEN_RETRY_S = 0.1


def join(
    rank: int | None = None,
    world: int | None = None,
    address: str | None = None,
    timeout_s: float = 300.0,
    env: Mapping[str, str] | None = None,
) -> Rendezvous:
    """Meet the other ranks of the job; returns when all ``world`` of them have come.

    rank, world: given together, or both taken from the environment.
    address: ``host:port`` where rank 0 shall listen; without it the environment's.
    timeout_s: seconds for the assembly, and for each later round.
    env: the environment, by default this process's.

    Raises:
        ValueError: an argument is out of range, or one is missing that the others need.
        RendezvousError: the world did not assemble in time (it names the missing ranks), or this rank was
            refused.
    """
    env = os.environ if env is None else env
    if not timeout_s > 0:
        raise ValueError(f"timeout_s is {timeout_s!r}, expected a positive number of seconds")
    place = _place(rank, world, address, env)
    host = host_identity(env)
    if place.world == 1:
        return Rendezvous.alone(host, timeout_s)
    secret = load_secret(env)
    deadline = time.monotonic() + timeout_s
    hosted = _host(place, secret, deadline) if place.hosted_by == "rank 0" and place.rank == 0 else None
    try:
        return Rendezvous.connect(
            [hosted.address] if hosted else place.addresses,
            place.rank,
            place.world,
            secret,
            max(0.05, deadline - time.monotonic()),
            host=host,
            job=place.job,
            patient=place.hosted_by != "launcher",
            on_close=hosted.release if hosted else None,
        )
    except BaseException:
        if hosted:
            hosted.release()
        raise


def _place(rank: int | None, world: int | None, address: str | None, env: Mapping[str, str]) -> Place:
    if (rank is None) != (world is None):
        present, missing = ("rank", "world") if world is None else ("world", "rank")
        raise ValueError(f"{present} is given without {missing}: give both, or neither under a launcher")
    given = None if address is None else (parse_address(address),)
    if rank is None or world is None:
        place = detect(env)
        if given and place.world == 1 and not is_described(env):
            raise ValueError("address is given without rank and world, and no launcher has set them")
    else:
        if not 1 <= world <= WORLD_MAX:
            raise ValueError(f"world is {world}, expected 1 to {WORLD_MAX}")
        if not 0 <= rank < world:
            raise ValueError(f"rank is {rank}, expected 0 to {world - 1} (world is {world})")
        place = Place(rank, world, rank, (), "nobody")
        if world > 1 and not given:
            found = detect(env) if is_described(env) else place
            if not found.addresses:
                raise ValueError(
                    f"address is missing: {world} ranks need host:port of rank 0, or a launcher that sets it"
                )
            place = replace(found, rank=rank, world=world)
    if given and place.world > 1:
        place = replace(place, addresses=given, hosted_by="rank 0", job="")
    return place


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
            own = listeners[0].getsockname()[:2]
            return _Hosted(server, ("127.0.0.1" if own[0] == "0.0.0.0" else own[0], own[1]))
        if time.monotonic() >= deadline:
            where = ", ".join(format_address(address) for address in place.addresses)
            raise RendezvousError(
                f"rank 0 cannot listen: {where} taken by another process",
                hint="an earlier job may still run; end it, or use another port",
                timed_out=True,
            )
        time.sleep(LISTEN_RETRY_S)
