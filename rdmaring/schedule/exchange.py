"""Who exchanges which chunks with whom when the range that a rank is responsible for is halved step by step.

With a power of two ranks it is recursive halving: partners whose numbers differ in one bit swap the halves that the
other keeps. If the highest bit comes first, the chunk left in the end is that of the rank's own number; if the lowest
comes first, the large halves go to near ranks and only small ones far, which suits nodes of several ranks.

With any other number it is the same on a circle (Traeff, Optimal, non-pipelined reduce-scatter and all-reduce
algorithms, 2024): a rank responsible for the ``size`` chunks from its own on sends the second half of them to the rank
that lies ceil(size / 2) further on, where they are the first chunks. Either way it takes ceil(log2 N) steps and a rank
sends N - 1 chunks, the least possible of both. Backwards, with sends and receives exchanged, it gathers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


def exchanges(rank: int, world: int, *, near_first: bool = False) -> list[Exchange]:
    """The steps of a reduce-scatter of two or more ranks; after them ``rank`` is responsible for one chunk.

    near_first: begin with the nearest partner, where the number of ranks is a power of two; the chunk is then not
    chunk ``rank`` but whatever is incoming in the last step.
    """
    if world & world - 1:
        return list(_around_the_circle(rank, world))
    distances = [1 << bit for bit in range(step_count(world))]
    return list(_between_partners(rank, world, distances if near_first else distances[::-1]))


def step_count(world: int) -> int:
    return (world - 1).bit_length()


def _between_partners(rank: int, world: int, distances: Sequence[int]) -> Iterator[Exchange]:
    begin, size = 0, world
    for step, distance in enumerate(distances):
        size //= 2
        low, high = Part(begin, begin + size, step == 0), Part(begin + size, begin + 2 * size, step == 0)
        ours, theirs = (high, low) if rank & distance else (low, high)
        yield Exchange(rank ^ distance, rank ^ distance, (theirs,), (ours,))
        begin = ours.begin


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
