"""One node's ranks, or one rank, that stand for all: where all do the same at the same time.

Moving a ring on by one rank, or by the ranks of a node, gives the same ring. What happens at rank r then happens at the
same time at all ranks that such a move takes r to, and one of them is enough: what it sends to a peer comes to itself
from where it lies with respect to that peer. Moves are r -> r + k, or r -> r xor k (partners of halving).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise

from rdmaring.schedule.rows import Row, Schedule, ScheduleError
from rdmaring.schedule.simulate_table import Need, Node, Table, Target, adds_of, bounds, channel_of

Relation = Callable[[int, int], int]  # (rank, peer) -> how the peer lies with respect to the rank

CHECKED_ALL = 128  # ranks; of more, the first, the last and some between are compared


def folded(
    schedule: Schedule, sizes: Sequence[int], period: int, sliced: bool, checked_all: int = CHECKED_ALL
) -> Table | None:
    """The rows of the first ``period`` ranks, with peers among themselves; None: ranks are not alike.

    period: 1, or the ranks of a node, which then is what moves take to each other. sliced: some row has more slices
    than one, so that it matters where the bytes of rows overlap. checked_all: ranks of worlds in which all are
    compared; of more, some.
    """
    world = schedule.world
    if world % period or (period > 1 and len(set(sizes)) > 1) or world == period:
        return None
    cuts = bounds(schedule)
    relations: list[Relation] = [lambda rank, peer: (peer - rank) % world]
    if world & (world - 1) == 0:
        relations.append(lambda rank, peer: peer ^ rank)
    first = [schedule.make_rows(rank) for rank in range(period)]
    for relation in relations:
        wanted = [_shape(rows, rank, relation, cuts, sliced) for rank, rows in enumerate(first)]
        if all(
            _shape(schedule.make_rows(rank), rank, relation, cuts, sliced) == wanted[rank % period]
            for rank in _checked(world, period, checked_all)
        ):
            return _table(schedule, first, relation, cuts, sizes[0])
    return None


def _checked(world: int, period: int, checked_all: int) -> list[int]:
    if world <= checked_all:
        return list(range(period, world))
    places = {1, world // period // 2, world // period - 1}
    return [place * period + rank for place in sorted(places) for rank in range(period)]


def _shape(
    rows: Sequence[Row], rank: int, relation: Relation, cuts: Sequence[float], sliced: bool
) -> list[tuple[object, ...]]:
    """What must be equal of ranks that are alike."""
    return [
        (
            tuple(sorted(relation(rank, receive.peer) for receive in row.receives)),
            tuple(relation(rank, send.peer) for send in row.sends),
            round(cuts[row.chunk_end] - cuts[row.chunk_begin], 12),
            adds_of(row),
            channel_of(row),
            tuple((after.row, *_overlap(row, rows[after.row], cuts, sliced)) for after in row.after),
        )
        for row in rows
    ]


def _overlap(row: Row, earlier: Row, cuts: Sequence[float], sliced: bool) -> tuple[float, ...]:
    """Where in the earlier row the bytes of both lie."""
    begin, end = max(row.chunk_begin, earlier.chunk_begin), min(row.chunk_end, earlier.chunk_end)
    if begin >= end:
        return ()
    if not sliced:
        return (1.0,)
    return (round(cuts[begin] - cuts[earlier.chunk_begin], 12), round(cuts[begin] - cuts[row.chunk_begin], 12))


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
            tuple(Need(begin + after.row, not _overlap(row, rows[after.row], cuts, False)) for after in row.after),
        )
        for rank, (rows, (begin, _)) in enumerate(zip(tables, pairwise(starts), strict=True))
        for row in rows
    ]
    return Table(tuple(nodes), tuple(starts), schedule.window)
