"""What must hold of one row by itself, whoever wrote it: generators, files, or users."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rdmaring.schedule.rows import Buffer, Flag, Kind, Op, Row, ScheduleError


def check_row(
    row: Row, earlier: Sequence[Row], *, rank: int, world: int, chunk_count: int, step_count: int, cells: int
) -> None:
    """Raise ScheduleError unless the row is well formed.

    earlier: the rows before it in the same table, which its ``after`` may name.
    """
    index = len(earlier)

    def demand(holds: bool, message: str) -> None:
        if not holds:
            raise ScheduleError(message, rank=rank, row=index, chunk=row.chunk_begin)

    demand(
        0 <= row.chunk_begin < row.chunk_end <= chunk_count,
        f"chunks {row.chunk_begin}..{row.chunk_end} must be a part of 0..{chunk_count}, not empty",
    )
    demand(0 <= row.step < max(step_count, 1), f"step {row.step} of {step_count}")
    for name, buffer, cell in (
        ("cell", row.buffer, row.cell),
        ("operand cell", row.operand, row.operand_cell),
    ):
        if buffer is Buffer.SCRATCH:
            demand(0 <= cell < cells, f"{name} {cell} of {cells}")
        else:
            demand(cell == 0, f"{name} must be 0 outside of scratch, not {cell}")
    _check_op(row, demand)
    for name, peers in (
        ("receives from", [receive.peer for receive in row.receives]),
        ("sends to", [send.peer for send in row.sends]),
    ):
        for peer in peers:
            demand(0 <= peer < world and peer != rank, f"{name} rank {peer}, of {world}")
        demand(len(set(peers)) == len(peers), f"{name} a rank twice: {peers}")
    demand(all(send.lands is not Buffer.INPUT for send in row.sends), "a send lands in an input")
    named = [after.row for after in row.after]
    demand(all(0 <= other < index for other in named), f"is after rows {named}, which must come before it")
    demand(named == sorted(set(named)), f"after must name each row once, ascending: {named}")
    for after in row.after:
        demand(
            after.kind is Kind.DONE or bool(earlier[after.row].sends),
            f"waits for row {after.row} to be released, which sends nothing",
        )


def _check_op(row: Row, demand: Callable[[bool, str], None]) -> None:
    """The op, its sources and its flags fit together."""
    sources = row.source_count
    if row.op is Op.NONE:
        demand(sources == 0, f"has {sources} sources but no operation")
        demand(bool(row.sends), "does nothing: no operation, no sends")
        demand(not row.flags, f"has no operation, so no flags: {row.flags!r}")
    else:
        demand(row.buffer is not Buffer.INPUT, "writes the input")
        wanted = "one source" if row.op is Op.COPY else "two or more sources"
        demand(
            (sources == 1) == (row.op is Op.COPY) and sources > 0,
            f"{row.op.name} needs {wanted}, has {sources}",
        )
    if row.operand is None:
        demand(row.operand_at == 0, f"has no operand, so operand_at must be 0, not {row.operand_at}")
    else:
        demand(
            0 <= row.operand_at <= len(row.receives),
            f"operand_at {row.operand_at} with {len(row.receives)} receives",
        )
    demand(
        (Flag.FIRST in row.flags) == (row.operand is Buffer.INPUT),
        "FIRST must say whether the operand is the input",
    )
    demand(Flag.TRANSIT not in row.flags or bool(row.sends), "is TRANSIT but sends nothing")
