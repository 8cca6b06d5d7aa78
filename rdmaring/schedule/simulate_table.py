"""All ranks' rows as the simulator wants them: who sends to whom, what waits for what, in numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from rdmaring.schedule.rows import Op, Row, Schedule, ScheduleError

ROWS_MAX = 3_000_000  # of all ranks; more would take minutes to write down


class Target(NamedTuple):
    """Where a send arrives."""

    rank: int
    row: int  # number among all rows
    channel: int
    away: bool = False  # on another node, although the rank that stands for it is on this one (simulate_fold)


class Need(NamedTuple):
    """An earlier row of the same rank."""

    row: int  # number among all rows
    whole: bool  # all of it, not only the same bytes


@dataclass(frozen=True, slots=True)
class Node:
    """One row of one rank."""

    rank: int
    begin: float  # of its bytes in the vector, as a fraction
    end: float
    adds: int
    receives: int
    sends: tuple[Target, ...]
    needs: tuple[Need, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of all ranks, those of one rank one after another."""

    nodes: tuple[Node, ...]
    first: tuple[int, ...]  # row of each rank, and the number of all
    window: int

    @property
    def world(self) -> int:
        return len(self.first) - 1


def bounds(schedule: Schedule) -> list[float]:
    """Where chunks begin, as fractions of the vector, and 1."""
    weights = getattr(schedule, "weights", None) or (1,) * schedule.chunk_count
    total, at, found = sum(weights), 0, [0.0]
    for weight in weights:
        at += weight
        found.append(at / total)
    return found


def adds_of(row: Row) -> int:
    """Additions for each byte of its result."""
    return row.source_count - 1 if row.op is Op.REDUCE else 0


def channel_of(row: Row) -> int:
    return int(getattr(row, "channel", 0))


def tabulate(schedule: Schedule) -> Table:
    """Write down all ranks' rows.

    Raises:
        ScheduleError: too many rows to be simulated one by one, or sends and receives that do not meet.
    """
    tables = []
    first = [0]
    for rank in range(schedule.world):
        rows = schedule.make_rows(rank)  # not rows(): that would keep them all
        tables.append(rows)
        first.append(first[-1] + len(rows))
        if first[-1] > ROWS_MAX:
            raise ScheduleError(
                f"{schedule.algorithm} of {schedule.world} ranks has more than {ROWS_MAX} rows; "
                "simulate fewer ranks, or take the closed form"
            )
    arrivals = _arrivals(tables, first)
    cuts = bounds(schedule)
    nodes: list[Node] = []
    for rank, rows in enumerate(tables):
        for row in rows:
            nodes.append(
                Node(
                    rank,
                    cuts[row.chunk_begin],
                    cuts[row.chunk_end],
                    adds_of(row),
                    len(row.receives),
                    tuple(_target(arrivals, rank, send.peer, channel_of(row)) for send in row.sends),
                    tuple(_need(after.row, row, rows[after.row], first[rank]) for after in row.after),
                )
            )
    return Table(tuple(nodes), tuple(first), schedule.window)


def _arrivals(tables: list[tuple[Row, ...]], first: list[int]) -> dict[tuple[int, int, int], Iterator[Target]]:
    """By (sender, receiver, channel): where its sends arrive, in order."""
    found: defaultdict[tuple[int, int, int], list[Target]] = defaultdict(list)
    for rank, rows in enumerate(tables):
        for index, row in enumerate(rows):
            for receive in row.receives:
                channel = channel_of(row)
                found[receive.peer, rank, channel].append(Target(rank, first[rank] + index, channel))
    return {link: iter(targets) for link, targets in found.items()}


def _target(arrivals: dict[tuple[int, int, int], Iterator[Target]], rank: int, peer: int, channel: int) -> Target:
    found = next(arrivals.get((rank, peer, channel), iter(())), None)
    if found is None:
        raise ScheduleError(f"sends to rank {peer} more often than that receives", rank=rank)
    return found


def _need(index: int, row: Row, earlier: Row, base: int) -> Need:
    overlap = row.chunk_begin < earlier.chunk_end and earlier.chunk_begin < row.chunk_end
    return Need(base + index, not overlap)
