"""Collectives as pre- and postconditions: what each rank holds before, and must hold after."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

from rdmaring.schedule.rows import ScheduleError


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective. Chunks are those of the whole vector, in its coordinates on every rank."""

    name: str
    code: int  # as encoded, and as in rdmaring.h
    reduces: bool  # its result is a reduction: the post-operation applies
    rooted: bool
    per_rank_chunks: bool = False  # chunk r belongs to rank r, so there are as many chunks as ranks
    parts: int = 1  # or so many times as many: each rank's chunk in so many parts, one a channel
    per_pair_chunks: bool = False  # chunk s * N + d goes from rank s to rank d

    def chunk_count(self, world: int) -> int | None:
        """The one number of chunks that it can have in one channel; None: any."""
        if self.per_pair_chunks:
            return world * world
        return world if self.per_rank_chunks else None

    def input_chunks(self, rank: int, chunk_count: int, root: int | None) -> range:
        """The chunks of INPUT that exist on ``rank``; each holds that rank's contribution."""
        if self.name in ("all_gather", "gather"):
            return range(rank * self.parts, (rank + 1) * self.parts)
        if self.per_pair_chunks:
            world = isqrt(chunk_count)
            return range(rank * world, rank * world + world)
        if self.name in ("broadcast", "scatter") and rank != root:
            return range(0)
        return range(chunk_count)

    def output_chunks(self, rank: int, chunk_count: int, root: int | None) -> range:
        """The chunks of OUTPUT that exist on ``rank``; all must hold the result."""
        if self.name in ("reduce_scatter", "scatter"):
            return range(rank * self.parts, (rank + 1) * self.parts)
        if self.per_pair_chunks:
            return range(rank, chunk_count, isqrt(chunk_count))
        if self.name in ("reduce", "gather") and rank != root:
            return range(0)
        return range(chunk_count)

    def result(self, chunk: int, world: int, root: int | None) -> range:
        """Whose contributions the result of ``chunk`` is made of, each exactly once."""
        if self.reduces:
            return range(world)
        if self.per_pair_chunks:
            return range(chunk // world, chunk // world + 1)
        if self.per_rank_chunks and self.name != "scatter":
            return range(chunk // self.parts, chunk // self.parts + 1)
        assert root is not None
        return range(root, root + 1)


COLLECTIVES = {
    collective.name: collective
    for collective in (
        Collective("all_reduce", 0, reduces=True, rooted=False),
        Collective("reduce_scatter", 1, reduces=True, rooted=False, per_rank_chunks=True),
        Collective("all_gather", 2, reduces=False, rooted=False, per_rank_chunks=True),
        Collective("broadcast", 3, reduces=False, rooted=True),
        Collective("reduce", 4, reduces=True, rooted=True),
        Collective("all_to_all", 6, reduces=False, rooted=False, per_pair_chunks=True),
        Collective("gather", 7, reduces=False, rooted=True, per_rank_chunks=True),
        Collective("scatter", 8, reduces=False, rooted=True, per_rank_chunks=True),
    )
}
COLLECTIVE_BY_CODE = {collective.code: collective for collective in COLLECTIVES.values()}


def collective_named(name: str) -> Collective:
    """The collective of that name. A barrier is an all_reduce of no elements.

    Raises:
        ScheduleError: there is none.
    """
    found = COLLECTIVES.get("all_reduce" if name == "barrier" else name)
    if found is None:
        raise ScheduleError(f"collective must be one of {', '.join(COLLECTIVES)}, barrier; not {name!r}")
    return found
