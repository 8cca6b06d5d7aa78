"""Steps and bytes of every algorithm, written down apart from it: closed forms, and trees by recursion."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import cache
from math import ceil, floor, log2

Sent = Callable[[int], Fraction]  # of the rank at a place after the root, as a fraction of the vector


def _always(steps: int, sent: Fraction | int) -> tuple[int, Sent]:
    return steps, lambda _: Fraction(sent)


def _all_but_root(steps: int) -> tuple[int, Sent]:
    return steps, lambda place: Fraction(place != 0)


def _from_root(steps: int, of_root: int) -> tuple[int, Sent]:
    return steps, lambda place: Fraction(of_root * (place == 0))


def _share(n: int) -> Fraction:
    return Fraction(n - 1, n)


@cache
def interval_tree(n: int) -> dict[int, int | None]:
    """Parents in the tree of 1..n: the head of an interval is its element number 2^floor(log2 size)."""
    parents: dict[int, int | None] = {}

    def build(first: int, size: int, parent: int | None) -> None:
        if size:
            before = 2 ** floor(log2(size)) - 1
            head = first + before
            parents[head] = parent
            build(first, before, head)
            build(head + 1, size - before - 1, head)

    build(1, n, None)
    return parents


def two_trees(n: int) -> list[dict[int, int | None]]:
    """Parents of ranks 0..n-1: by rank; then backwards if n is even, one place later if it is odd."""
    numberings: list[Callable[[int], int]] = [lambda place: place - 1]
    numberings.append((lambda place: n - place) if n % 2 == 0 else (lambda place: (place - 2) % n))
    return [
        {number(place): None if up is None else number(up) for place, up in interval_tree(n).items()}
        for number in numberings
    ]


def _children(parents: dict[int, int | None], rank: int) -> int:
    return sum(parent == rank for parent in parents.values())


def _double_tree(n: int) -> tuple[int, Sent]:
    def sent(rank: int) -> Fraction:
        trees = two_trees(n)
        return Fraction(sum(_children(tree, rank) + (tree[rank] is not None) for tree in trees), 2)

    return 2 * floor(log2(n)), sent


def _tree_of_others(n: int) -> tuple[int, Sent]:
    def sent(place: int) -> Fraction:
        if place == 0:
            return Fraction(n > 1)
        return Fraction(sum(_children(tree, place - 1) for tree in two_trees(n - 1)), 2)

    return 1 + floor(log2(n - 1)) if n > 1 else 0, sent


def _binomial(n: int) -> tuple[int, Sent]:
    return floor(log2(n)), lambda place: Fraction(sum(below & below - 1 == place for below in range(1, n)))


def _below(place: int, n: int) -> int:
    """How many have ``place`` on their way to 0, itself among them; each step clears the lowest set bit."""

    def way(of: int) -> set[int]:
        return {of} if of == 0 else {of} | way(of & of - 1)

    return sum(place in way(of) for of in range(n))


# name: of the number of ranks, the steps and who sends how much
FORMULAS: dict[tuple[str, str], Callable[[int], tuple[int, Sent]]] = {
    ("all_reduce", "ring"): lambda n: _always(2 * (n - 1), 2 * _share(n)),
    ("all_reduce", "biring"): lambda n: _always(2 * (n - 1), 2 * _share(n)),
    ("all_reduce", "tree"): _double_tree,
    ("all_reduce", "halving"): lambda n: _always(2 * ceil(log2(n)), 2 * _share(n)),
    ("all_reduce", "direct"): lambda n: _always(2 * (n > 1), 2 * _share(n)),
    ("all_reduce", "direct1"): lambda n: _always(1 * (n > 1), n - 1),
    ("all_reduce", "naive"): lambda n: (2 * (n - 1), lambda rank: Fraction(n - 1 if rank == 0 else 1)),
    ("reduce_scatter", "ring"): lambda n: _always(n - 1, _share(n)),
    ("reduce_scatter", "halving"): lambda n: _always(ceil(log2(n)), _share(n)),
    ("reduce_scatter", "direct"): lambda n: _always(1 * (n > 1), _share(n)),
    ("all_gather", "ring"): lambda n: _always(n - 1, _share(n)),
    ("all_gather", "biring"): lambda n: _always(n // 2, _share(n)),
    ("all_gather", "doubling"): lambda n: _always(ceil(log2(n)), _share(n)),
    ("all_gather", "direct"): lambda n: _always(1 * (n > 1), _share(n)),
    ("broadcast", "ring"): lambda n: (n - 1, lambda place: Fraction(place != n - 1)),
    ("broadcast", "tree"): _tree_of_others,
    ("broadcast", "binomial"): _binomial,
    ("broadcast", "direct"): lambda n: _from_root(1 * (n > 1), n - 1),
    ("reduce", "ring"): lambda n: _all_but_root(n - 1),
    ("reduce", "tree"): lambda n: _all_but_root(_tree_of_others(n)[0]),
    ("reduce", "binomial"): lambda n: _all_but_root(floor(log2(n))),
    ("reduce", "direct"): lambda n: _all_but_root(1 * (n > 1)),
    ("all_to_all", "direct"): lambda n: _always(1 * (n > 1), _share(n) / n),
    ("gather", "direct"): lambda n: (1 * (n > 1), lambda place: Fraction(place != 0, n)),
    ("gather", "binomial"): lambda n: (floor(log2(n)), lambda place: Fraction(_below(place, n) * (place > 0), n)),
    ("scatter", "direct"): lambda n: (1 * (n > 1), lambda place: _share(n) * (place == 0)),
    ("scatter", "binomial"): lambda n: (floor(log2(n)), lambda place: Fraction(_below(place, n) - 1, n)),
}
