"""Direct: every rank talks to every other; few steps, N - 1 links a rank.

Contributions are combined by one row, in rank order 0..N-1: one rounding for 16-bit floats, and bits
that do not depend on where the vector is cut. Peers are visited in rotated order (r + 1, r + 2, ...),
so that not all ranks begin with the same one.
"""

from __future__ import annotations

from fractions import Fraction

from rdmaring.schedule.local import local_copy
from rdmaring.schedule.rows import (
    NO_FLAGS,
    WINDOW_MIN,
    Buffer,
    Flag,
    Op,
    Receive,
    Recipe,
    Row,
    Send,
)


def _others(rank: int, world: int) -> list[int]:
    return [(rank + distance) % world for distance in range(1, world)]


def _scatter_rows(rank: int, world: int, final_sends: tuple[Send, ...]) -> list[Row]:
    """Send chunk p to each p; reduce the own one from all ranks in their order."""
    rows = [Row(0, Buffer.INPUT, peer, peer + 1, Op.NONE, sends=(Send(peer, None),)) for peer in _others(rank, world)]
    rows.append(_reduce_row(rank, world, rank, Buffer.INPUT, final_sends))
    return rows


def _reduce_row(rank: int, world: int, chunk: int, source: Buffer, sends: tuple[Send, ...]) -> Row:
    return Row(
        0,
        Buffer.OUTPUT,
        chunk,
        chunk + 1,
        Op.REDUCE,
        operand=Buffer.INPUT,
        operand_at=rank,
        receives=tuple(Receive(peer, source) for peer in range(world) if peer != rank),
        sends=sends,
        flags=Flag.FIRST | Flag.LAST,
    )


def _gather_rows(rank: int, world: int, step: int) -> list[Row]:
    """Receive chunk p from each p."""
    return [
        Row(step, Buffer.OUTPUT, peer, peer + 1, Op.COPY, receives=(Receive(peer, Buffer.OUTPUT),))
        for peer in reversed(_others(rank, world))
    ]


def _to_all(rank: int, world: int, lands: Buffer | None) -> tuple[Send, ...]:
    return tuple(Send(peer, lands) for peer in _others(rank, world))


def all_reduce(world: int, root: int | None) -> Recipe:
    """Two-shot: rank r reduces chunk r and sends the result to all; 2 steps, 2(N - 1)/N sent.

    The window holds the N - 1 rows that send to the others and the row that reduces: only then does
    every rank consume what the others wait to send. Later it holds that row and the N - 1 that gather.
    """

    def rows(rank: int) -> list[Row]:
        if world == 1:
            return local_copy(1, Flag.LAST)
        onward = _to_all(rank, world, Buffer.OUTPUT)
        return _scatter_rows(rank, world, onward) + _gather_rows(rank, world, 1)

    window = max(WINDOW_MIN, world)
    steps = 2 if world > 1 else 0
    return Recipe(world, steps, window, 0, rows, lambda _: Fraction(2 * (world - 1), world))


def all_reduce_one_shot(world: int, root: int | None) -> Recipe:
    """One-shot: every rank sends its whole input to all, all reduce all of it; 1 step, N - 1 sent.

    What is sent is a copy in SCRATCH. In place, the sum overwrites the input, and if peers could still
    be reading that, each rank would wait for the others' sums and nobody would begin. Through slots
    the copy costs nothing: the row is TRANSIT, its bytes go from the input to the slots.
    """

    def rows(rank: int) -> list[Row]:
        if world == 1:
            return local_copy(1, Flag.LAST)
        spread = Row(
            0,
            Buffer.SCRATCH,
            0,
            1,
            Op.COPY,
            operand=Buffer.INPUT,
            sends=_to_all(rank, world, None),
            flags=Flag.FIRST | Flag.TRANSIT,
        )
        return [spread, _reduce_row(rank, world, 0, Buffer.SCRATCH, ())]

    steps, cells = (1, 1) if world > 1 else (0, 0)
    return Recipe(1, steps, WINDOW_MIN, cells, rows, lambda _: Fraction(world - 1))


def reduce_scatter(world: int, root: int | None) -> Recipe:
    """1 step, (N - 1)/N of the vector sent; rank r ends with chunk r."""

    def rows(rank: int) -> list[Row]:
        return local_copy(1, Flag.LAST) if world == 1 else _scatter_rows(rank, world, ())

    window = max(WINDOW_MIN, world)
    steps = 1 if world > 1 else 0
    return Recipe(world, steps, window, 0, rows, lambda _: Fraction(world - 1, world))


def all_gather(world: int, root: int | None) -> Recipe:
    """1 step, (N - 1)/N of the vector sent; chunk r comes from rank r."""

    def rows(rank: int) -> list[Row]:
        own = Row(
            0,
            Buffer.OUTPUT,
            rank,
            rank + 1,
            Op.COPY,
            operand=Buffer.INPUT,
            sends=_to_all(rank, world, Buffer.OUTPUT),
            flags=Flag.FIRST,
        )
        return [own, *_gather_rows(rank, world, 0)]

    window = max(WINDOW_MIN, world)
    steps = 1 if world > 1 else 0
    return Recipe(world, steps, window, 0, rows, lambda _: Fraction(world - 1, world))


def broadcast(world: int, root: int | None) -> Recipe:
    """The root sends the vector to each: 1 step, N - 1 vectors sent by the root."""
    assert root is not None

    def rows(rank: int) -> list[Row]:
        if rank == root:
            return local_copy(1, NO_FLAGS, _to_all(rank, world, Buffer.OUTPUT))
        return [Row(0, Buffer.OUTPUT, 0, 1, Op.COPY, receives=(Receive(root, Buffer.OUTPUT),))]

    steps = 1 if world > 1 else 0
    return Recipe(1, steps, WINDOW_MIN, 0, rows, lambda rank: Fraction((world - 1) * (rank == root)))


def reduce(world: int, root: int | None) -> Recipe:
    """Each sends the vector to the root, which combines all in rank order: 1 step."""
    assert root is not None

    def rows(rank: int) -> list[Row]:
        if world == 1:
            return local_copy(1, Flag.LAST)
        if rank == root:
            return [_reduce_row(rank, world, 0, Buffer.INPUT, ())]
        return [Row(0, Buffer.INPUT, 0, 1, Op.NONE, sends=(Send(root, None),))]

    steps = 1 if world > 1 else 0
    return Recipe(1, steps, WINDOW_MIN, 0, rows, lambda rank: Fraction(rank != root))
