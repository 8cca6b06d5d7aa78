"""All built-in schedules, for tests that loop over them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from rdmaring.schedule import ALGORITHMS, ORDERED, SHAPED, Row, Schedule, generate
from rdmaring.schedule.collectives import COLLECTIVES

NAMES = sorted(name for name in ALGORITHMS if name[1] not in SHAPED)  # those have shapes.py
PAIRS_WORLD_MAX = 12  # all_to_all has N * N chunks: larger worlds take minutes and hold no other case


def roots_of(collective: str, world: int) -> Sequence[int | None]:
    """The first, a middle and the last rank where there is a root."""
    return sorted({0, world // 2, world - 1}) if COLLECTIVES[collective].rooted else [None]


def schedules(worlds: Iterable[int], names: Iterable[tuple[str, str]] = NAMES) -> Iterator[Schedule]:
    for world in worlds:
        for collective, algorithm in names:
            if COLLECTIVES[collective].per_pair_chunks and world > PAIRS_WORLD_MAX:
                continue
            for root in roots_of(collective, world):
                yield generate(collective, algorithm, world, root)


def orders_of(world: int) -> Iterator[tuple[int, ...]]:
    """The ring turned round, and some seeded orders."""
    yield tuple(reversed(range(world)))
    for seed in range(3):
        yield tuple(random.Random(100 * world + seed).sample(range(world), world))


def reordered(worlds: Iterable[int], names: Iterable[tuple[str, str]]) -> Iterator[tuple[tuple[int, ...], Schedule]]:
    """Every schedule of a ring, in other orders than 0, 1, ..., N - 1, with the order."""
    for world in worlds:
        for collective, algorithm in names:
            for order in orders_of(world) if algorithm in ORDERED else ():
                for root in roots_of(collective, world):
                    yield order, generate(collective, algorithm, world, root, order)


def with_rows(schedule: Schedule, rank: int, rows: Sequence[Row]) -> Schedule:
    """The schedule with another table for one rank, everything it declares left as it was."""
    own = tuple(rows)
    return replace(schedule, make_rows=lambda other: own if other == rank else schedule.rows(other), _cache={})


def title(schedule: Schedule) -> str:
    root = "" if schedule.root is None else f" root {schedule.root}"
    return f"{schedule.collective} {schedule.algorithm} world {schedule.world}{root}"
