"""Does a schedule always come to its end? An abstract run of all ranks, slice by slice.

The model is the engine's contract at its tightest: a link has one credit unless told otherwise, given
back when the receiver has consumed the slice; only ``window`` rows of a rank are open, and they retire
in order; a row's slices run in order; a link is first in, first out. A (row, slice) is received when
what it comes after is done or released and all its receives are there, whatever the credit of its
sends; each of its sends then waits for credit. Receivers may read in place, so what was sent is
released only when it is consumed.

Nothing that has become possible becomes impossible again before it is done: a credit is taken only by
the one slice next on its link, and all other conditions only ever come true. So the order of events
cannot change which events happen, and one run as far as it goes decides whether there is a deadlock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from rdmaring.schedule.deps import with_after
from rdmaring.schedule.links import Tables
from rdmaring.schedule.rows import After, Buffer, Kind, Row, ScheduleError

# Slices of chunk c are pattern[c % len(pattern)]: even cuts, and one with empty and uneven chunks.
ROUNDS = (3, (2,))  # and that many rounds of a plan whose scratch is bounded, cut like this
SLICE_PATTERNS: tuple[tuple[int, ...], ...] = ((1,), (2,), (3,), (7,), (7, 0, 1, 3))


class HaltError(ScheduleError):
    """The schedule does not come to its end with the window it declares; a wider one may do."""


@dataclass(slots=True)
class _Link:
    source: int
    target: int
    committed: int = 0  # slices
    consumed: int = 0  # slices
    senders: list[int] = field(default_factory=list)  # the source's row of each message
    receivers: list[int] = field(default_factory=list)  # the target's row of each message


@dataclass(slots=True)
class _Wait:
    """One entry of ``after``, for each slice of the row: how many of the earlier row's it needs."""

    row: int
    released: bool
    slices: Sequence[int]


@dataclass(slots=True)
class _RowState:
    """How far one row is. Links are paired with the message number of the row's first slice on them."""

    slice_count: int
    receives: list[tuple[_Link, int]] = field(default_factory=list)
    sends: list[tuple[_Link, int]] = field(default_factory=list)
    waits: list[_Wait] = field(default_factory=list)
    followers: list[int] = field(default_factory=list)  # rows that wait for this one
    done: int = 0  # slices received
    pending: bool = False  # will be tried again

    def finished(self) -> bool:
        if self.done < self.slice_count:
            return False
        return all(link.committed >= first + self.slice_count for link, first in self.sends)


Pick = Callable[[int], int]  # of that many pending rows, the place of the one to try next


class _Run:
    """All ranks' rows in flight."""

    def __init__(self, tables: Tables, window: int, pattern: Sequence[int], credits: int, pick: Pick | None) -> None:
        self.tables = tables
        self.window = window
        self.credits = credits
        self.pick = pick
        self.base = [0] * len(tables)
        self.links: dict[tuple[int, int], _Link] = {}
        self.states: list[list[_RowState]] = []
        for rank, rows in enumerate(tables):
            states = [_RowState(_slice_count(row, pattern)) for row in rows]
            self.states.append(states)
            for index, row in enumerate(rows):
                self._attach(rank, index, row, states, pattern)
        self.pending: list[tuple[int, int]] = []

    def _attach(
        self,
        rank: int,
        index: int,
        row: Row,
        states: list[_RowState],
        pattern: Sequence[int],
    ) -> None:
        state, links = states[index], self.links
        for receive in row.receives:
            link = links.setdefault((receive.peer, rank), _Link(receive.peer, rank))
            state.receives.append((link, len(link.receivers)))
            link.receivers += [index] * state.slice_count
        for send in row.sends:
            link = links.setdefault((rank, send.peer), _Link(rank, send.peer))
            state.sends.append((link, len(link.senders)))
            link.senders += [index] * state.slice_count
        for after in row.after:
            slices = _slices_needed(row, self.tables[rank][after.row], pattern)
            state.waits.append(_Wait(after.row, after.kind is Kind.RELEASED, slices))
            states[after.row].followers.append(index)

    def run(self) -> None:
        for rank in range(len(self.tables)):
            self._retire(rank)
            for index in self._open_rows(rank):
                self._wake(rank, index)
        pending = self.pending
        while pending:
            if self.pick is not None:
                place = self.pick(len(pending))
                pending[place], pending[-1] = pending[-1], pending[place]
            rank, index = pending.pop()
            self.states[rank][index].pending = False
            self._advance(rank, index)

    def _wake(self, rank: int, index: int) -> None:
        """Try this row again, if it is open; a row that opens later is tried then."""
        state = self.states[rank][index]
        if not state.pending and self.base[rank] <= index < self.base[rank] + self.window:
            state.pending = True
            self.pending.append((rank, index))

    def _wake_next(self, rank: int, rows: Sequence[int], message: int) -> None:
        if message < len(rows):
            self._wake(rank, rows[message])

    def _open_rows(self, rank: int) -> range:
        return range(self.base[rank], min(self.base[rank] + self.window, len(self.tables[rank])))

    def _advance(self, rank: int, index: int) -> None:
        """Receive and send what this row can now; wake the rows that may go on because of it."""
        state = self.states[rank][index]
        received = state.done
        while state.done < state.slice_count and self._blocker(rank, state) is None:
            for link, first in state.receives:
                link.consumed += 1
                sender = link.senders[first + state.done]
                for follower in self.states[link.source][sender].followers:
                    self._wake(link.source, follower)
                self._wake_next(link.source, link.senders, link.committed)
                self._wake_next(rank, link.receivers, link.consumed)
            state.done += 1
        if state.done > received:
            for follower in state.followers:
                self._wake(rank, follower)
        for link, first in state.sends:
            while first <= link.committed < first + state.done and link.committed - link.consumed < self.credits:
                self._wake(link.target, link.receivers[link.committed])
                link.committed += 1
                self._wake_next(rank, link.senders, link.committed)
        if index == self.base[rank]:
            self._retire(rank)

    def _retire(self, rank: int) -> None:
        states = self.states[rank]
        while self.base[rank] < len(states) and states[self.base[rank]].finished():
            self.base[rank] += 1
            opened = self.base[rank] + self.window - 1
            if opened < len(states):
                self._wake(rank, opened)

    def _blocker(self, rank: int, state: _RowState) -> str | None:
        """What the receive part of the row's next slice waits for."""
        slice_ = state.done
        for link, first in state.receives:
            if link.consumed != first + slice_:
                return f"an earlier receive from rank {link.source}"
            if link.committed <= first + slice_:
                return f"rank {link.source}"
        for wait in state.waits:
            earlier = self.states[rank][wait.row]
            if earlier.done < wait.slices[slice_]:
                return f"row {wait.row} to be done"
            if wait.released and any(
                link.consumed < first + wait.slices[slice_] for link, first in earlier.sends if wait.slices[slice_]
            ):
                return f"row {wait.row} to be released"
        return None

    def stuck(self) -> tuple[int, int, str] | None:
        """A rank, a row that isn't finished, and what it waits for."""
        for rank, states in enumerate(self.states):
            for index in self._open_rows(rank):
                state = states[index]
                if state.done < state.slice_count:
                    return rank, index, f"to receive slice {state.done}, for {self._blocker(rank, state)}"
                for link, first in state.sends:
                    if link.committed < first + state.slice_count:
                        return (
                            rank,
                            index,
                            f"to send slice {link.committed - first}, for credit of rank {link.target}",
                        )
        return None


def _slice_count(row: Row, pattern: Sequence[int]) -> int:
    return sum(pattern[chunk % len(pattern)] for chunk in range(row.chunk_begin, row.chunk_end))


def _slices_needed(row: Row, earlier: Row, pattern: Sequence[int]) -> list[int]:
    """For each slice of ``row``, the first of ``earlier``'s slices that must be done.

    Rows that share bytes of the vector wait slice by slice. Rows that share only a cell hold different
    chunks there, and the later one waits for all of the earlier one.
    """
    earlier_count = _slice_count(earlier, pattern)
    if row.chunk_begin >= earlier.chunk_end or earlier.chunk_begin >= row.chunk_end:
        return [earlier_count] * _slice_count(row, pattern)
    begins: dict[int, int] = {}
    begin = 0
    for chunk in range(earlier.chunk_begin, earlier.chunk_end):
        begins[chunk] = begin
        begin += pattern[chunk % len(pattern)]
    return [
        begins[chunk] + slice_ + 1 if chunk in begins else 0
        for chunk in range(row.chunk_begin, row.chunk_end)
        for slice_ in range(pattern[chunk % len(pattern)])
    ]


def in_rounds(tables: Tables, round_count: int, chunk_count: int, cell_count: int) -> list[list[Row]]:
    """The rows of a plan that runs its schedule over ``round_count`` parts of each chunk, one after another.

    Round k's part of chunk c becomes chunk k * chunk_count + c. Cells of successive rounds alternate; they
    are all that rounds share, and are used again when they have been released. That a round opens only when
    the one two before it is over needs no model: the rounds before it come to their end without it.
    """
    repeated: list[list[Row]] = []
    for rows in tables:
        own = [
            _in_round(row, number, len(rows), chunk_count, cell_count) for number in range(round_count) for row in rows
        ]
        if cell_count:
            for index, row in enumerate(with_after(own)):
                begin = index - index % len(rows)
                reuse = [after for after in row.after if after.row < begin]
                own[index] = replace(own[index], after=(*reuse, *own[index].after))
        repeated.append(own)
    return repeated


def _in_round(row: Row, number: int, row_count: int, chunk_count: int, cell_count: int) -> Row:
    chunks, cells = number * chunk_count, number % 2 * cell_count
    return replace(
        row,
        chunk_begin=row.chunk_begin + chunks,
        chunk_end=row.chunk_end + chunks,
        cell=row.cell + cells if row.buffer is Buffer.SCRATCH else 0,
        operand_cell=row.operand_cell + cells if row.operand is Buffer.SCRATCH else 0,
        after=tuple(After(earlier + number * row_count, kind) for earlier, kind in row.after),
    )


def check_progress(
    tables: Tables,
    window: int,
    pattern: Sequence[int],
    *,
    credits: int = 1,
    pick: Pick | None = None,
) -> int:
    """Run to the end; return how many slices were sent. All sends and receives must be matched.

    pattern: chunk c has ``pattern[c % len(pattern)]`` slices.
    pick: chooses the order of events, which must not matter; tests choose at random.

    Raises:
        HaltError: the run comes to a halt before all rows are finished.
    """
    run = _Run(tables, window, pattern, credits, pick)
    run.run()
    stuck = run.stuck()
    if stuck is not None:
        rank, row, reason = stuck
        raise HaltError(
            f"waits for ever {reason} (window {window}, {credits} credit a link, slices {tuple(pattern)})",
            rank=rank,
            row=row,
            chunk=tables[rank][row].chunk_begin,
        )
    return sum(link.committed for link in run.links.values())
