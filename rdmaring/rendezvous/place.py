"""Which rank this process is and where its job meets, as a launcher has said it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from rdmaring.rendezvous.protocol import WORLD_MAX, RendezvousError


@dataclass(frozen=True, slots=True)
class Started:
    """What a launcher says of this process. job: what distinguishes its job from others of the same user."""

    launcher: str
    rank: int
    world: int
    local_rank: int
    job: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a launcher has put this rank.

    addresses: where the rendezvous may be; the first that proves the job's secret is it.
    hosted_by: who listens there: the launcher, rank 0, or nobody (a world of one).
    job: what distinguishes this job from others with the same secret.
    pmi: rank 0 tells the others by the launcher's PMI where it listens; then addresses are empty.
    """

    rank: int
    world: int
    local_rank: int
    addresses: tuple[tuple[str, int], ...]
    hosted_by: Literal["launcher", "rank 0", "nobody"]
    job: str = ""
    pmi: bool = False


_CHECK = "correct the variable; a launcher sets it: torchrun, mpirun, srun, rdmaring run"


def rank_and_world(env: Mapping[str, str], rank_name: str, world_name: str) -> tuple[int, int]:
    """Both numbers, checked against each other. Raises RendezvousError."""
    for name, other in ((rank_name, world_name), (world_name, rank_name)):
        if name not in env:
            raise RendezvousError(f"{other} is set, but {name} is not", hint="set both, or neither")
    rank, world = number(env, rank_name), number(env, world_name)
    if not 1 <= world <= WORLD_MAX:
        raise RendezvousError(f"{world_name} is {world}: a world has 1 to {WORLD_MAX} ranks", hint=_CHECK)
    if rank >= world:
        raise RendezvousError(f"{rank_name} is {rank}, but {world_name} is {world}: ranks count from 0", hint=_CHECK)
    return rank, world


def number(env: Mapping[str, str], name: str, default: int | None = None) -> int:
    """A number counted from 0. Raises RendezvousError."""
    text = env.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 9:
        raise RendezvousError(f"{name} is {text!r}, not a number counted from 0", hint=_CHECK)
    return int(text)
