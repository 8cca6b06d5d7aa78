"""Naive: reduce to rank 0, then broadcast from it. The textbook's baseline, not meant to be fast.

Everything passes through rank 0, one vector after another: N - 1 steps in, N - 1 steps out.
"""

from __future__ import annotations

from fractions import Fraction

from rdmaring.schedule.local import local_copy
from rdmaring.schedule.rows import NO_FLAGS, WINDOW_MIN, Buffer, Flag, Op, Receive, Recipe, Row, Send


def _root_rows(world: int) -> list[Row]:
    rows = [
        Row(
            peer - 1,
            Buffer.OUTPUT,
            0,
            1,
            Op.REDUCE,
            operand=Buffer.INPUT if peer == 1 else Buffer.OUTPUT,
            receives=(Receive(peer, Buffer.INPUT),),
            flags=(Flag.FIRST if peer == 1 else NO_FLAGS) | (Flag.LAST if peer == world - 1 else NO_FLAGS),
        )
        for peer in range(1, world)
    ]
    rows += [
        Row(world - 2 + peer, Buffer.OUTPUT, 0, 1, Op.NONE, sends=(Send(peer, Buffer.OUTPUT),))
        for peer in range(1, world)
    ]
    return rows


def all_reduce(world: int, root: int | None) -> Recipe:
    """2(N - 1) steps; rank 0 sends N - 1 vectors, every other rank one. Summed in rank order."""

    def rows(rank: int) -> list[Row]:
        if world == 1:
            return local_copy(1, Flag.LAST)
        if rank == 0:
            return _root_rows(world)
        return [
            Row(rank - 1, Buffer.INPUT, 0, 1, Op.NONE, sends=(Send(0, None),)),
            Row(world - 2 + rank, Buffer.OUTPUT, 0, 1, Op.COPY, receives=(Receive(0, Buffer.OUTPUT),)),
        ]

    def sent(rank: int) -> Fraction:
        return Fraction(world - 1 if rank == 0 else 1)

    return Recipe(1, 2 * (world - 1), WINDOW_MIN, 0, rows, sent)
