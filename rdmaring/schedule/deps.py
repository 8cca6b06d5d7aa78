"""The dependencies of a rank's rows, found from the bytes they touch.

A location is one chunk of the vector or one cell of scratch. INPUT and OUTPUT count as one memory, as
they are in an in-place call; for an out-of-place call that asks for a little more order than needed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from rdmaring.schedule.rows import After, Buffer, Kind, Op, Row


def locations(buffer: Buffer, cell: int, chunk_begin: int, chunk_end: int) -> Sequence[int]:
    """What a row touches there: chunks as they are numbered, cell k as -1 - k."""
    if buffer is Buffer.SCRATCH:
        return (-1 - cell,)
    return range(chunk_begin, chunk_end)


def dst_locations(row: Row) -> Sequence[int]:
    return locations(row.buffer, row.cell, row.chunk_begin, row.chunk_end)


def operand_locations(row: Row) -> Sequence[int]:
    if row.operand is None:
        return ()
    return locations(row.operand, row.operand_cell, row.chunk_begin, row.chunk_end)


def with_after(rows: Sequence[Row]) -> tuple[Row, ...]:
    """The rows with ``after`` filled in.

    Each location remembers its last writer and who has read it since. A reader waits for that writer;
    a writer waits for those readers, and for the last writer only if nobody has read since: whoever
    read has itself waited for the writer, on the same bytes, so that order is implied. Chunks that no row cuts apart
    share all this and are one location here: rows of halving have thousands of them.
    """
    cuts = sorted({cut for row in rows for cut in (row.chunk_begin, row.chunk_end)})
    number = {cut: place for place, cut in enumerate(cuts)}

    def touched(row: Row, buffer: Buffer, cell: int) -> Sequence[int]:
        return locations(buffer, cell, number[row.chunk_begin], number[row.chunk_end])

    writer: dict[int, int] = {}
    readers: defaultdict[int, list[int]] = defaultdict(list)  # as operand, since the last write
    senders: defaultdict[int, list[int]] = defaultdict(list)  # of it, since the last write
    done: list[Row] = []
    for index, row in enumerate(rows):
        needs: dict[int, Kind] = {}
        dst = touched(row, row.buffer, row.cell)
        operand = () if row.operand is None else touched(row, row.operand, row.operand_cell)
        for location in dst if row.op is Op.NONE else operand:
            if location in writer:
                needs.setdefault(writer[location], Kind.DONE)
        if row.op is not Op.NONE:
            for location in operand:
                readers[location].append(index)
            for location in dst:
                earlier = [reader for reader in readers[location] if reader != index]
                for reader in earlier:
                    needs.setdefault(reader, Kind.DONE)
                for sender in senders[location]:
                    needs[sender] = Kind.RELEASED  # a sender's dst is done before it is released
                if location in writer and not earlier and not senders[location]:
                    needs.setdefault(writer[location], Kind.DONE)
                writer[location] = index
                readers[location].clear()
                senders[location].clear()
        if row.sends:
            for location in dst:
                senders[location].append(index)
        done.append(replace(row, after=tuple(After(*need) for need in sorted(needs.items()))))
    return tuple(done)
