"""What must hold of one row by itself, whoever wrote it: generators, files, or users."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from numbers import Integral
from typing import Any

from rdmaring.schedule.rows import (
    CHANNELS_MAX,
    NUMBER_MAX,
    After,
    Buffer,
    Flag,
    Kind,
    Op,
    Receive,
    Row,
    ScheduleError,
    Send,
)

_FLAGS = sum(Flag)


def check_row(
    row: Row,
    earlier: Sequence[Row],
    *,
    rank: int,
    world: int,
    chunk_count: int,
    step_count: int,
    cells: int,
) -> None:
    """Raise ScheduleError unless the row is well formed.

    earlier: the rows before it in the same table, which its ``after`` may name.
    """
    fault = (
        fields_fault(row)
        or _place_fault(row, chunk_count, step_count, cells)
        or _op_fault(row)
        or _peer_fault("receives from", [receive.peer for receive in row.receives], rank, world)
        or _peer_fault("sends to", [send.peer for send in row.sends], rank, world)
        or _after_fault(row, earlier)
        or _channel_fault(row)
    )
    if fault:
        raise ScheduleError(fault, rank=rank, row=len(earlier), chunk=row.chunk_begin)


def fields_fault(row: Row) -> str | None:
    """What is no field of a row at all: of another type, or a number that a file cannot hold.

    The proof tells buffers and operations by what they are, the engine by their numbers: so their types must be right.
    """
    for name, given, kind in _fields(row):
        if kind is int:
            if not isinstance(given, (int, Integral)) or not -NUMBER_MAX <= int(given) <= NUMBER_MAX:
                return f"{name} must be an integer of 32 bits, not {given!r}"
        elif not isinstance(given, kind):
            return f"{name} must be a {kind.__name__}, not {given!r}"
    return f"flags {row.flags:#x} are unknown" if row.flags & ~_FLAGS else None


def _fields(row: Row) -> Iterator[tuple[str, Any, type]]:
    """Each field, and those of its receives, sends and afters, with the type that it must have."""
    yield "step", row.step, int
    yield "buffer", row.buffer, Buffer
    yield "chunk_begin", row.chunk_begin, int
    yield "chunk_end", row.chunk_end, int
    yield "op", row.op, Op
    yield "cell", row.cell, int
    if row.operand is not None:
        yield "operand", row.operand, Buffer
    yield "operand_cell", row.operand_cell, int
    yield "operand_at", row.operand_at, int
    yield "flags", row.flags, Flag
    yield "channel", row.channel, int
    for name, entries in (("receives", row.receives), ("sends", row.sends), ("after", row.after)):
        yield name, entries, tuple
    for receive in row.receives:
        yield "an entry of receives", receive, Receive
        yield "the peer of a receive", receive.peer, int
        yield "the source of a receive", receive.source, Buffer
    for send in row.sends:
        yield "an entry of sends", send, Send
        yield "the peer of a send", send.peer, int
        if send.lands is not None:
            yield "lands of a send", send.lands, Buffer
    for after in row.after:
        yield "an entry of after", after, After
        yield "the row of an after", after.row, int
        yield "the kind of an after", after.kind, Kind


def _place_fault(row: Row, chunk_count: int, step_count: int, cells: int) -> str | None:
    if not 0 <= row.chunk_begin < row.chunk_end <= chunk_count:
        return f"chunks {row.chunk_begin}..{row.chunk_end} must be a part of 0..{chunk_count}, not empty"
    local = not row.receives and not row.sends  # such a row may follow the last step
    if not 0 <= row.step < step_count + local:
        return f"step {row.step} of {step_count}"
    for name, buffer, cell in (
        ("cell", row.buffer, row.cell),
        ("operand cell", row.operand, row.operand_cell),
    ):
        if buffer is Buffer.SCRATCH:
            if not 0 <= cell < cells:
                return f"{name} {cell} of {cells}"
        elif cell != 0:
            return f"{name} must be 0 outside of scratch, not {cell}"
    return None


def _op_fault(row: Row) -> str | None:
    """Op, sources and flags must fit together."""
    sources = row.source_count
    if row.op is Op.NONE:
        if sources or row.flags:
            return f"has no operation, so no sources ({sources}) and no flags ({row.flags!r})"
        if not row.sends:
            return "does nothing: no operation, no sends"
    elif row.buffer is Buffer.INPUT:
        return "writes the input"
    elif row.op is Op.COPY and sources != 1:
        return f"COPY needs one source, has {sources}"
    elif row.op is Op.REDUCE and sources < 2:
        return f"REDUCE needs two or more sources, has {sources}"
    if not 0 <= row.operand_at <= (0 if row.operand is None else len(row.receives)):
        return f"operand_at {row.operand_at} with {len(row.receives)} receives, operand {row.operand!r}"
    if (Flag.FIRST in row.flags) != (row.operand is Buffer.INPUT):
        return "FIRST must say whether the operand is the input"
    if Flag.TRANSIT in row.flags and not row.sends:
        return "is TRANSIT but sends nothing"
    if any(send.lands is Buffer.INPUT for send in row.sends):
        return "a send lands in an input"
    return _width_fault(row)


def _width_fault(row: Row) -> str | None:
    """Partial sums of 16-bit floats may travel, and lie in scratch, as float32; nothing else may."""
    wide, takes_wide = Flag.WIDE in row.flags, Flag.TAKES_WIDE in row.flags
    if not wide and not takes_wide:
        return None
    if row.op is not Op.REDUCE:
        return f"is float32 in part ({row.flags!r}), so it must be a REDUCE, not {row.op.name}"
    if wide and row.buffer is not Buffer.SCRATCH:
        return f"is WIDE, so its dst must be in SCRATCH, not {row.buffer.name}"
    if row.operand is Buffer.SCRATCH:
        return f"is float32 in part ({row.flags!r}), so its operand must be in INPUT or OUTPUT, not SCRATCH"
    return None


def _peer_fault(what: str, peers: Sequence[int], rank: int, world: int) -> str | None:
    for peer in peers:
        if not 0 <= peer < world or peer == rank:
            return f"{what} rank {peer}, in a world of {world}"
    return f"{what} a rank twice: {list(peers)}" if len(set(peers)) != len(peers) else None


def _channel_fault(row: Row) -> str | None:
    return None if 0 <= row.channel < CHANNELS_MAX else f"channel must be in 0..{CHANNELS_MAX - 1}, not {row.channel}"


def _after_fault(row: Row, earlier: Sequence[Row]) -> str | None:
    before = -1
    for other, kind in row.after:
        if not before < other < len(earlier):
            return f"after must name earlier rows, each once, ascending: {[after.row for after in row.after]}"
        if kind is Kind.RELEASED and not earlier[other].sends:
            return f"waits for row {other} to be released, which sends nothing"
        before = other
    return None
