"""Rows and schedules: who sends which chunk to whom, as plain data.

A schedule is one table of rows for each rank. A row names one destination, the sources it is made
of and where it is sent::

    dst(buffer, chunks) = op(local operand?, receives... in the stated order), then sends of dst

It says nothing of bytes or addresses: the vector is cut into ``chunk_count`` chunks when the schedule
is bound. Pure data; nothing here moves anything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from fractions import Fraction
from itertools import accumulate
from typing import NamedTuple

WORLD_MAX = 1 << 20  # ranks; bounds what a file may claim before it is believed
CHUNKS_MAX = 1 << 20  # likewise; the ring has as many chunks as ranks
CHANNELS_MAX = 16  # likewise; native/src/wire.h
CELLS_MAX = 1 << 24  # likewise; native/src/rows.h
NUMBER_MAX = (1 << 31) - 1  # likewise; of any number that a row holds
SOURCES_MAX = 64  # vectors that one row adds, at most; native/src/reduce.h
WINDOW_MIN = 2  # rows open at once: with one, a row that waits to send would stop the row that it waits for


class ScheduleError(ValueError):
    """A schedule is wrong: ``rank``, ``row`` and ``chunk`` say where (None: does not apply)."""

    def __init__(
        self, message: str, *, rank: int | None = None, row: int | None = None, chunk: int | None = None
    ) -> None:
        place = (("rank", rank), ("row", row), ("chunk", chunk))
        where = " ".join(f"{name} {value}" for name, value in place if value is not None)
        super().__init__(f"{where}: {message}" if where else message)
        self.rank = rank
        self.row = row
        self.chunk = chunk


class Buffer(IntEnum):
    """Where bytes live. INPUT and OUTPUT are the same memory if the call is in place."""

    INPUT = 0
    OUTPUT = 1
    SCRATCH = 2  # cells: each as large as the largest row that uses it


class Op(IntEnum):
    """How a row makes its dst."""

    NONE = 0  # not at all: dst is sent as it is
    COPY = 1  # from its one source
    REDUCE = 2  # from two or more sources, combined in order


class Flag(IntFlag):
    """What else is true of a row."""

    FIRST = 1  # the operand is the user's INPUT
    LAST = 2  # the post-operation (scale, avg) applies to dst here
    TRANSIT = 4  # dst is read by nothing but this row's own sends: a fused send may skip its store
    WIDE = 8  # dst, and what is sent of it, is float32, though the vector is of 16-bit floats
    TAKES_WIDE = 16  # what is received is float32


class Kind(IntEnum):
    """What a row waits for, in an earlier row of its rank and on the bytes that both touch."""

    DONE = 0  # the earlier row's dst is complete, its operand read
    RELEASED = 1  # DONE, and the receivers have released what the earlier row sent


class Receive(NamedTuple):
    """One incoming edge of a row: the next unreceived send of ``peer`` to this rank."""

    peer: int
    source: Buffer  # the buffer that the peer's row sends from


class Send(NamedTuple):
    """One outgoing edge of a row: its dst goes to ``peer``."""

    peer: int
    lands: Buffer | None  # the peer's dst if its row only copies this send there: it may be written directly


class After(NamedTuple):
    """A dependency on an earlier row of the same rank."""

    row: int
    kind: Kind


NO_FLAGS = Flag(0)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a rank's table."""

    step: int  # of its receives; without receives, of its sends
    buffer: Buffer
    chunk_begin: int
    chunk_end: int
    op: Op
    cell: int = 0  # of dst in SCRATCH, else 0
    operand: Buffer | None = None
    operand_cell: int = 0
    operand_at: int = 0  # the operand's place among the sources
    receives: tuple[Receive, ...] = ()
    sends: tuple[Send, ...] = ()
    flags: Flag = NO_FLAGS
    after: tuple[After, ...] = ()
    channel: int = 0  # which of the links to each peer

    @property
    def source_count(self) -> int:
        return len(self.receives) + (self.operand is not None)

    @property
    def cells(self) -> frozenset[int]:
        """The cells of scratch that the row touches."""
        dst = {self.cell} if self.buffer is Buffer.SCRATCH else set()
        return frozenset(dst | ({self.operand_cell} if self.operand is Buffer.SCRATCH else set()))

    @property
    def width(self) -> int:
        """How many times the bytes of the vector's dtype an element has where it is sent."""
        return 2 if Flag.WIDE in self.flags else 1

    @property
    def send_step(self) -> int:
        """The step in which dst travels: what was received in one step can be sent in the next."""
        return self.step + 1 if self.receives else self.step


@dataclass(frozen=True, slots=True)
class Recipe:
    """What an algorithm states for one collective and world; rows come without dependencies."""

    chunk_count: int
    step_count: int
    window: int  # rows open at once that suffice for progress with one credit a link
    scratch_cells: int
    rows: Callable[[int], Sequence[Row]]  # of one rank
    sent: Callable[[int], Fraction]  # by one rank, as a fraction of the vector
    weights: tuple[int, ...] | None = None  # how long the chunks are, relative to each other; None: all alike


@dataclass(frozen=True)
class Schedule:
    """All ranks' rows for one collective and algorithm, made one rank at a time.

    ``identity`` is a 64-bit number that equal schedules share; ranks compare it before they run. ``weights`` say
    how long the algorithm wants its chunks, relative to each other (None: all alike); it is right with any others, too,
    so files do not keep them.
    """

    collective: str
    algorithm: str
    world: int
    root: int | None
    chunk_count: int
    step_count: int
    window: int
    scratch_cells: int
    identity: int
    make_rows: Callable[[int], tuple[Row, ...]] = field(repr=False, compare=False)
    make_sent: Callable[[int], Fraction] = field(repr=False, compare=False)
    weights: tuple[int, ...] | None = field(default=None, repr=False, compare=False)
    _cache: dict[int, tuple[Row, ...]] = field(default_factory=dict, repr=False, compare=False)

    def rows(self, rank: int) -> tuple[Row, ...]:
        """The table of one rank; the others' are not made."""
        if not 0 <= rank < self.world:
            raise ScheduleError(f"rank must be in 0..{self.world - 1}, not {rank}")
        if rank not in self._cache:
            self._cache[rank] = self.make_rows(rank)
        return self._cache[rank]

    def sent(self, rank: int) -> Fraction:
        """What the algorithm says ``rank`` sends, as a fraction of the vector in chunks by ``weights``."""
        return self.make_sent(rank)


def identity_of(text: str | bytes) -> int:
    """64 bits of SHA-256, so that different schedules practically never share an identity."""
    data = text.encode() if isinstance(text, str) else text
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "little")


def sent_by_rows(rows: Sequence[Row], chunk_count: int, weights: Sequence[int] | None = None) -> Fraction:
    """What the rows of one rank send, as a fraction of the vector in chunks by ``weights``; None: equal ones.

    float32 of a WIDE row counts twice.
    """
    begins = chunk_begins(chunk_count, weights)
    sent = sum((begins[row.chunk_end] - begins[row.chunk_begin]) * len(row.sends) * row.width for row in rows)
    return Fraction(sent, begins[-1])


def chunk_begins(chunk_count: int, weights: Sequence[int] | None) -> Sequence[int]:
    """Where chunks begin, and the last one ends, in units of ``weights``."""
    return range(chunk_count + 1) if weights is None else [0, *accumulate(weights)]
