"""The ring: every rank sends to the next and receives from the one before.

With N ranks and N chunks, reduce-scatter and all-gather take N - 1 steps each and send (N - 1)/N of
the vector, the least possible; all-reduce is one after the other (Patarasuk and Yuan, JPDC 2009).
Broadcast and reduce are chains along the same ring: one row a rank, pipelined slice by slice.
Chunk c is summed in the order c + 1, c + 2, ..., c.
"""

from __future__ import annotations

from fractions import Fraction

from rdmaring.schedule.local import local_copy
from rdmaring.schedule.rows import NO_FLAGS, Buffer, Flag, Op, Receive, Recipe, Row, Send

# Two rows are enough for progress (verified); a third lets one begin while the last slices of the
# row before and of the row after it are still on their way.
WINDOW = 3

# A cell is used again two rows later, when the next rank has consumed it one row ago. With a single
# cell every rank would wait for the next one around the whole ring.
SCATTER_CELLS = 2


def _scatter_rows(
    rank: int, world: int, partial: Buffer, final_sends: tuple[Send, ...], *, wide: bool = False
) -> list[Row]:
    """Reduce-scatter: partial sums go to ``partial``, the sum of chunk ``rank`` to OUTPUT.

    wide: partial sums are float32. What the first step sends is an input, exact in 16 bits.
    """
    peer, previous = (rank + 1) % world, (rank - 1) % world
    onward = (Send(peer, None),)
    first = (rank - 1) % world
    rows = [Row(0, Buffer.INPUT, first, first + 1, Op.NONE, sends=onward)]
    for step in range(world - 1):
        chunk = (rank - step - 2) % world
        final = step == world - 2
        rows.append(
            Row(
                step,
                Buffer.OUTPUT if final else partial,
                chunk,
                chunk + 1,
                Op.REDUCE,
                cell=0 if final or partial is not Buffer.SCRATCH else step % SCATTER_CELLS,
                operand=Buffer.INPUT,
                operand_at=1,
                receives=(Receive(previous, Buffer.INPUT if step == 0 else partial),),
                sends=final_sends if final else onward,
                flags=Flag.FIRST
                | (Flag.LAST if final else Flag.TRANSIT)
                | (Flag.WIDE if wide and not final else NO_FLAGS)
                | (Flag.TAKES_WIDE if wide and step > 0 else NO_FLAGS),
            )
        )
    return rows


def _gather_rows(rank: int, world: int, step_begin: int) -> list[Row]:
    """All-gather, after chunk ``rank`` of OUTPUT has been sent on: receive the others and pass them on."""
    peer, previous = (rank + 1) % world, (rank - 1) % world
    rows = []
    for step in range(world - 1):
        chunk = (rank - step - 1) % world
        rows.append(
            Row(
                step_begin + step,
                Buffer.OUTPUT,
                chunk,
                chunk + 1,
                Op.COPY,
                receives=(Receive(previous, Buffer.OUTPUT),),
                sends=(Send(peer, Buffer.OUTPUT),) if step < world - 2 else (),
            )
        )
    return rows


def all_reduce(world: int, root: int | None) -> Recipe:
    """Reduce-scatter, then all-gather: 2(N - 1) steps, 2(N - 1)/N of the vector sent by every rank."""

    def rows(rank: int) -> list[Row]:
        if world == 1:
            return local_copy(1, Flag.LAST)
        onward = (Send((rank + 1) % world, Buffer.OUTPUT),)
        return _scatter_rows(rank, world, Buffer.OUTPUT, onward) + _gather_rows(rank, world, world - 1)

    return Recipe(world, 2 * (world - 1), WINDOW, 0, rows, lambda _: Fraction(2 * (world - 1), world))


def reduce_scatter(world: int, root: int | None) -> Recipe:
    """N - 1 steps, (N - 1)/N of the vector sent; rank r ends with chunk r. The input is left alone."""

    def rows(rank: int) -> list[Row]:
        return local_copy(1, Flag.LAST) if world == 1 else _scatter_rows(rank, world, Buffer.SCRATCH, ())

    cells = min(SCATTER_CELLS, max(world - 2, 0))
    return Recipe(world, world - 1, WINDOW, cells, rows, lambda _: Fraction(world - 1, world))


def all_reduce_wide(world: int, root: int | None) -> Recipe:
    """As all_reduce, for 16-bit floats whose partial sums stay float32: rounded once, when the sum is complete.

    N - 2 of the 2(N - 1) steps carry twice the bytes: (3N - 4)/N of the vector sent, at most 1.5 times the ring's.
    """

    def rows(rank: int) -> list[Row]:
        if world == 1:
            return local_copy(1, Flag.LAST)
        onward = (Send((rank + 1) % world, Buffer.OUTPUT),)
        scatter = _scatter_rows(rank, world, Buffer.SCRATCH, onward, wide=True)
        return scatter + _gather_rows(rank, world, world - 1)

    cells = min(SCATTER_CELLS, max(world - 2, 0))
    sent = Fraction(max(3 * world - 4, 0), world)
    return Recipe(world, 2 * (world - 1), WINDOW, cells, rows, lambda _: sent)


def reduce_scatter_wide(world: int, root: int | None) -> Recipe:
    """As reduce_scatter, for 16-bit floats whose partial sums stay float32; (2N - 3)/N of the vector sent."""

    def rows(rank: int) -> list[Row]:
        if world == 1:
            return local_copy(1, Flag.LAST)
        return _scatter_rows(rank, world, Buffer.SCRATCH, (), wide=True)

    cells = min(SCATTER_CELLS, max(world - 2, 0))
    sent = Fraction(max(2 * world - 3, 0), world)
    return Recipe(world, world - 1, WINDOW, cells, rows, lambda _: sent)


def all_gather(world: int, root: int | None) -> Recipe:
    """N - 1 steps, (N - 1)/N of the vector sent; chunk r comes from rank r."""

    def rows(rank: int) -> list[Row]:
        sends = (Send((rank + 1) % world, Buffer.OUTPUT),) if world > 1 else ()
        own = Row(
            0,
            Buffer.OUTPUT,
            rank,
            rank + 1,
            Op.COPY,
            operand=Buffer.INPUT,
            sends=sends,
            flags=Flag.FIRST,
        )
        return [own, *_gather_rows(rank, world, 0)]

    return Recipe(world, world - 1, WINDOW, 0, rows, lambda _: Fraction(world - 1, world))


def broadcast(world: int, root: int | None) -> Recipe:
    """A chain from the root around the ring: N - 1 steps, the vector once over each link but the last."""
    assert root is not None

    def rows(rank: int) -> list[Row]:
        place = (rank - root) % world
        sends = (Send((rank + 1) % world, Buffer.OUTPUT),) if place < world - 1 else ()
        if place == 0:
            return local_copy(1, NO_FLAGS, sends)
        receives = (Receive((rank - 1) % world, Buffer.OUTPUT),)
        return [Row(place - 1, Buffer.OUTPUT, 0, 1, Op.COPY, receives=receives, sends=sends)]

    def sent(rank: int) -> Fraction:
        return Fraction((rank - root) % world < world - 1)

    return Recipe(1, world - 1, 2, 0, rows, sent)


def reduce(world: int, root: int | None) -> Recipe:
    """A chain around the ring that ends at the root: N - 1 steps, every other rank sends the vector once."""
    assert root is not None

    def rows(rank: int) -> list[Row]:
        place = (rank - root - 1) % world  # 0: begins the chain; world - 1: the root
        onward = (Send((rank + 1) % world, None),)
        if world == 1:
            return local_copy(1, Flag.LAST)
        if place == 0:
            return [Row(0, Buffer.INPUT, 0, 1, Op.NONE, sends=onward)]
        final = place == world - 1
        return [
            Row(
                place - 1,
                Buffer.OUTPUT if final else Buffer.SCRATCH,
                0,
                1,
                Op.REDUCE,
                operand=Buffer.INPUT,
                operand_at=1,
                receives=(Receive((rank - 1) % world, Buffer.INPUT if place == 1 else Buffer.SCRATCH),),
                sends=() if final else onward,
                flags=Flag.FIRST | (Flag.LAST if final else Flag.TRANSIT),
            )
        ]

    return Recipe(1, world - 1, 2, 1 if world > 2 else 0, rows, lambda rank: Fraction(rank != root))
