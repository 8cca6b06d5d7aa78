"""One rank's rows: does every row touch only what exists, and are all conflicting accesses ordered?

Two rows conflict at a location (a chunk of the vector, or a cell) if both touch it and one writes it.
``after`` must order every such pair, by itself or through other rows that touch the same location: then
any execution that obeys ``after`` gives what row order gives. The dependencies are not taken from
``deps``; they are checked against the accesses.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from rdmaring.schedule.collectives import Collective
from rdmaring.schedule.rows import Buffer, Flag, Kind, Op, Row, ScheduleError

# A location: (buffer, chunk or cell). If the call is in place, INPUT is called OUTPUT.
_Location = tuple[Buffer, int]


@dataclass(slots=True)
class _Uses:
    """The rows so far that touch one location, as bits of their index."""

    written: int = 0
    read: int = 0  # as operand
    sent: int = 0
    last_writer: int | None = None


@dataclass(slots=True)
class _Order:
    """For one location: which rows each row that touches it comes after."""

    done: dict[int, int] = field(default_factory=dict)
    released: dict[int, int] = field(default_factory=dict)


def check_rank(
    rows: Sequence[Row],
    rank: int,
    collective: Collective,
    chunk_count: int,
    root: int | None,
    *,
    in_place: bool,
) -> None:
    """Raise ScheduleError unless rows touch only what exists on ``rank`` and no accesses race.

    in_place: INPUT and OUTPUT are one memory. What is safe so is safe out of place, too, as the input
    is never written by name.
    """
    _check_existence(rows, rank, collective, chunk_count, root)
    uses: defaultdict[_Location, _Uses] = defaultdict(_Uses)
    orders: defaultdict[_Location, _Order] = defaultdict(_Order)
    transit: dict[_Location, int] = {}  # rows whose dst may be missing, until it is written again
    for index, row in enumerate(rows):
        dst = _locations(row.buffer, row.cell, row, in_place)
        operand = [] if row.operand is None else _locations(row.operand, row.operand_cell, row, in_place)
        for location in {*dst, *operand}:
            _extend_order(orders[location], index, row)
        reads = dst if row.op is Op.NONE else operand
        for location in reads:
            _check_read(uses[location], orders[location], index, rows, rank, location)
            if location in transit:
                raise ScheduleError(
                    f"reads {_name(location)}, which row {transit[location]} need not store (TRANSIT)",
                    rank=rank,
                    row=index,
                    chunk=row.chunk_begin,
                )
        if row.op is not Op.NONE:
            for location in operand:
                uses[location].read |= 1 << index
            for location in dst:
                _check_write(uses[location], orders[location], index, rows, rank, location)
                uses[location].written |= 1 << index
                uses[location].last_writer = index
                transit.pop(location, None)
                if Flag.TRANSIT in row.flags:
                    transit[location] = index
        if row.sends:
            for location in dst:
                uses[location].sent |= 1 << index
    for (buffer, chunk), index in transit.items():
        if buffer is Buffer.OUTPUT:
            raise ScheduleError("is TRANSIT, but leaves the result there", rank=rank, row=index, chunk=chunk)


def _name(location: _Location) -> str:
    buffer, number = location
    return f"{buffer.name} {'cell' if buffer is Buffer.SCRATCH else 'chunk'} {number}"


def _locations(buffer: Buffer, cell: int, row: Row, in_place: bool) -> list[_Location]:
    if buffer is Buffer.SCRATCH:
        return [(buffer, cell)]
    memory = Buffer.OUTPUT if in_place else buffer
    return [(memory, chunk) for chunk in range(row.chunk_begin, row.chunk_end)]


def _check_existence(
    rows: Sequence[Row], rank: int, collective: Collective, chunk_count: int, root: int | None
) -> None:
    exists = {
        Buffer.INPUT: collective.input_chunks(rank, chunk_count, root),
        Buffer.OUTPUT: collective.output_chunks(rank, chunk_count, root),
    }
    for index, row in enumerate(rows):
        for buffer in (row.buffer, row.operand):
            if buffer is None or buffer is Buffer.SCRATCH:
                continue
            held = exists[buffer]
            for chunk in range(row.chunk_begin, row.chunk_end):
                if chunk not in held:
                    raise ScheduleError(
                        f"uses a chunk of {buffer.name} that this rank does not have in a {collective.name}",
                        rank=rank,
                        row=index,
                        chunk=chunk,
                    )


def _extend_order(order: _Order, index: int, row: Row) -> None:
    """Paths that stay on rows of this location: only those speak of the same bytes."""
    done = released = 0
    for earlier, kind in row.after:
        if earlier in order.done:
            done |= 1 << earlier | order.done[earlier]
            released |= order.released[earlier] | (1 << earlier if kind is Kind.RELEASED else 0)
    order.done[index] = done
    order.released[index] = released


def _race(what: str, others: int, index: int, rows: Sequence[Row], rank: int) -> ScheduleError:
    """The error for the first of the rows in the bits ``others``."""
    other = (others & -others).bit_length() - 1
    return ScheduleError(f"{what} row {other}", rank=rank, row=index, chunk=rows[index].chunk_begin)


def _check_read(uses: _Uses, order: _Order, index: int, rows: Sequence[Row], rank: int, location: _Location) -> None:
    missing = uses.written & ~order.done[index]
    if missing:
        raise _race(f"reads {_name(location)} without being after its writer,", missing, index, rows, rank)
    if location[0] is not Buffer.SCRATCH:
        return
    row = rows[index]
    writer = None if uses.last_writer is None else rows[uses.last_writer]
    if writer is None or writer.chunk_begin != row.chunk_begin or writer.chunk_end < row.chunk_end:
        held = "nothing" if writer is None else f"chunks {writer.chunk_begin}..{writer.chunk_end}"
        raise ScheduleError(f"reads {_name(location)}, which holds {held}", rank=rank, row=index, chunk=row.chunk_begin)


def _check_write(uses: _Uses, order: _Order, index: int, rows: Sequence[Row], rank: int, location: _Location) -> None:
    this = 1 << index  # its own operand is read before dst is written
    missing = (uses.written | uses.read) & ~order.done[index] & ~this
    if missing:
        raise _race(f"writes {_name(location)} without being after its user,", missing, index, rows, rank)
    missing = uses.sent & ~order.released[index]
    if missing:
        raise _race(
            f"writes {_name(location)}, whose bytes may not yet be released by the receivers of",
            missing,
            index,
            rows,
            rank,
        )
