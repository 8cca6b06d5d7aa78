"""The proof that the lists of ``enqueue`` are right, for all ranks at once.

What holds after ``verify_enqueue`` returns, for the cuts that were tried:

- each link's ends see the same transfers in the same order, so that slot and flags follow from their number;
- all ranks come to their end with one slot a link, each taking its list as one first in, first out queue: so with any
  number of slots, and however the device maps streams to its hardware queues;
- any two accesses of one rank to the same bytes, of which one writes, are ordered by their stream or by events.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rdmaring.schedule.enqueue import Cut, Link, Listed, Stream, Transfer, enqueue_list, transfers_of, uneven_cuts
from rdmaring.schedule.links import Tables
from rdmaring.schedule.rows import Buffer, Op, Row, Schedule, ScheduleError


@dataclass(frozen=True, slots=True)
class EnqueueProof:
    """What was tried and found."""

    cut_count: int
    item_count: int  # of all ranks and cuts
    wait_count: int  # of streams for events of others


def verify_enqueue(schedule: Schedule, cuts: Iterable[Cut] | None = None, *, channels: int = 1) -> EnqueueProof:
    """Prove the lists of all ranks of a schedule that ``verify`` has proven; see the module for what that means.

    cuts: how chunks are cut; None: ``uneven_cuts``, and where rows have one chunk each and use cells, three rounds.
    channels: links an edge; channel c of a row goes over link c modulo these.

    Raises:
        ScheduleError: names rank and row, and what is wrong there.
    """
    tables = [schedule.rows(rank) for rank in range(schedule.world)]
    tried = list(_cuts(schedule, tables) if cuts is None else cuts)
    items = waits = 0
    for cut in tried:
        lists: list[list[Listed]] = []
        for rank, rows in enumerate(tables):
            try:
                lists.append(enqueue_list(rows, cut, channels=channels))
            except ValueError as error:
                raise ScheduleError(str(error), rank=rank) from error
        check_lists(tables, lists, cut, channels=channels)
        items += sum(map(len, lists))
        waits += sum(len(item.after) for listed in lists for item in listed)
    return EnqueueProof(len(tried), items, waits)


def _cuts(schedule: Schedule, tables: Tables) -> Iterator[Cut]:
    yield from uneven_cuts(schedule.chunk_count)
    single = all(row.chunk_end - row.chunk_begin <= 1 for rows in tables for row in rows)
    if schedule.scratch_cells and single:
        offsets = [0]
        for chunk in range(schedule.chunk_count):
            offsets.append(offsets[-1] + (24, 7, 0)[chunk % 3])
        yield Cut(offsets, 4, 3)


def check_lists(tables: Tables, lists: Sequence[Sequence[Listed]], cut: Cut, *, channels: int = 1) -> None:
    """Check lists as they are; see ``verify_enqueue``."""
    links = [transfers_of(rows, listed, channels=channels) for rows, listed in zip(tables, lists, strict=True)]
    for rank, (out, _) in enumerate(links):
        for (peer, channel), sent in out.items():
            _check_alike(rank, peer, sent, links[peer][1].get((rank, channel), []), lists)
    for rank, (_, into) in enumerate(links):
        for (peer, channel), received in into.items():
            if (rank, channel) not in links[peer][0]:
                _check_alike(peer, rank, [], received, lists)
    _check_end(lists, links)
    for rank, (rows, listed) in enumerate(zip(tables, lists, strict=True)):
        _check_accesses(rank, rows, listed, cut)


def _check_alike(
    rank: int,
    peer: int,
    sent: Sequence[tuple[int, Transfer]],
    received: Sequence[tuple[int, Transfer]],
    lists: Sequence[Sequence[Listed]],
) -> None:
    for (sent_at, one), (_, other) in zip(sent, received, strict=False):
        if one != other:
            raise ScheduleError(
                f"sends {tuple(one)} (round, row of the link, slice) where rank {peer} receives {tuple(other)}",
                rank=rank,
                row=lists[rank][sent_at].row,
            )
    if len(sent) != len(received):
        raise ScheduleError(f"sends {len(sent)} slices to rank {peer}, which receives {len(received)}", rank=rank)


def _check_end(
    lists: Sequence[Sequence[Listed]],
    links: Sequence[tuple[dict[Link, list[tuple[int, Transfer]]], dict[Link, list[tuple[int, Transfer]]]]],
) -> None:
    """Run all lists, each as one queue, with one slot a link; raise where they stop for ever."""
    sends: list[dict[int, Link]] = [{} for _ in lists]
    receives: list[defaultdict[int, list[Link]]] = [defaultdict(list) for _ in lists]
    for rank, (out, into) in enumerate(links):
        for link, transfers in out.items():
            sends[rank].update((place, link) for place, _ in transfers)
        for link, transfers in into.items():
            for place, _ in transfers:
                receives[rank][place].append(link)
    full: set[tuple[int, int, int]] = set()  # (from, to, channel)
    heads = [0] * len(lists)

    def waits_for(rank: int, place: int) -> int | None:
        """The rank that the head of this rank's queue waits for; None: it may go."""
        sent = sends[rank].get(place)
        if sent is not None and (rank, *sent) in full:
            return sent[0]
        for peer, channel in receives[rank].get(place, ()):
            if (peer, rank, channel) not in full:
                return peer
        return None

    awake = list(range(len(lists)))
    while awake:
        rank = awake.pop()
        while heads[rank] < len(lists[rank]) and waits_for(rank, heads[rank]) is None:
            place = heads[rank]
            heads[rank] += 1
            if place in sends[rank]:
                peer, channel = sends[rank][place]
                full.add((rank, peer, channel))
                awake.append(peer)
            for peer, channel in receives[rank].get(place, ()):
                full.remove((peer, rank, channel))
                awake.append(peer)
    for rank, head in enumerate(heads):
        if head < len(lists[rank]):
            item = lists[rank][head]
            what = "pass over" if item.send is None else "send of"
            raise ScheduleError(
                f"as one queue with one slot a link, the {what} slice {item.slice} waits for ever for rank "
                f"{waits_for(rank, head)}",
                rank=rank,
                row=item.row,
            )


# ---- one rank's own memory ----


@dataclass(slots=True)
class _Access:
    place: int
    stream: Stream
    begin: int
    end: int
    writes: bool


def _check_accesses(rank: int, rows: Sequence[Row], listed: Sequence[Listed], cut: Cut) -> None:
    """Raise unless accesses that conflict come one after the other. INPUT and OUTPUT are one memory."""
    before: list[dict[Stream, int]] = []  # of each item, the last item of each stream that it comes after
    last: dict[Stream, dict[Stream, int]] = defaultdict(dict)
    accesses: defaultdict[tuple[str, int], list[_Access]] = defaultdict(list)
    for place, item in enumerate(listed):
        known = dict(last[item.stream])
        for earlier in item.after:
            if earlier >= place:
                raise ScheduleError(f"waits for an item behind it, {earlier}", rank=rank, row=item.row)
            for stream, reached in before[earlier].items():
                known[stream] = max(known.get(stream, -1), reached)
        known[item.stream] = place
        before.append(known)
        last[item.stream] = known
        for location, begin, end, writes in _touched(rows[item.row], item, cut):
            for other in accesses[location]:
                if not (writes or other.writes) or begin >= other.end or other.begin >= end:
                    continue
                if known.get(other.stream, -1) < other.place:
                    raise ScheduleError(
                        f"touches {location[0]} {location[1]} without being after row {listed[other.place].row}, "
                        f"slice {listed[other.place].slice}, on another stream",
                        rank=rank,
                        row=item.row,
                    )
            if item.stream.copy or writes or begin < end:
                accesses[location].append(_Access(place, item.stream, begin, end, writes))


def _touched(row: Row, item: Listed, cut: Cut) -> Iterator[tuple[tuple[str, int], int, int, bool]]:
    """(chunk or cell, begin, end, whether it writes), as the rows name them; cells of rounds alternate."""
    if item.send is not None:
        yield from _of_buffer(row, row.buffer, row.cell, item, cut, writes=False)
    elif row.op is not Op.NONE:
        if row.operand is not None:
            yield from _of_buffer(row, row.operand, row.operand_cell, item, cut, writes=False)
        yield from _of_buffer(row, row.buffer, row.cell, item, cut, writes=True)


def _of_buffer(
    row: Row, buffer: Buffer, cell: int, item: Listed, cut: Cut, *, writes: bool
) -> Iterator[tuple[tuple[str, int], int, int, bool]]:
    span = cut.span(row, item.round)
    begin = item.slice * cut.slice_length
    end = min(begin + cut.slice_length, span.length)
    if buffer is Buffer.SCRATCH:
        yield (f"cell of round {item.round % 2}", cell), begin, end, writes
        return
    begin, end = begin + span.begin, end + span.begin
    for chunk in range(row.chunk_begin, row.chunk_end):
        low, high = max(begin, cut.offsets[chunk]), min(end, cut.offsets[chunk + 1])
        if low < high:
            yield ("chunk", chunk), low, high, writes
