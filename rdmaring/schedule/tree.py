"""Two binary trees, each for half of the vector: logarithmic depth, and as much work for every rank as on a ring.

In one binary tree the inner ranks send and receive twice what the leaves do. With two trees, in which a rank is inner
in at most one, all ranks' ports are filled (Sanders, Speck and Traeff, Parallel Computing 35(12), 2009). Each tree
numbers its places 1..n so that a subtree is an interval (a place's height is the number of its trailing zero bits):
odd places are leaves. The second tree numbers the ranks so that odd and even change: backwards if n is even, one
later if it is odd. One row carries a whole half, so the trees are pipelined by slices.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from rdmaring.schedule.local import local_copy
from rdmaring.schedule.rows import NO_FLAGS, WINDOW_MIN, Buffer, Flag, Op, Receive, Recipe, Row, Send

TREES = (0, 1)  # tree k carries chunk k
WINDOW = 4  # all rows of a rank: up and down in both trees


@dataclass(frozen=True, slots=True)
class _Spot:
    """Where a rank stands in one tree; ranks are counted 0..n-1 within the trees."""

    depth: int  # hops from the tree's root
    parent: int | None
    children: tuple[tuple[int, bool], ...]  # the one of earlier places first; is it inner, too?

    def under(self, root: int, world: int) -> _Spot:
        """The same for a tree of all ranks but ``root``, which is above it: 0 is the rank after the root."""

        def moved(rank: int) -> int:
            return (root + 1 + rank) % world

        return _Spot(
            depth=self.depth,
            parent=root if self.parent is None else moved(self.parent),
            children=tuple((moved(child), inner) for child, inner in self.children),
        )


def tree_depth(size: int) -> int:
    """Hops from the root to the deepest of ``size`` ranks, in both trees."""
    return size.bit_length() - 1


def _place_of(rank: int, size: int, tree: int) -> int:
    if tree == 0:
        return rank + 1
    return (rank + 1) % size + 1 if size % 2 else size - rank


def _rank_at(place: int, size: int, tree: int) -> int:
    if tree == 0:
        return place - 1
    return (place - 2) % size if size % 2 else size - place


def _parent_place(place: int, size: int) -> int | None:
    """The nearest place above that exists: where that of the whole tree is beyond ``size``, its parent's, and so on."""
    while place != 1 << tree_depth(size):
        bit = place & -place
        place = place - bit | bit << 1
        if place <= size:
            return place
    return None


def _child_places(place: int, size: int) -> list[int]:
    reach = (place & -place) >> 1
    if not reach:
        return []
    before = place - reach
    while reach and place + reach > size:
        reach >>= 1
    return [before, place + reach] if reach else [before]


def _spot(rank: int, size: int, tree: int) -> _Spot:
    place = _place_of(rank, size, tree)
    parent = _parent_place(place, size)
    depth, above = 0, parent
    while above is not None:
        depth, above = depth + 1, _parent_place(above, size)
    return _Spot(
        depth=depth,
        parent=None if parent is None else _rank_at(parent, size, tree),
        children=tuple((_rank_at(child, size, tree), child % 2 == 0) for child in _child_places(place, size)),
    )


def _up(spot: _Spot, tree: int, deepest: int, partial: Buffer, onward: tuple[Send, ...], flags: Flag) -> Row:
    """The children's sums and the own input, to ``onward``. All ranks of one depth receive in the same step.

    partial: where the sum of an inner rank lies. flags: of that sum.
    """
    if not spot.children:
        return Row(deepest - spot.depth, Buffer.INPUT, tree, tree + 1, Op.NONE, sends=onward)
    return Row(
        deepest - spot.depth - 1,
        partial,
        tree,
        tree + 1,
        Op.REDUCE,
        operand=Buffer.INPUT,
        operand_at=1,
        receives=tuple(Receive(child, partial if inner else Buffer.INPUT) for child, inner in spot.children),
        sends=onward,
        flags=Flag.FIRST | flags,
    )


def _to_children(spot: _Spot) -> tuple[Send, ...]:
    return tuple(Send(child, Buffer.OUTPUT) for child, _ in spot.children)


def _down(spot: _Spot, tree: int, step_begin: int) -> Row:
    assert spot.parent is not None
    return Row(
        step_begin + spot.depth,
        Buffer.OUTPUT,
        tree,
        tree + 1,
        Op.COPY,
        receives=(Receive(spot.parent, Buffer.OUTPUT),),
        sends=_to_children(spot),
    )


def all_reduce(world: int, root: int | None) -> Recipe:
    """Up to the root of each tree and down again: 2 floor(log2 N) steps; a rank sends 1/2 for each neighbour in a tree.

    The order of rows is that of the links: two ranks that are neighbours in both trees see the same one.
    """
    deepest = tree_depth(world)

    def rows(rank: int) -> list[Row]:
        if world == 1:
            return local_copy(1, Flag.LAST)
        spots = [_spot(rank, world, tree) for tree in TREES]
        ups, downs = [], []
        for tree, spot in zip(TREES, spots, strict=True):
            if spot.parent is None:  # one row turns round: what it waits for is up, in the other tree, before it
                ups.append(_up(spot, tree, deepest, Buffer.OUTPUT, _to_children(spot), Flag.LAST))
                continue
            ups.append(_up(spot, tree, deepest, Buffer.OUTPUT, (Send(spot.parent, None),), Flag.TRANSIT))
            downs.append(_down(spot, tree, deepest - 1))
        return [*reversed(ups), *downs] if spots[0].parent is None else [*ups, *downs]

    def sent(rank: int) -> Fraction:
        spots = [_spot(rank, world, tree) for tree in TREES]
        return Fraction(sum(len(spot.children) + (spot.parent is not None) for spot in spots), 2)

    return Recipe(2 if world > 1 else 1, 2 * deepest, WINDOW, 0, rows, sent)


def _rooted_spots(rank: int, world: int, root: int) -> list[_Spot]:
    return [_spot((rank - root - 1) % world, world - 1, tree).under(root, world) for tree in TREES]


def _heads(world: int, root: int) -> list[tuple[int, bool]]:
    """The roots of both trees, with whether they are inner."""
    size = world - 1
    place = 1 << tree_depth(size)
    return [((root + 1 + _rank_at(place, size, tree)) % world, place > 1) for tree in TREES]


def broadcast(world: int, root: int | None) -> Recipe:
    """1 + floor(log2(N - 1)) steps. The root sends a half to each tree, an inner rank its half to one or two others."""
    assert root is not None

    def rows(rank: int) -> list[Row]:
        if world == 1:
            return local_copy(1, NO_FLAGS)
        if rank != root:
            return [_down(spot, tree, 0) for tree, spot in zip(TREES, _rooted_spots(rank, world, root), strict=True)]
        return [
            Row(
                0,
                Buffer.OUTPUT,
                tree,
                tree + 1,
                Op.COPY,
                operand=Buffer.INPUT,
                sends=(Send(head, Buffer.OUTPUT),),
                flags=Flag.FIRST,
            )
            for tree, (head, _) in zip(TREES, _heads(world, root), strict=True)
        ]

    def sent(rank: int) -> Fraction:
        if rank == root:
            return Fraction(world > 1)
        return Fraction(sum(len(spot.children) for spot in _rooted_spots(rank, world, root)), 2)

    return Recipe(2 if world > 1 else 1, _rooted_steps(world), WINDOW_MIN, 0, rows, sent)


def _rooted_steps(world: int) -> int:
    return 1 + tree_depth(world - 1) if world > 1 else 0


def reduce(world: int, root: int | None) -> Recipe:
    """A broadcast backwards: 1 + floor(log2(N - 1)) steps, every rank but the root sends the vector once."""
    assert root is not None
    deepest = _rooted_steps(world) - 1

    def rows(rank: int) -> list[Row]:
        if world == 1:
            return local_copy(1, Flag.LAST)
        if rank != root:
            spots = _rooted_spots(rank, world, root)
            return [
                _up(spot, tree, deepest, Buffer.SCRATCH, (Send(spot.parent or 0, None),), Flag.TRANSIT)
                for tree, spot in zip(TREES, spots, strict=True)
            ]
        return [
            Row(
                deepest,
                Buffer.OUTPUT,
                tree,
                tree + 1,
                Op.REDUCE,
                operand=Buffer.INPUT,
                operand_at=1,
                receives=(Receive(head, Buffer.SCRATCH if inner else Buffer.INPUT),),
                flags=Flag.FIRST | Flag.LAST,
            )
            for tree, (head, inner) in zip(TREES, _heads(world, root), strict=True)
        ]

    cells = 1 if world > 2 else 0
    chunk_count = 2 if world > 1 else 1
    return Recipe(chunk_count, deepest + 1, WINDOW_MIN, cells, rows, lambda rank: Fraction(rank != root))
