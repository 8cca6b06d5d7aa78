"""What the environment says about this rank: `rdmaring run`, torchrun, or nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rdmaring.rendezvous.protocol import WORLD_MAX, RendezvousError
from rdmaring.rendezvous.sockets import parse_address

CANDIDATE_COUNT = 16
# Below the ports that Linux hands out by itself (32768 and up), above those of common services.
CANDIDATE_PORT_FIRST, CANDIDATE_PORT_LAST = 20000, 32767

# Launchers whose variables are not read: (name, rank variable, size variable).
_OTHER_LAUNCHERS = (
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MPICH or Intel MPI", "PMI_RANK", "PMI_SIZE"),
    ("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a launcher has put this rank.

    addresses: where the rendezvous may be; the first that proves the job's secret is it.
    hosted_by: who listens there: the launcher, rank 0, or nobody (a world of one).
    job: what distinguishes this job from others with the same secret.
    """

    rank: int
    world: int
    local_rank: int
    addresses: tuple[tuple[str, int], ...]
    hosted_by: Literal["launcher", "rank 0", "nobody"]
    job: str = ""


def detect(env: Mapping[str, str]) -> Place:
    """The place that ``env`` describes; a world of one where it describes none.

    Own variables (RDMARING_RANK, ...) go before torchrun's (RANK, ...).

    Raises RendezvousError: a variable is missing or wrong, or a launcher is at work that this version
    does not read; the alternative would be that every rank runs alone.
    """
    if _is_own(env):
        return _own(env)
    if _is_torchrun(env):
        return _torchrun(env)
    for name, rank_variable, size_variable in _OTHER_LAUNCHERS:
        size = env.get(size_variable, "")
        if rank_variable in env and size.isdigit() and int(size) > 1:
            raise RendezvousError(
                f"{name} started this process as rank {env[rank_variable]} of {size}, "
                f"but this version of rdmaring does not read its variables",
                hint="give rank, world and address to init(), or start with rdmaring run or torchrun",
            )
    return Place(0, 1, 0, (), "nobody")


def is_described(env: Mapping[str, str]) -> bool:
    """Whether a launcher that is read has described this rank in ``env``."""
    return _is_own(env) or _is_torchrun(env)


def _is_own(env: Mapping[str, str]) -> bool:
    return "RDMARING_RANK" in env or "RDMARING_WORLD_SIZE" in env


def _is_torchrun(env: Mapping[str, str]) -> bool:
    return "RANK" in env and "WORLD_SIZE" in env


def _own(env: Mapping[str, str]) -> Place:
    rank, world = _rank_and_world(env, "RDMARING_RANK", "RDMARING_WORLD_SIZE")
    local_rank = _number(env, "RDMARING_LOCAL_RANK", rank)
    if world == 1:
        return Place(rank, world, local_rank, (), "nobody")
    address = env.get("RDMARING_RENDEZVOUS")
    if not address:
        raise RendezvousError(
            f"RDMARING_WORLD_SIZE is {world}, but RDMARING_RENDEZVOUS (host:port) is not set",
            hint="rdmaring run sets it; by hand, set it to a free port of rank 0's host, alike on all ranks",
        )
    hosted = env.get("RDMARING_RENDEZVOUS_HOSTED") == "1"
    return Place(rank, world, local_rank, (_address(address),), "launcher" if hosted else "rank 0")


def _torchrun(env: Mapping[str, str]) -> Place:
    rank, world = _rank_and_world(env, "RANK", "WORLD_SIZE")
    local_rank = _number(env, "LOCAL_RANK", rank)
    if world == 1:
        return Place(rank, world, local_rank, (), "nobody")
    host, port = env.get("MASTER_ADDR"), env.get("MASTER_PORT", "")
    if not host or not port.isdigit():
        raise RendezvousError(
            f"RANK and WORLD_SIZE={world} are set, but MASTER_ADDR={host!r} and MASTER_PORT={port!r} "
            f"give no place to meet",
            hint="torchrun sets all four; or give rank, world and address to init()",
        )
    job = f"{host} {port} {env.get('TORCHELASTIC_RUN_ID', '')}"
    # MASTER_PORT itself is where torch's own store listens.
    ports = candidate_ports(job, taken=int(port))
    return Place(rank, world, local_rank, tuple((host, each) for each in ports), "rank 0", job)


def candidate_ports(job: str, taken: int) -> list[int]:
    """16 distinct ports derived from ``job``, the same on every rank, none equal to ``taken``."""
    ports: list[int] = []
    span = CANDIDATE_PORT_LAST - CANDIDATE_PORT_FIRST + 1
    draw = 0
    while len(ports) < CANDIDATE_COUNT:
        digest = hashlib.sha256(f"rdmaring {job} {draw}".encode()).digest()
        port = CANDIDATE_PORT_FIRST + int.from_bytes(digest[:8], "little") % span
        if port != taken and port not in ports:
            ports.append(port)
        draw += 1
    return ports


def host_identity(env: Mapping[str, str]) -> str:
    """What is equal for ranks of one node: RDMARING_HOST_ID, which test beds set, or the kernel's boot id."""
    return env.get("RDMARING_HOST_ID") or Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _rank_and_world(env: Mapping[str, str], rank_name: str, world_name: str) -> tuple[int, int]:
    for name, other in ((rank_name, world_name), (world_name, rank_name)):
        if name not in env:
            raise RendezvousError(f"{other} is set, but {name} is not", hint="set both, or neither")
    rank, world = _number(env, rank_name), _number(env, world_name)
    if not 1 <= world <= WORLD_MAX:
        raise RendezvousError(f"{world_name} is {world}: a world has 1 to {WORLD_MAX} ranks")
    if rank >= world:
        raise RendezvousError(f"{rank_name} is {rank}, but {world_name} is {world}: ranks count from 0")
    return rank, world


def _number(env: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = env.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 9:
        raise RendezvousError(f"{name} is {text!r}, not a number counted from 0")
    return int(text)


def _address(text: str) -> tuple[str, int]:
    try:
        return parse_address(text)
    except ValueError as error:
        raise RendezvousError(f"RDMARING_RENDEZVOUS: {error}") from None
