"""In which order one rank's slices go to the streams of a device, and what its streams wait for.

The enqueue executor (native/src/engine_enqueue.c) writes one list of stream operations, in the order made here. An
item is either *the pass* of a row over slice k (its receives, and what is made of them) or *a send* of slice k to one
peer. The key is (round, step, turn, slice, kind, row): in each step what needs nothing from others comes first, then
sends, then passes that receive; ``turn`` counts a link's rows of one step, as a link is first in, first out. A row
receives in its step and sends in the step after, so that every wait for a peer looks back in an order that all ranks
share. What an item needs of its own rank, and what goes before it on its link, is pulled forward where the key would
put it behind.

Passes go to the compute stream of the row's channel, sends to its copy stream. Where an item needs what the other
stream does, it waits for an event behind that item; ``Listed.after`` says which. ``enqueue_proof`` proves all this.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rdmaring.schedule.rows import Buffer, Kind, Op, Row

DEPTH_MAX = 256  # of items pulled forward for each other; native/src/engine_enqueue.c


class OrderError(ValueError):
    """The rows of one rank cannot be put in such an order."""


class Cut(NamedTuple):
    """How chunks are cut: as a plan does it, in bytes or in any other unit."""

    offsets: Sequence[int]  # chunk_count + 1
    slice_length: int
    round_count: int = 1
    element: int = 1  # parts of rounds begin at multiples of it, counted from the chunk's begin

    def part(self, chunk: int, round_: int) -> int:
        """Where round ``round_`` of a chunk begins."""
        begin = self.offsets[chunk]
        elements = (self.offsets[chunk + 1] - begin) // self.element
        if self.round_count == 1:
            return self.offsets[chunk + 1] if round_ else begin
        return begin + elements * round_ // self.round_count * self.element

    def span(self, row: Row, round_: int) -> Span:
        if row.chunk_begin == row.chunk_end:
            return Span(0, 0, 0)
        if self.round_count == 1:
            begin, end = self.offsets[row.chunk_begin], self.offsets[row.chunk_end]
        else:
            begin, end = self.part(row.chunk_begin, round_), self.part(row.chunk_begin, round_ + 1)
        return Span(begin, end - begin, -(-(end - begin) // self.slice_length))


class Span(NamedTuple):
    """What a row covers in one round."""

    begin: int
    length: int
    slices: int


class Stream(NamedTuple):
    """One of a rank's streams."""

    channel: int
    copy: bool  # False: the compute stream


@dataclass(slots=True)
class Listed:
    """One item of the list."""

    round: int
    row: int
    slice: int
    send: int | None  # which of the row's sends; None: the pass
    stream: Stream
    after: tuple[int, ...] = ()  # items of other streams that it waits for, by their place in the list


class Transfer(NamedTuple):
    """What travels over a link: known alike at both ends."""

    round: int
    order: int  # of the row on its link, in one round
    slice: int


Link = tuple[int, int]  # peer, channel


class _Place(NamedTuple):
    """Of a row on one of its links."""

    link: Link
    order: int
    turn: int  # among the link's rows of the same step that follow each other
    before: tuple[int, int] | None  # the row and the send or receive that the link serves before


def _places(rows: Sequence[Row], channels: int, *, sends: bool) -> list[list[_Place]]:
    order: defaultdict[Link, int] = defaultdict(int)
    turns: dict[Link, tuple[int, int]] = {}  # the step of the link's last row, and its turn
    before: dict[Link, tuple[int, int]] = {}
    places: list[list[_Place]] = []
    for index, row in enumerate(rows):
        step = row.send_step if sends else row.step
        own = []
        peers = [send.peer for send in row.sends] if sends else [receive.peer for receive in row.receives]
        for at, peer in enumerate(peers):
            link = (peer, row.channel % channels)
            last, turn = turns.get(link, (step, -1))
            turns[link] = (step, turn + 1 if last == step else 0)
            own.append(_Place(link, order[link], turns[link][1], before.get(link)))
            order[link] += 1
            before[link] = (index, at)
        places.append(own)
    return places


class _Round:
    """Items of one round of one rank, as they are put in order."""

    def __init__(self, order: _Order, number: int) -> None:
        self.order = order
        self.number = number
        self.rows = order.rows
        self.spans = [order.cut.span(row, number) for row in order.rows]
        self.passes: list[list[int]] = [[] for _ in order.rows]  # place in the list, of each slice
        self.sends: list[list[list[int]]] = [[[] for _ in row.sends] for row in order.rows]

    def run(self) -> None:
        keys: list[tuple[int, int, int, int, int, int]] = []
        for index, row in enumerate(self.rows):
            receive_turn = max((place.turn for place in self.order.receives[index]), default=0)
            for slice_ in range(self.spans[index].slices):
                keys.append((row.step, receive_turn, slice_, 2 if row.receives else 0, index, -1))
                for at, place in enumerate(self.order.sends[index]):
                    keys.append((row.send_step, place.turn, slice_, 1, index, at))
        for _, _, slice_, _, index, at in sorted(keys):
            self._reach(index, at, slice_ + 1, 0)

    def _reach(self, index: int, at: int, count: int, depth: int) -> None:
        """Put the first ``count`` slices of a row's pass (at -1) or send in the list, unless they are there."""
        if depth > DEPTH_MAX:
            raise OrderError(f"row {index} needs more than {DEPTH_MAX} rows pulled forward one for another")
        done = self.passes[index] if at < 0 else self.sends[index][at]
        while len(done) < count:
            slice_ = len(done)
            if at < 0:
                after = self._reach_pass(index, slice_, depth)
            else:
                after = self._reach_send(index, at, slice_, depth)
            done.append(self.order.put(self.number, index, slice_, None if at < 0 else at, after))

    def _before(self, places: list[list[_Place]], index: int, at: int) -> tuple[int, int] | None:
        """What the link serves before that has slices in this round."""
        before = places[index][at].before
        while before is not None and not self.spans[before[0]].slices:
            before = places[before[0]][before[1]].before
        return before

    def _reach_pass(self, index: int, slice_: int, depth: int) -> list[int]:
        for at in range(len(self.order.receives[index]) if slice_ == 0 else 0):
            before = self._before(self.order.receives, index, at)
            if before is not None:
                self._reach(before[0], -1, self.spans[before[0]].slices, depth + 1)
        self._reach_needs(index, slice_, depth)
        return [] if self.rows[index].op is Op.NONE else self._places_needed(index, slice_)

    def _reach_send(self, index: int, at: int, slice_: int, depth: int) -> list[int]:
        before = self._before(self.order.sends, index, at) if slice_ == 0 else None
        if before is not None:
            self._reach(before[0], before[1], self.spans[before[0]].slices, depth + 1)
        self._reach(index, -1, slice_ + 1, depth + 1)
        if self.rows[index].op is Op.NONE:
            return self._places_needed(index, slice_)
        return [self.passes[index][slice_]]

    def _reach_needs(self, index: int, slice_: int, depth: int) -> None:
        """Put what the slice comes after in the list."""
        if depth > DEPTH_MAX:
            raise OrderError(f"row {index} needs more than {DEPTH_MAX} rows pulled forward one for another")
        for earlier, slices, released in self._needs(index, slice_):
            self._reach(earlier, -1, slices, depth + 1)
            for at in range(len(self.sends[earlier]) if released else 0):
                self._reach(earlier, at, slices, depth + 1)
            for each in range(slices if self.rows[earlier].op is Op.NONE else 0):
                self._reach_needs(earlier, each, depth + 1)

    def _places_needed(self, index: int, slice_: int) -> list[int]:
        """Where that is in the list."""
        places: list[int] = []
        for earlier, slices, released in self._needs(index, slice_):
            for done in self.sends[earlier] if released else ():
                # Once the whole row has been sent its end is as good, and serves the slices that follow too.
                places.append(done[-1 if len(done) == self.spans[earlier].slices else slices - 1])
            if self.rows[earlier].op is not Op.NONE:
                places.append(self.passes[earlier][slices - 1])
            else:  # nothing is done there: what it comes after counts
                for each in range(slices):
                    places += self._places_needed(earlier, each)
        return places

    def _needs(self, index: int, slice_: int) -> Iterator[tuple[int, int, bool]]:
        """Earlier rows and how many of their slices; True: and these released. The engine's rule, engine_after.c."""
        row, span, length = self.rows[index], self.spans[index], self.order.cut.slice_length
        begin = span.begin + slice_ * length
        end = min(begin + length, span.begin + span.length)
        for earlier, kind in row.after:
            other = self.spans[earlier]
            other_end = other.begin + other.length
            if not other.length:
                if row.buffer is Buffer.SCRATCH:
                    yield from self._cell_needs(earlier, row.cell)
                continue
            if span.begin >= other_end or span.begin + span.length <= other.begin:
                need = other.length  # they share a cell, not bytes of the vector
            elif begin >= other_end or end <= other.begin:
                continue
            else:
                need = min(end, other_end) - other.begin
            yield earlier, -(-need // length), kind is Kind.RELEASED

    def _cell_needs(self, empty: int, cell: int) -> Iterator[tuple[int, int, bool]]:
        """An empty row does nothing: who overwrites its cell comes after the rows that it came after."""
        for earlier, kind in self.rows[empty].after:
            if cell in self.rows[earlier].cells:
                if self.spans[earlier].length:
                    yield earlier, self.spans[earlier].slices, kind is Kind.RELEASED
                else:
                    yield from self._cell_needs(earlier, cell)


class _Order:
    """The list of one rank."""

    def __init__(self, rows: Sequence[Row], cut: Cut, channels: int) -> None:
        self.rows = rows
        self.cut = cut
        self.channels = channels
        self.sends = _places(rows, channels, sends=True)
        self.receives = _places(rows, channels, sends=False)
        self.listed: list[Listed] = []
        # The last item of each stream that each stream is known to come after.
        self.known: defaultdict[tuple[Stream, Stream], int] = defaultdict(lambda: -1)
        self.copied: list[dict[Stream, int]] = []  # of each round, the last item of each copy stream

    def run(self) -> list[Listed]:
        for number in range(self.cut.round_count):
            _Round(self, number).run()
            ends: dict[Stream, int] = {}
            for place, item in enumerate(self.listed):
                if item.stream.copy and item.round == number:
                    ends[item.stream] = place
            self.copied.append(ends)
        return self.listed

    def put(self, number: int, index: int, slice_: int, send: int | None, after: Sequence[int]) -> int:
        stream = Stream(self.rows[index].channel % self.channels, send is not None)
        needs: dict[Stream, int] = {}
        wanted = list(after)
        # The cells of a round are those of two rounds before.
        if number >= 2 and send is None and self.rows[index].op is not Op.NONE:
            wanted += self.copied[number - 2].values()
        for place in wanted:
            other = self.listed[place].stream
            if other != stream:
                needs[other] = max(needs.get(other, -1), place)
        waits = []
        for other, place in sorted(needs.items()):
            if self.known[stream, other] < place:
                self.known[stream, other] = place
                waits.append(place)
        self.listed.append(Listed(number, index, slice_, send, stream, tuple(waits)))
        return len(self.listed) - 1


def enqueue_list(rows: Sequence[Row], cut: Cut, *, channels: int = 1) -> list[Listed]:
    """The list of one rank.

    channels: links an edge; channel c of a row goes over link, and to the streams, c modulo these.

    Raises:
        OrderError: items need each other too deeply.
    """
    return _Order(rows, cut, channels).run()


def transfers_of(
    rows: Sequence[Row], listed: Sequence[Listed], *, channels: int = 1
) -> tuple[dict[Link, list[tuple[int, Transfer]]], dict[Link, list[tuple[int, Transfer]]]]:
    """What each link out and each link in carries, in the order of the list; with the item's place there."""
    out: defaultdict[Link, list[tuple[int, Transfer]]] = defaultdict(list)
    into: defaultdict[Link, list[tuple[int, Transfer]]] = defaultdict(list)
    sends, receives = _places(rows, channels, sends=True), _places(rows, channels, sends=False)
    for place, item in enumerate(listed):
        if item.send is not None:
            at = sends[item.row][item.send]
            out[at.link].append((place, Transfer(item.round, at.order, item.slice)))
        else:
            for at in receives[item.row]:
                into[at.link].append((place, Transfer(item.round, at.order, item.slice)))
    return dict(out), dict(into)


def uneven_cuts(chunk_count: int) -> Iterator[Cut]:
    """Cuts to prove a schedule for: even ones of 1, 2, 3 and 7 slices a chunk, and two with uneven and empty chunks."""
    for slices in (1, 2, 3, 7):
        yield Cut(range(0, 2 * slices * (chunk_count + 1), 2 * slices), 2)
    for pattern in ((13, 0, 1, 6), (3, 8, 5)):  # not multiples of the slice: slices of ranges cross chunks
        offsets = [0]
        for chunk in range(chunk_count):
            offsets.append(offsets[-1] + pattern[chunk % len(pattern)])
        yield Cut(offsets, 4)
