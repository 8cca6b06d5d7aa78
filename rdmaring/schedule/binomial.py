"""The binomial tree: the whole vector in one row a rank, for messages so small that only the hops count.

Places are counted from the root. A place's parent is the place without its lowest set bit, so the subtree below a
place is an interval, and half of the places hang directly below another (Thakur, Rabenseifner and Gropp, IJHPCA
19(1), 2005). The largest subtree is served first.
"""

from __future__ import annotations

from fractions import Fraction

from rdmaring.schedule.local import local_copy
from rdmaring.schedule.rows import NO_FLAGS, WINDOW_MIN, Buffer, Flag, Op, Receive, Recipe, Row, Send


def _children(place: int, world: int) -> list[int]:
    """The places below, the one with the largest subtree last."""
    children: list[int] = []
    bit = 1
    while not place & bit and place + bit < world:
        children.append(place + bit)
        bit <<= 1
    return children


def _depth(world: int) -> int:
    """Hops to the deepest place: the most bits set in a number below ``world``."""
    return world.bit_length() - 1


def broadcast(world: int, root: int | None) -> Recipe:
    """floor(log2 N) hops; the root sends the vector ceil(log2 N) times, one after another on its port."""
    assert root is not None

    def rows(rank: int) -> list[Row]:
        place = (rank - root) % world
        sends = tuple(Send((root + child) % world, Buffer.OUTPUT) for child in reversed(_children(place, world)))
        if place == 0:
            return local_copy(1, NO_FLAGS, sends)
        parent = (root + (place & place - 1)) % world
        step = place.bit_count() - 1
        return [Row(step, Buffer.OUTPUT, 0, 1, Op.COPY, receives=(Receive(parent, Buffer.OUTPUT),), sends=sends)]

    def sent(rank: int) -> Fraction:
        return Fraction(len(_children((rank - root) % world, world)))

    return Recipe(1, _depth(world), WINDOW_MIN, 0, rows, sent)


def reduce(world: int, root: int | None) -> Recipe:
    """floor(log2 N) hops; every rank but the root sends the vector once. Combined in the order of places."""
    assert root is not None
    depth = _depth(world)

    def rows(rank: int) -> list[Row]:
        if world == 1:
            return local_copy(1, Flag.LAST)
        place = (rank - root) % world
        level = place.bit_count()
        onward = () if place == 0 else (Send((root + (place & place - 1)) % world, None),)
        children = _children(place, world)
        if not children:
            return [Row(depth - level, Buffer.INPUT, 0, 1, Op.NONE, sends=onward)]
        return [
            Row(
                depth - level - 1,
                Buffer.SCRATCH if place else Buffer.OUTPUT,
                0,
                1,
                Op.REDUCE,
                operand=Buffer.INPUT,
                receives=tuple(
                    Receive((root + child) % world, Buffer.SCRATCH if _children(child, world) else Buffer.INPUT)
                    for child in children
                ),
                sends=onward,
                flags=Flag.FIRST | (Flag.TRANSIT if place else Flag.LAST),
            )
        ]

    return Recipe(1, depth, WINDOW_MIN, 1 if world > 3 else 0, rows, lambda rank: Fraction(rank != root))
