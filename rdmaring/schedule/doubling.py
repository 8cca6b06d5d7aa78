"""Doubling: after each step a rank holds twice as many chunks, all neighbours, and passes on all it needs to.

The steps of ``exchange`` backwards: what a reduce-scatter sends away is received again, whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import chain, zip_longest

from rdmaring.schedule.exchange import Exchange, Part, exchanges, step_count
from rdmaring.schedule.rows import Buffer, Flag, Op, Receive, Recipe, Row, Send

# A step has at most three rows that send and three that receive: the range can be cut at the circle's seam and where
# raw chunks begin. Two steps open keep the link busy while the last slices of a step are still on their way.
WINDOW = 12


def by_turns(first: Iterable[Row], second: Iterable[Row]) -> Iterator[Row]:
    """Sends and receives of one step: where every other is a receive, a rank whose sends wait goes on receiving."""
    return (row for row in chain.from_iterable(zip_longest(first, second)) if row is not None)


def first_sends(steps: Sequence[Exchange]) -> tuple[Send, ...]:
    """Where the own chunk goes as soon as it is there."""
    return (Send(steps[-1].source, Buffer.OUTPUT),)


def gather_rows(steps: Sequence[Exchange], step_begin: int) -> Iterator[Row]:
    """The steps backwards, after the own chunk of OUTPUT has gone to ``first_sends``."""
    for step, exchange in enumerate(reversed(steps), step_begin):
        sends = [
            Row(step, Buffer.OUTPUT, begin, end, Op.NONE, sends=(Send(exchange.source, Buffer.OUTPUT),))
            for begin, end in _joined(exchange.incoming)
        ]
        receives = [
            Row(step, Buffer.OUTPUT, begin, end, Op.COPY, receives=(Receive(exchange.target, Buffer.OUTPUT),))
            for begin, end in _joined(exchange.outgoing)
        ]
        yield from by_turns(sends if step > step_begin else (), receives)


def _joined(parts: Iterable[Part]) -> list[tuple[int, int]]:
    """Ranges without the cuts that only a sum needs."""
    ranges: list[tuple[int, int]] = []
    for begin, end, _ in parts:
        if ranges and ranges[-1][1] == begin:
            ranges[-1] = (ranges[-1][0], end)
        else:
            ranges.append((begin, end))
    return ranges


def all_gather(world: int, root: int | None) -> Recipe:
    """ceil(log2 N) steps, (N - 1)/N of the vector sent; chunk r comes from rank r."""

    def rows(rank: int) -> list[Row]:
        steps = exchanges(rank, world) if world > 1 else []
        own = Row(
            0,
            Buffer.OUTPUT,
            rank,
            rank + 1,
            Op.COPY,
            operand=Buffer.INPUT,
            sends=first_sends(steps) if steps else (),
            flags=Flag.FIRST,
        )
        return [own, *gather_rows(steps, 0)]

    return Recipe(world, step_count(world), WINDOW, 0, rows, lambda _: Fraction(world - 1, world))
