"""The ring both ways: two rings at once, one the mirror image of the other, each with its own part of the work.

All-reduce cuts the vector in halves of N chunks; the first half goes round as in ``ring``, the second the other
way. All-gather sends every chunk both ways, half the way round each. A rank sends the same bytes as on a ring, but
over two links instead of one, so it gains where the two neighbours are reached by different wires.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import chain, zip_longest

from rdmaring.schedule import ring
from rdmaring.schedule.local import local_copy
from rdmaring.schedule.rows import Buffer, Flag, Op, Receive, Recipe, Row, Send

WINDOW = 2 * ring.WINDOW  # as many rows of each direction as a ring has open


def _interleaved(first: Iterable[Row], second: Iterable[Row]) -> Iterator[Row]:
    """By turns, so that the window always holds rows of both directions; what is left of the longer at the end."""
    return (row for row in chain.from_iterable(zip_longest(first, second)) if row is not None)


def _mirrored(rows: Iterable[Row], world: int) -> Iterator[Row]:
    """The rows of rank -r of a ring as those of rank r of the ring the other way, on chunks N..2N-1."""
    for row in rows:
        chunk = world + -row.chunk_begin % world
        yield replace(
            row,
            chunk_begin=chunk,
            chunk_end=chunk + 1,
            receives=tuple(Receive(-peer % world, source) for peer, source in row.receives),
            sends=tuple(Send(-peer % world, lands) for peer, lands in row.sends),
        )


def all_reduce(world: int, root: int | None) -> Recipe:
    """2(N - 1) steps, 2(N - 1)/N of the vector sent, half to each neighbour. Chunks c and N + c belong to rank c."""
    one_way = ring.all_reduce(world, root)

    def rows(rank: int) -> Sequence[Row]:
        if world == 1:
            return local_copy(1, Flag.LAST)
        other_way = _mirrored(one_way.rows(-rank % world), world)
        return list(_interleaved(one_way.rows(rank), other_way))

    return Recipe(2 * world if world > 1 else 1, one_way.step_count, WINDOW, 0, rows, one_way.sent)


def _pass_on(rank: int, world: int, way: int, hops: int) -> Iterator[Row]:
    """Receive the chunks of the ``hops`` ranks behind and pass on all but the last. way: 1 upwards, -1 downwards."""
    target, source = (rank + way) % world, (rank - way) % world
    for step in range(hops):
        chunk = (rank - way * (step + 1)) % world
        sends = (Send(target, Buffer.OUTPUT),) if step < hops - 1 else ()
        receives = (Receive(source, Buffer.OUTPUT),)
        yield Row(step, Buffer.OUTPUT, chunk, chunk + 1, Op.COPY, receives=receives, sends=sends)


def all_gather(world: int, root: int | None) -> Recipe:
    """Half as many steps as a ring, N // 2; (N - 1)/N of the vector sent; chunk r comes from rank r."""
    upwards, downwards = world // 2, (world - 1) // 2

    def rows(rank: int) -> Sequence[Row]:
        sends = [Send((rank + way) % world, Buffer.OUTPUT) for way, hops in ((1, upwards), (-1, downwards)) if hops]
        own = Row(
            0,
            Buffer.OUTPUT,
            rank,
            rank + 1,
            Op.COPY,
            operand=Buffer.INPUT,
            sends=tuple(sends),
            flags=Flag.FIRST,
        )
        return [own, *_interleaved(_pass_on(rank, world, 1, upwards), _pass_on(rank, world, -1, downwards))]

    return Recipe(world, upwards, WINDOW, 0, rows, lambda _: Fraction(world - 1, world))
