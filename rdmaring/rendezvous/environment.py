"""What the environment says about this rank: `rdmaring run`, another launcher, or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rdmaring.rendezvous.launchers import LAUNCHERS
from rdmaring.rendezvous.place import Place, Started, number, rank_and_world
from rdmaring.rendezvous.protocol import RendezvousError
from rdmaring.rendezvous.sockets import parse_address

OWN = "rdmaring run"  # or whoever sets its variables by hand


def started(env: Mapping[str, str]) -> Started | None:
    """Rank and world size by whatever launcher ``env`` shows; None where it shows none.

    Own variables (RDMARING_RANK, ...) go before torchrun's, Open MPI's, Hydra's (MPICH, Intel MPI) and Slurm's.

    Raises RendezvousError: a variable is missing or wrong.
    """
    if "RDMARING_RANK" in env or "RDMARING_WORLD_SIZE" in env:
        rank, world = rank_and_world(env, "RDMARING_RANK", "RDMARING_WORLD_SIZE")
        return Started(OWN, rank, world, number(env, "RDMARING_LOCAL_RANK", rank))
    for launcher in LAUNCHERS:
        if launcher.at_work(env):
            return launcher.read(env)
    return None


def is_described(env: Mapping[str, str]) -> bool:
    """Whether a launcher has described this rank in ``env``.

    A single task of mpirun or srun does not count: an interactive shell on a cluster is one.
    """
    found = started(env)
    return found is not None and (found.world > 1 or found.launcher in (OWN, "torchrun"))


def detect(env: Mapping[str, str]) -> Place:
    """The place that ``env`` describes; a world of one where it describes none.

    Raises RendezvousError: a variable is missing or wrong, or the launcher offers no place to meet; the
    alternative would be that every rank runs alone.
    """
    found = started(env)
    address = env.get("RDMARING_RENDEZVOUS")
    if found is None:
        if address:
            raise RendezvousError(
                f"RDMARING_RENDEZVOUS is {address!r}, but nothing tells this process its rank",
                hint="set RDMARING_RANK and RDMARING_WORLD_SIZE too, or start under mpirun, srun or torchrun",
            )
        return Place(0, 1, 0, (), "nobody")
    if found.world == 1:
        return Place(found.rank, 1, found.local_rank, (), "nobody")
    if address:
        own = found.launcher == OWN
        hosted = own and env.get("RDMARING_RENDEZVOUS_HOSTED") == "1"
        place = _address(address)
        return Place(found.rank, found.world, found.local_rank, (place,), "launcher" if hosted else "rank 0", found.job)
    for launcher in LAUNCHERS:
        if launcher.name == found.launcher:
            return launcher.meet(env, found)
    raise RendezvousError(
        f"RDMARING_WORLD_SIZE is {found.world}, but RDMARING_RENDEZVOUS (host:port) is not set",
        hint="rdmaring run sets it; by hand, set it to a free port of rank 0's host, alike on all ranks",
    )


def host_identity(env: Mapping[str, str]) -> str:
    """What is equal for ranks of one node: RDMARING_HOST_ID, which test beds set, or the kernel's boot id."""
    return env.get("RDMARING_HOST_ID") or Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _address(text: str) -> tuple[str, int]:
    try:
        return parse_address(text)
    except ValueError as error:
        raise RendezvousError(f"RDMARING_RENDEZVOUS: {error}", hint="give host:port, or [IPv6]:port") from None
