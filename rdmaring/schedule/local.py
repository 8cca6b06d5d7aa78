"""The row that needs no peer: a rank's own input goes to its output."""

from __future__ import annotations

from rdmaring.schedule.rows import Buffer, Flag, Op, Row, Send


def local_copy(chunk_count: int, flags: Flag, sends: tuple[Send, ...] = ()) -> list[Row]:
    """INPUT to OUTPUT, all chunks, then on to ``sends``. In place it moves nothing on this rank."""
    return [
        Row(
            0,
            Buffer.OUTPUT,
            0,
            chunk_count,
            Op.COPY,
            operand=Buffer.INPUT,
            sends=sends,
            flags=Flag.FIRST | flags,
        )
    ]
