"""Ranks on nodes, for tests of the schedules that depend on it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations_with_replacement

from rdmaring.schedule import SHAPED, Schedule, generate

NAMES = tuple(sorted(SHAPED))

EVEN = [(size,) * count for count in range(1, 7) for size in range(1, 7)]  # all node shapes to 6 x 6
UNEVEN = [
    sizes
    for count in range(1, 5)
    for sizes in combinations_with_replacement((1, 2, 3, 4), count)
    if len(set(sizes)) > 1
]
WIDE = [(8, 3), (7, 5, 2), (2,) * 9, (1,) * 10, (1, 2) * 5, (16, 8), (5, 1, 1, 1, 1, 1, 1, 1)]


def nodes_of(sizes: Sequence[int], seed: int | None = None) -> list[int]:
    """The node of each rank: neighbours share one, or, with a seed, ranks are dealt to nodes at random."""
    nodes = [node for node, size in enumerate(sizes) for _ in range(size)]
    if seed is not None:
        random.Random(f"{seed} {sizes}").shuffle(nodes)
    return nodes


def shaped(algorithm: str, sizes: Iterable[Sequence[int]], seed: int | None = None) -> Iterator[Schedule]:
    for each in sizes:
        yield generate("all_reduce", algorithm, sum(each), nodes=nodes_of(each, seed))
