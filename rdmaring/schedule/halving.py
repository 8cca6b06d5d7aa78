"""Recursive halving: a rank sums half as many chunks after each step; all-reduce then doubles them again.

Rabenseifner's all-reduce (ICCS 2004), for any number of ranks: logarithmic steps and no more bytes than a ring. What
is summed is as in ``exchange``; every step adds what arrives to the own partial sums, one row a range of chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from rdmaring.schedule.doubling import WINDOW, by_turns, first_sends, gather_rows
from rdmaring.schedule.exchange import Exchange, Part, exchanges, step_count
from rdmaring.schedule.local import local_copy
from rdmaring.schedule.rows import NO_FLAGS, Buffer, Flag, Op, Receive, Recipe, Row, Send


def _sum_rows(steps: Sequence[Exchange], final_sends: tuple[Send, ...]) -> Iterator[Row]:
    """Reduce-scatter with partial sums in OUTPUT; the chunk that is left goes to ``final_sends``."""
    final = len(steps) - 1
    for step, exchange in enumerate(steps):
        sends = [
            Row(step, _buffer(part), part.begin, part.end, Op.NONE, sends=(Send(exchange.target, None),))
            for part in exchange.outgoing
        ]
        receives = [
            Row(
                step,
                Buffer.OUTPUT,
                part.begin,
                part.end,
                Op.REDUCE,
                operand=Buffer.OUTPUT if step else Buffer.INPUT,
                operand_at=1,
                receives=(Receive(exchange.source, _buffer(part)),),
                sends=final_sends if step == final else (),
                flags=(NO_FLAGS if step else Flag.FIRST) | (Flag.LAST if step == final else NO_FLAGS),
            )
            for part in exchange.incoming
        ]
        yield from by_turns(sends, receives)


def _buffer(part: Part, partial: Buffer = Buffer.OUTPUT) -> Buffer:
    return Buffer.INPUT if part.raw else partial


def all_reduce(world: int, root: int | None) -> Recipe:
    """2 ceil(log2 N) steps, 2(N - 1)/N of the vector sent by every rank."""

    def rows(rank: int) -> list[Row]:
        if world == 1:
            return local_copy(1, Flag.LAST)
        steps = exchanges(rank, world, near_first=True)
        return [*_sum_rows(steps, first_sends(steps)), *gather_rows(steps, len(steps))]

    return Recipe(world, 2 * step_count(world), WINDOW, 0, rows, lambda _: Fraction(2 * (world - 1), world))


def _cell_rows(rank: int, world: int) -> Iterator[Row]:
    """Reduce-scatter with partial sums in SCRATCH, a cell a chunk: so a row has one chunk, which is a cell's unit."""
    steps = exchanges(rank, world)
    kept = [chunk for part in steps[0].incoming for chunk in range(part.begin, part.end)]
    cells = {chunk: cell for cell, chunk in enumerate(kept)}
    for step, exchange in enumerate(steps):
        yield from by_turns(_cell_sends(step, exchange, cells), _cell_sums(step, exchange, cells, len(steps) - 1))


def _cell_sends(step: int, exchange: Exchange, cells: dict[int, int]) -> Iterator[Row]:
    for part in exchange.outgoing:
        for chunk in range(part.begin, part.end):
            yield Row(
                step,
                _buffer(part, Buffer.SCRATCH),
                chunk,
                chunk + 1,
                Op.NONE,
                cell=0 if part.raw else cells[chunk],
                sends=(Send(exchange.target, None),),
            )


def _cell_sums(step: int, exchange: Exchange, cells: dict[int, int], final: int) -> Iterator[Row]:
    for part in exchange.incoming:
        for chunk in range(part.begin, part.end):
            yield Row(
                step,
                Buffer.OUTPUT if step == final else Buffer.SCRATCH,
                chunk,
                chunk + 1,
                Op.REDUCE,
                cell=0 if step == final else cells[chunk],
                operand=Buffer.SCRATCH if step else Buffer.INPUT,
                operand_cell=cells[chunk] if step else 0,
                operand_at=1,
                receives=(Receive(exchange.source, _buffer(part, Buffer.SCRATCH)),),
                flags=(NO_FLAGS if step else Flag.FIRST) | (Flag.LAST if step == final else NO_FLAGS),
            )


def reduce_scatter(world: int, root: int | None) -> Recipe:
    """ceil(log2 N) steps, (N - 1)/N of the vector sent, a row a chunk; rank r ends with chunk r. The input stays."""

    def rows(rank: int) -> list[Row]:
        return local_copy(1, Flag.LAST) if world == 1 else list(_cell_rows(rank, world))

    cells = world // 2 if world > 2 else 0
    # The first step has a row for each chunk: with all of them open a small vector waits for one hop a step, no more.
    window = max(WINDOW, world)
    return Recipe(world, step_count(world), window, cells, rows, lambda _: Fraction(world - 1, world))
