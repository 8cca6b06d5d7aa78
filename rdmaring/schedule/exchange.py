"""Who exchanges which chunks with whom when the range that a rank is responsible for is halved step by step.

With a power of two ranks it is recursive halving: partners at distance N/2, N/4, ..., 1 swap the halves that the other
keeps. With any other number it is the same on a circle (Traeff, Optimal, non-pipelined reduce-scatter and all-reduce
algorithms, 2024): a rank responsible for the ``size`` chunks from its own on sends the second half of them to the rank
that lies ceil(size / 2) further on, where they are the first chunks. Either way it takes ceil(log2 N) steps and a rank
sends N - 1 chunks, the least possible of both. Backwards, with sends and receives exchanged, it gathers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


class Part(NamedTuple):
    """A range of chunks that travels as one."""

    begin: int
    end: int
    raw: bool  # to this the sender has added nothing


@dataclass(frozen=True, slots=True)
class Exchange:
    """One step of one rank: ``outgoing`` to target, ``incoming`` from source; both ends cut them alike."""

    target: int
    source: int
    outgoing: tuple[Part, ...]
    incoming: tuple[Part, ...]


def exchanges(rank: int, world: int) -> Iterator[Exchange]:
    """The steps of a reduce-scatter, in order; after them ``rank`` is responsible for chunk ``rank`` alone."""
    return _between_partners(rank, world) if world & world - 1 == 0 else _around_the_circle(rank, world)


def step_count(world: int) -> int:
    return (world - 1).bit_length()


def _between_partners(rank: int, world: int) -> Iterator[Exchange]:
    distance = world // 2
    while distance:
        partner = rank ^ distance
        theirs, ours = ((place & -distance, (place & -distance) + distance) for place in (partner, rank))
        raw = distance == world // 2
        yield Exchange(partner, partner, (Part(*theirs, raw),), (Part(*ours, raw),))
        distance //= 2


def _around_the_circle(rank: int, world: int) -> Iterator[Exchange]:
    size, added = world, 0  # to the first ``added`` chunks from its own on a rank has added something
    while size > 1:
        half = (size + 1) // 2
        target, source = (rank + half) % world, (rank - half) % world
        yield Exchange(
            target,
            source,
            tuple(_parts(rank, half, size, added, world)),
            tuple(_parts(source, half, size, added, world)),
        )
        added = max(added, size - half)
        size = half


def _parts(sender: int, begin: int, end: int, added: int, world: int) -> Iterator[Part]:
    """Chunks ``sender + begin`` .. ``sender + end`` around the circle, cut at its seam and where raw ones begin."""
    cut = min(max(begin, added), end)
    for first, last, raw in ((begin, cut, False), (cut, end, True)):
        low, high = sender + first, sender + last
        if low < world < high:
            yield Part(low, world, raw)
            yield Part(0, high - world, raw)
        elif first < last:
            yield Part(low % world, low % world + last - first, raw)
