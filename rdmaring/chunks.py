"""Chunk tables: where the vector is cut."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from rdmaring.errors import ArgumentError

LINE_BYTES = 64


def even(count: int, parts: int) -> list[int]:
    """Offsets of ``parts`` parts as ``numpy.array_split`` cuts: the first ``count % parts`` are longer by one."""
    size, longer = divmod(count, parts)
    return [0, *accumulate(size + (part < longer) for part in range(parts))]


def aligned(count: int, parts: int, element_bytes: int) -> list[int]:
    """Offsets of ``parts`` nearly equal parts that begin on cache lines, so that no two ranks share one.

    Where parts would be smaller than a line, as :func:`even`.
    """
    unit = max(1, LINE_BYTES // element_bytes)
    if count < unit * parts:
        return even(count, parts)
    return [count * part // parts // unit * unit for part in range(parts)] + [count]


def given(counts: Sequence[int], parts: int, count: int | None) -> list[int]:
    """Offsets from the caller's ``counts``, one a rank.

    Raises:
        ArgumentError: not one count a rank, a negative one, or a sum that is not the vector's count.
    """
    sizes = [int(size) for size in counts]
    if len(sizes) != parts:
        raise ArgumentError(f"counts has {len(sizes)} entries; accepted is one a rank, {parts}")
    if any(size < 0 for size in sizes):
        raise ArgumentError(f"counts holds {min(sizes)}; accepted are counts >= 0")
    if count is not None and sum(sizes) != count:
        raise ArgumentError(f"counts add up to {sum(sizes)}; the vector has {count} elements")
    return [0, *accumulate(sizes)]
