"""One rank, one node's ranks, or those of some nodes, that stand for all: where all do the same at the same time.

Moving a ring on by one rank, or by the ranks of a node, gives the same ring. What happens at rank r then happens at the
same time at all ranks that such a move takes r to, and one of them is enough: what it sends to a peer comes to itself
from where it lies with respect to that peer. Moves are r -> r + k, or r -> r xor k (partners of halving). There are
fewer of the latter the more rows have several slices: it matters then which half of such a row a partner keeps.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

from rdmaring.schedule.rows import Row, Schedule, ScheduleError
from rdmaring.schedule.simulate_events import slice_count
from rdmaring.schedule.simulate_table import Need, Node, Table, Target, adds_of, bounds, channel_of

Relation = Callable[[int, int], int]  # (rank, peer) -> how the peer lies with respect to the rank
Shape = list[tuple[object, ...]]

MANY = 129  # slices of a row from which on it counts where exactly rows overlap
CHECKED_ALL = 128  # ranks; of more, the first, the last and some between are compared


class Folder:
    """What stands for all ranks of one schedule, for vectors of any size."""

    def __init__(self, schedule: Schedule, sizes: Sequence[int], period: int, checked_all: int = CHECKED_ALL) -> None:
        """sizes: the ranks of each node. period: 1, or the ranks of a node, which moves then take to each other.

        checked_all: ranks of worlds in which all are compared; of more, some.
        """
        world = schedule.world
        self.schedule, self.period, self.checked_all = schedule, period, checked_all
        self._per_node = sizes[0]
        self._cuts = bounds(schedule)
        self._rows: dict[int, tuple[Row, ...]] = {}
        self._found: dict[tuple[bool, tuple[int, ...]], Table | None] = {}
        self._slices: dict[float, int] = {}
        self._possible = world % period == 0 and world > period and (period == 1 or len(set(sizes)) == 1)
        first = range(period) if self._possible else ()
        self._lengths = sorted({self._length(row) for rank in first for row in self._rows_of(rank)})

    def table(self, slice_share: float) -> Table | None:
        """The rows that stand for all, with peers among themselves; None: ranks are not alike.

        slice_share: of the vector. In longer rows, of several slices, it matters where the bytes of rows overlap.
        """
        if not self._possible:
            return None
        world = self.schedule.world
        sliced = MANY if max(self._lengths, default=0.0) > slice_share else 1
        found = self._kept(False, [self.period], (sliced,) * len(self._lengths))
        if found is None and world & (world - 1) == self.period & (self.period - 1) == 0:
            counts = tuple(min(MANY, slice_count(length, slice_share)) for length in self._lengths)
            found = self._kept(True, _doubled(self.period, world), counts)
        return found

    def _kept(self, xor: bool, periods: Iterable[int], counts: tuple[int, ...]) -> Table | None:
        """xor: moves are r -> r xor k. counts: slices of the rows of each length, MANY and more alike."""
        key = xor, counts
        if key not in self._found:
            self._slices = dict(zip(self._lengths, counts, strict=True))
            self._found[key] = self._fold(_by_xor if xor else self._by_distance, periods)
            self._rows.clear()
        return self._found[key]

    def _by_distance(self, rank: int, peer: int) -> int:
        return (peer - rank) % self.schedule.world

    def _fold(self, relation: Relation, periods: Iterable[int]) -> Table | None:
        """The rows of the fewest ranks that stand for all."""
        for period in periods:
            if self._alike(period, relation):
                tables = [self._rows_of(rank) for rank in range(period)]
                return _table(self.schedule, tables, relation, self._cuts, self._per_node)
        return None

    def _alike(self, period: int, relation: Relation) -> bool:
        """Ranks so far apart do the same."""
        wanted: dict[int, Shape] = {}
        for rank in self._checked(period, relation is _by_xor):
            place = rank % period
            if not (self._known(place) and self._known(rank)):
                return False
            if place not in wanted:
                wanted[place] = self._shape(place, relation)
            if self._shape(rank, relation) != wanted[place]:
                return False
        return True

    def _known(self, rank: int) -> bool:
        """In how many slices its rows are: they are as long as those of the first ranks."""
        return all(self._length(row) in self._slices for row in self._rows_of(rank))

    def _checked(self, period: int, xor: bool) -> Iterator[int]:
        world = self.schedule.world
        if world <= self.checked_all:
            yield from range(period, world)
            return
        count = world // period
        moves = _doubled(1, count) if xor else (1,)  # of which all others are made
        places = sorted({*moves, count // 2, count - 1})
        yield from (place * period + rank for rank in range(period) for place in places)

    def _rows_of(self, rank: int) -> tuple[Row, ...]:
        if rank not in self._rows:
            self._rows[rank] = self.schedule.make_rows(rank)
        return self._rows[rank]

    def _length(self, row: Row) -> float:
        return round(self._cuts[row.chunk_end] - self._cuts[row.chunk_begin], 12)

    def _shape(self, rank: int, relation: Relation) -> Shape:
        """What must be equal of ranks that are alike."""
        rows = self._rows_of(rank)
        return [
            (
                tuple(sorted(relation(rank, receive.peer) for receive in row.receives)),
                tuple(relation(rank, send.peer) for send in row.sends),
                self._length(row),
                adds_of(row),
                channel_of(row),
                tuple((after.row, *self._waits(row, rows[after.row])) for after in row.after),
            )
            for row in rows
        ]

    def _waits(self, row: Row, earlier: Row) -> tuple[float, ...]:
        """Which slices of a row wait for which of an earlier one."""
        cuts = self._cuts
        if not _overlap(row, earlier):
            return ()
        begin, end = max(row.chunk_begin, earlier.chunk_begin), min(row.chunk_end, earlier.chunk_end)
        count, of_earlier = self._slices[self._length(row)], self._slices[self._length(earlier)]
        if count == of_earlier == 1:
            return (1.0,)
        if MANY > count and of_earlier == 1:
            first, last = ((cuts[at] - cuts[row.chunk_begin]) / self._length(row) * count for at in (begin, end))
            return (math.floor(first + 1e-9), math.ceil(last - 1e-9))
        if MANY > of_earlier and count == 1:
            return (math.ceil((cuts[end] - cuts[earlier.chunk_begin]) / self._length(earlier) * of_earlier - 1e-9),)
        return (round(cuts[begin] - cuts[earlier.chunk_begin], 12), round(cuts[begin] - cuts[row.chunk_begin], 12))


def _overlap(row: Row, earlier: Row) -> bool:
    return row.chunk_begin < earlier.chunk_end and earlier.chunk_begin < row.chunk_end


def _by_xor(rank: int, peer: int) -> int:
    return peer ^ rank


def _doubled(number: int, end: int) -> Iterator[int]:
    while number < end:
        yield number
        number *= 2


def _table(
    schedule: Schedule, tables: Sequence[Sequence[Row]], relation: Relation, cuts: Sequence[float], per_node: int
) -> Table:
    """The rows with numbers, sends led back to the ranks that stand for all."""
    period = len(tables)
    starts = [0]
    for rows in tables:
        starts.append(starts[-1] + len(rows))
    arrivals: defaultdict[tuple[int, int, int], list[Target]] = defaultdict(list)  # by receiver and how the sender lies
    for rank, rows in enumerate(tables):
        for index, row in enumerate(rows):
            for receive in row.receives:
                away = receive.peer // per_node != rank // per_node
                arrival = Target(rank, starts[rank] + index, channel_of(row), away)
                arrivals[rank, relation(receive.peer, rank), channel_of(row)].append(arrival)
    taken: defaultdict[tuple[int, int, int], int] = defaultdict(int)

    def target(rank: int, peer: int, channel: int) -> Target:
        """The k-th send meets the k-th receive; of all ranks that stand where this one does, the same one."""
        link = peer % period, relation(rank, peer), channel
        sent = (rank, *link[1:])
        taken[sent] += 1
        if taken[sent] > len(arrivals[link]):
            raise ScheduleError(f"sends to rank {peer} more often than that receives", rank=rank)
        return arrivals[link][taken[sent] - 1]

    nodes = [
        Node(
            rank,
            cuts[row.chunk_begin],
            cuts[row.chunk_end],
            adds_of(row),
            len(row.receives),
            tuple(target(rank, send.peer, channel_of(row)) for send in row.sends),
            tuple(Need(begin + after.row, not _overlap(row, rows[after.row])) for after in row.after),
        )
        for rank, (rows, (begin, _)) in enumerate(zip(tables, pairwise(starts), strict=True))
        for row in rows
    ]
    return Table(tuple(nodes), tuple(starts), schedule.window)
