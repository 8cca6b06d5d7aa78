"""Chunk tables: where the vector is cut."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from rdmaring.errors import ArgumentError
from rdmaring.schedule.rows import chunk_begins

LINE_BYTES = 64


def even(count: int, parts: int) -> list[int]:
    """Offsets of ``parts`` parts as ``numpy.array_split`` cuts: the first ``count % parts`` are longer by one."""
    size, longer = divmod(count, parts)
    return [0, *accumulate(size + (part < longer) for part in range(parts))]


def aligned(count: int, parts: int, element_bytes: int, weights: Sequence[int] | None = None) -> list[int]:
    """Offsets of parts as long as ``weights`` say, that begin on cache lines, so that no two ranks share one.

    weights: one a part, relative to each other; None: nearly equal parts. Where parts would be smaller than a line they
    begin anywhere.
    """
    unit = max(1, LINE_BYTES // element_bytes)
    if count < unit * parts:
        if weights is None:
            return even(count, parts)
        unit = 1
    begins = chunk_begins(parts, weights)
    return [count * begin // begins[-1] // unit * unit for begin in begins[:-1]] + [count]


def by_pair(give: Sequence[int], get: Sequence[int], rank: int) -> list[int]:
    """Offsets of all_to_all's chunks as ``rank`` knows them: chunk s * N + d is empty where it is neither s nor d."""
    parts = len(give)
    sizes = [0] * (parts * parts)
    sizes[rank::parts] = get
    sizes[rank * parts : (rank + 1) * parts] = give
    return [0, *accumulate(sizes)]


def intervals(
    count: int, channels: int, parts: int, element_bytes: int, weights: Sequence[int] | None = None
) -> list[int]:
    """Offsets of ``channels`` neighbouring intervals, each cut in ``parts`` parts.

    weights: of all parts of all intervals, as in :func:`aligned`; those of each interval are the same.
    """
    offsets = [0]
    bounds = aligned(count, channels, element_bytes)
    own = None if weights is None else weights[:parts]
    for begin, end in pairwise(bounds):
        offsets += (begin + offset for offset in aligned(end - begin, parts, element_bytes, own)[1:])
    return offsets


def pieces(parts: Sequence[int], channels: int, element_bytes: int) -> list[int]:
    """Offsets of ``channels`` pieces of each part of ``parts`` (offsets)."""
    offsets = [0]
    for begin, end in pairwise(parts):
        offsets += (begin + offset for offset in aligned(end - begin, channels, element_bytes)[1:])
    return offsets


def given(counts: Sequence[int], parts: int, count: int | None, name: str = "counts") -> list[int]:
    """Offsets from the caller's ``counts``, one a rank; ``name`` is the argument's, for the error.

    Raises:
        ArgumentError: not one count a rank, a negative one, or a sum that is not the vector's count.
    """
    sizes = [int(size) for size in counts]
    if len(sizes) != parts:
        raise ArgumentError(f"{name} has {len(sizes)} entries; accepted is one a rank, {parts}")
    if any(size < 0 for size in sizes):
        raise ArgumentError(f"{name} holds {min(sizes)}; accepted are counts >= 0")
    if count is not None and sum(sizes) != count:
        raise ArgumentError(f"{name} add up to {sum(sizes)}; the vector has {count} elements")
    return [0, *accumulate(sizes)]
