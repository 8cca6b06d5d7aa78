"""Schedules whose ranks all do the same, each with peers at the same distances: thousands of ranks from a few tables.

The ring, for example: rank r's rows are rank 0's with every peer moved on by r. In a hierarchical schedule on equal
nodes that holds for ranks a node apart. What matters for time is who sends how much to whom and what waits for what, so
chunks may be others as long as they are equally long.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rdmaring.schedule.rows import Row, Schedule
from rdmaring.schedule.simulate_table import adds_of, bounds, channel_of


class Irregular(ValueError):
    """Ranks do not all do the same; the message says how they differ."""


class Source(NamedTuple):
    """Where a receive comes from: the peer's row and which of its sends; the peer is ``distance`` before."""

    row: int
    send: int
    distance: int


class Wait(NamedTuple):
    """An earlier row, and how the bytes of both lie: (begin, end) of the earlier row's, None: wait for all of it."""

    row: int
    begin: float
    end: float
    whole: bool


@dataclass(frozen=True, slots=True)
class Step:
    """One row of every rank."""

    length: float  # of the vector, as a fraction
    begin: float
    adds: int
    distances: tuple[tuple[int, ...], ...]  # of each send, by class of ranks
    channel: int
    sources: tuple[tuple[Source, ...], ...]  # of each receive, by class of ranks
    waits: tuple[Wait, ...]


@dataclass(frozen=True, slots=True)
class Pattern:
    """The rows of all ranks: rank r is of class r mod ``period``."""

    world: int
    period: int
    window: int
    steps: tuple[Step, ...]


def find_pattern(schedule: Schedule, period: int) -> Pattern:
    """Ranks ``period`` apart do the same, and those between have rows of the same kinds.

    Every rank is checked if they are few, else the first ones, the last ones and some between.

    Raises:
        Irregular: they do not.
    """
    world = schedule.world
    if world % period:
        raise Irregular(f"{world} ranks are no multiple of {period}")
    cuts = bounds(schedule)
    tables = [schedule.make_rows(rank) for rank in range(period)]
    shapes = [[_shape(row, rank, world, cuts) for row in rows] for rank, rows in enumerate(tables)]
    for rank in _checked(world, period):
        shape = [_shape(row, rank, world, cuts) for row in schedule.make_rows(rank)]
        if shape != shapes[rank % period]:
            raise Irregular(f"rank {rank} does not do what rank {rank % period} does")
    first = [each[2:] for each in shapes[0]]
    for rank, shape in enumerate(shapes):
        if [each[2:] for each in shape] != first:
            raise Irregular(f"rank {rank} has other kinds of rows than rank 0")
    sources = _match(tables, world, period)
    steps = [
        Step(
            length=_length(row, cuts),
            begin=cuts[row.chunk_begin],
            adds=adds_of(row),
            distances=tuple(
                tuple((rows[index].sends[number].peer - rank) % world for rank, rows in enumerate(tables))
                for number in range(len(row.sends))
            ),
            channel=channel_of(row),
            sources=tuple(
                tuple(sources[rank][index][number] for rank in range(period)) for number in range(len(row.receives))
            ),
            waits=tuple(_wait(row, tables[0][after.row], after.row, cuts) for after in row.after),
        )
        for index, row in enumerate(tables[0])
    ]
    return Pattern(world, period, schedule.window, tuple(steps))


def _checked(world: int, period: int) -> list[int]:
    if world <= 64:
        return list(range(period, world))
    places = {1, world // period // 2, world // period - 1}
    return [place * period + rank for place in sorted(places) for rank in range(period)]


def _length(row: Row, cuts: Sequence[float]) -> float:
    return cuts[row.chunk_end] - cuts[row.chunk_begin]


def _shape(row: Row, rank: int, world: int, cuts: Sequence[float]) -> tuple[object, ...]:
    """What must be equal: first what ranks a period apart share, from the third on what all ranks share."""
    return (
        tuple(sorted((receive.peer - rank) % world for receive in row.receives)),
        tuple(sorted((send.peer - rank) % world for send in row.sends)),
        round(_length(row, cuts), 12),
        adds_of(row),
        channel_of(row),
        len(row.receives),
        len(row.sends),
        tuple(after.row for after in row.after),
    )


def _wait(row: Row, earlier: Row, index: int, cuts: Sequence[float]) -> Wait:
    overlap = row.chunk_begin < earlier.chunk_end and earlier.chunk_begin < row.chunk_end
    return Wait(index, cuts[earlier.chunk_begin], cuts[earlier.chunk_end], not overlap)


def _match(tables: Sequence[Sequence[Row]], world: int, period: int) -> list[list[list[Source]]]:
    """For each class, row and receive: where it comes from."""
    sent: defaultdict[tuple[int, int, int], list[tuple[int, int]]] = defaultdict(list)
    for rank, rows in enumerate(tables):
        for index, row in enumerate(rows):
            for number, send in enumerate(row.sends):
                sent[rank, (send.peer - rank) % world, channel_of(row)].append((index, number))
    taken: defaultdict[tuple[int, int, int, int], int] = defaultdict(int)
    found: list[list[list[Source]]] = []
    for rank, rows in enumerate(tables):
        found.append([])
        for index, row in enumerate(rows):
            here = []
            for receive in row.receives:
                distance = (rank - receive.peer) % world
                link = (receive.peer % period, distance, channel_of(row))
                number = taken[(rank, *link)]
                taken[(rank, *link)] += 1
                if number >= len(sent[link]) or sent[link][number][0] >= index:
                    raise Irregular(f"row {index} of rank {rank} comes before what it receives")
                here.append(Source(*sent[link][number], distance))
            found[-1].append(here)
    return found
