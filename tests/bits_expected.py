"""What a reduction must give, bit by bit, as docs/NUMBERS.md says: the rows of a schedule in numpy's arithmetic.

Rows are executed element by element of the vector, in any order that they allow; no slices, links or memory of the
library take part. Of the library's code only the rows and the order among them are used, which the proof stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from rdmaring.schedule import Buffer, Flag, Op, Row, Schedule
from rdmaring.schedule.dataflow import _sorted_graph, chunk_nodes
from rdmaring.schedule.links import Node, match

Array = np.ndarray[Any, Any]
Give = Callable[[int, int, int], Array]  # of a rank's input the elements begin..end, in the vector's coordinates

HALVES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
BLOCK = 1 << 15  # elements at once: they stay in the cache


def is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or dtype in HALVES


@dataclass(frozen=True)
class Arithmetic:
    """One operation on one dtype: combined in order, 16-bit floats in float32, rounded once where a row ends."""

    dtype: np.dtype[Any]
    op: str
    factor: float = 1.0  # of the post-operation

    @property
    def within(self) -> np.dtype[Any]:
        return np.dtype(np.float32) if self.dtype in HALVES else self.dtype

    def row(self, row: Row, sources: Sequence[Array]) -> Array:
        factor = self.factor if Flag.LAST in row.flags else 1.0
        if len(sources) == 1 and factor == 1.0:
            return sources[0]  # a copy: all bits are kept
        with np.errstate(all="ignore"):
            total = sources[0].astype(self.within)
            for source in sources[1:]:
                total = self.two(total, source.astype(self.within))
            if factor != 1.0:
                total = total * self.within.type(factor)
            return total if Flag.WIDE in row.flags else total.astype(self.dtype)

    def two(self, earlier: Array, later: Array) -> Array:
        if self.op == "prod":
            return earlier * later
        if self.op == "min":  # of equal ones, such as the two zeros, the earlier stays
            return np.where(earlier <= later, earlier, later)
        if self.op == "max":
            return np.where(earlier >= later, earlier, later)
        return earlier + later


class Expected:
    """The results of a schedule, chunk by chunk."""

    def __init__(self, schedule: Schedule, offsets: Sequence[int], arithmetic: Arithmetic) -> None:
        self.schedule, self.offsets, self.arithmetic = schedule, offsets, arithmetic
        self.tables = [schedule.rows(rank) for rank in range(schedule.world)]
        self.matching = match(self.tables)
        self.nodes = chunk_nodes(self.tables, schedule.chunk_count)

    def of_chunk(self, rank: int, chunk: int, give: Give) -> Iterator[tuple[int, int, Array]]:
        """What ``rank`` must find in OUTPUT, in pieces: begin, end, elements."""
        order = _sorted_graph(self.tables, self.matching, chunk, self.nodes[chunk]).nodes
        last = self.offsets[chunk + 1]
        for begin in range(self.offsets[chunk], last, BLOCK):
            end = min(last, begin + BLOCK)
            yield begin, end, self._executed(order, rank, give, begin, end)

    def _executed(self, order: Sequence[Node], rank: int, give: Give, begin: int, end: int) -> Array:
        memory: dict[tuple[int, Buffer, int], Array] = {}
        sent: dict[Node, Array] = {}
        for node in order:
            row = self.tables[node.rank][node.row]

            def load(buffer: Buffer, cell: int, at: int = node.rank) -> Array:
                return give(at, begin, end) if buffer is Buffer.INPUT else memory[at, buffer, cell]

            if row.op is Op.NONE:
                sent[node] = load(row.buffer, row.cell)
                continue
            sources = [sent[self.matching.sender[node, receive.peer]] for receive in row.receives]
            if row.operand is not None:
                sources.insert(row.operand_at, load(row.operand, row.operand_cell))
            sent[node] = memory[node.rank, row.buffer, row.cell] = self.arithmetic.row(row, sources)
        return memory[rank, Buffer.OUTPUT, 0]


def unlike(got: Array, want: Array, *, computed: bool) -> Array:
    """The places whose bits differ; of what was computed any NaN serves where one is due."""
    size = f"u{got.dtype.itemsize}"
    places = np.flatnonzero(got.view(size) != want.view(size))
    if not places.size or not computed or not is_float(got.dtype):
        return places
    with np.errstate(all="ignore"):
        return places[~(np.isnan(got[places]) & np.isnan(want[places]))]
