"""A small machine that runs schedules on real numbers, in an order drawn from a seed.

It is written from the contract of execution alone and shares no code with verify. Every link takes a
mode by chance: slots (bytes are copied when sent), source (the receiver reads the sender's memory when
it consumes), write (the sender writes where the bytes land). A TRANSIT row's store is skipped when all
its sends leave through slots at once.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rdmaring.schedule import After, Buffer, Flag, Kind, Op, Row, Schedule

Vector = npt.NDArray[np.int64]
POST_FACTOR = 3  # the post-operation: LAST multiplies by it
POISON = -(1 << 60)


class Stuck(Exception):
    """Nothing can happen and not all rows are finished."""


@dataclass
class Link:
    mode: str
    queue: deque[Any] = field(default_factory=deque)
    send_order: list[int] = field(default_factory=list)  # rows of the source
    receive_order: list[int] = field(default_factory=list)  # rows of the target


@dataclass
class Progress:
    """How far one row is, in slices."""

    spans: list[tuple[int, int]]  # of the vector
    origin: int  # where the row begins in the vector: offset 0 of a cell
    received: int = 0
    sent: dict[int, int] = field(default_factory=dict)  # by peer
    released: dict[int, int] = field(default_factory=dict)  # by peer

    @property
    def extent(self) -> tuple[int, int]:
        return self.spans[0][0], self.spans[-1][1]

    def finished(self) -> bool:
        return self.received == len(self.spans) and all(n == len(self.spans) for n in self.sent.values())


class Machine:
    """One run of a schedule: ``inputs`` holds a whole vector a rank; of its chunks only some are used."""

    def __init__(
        self,
        schedule: Schedule,
        inputs: Sequence[Vector],
        offsets: Sequence[int],
        *,
        in_place: bool,
        slice_elements: int,
        seed: int,
    ) -> None:
        self.choose = random.Random(seed)
        self.schedule = schedule
        self.credits = self.choose.randint(1, 3)
        self.tables = [schedule.rows(rank) for rank in range(schedule.world)]
        self.inputs = [vector.copy() for vector in inputs]
        self.outputs = self.inputs if in_place else [np.full_like(v, POISON) for v in inputs]
        longest = offsets[-1]
        self.cells = [[np.full(longest, POISON, np.int64) for _ in range(schedule.scratch_cells)] for _ in inputs]
        self.base = [0] * schedule.world
        self.links: dict[tuple[int, int], Link] = {}
        self.progress = [
            [self._prepare(rank, index, row, offsets, slice_elements) for index, row in enumerate(rows)]
            for rank, rows in enumerate(self.tables)
        ]

    def _prepare(self, rank: int, index: int, row: Row, offsets: Sequence[int], size: int) -> Progress:
        spans = [
            (begin, min(begin + size, offsets[chunk + 1]))
            for chunk in range(row.chunk_begin, row.chunk_end)
            for begin in range(offsets[chunk], offsets[chunk + 1], size)
        ]
        for receive in row.receives:
            self._link(receive.peer, rank).receive_order.append(index)
        for send in row.sends:
            self._link(rank, send.peer).send_order.append(index)
        zeros = {send.peer: 0 for send in row.sends}
        return Progress(spans, offsets[row.chunk_begin], 0, dict(zeros), dict(zeros))

    def _link(self, source: int, target: int) -> Link:
        mode = self.choose.choice(("slot", "source", "write"))
        return self.links.setdefault((source, target), Link(mode))

    def run(self) -> list[Vector]:
        self._retire()  # rows of empty chunks
        while any(base < len(rows) for base, rows in zip(self.base, self.tables, strict=True)):
            events = [(rank, index, step) for rank, index in self._open() for step in ("receive", "send")]
            self.choose.shuffle(events)
            favourite = self.choose.randrange(self.schedule.world)
            if self.choose.random() < 0.5:  # let one rank run ahead, or starve it
                ahead = self.choose.random() < 0.5
                events.sort(key=lambda event: (event[0] == favourite) != ahead)
            if not any(
                self._receive(rank, index) if step == "receive" else self._send(rank, index)
                for rank, index, step in events
            ):
                raise Stuck(f"{events}")
            self._retire()
        return self.outputs

    def _open(self) -> list[tuple[int, int]]:
        return [
            (rank, index)
            for rank, rows in enumerate(self.tables)
            for index in range(self.base[rank], min(self.base[rank] + self.schedule.window, len(rows)))
        ]

    def _retire(self) -> None:
        for rank, states in enumerate(self.progress):
            while self.base[rank] < len(states) and states[self.base[rank]].finished():
                self.base[rank] += 1

    def _view(self, rank: int, buffer: Buffer, cell: int, row: int, slice_: int) -> Vector:
        state = self.progress[rank][row]
        begin, end = state.spans[slice_]
        if buffer is Buffer.SCRATCH:
            return self.cells[rank][cell][begin - state.origin : end - state.origin]
        return (self.inputs if buffer is Buffer.INPUT else self.outputs)[rank][begin:end]

    def _turn(self, link: Link, rank: int, index: int, *, sending: bool) -> bool:
        """Is this row the first with slices left on the link? First in, first out."""
        for other in link.send_order if sending else link.receive_order:
            if other == index:
                return True
            state = self.progress[rank][other]
            counts = [state.sent[peer] for peer in state.sent if self.links[rank, peer] is link]
            if (counts[0] if sending else state.received) < len(state.spans):
                return False
        raise AssertionError("the row is not on the link")

    def _after_met(self, rank: int, index: int, slice_: int) -> bool:
        """Bytes of the vector that both rows touch, or the whole row if they share only a cell."""
        begin, end = self.progress[rank][index].spans[slice_]
        for after in self._needs(rank, index, self.tables[rank][index].cell):
            earlier = self.progress[rank][after.row]
            whole = not self._meet(self.progress[rank][index].extent, earlier.extent)
            for number, span in enumerate(earlier.spans):
                if not whole and not self._meet(span, (begin, end)):
                    continue
                if earlier.received <= number:
                    return False
                if after.kind is Kind.RELEASED and any(n <= number for n in earlier.released.values()):
                    return False
        return True

    def _needs(self, rank: int, index: int, cell: int) -> list[After]:
        """What a row comes after; of an empty one whose cell it takes over, what that came after."""
        row, found = self.tables[rank][index], []
        for after in row.after:
            earlier = self.tables[rank][after.row]
            if self.progress[rank][after.row].spans:
                found.append(after)
            elif cell in earlier.cells:
                found += self._needs(rank, after.row, cell)
        return found

    @staticmethod
    def _meet(one: tuple[int, int], other: tuple[int, int]) -> bool:
        return one[0] < other[1] and other[0] < one[1]

    def _receive(self, rank: int, index: int) -> bool:
        row, state = self.tables[rank][index], self.progress[rank][index]
        slice_ = state.received
        if slice_ == len(state.spans) or not self._after_met(rank, index, slice_):
            return False
        for receive in row.receives:
            link = self.links[receive.peer, rank]
            if not self._turn(link, rank, index, sending=False) or not link.queue:
                return False
        if row.op is not Op.NONE:
            sources = [self.links[receive.peer, rank].queue[0][0] for receive in row.receives]
            if row.operand is not None:
                own = self._view(rank, row.operand, row.operand_cell, index, slice_)
                sources.insert(row.operand_at, own)
            value: Vector = np.array(sources, np.int64).sum(axis=0)
            if Flag.LAST in row.flags:
                value *= POST_FACTOR
            if Flag.TRANSIT not in row.flags or not self._fuse(rank, index, value):
                self._view(rank, row.buffer, row.cell, index, slice_)[:] = value
        state.received += 1
        for receive in row.receives:
            _, sender = self.links[receive.peer, rank].queue.popleft()
            if sender is not None:
                self.progress[receive.peer][sender].released[rank] += 1
        return True

    def _fuse(self, rank: int, index: int, value: Vector) -> bool:
        """Send the slice that is being received through slots at once, if all sends can."""
        state = self.progress[rank][index]
        for peer, sent in state.sent.items():
            link = self.links[rank, peer]
            ready = link.mode == "slot" and sent == state.received and len(link.queue) < self.credits
            if not ready or not self._turn(link, rank, index, sending=True):
                return False
        for peer in state.sent:
            self._commit(rank, index, peer, value.copy(), None)
        return True

    def _send(self, rank: int, index: int) -> bool:
        row, state = self.tables[rank][index], self.progress[rank][index]
        for send in self.choose.sample(row.sends, len(row.sends)):
            link, slice_ = self.links[rank, send.peer], state.sent[send.peer]
            if slice_ >= state.received or len(link.queue) >= self.credits:
                continue
            if not self._turn(link, rank, index, sending=True):
                continue
            payload = self._view(rank, row.buffer, row.cell, index, slice_)
            if link.mode == "write" and send.lands is not None:
                begin, end = state.spans[slice_]
                landing = self.outputs[send.peer][begin:end]
                landing[:] = payload
                self._commit(rank, index, send.peer, landing, None)
            elif link.mode == "slot":
                self._commit(rank, index, send.peer, payload.copy(), None)
            else:
                self._commit(rank, index, send.peer, payload, index)
            return True
        return False

    def _commit(self, rank: int, index: int, peer: int, payload: Vector, reader_of: int | None) -> None:
        state = self.progress[rank][index]
        state.sent[peer] += 1
        if reader_of is None:
            state.released[peer] += 1
        self.links[rank, peer].queue.append((payload, reader_of))
