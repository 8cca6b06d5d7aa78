"""The best ring through measured edges: the one whose slowest edge is fastest.

Every edge of a ring carries the same bytes at the same time, so the slowest sets the pace. Edges have a direction: the
rate from a to b says nothing of that from b to a. Where ranks share a node, the ring enters and leaves each node once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from rdmaring.topology import ring_order

EXACT_RANKS_MAX = 9  # above, all sets of ranks are too many
EQUAL = 0.98  # rates that are so near to each other count as one: measured again, they may change places
GAIN_MIN = 1.05  # of the slowest edge: less lies within what measuring again may change
KICKS = 60  # of the search, when no move improves a ring
SEED = 20240229

Matrix = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Reordering:
    """A ring and the one it is compared with; rates in GB/s, latencies in us, added up around the ring.

    worth: the new ring's slowest edge is faster by 5 % or more.
    """

    order: tuple[int, ...]
    bottleneck_gb_s: float
    latency_us: float
    order_before: tuple[int, ...]
    bottleneck_before_gb_s: float
    exact: bool  # no ring is better; else found by a search that may miss the best

    @property
    def gain(self) -> float:
        return self.bottleneck_gb_s / self.bottleneck_before_gb_s if len(self.order) > 1 else 1.0

    @property
    def worth(self) -> bool:
        return self.gain >= GAIN_MIN


def edges_of(order: Sequence[int]) -> list[tuple[int, int]]:
    """The edges of a ring, each as (from, to). None for a single rank."""
    return [*pairwise(order), (order[-1], order[0])] if len(order) > 1 else []


def bottleneck(order: Sequence[int], rates: Matrix) -> float:
    """The rate of the ring's slowest edge."""
    return min((float(rates[edge]) for edge in edges_of(order)), default=float("inf"))


def length(order: Sequence[int], latencies: Matrix) -> float:
    """The latencies of the ring's edges, added up."""
    return sum(float(latencies[edge]) for edge in edges_of(order))


def best_ring(
    rates: Matrix,
    latencies: Matrix | None = None,
    nodes: Sequence[int] | None = None,
    before: Sequence[int] | None = None,
    *,
    exact_ranks_max: int = EXACT_RANKS_MAX,
) -> Reordering:
    """The ring with the fastest slowest edge; among those within 2 % of it, that of the least latency in all.

    rates, latencies: N x N, [from, to]; what stands on the diagonal is not looked at. Without latencies, any.
    nodes: the node of each rank; the ring enters each once. None: every rank is a node.
    before: the ring to compare with; default: the ranks of each node one after another.
    """
    world = len(rates)
    home = list(range(world)) if nodes is None else list(nodes)
    own = ring_order(home) if before is None else tuple(before)
    times = np.zeros((world, world)) if latencies is None else np.asarray(latencies, np.float64)
    exact = world <= exact_ranks_max
    if world < 3:
        order = own
    elif exact:
        order = _exact(rates, times, home)
    else:
        order = _search(rates, times, home)
    begin = order.index(min(order)) if order else 0
    order = (*order[begin:], *order[:begin])
    return Reordering(
        order=order,
        bottleneck_gb_s=bottleneck(order, rates),
        latency_us=length(order, times),
        order_before=own,
        bottleneck_before_gb_s=bottleneck(own, rates),
        exact=exact,
    )


# ---- exact: over all sets of visited ranks (Held and Karp) ----


def _exact(rates: Matrix, times: Matrix, nodes: Sequence[int]) -> tuple[int, ...]:
    """Any ring turns so that it begins where it enters rank 0's node."""
    starts = [rank for rank, node in enumerate(nodes) if node == nodes[0]]
    if len(starts) == len(nodes):
        starts = [0]  # one node: a ring may begin anywhere
    paths = _Paths(rates, times, nodes)
    least = EQUAL * max(paths.bottleneck(start) for start in starts)
    return min(found for start in starts if (found := paths.shortest(start, least)) is not None)[1]


class _Paths:
    """Paths that visit every rank once and leave a node only when all of it has been visited.

    Of paths to one rank through one set of ranks only the best counts; but the one with the best bottleneck need not
    be the one with the least latency, so the two are found one after the other.
    """

    def __init__(self, rates: Matrix, times: Matrix, nodes: Sequence[int]) -> None:
        self._rates, self._times, self._nodes = rates, times, nodes
        self._world = len(nodes)
        self._whole = (1 << self._world) - 1
        self._members = {node: sum(1 << r for r, home in enumerate(nodes) if home == node) for node in set(nodes)}

    def bottleneck(self, start: int) -> float:
        """That of the ring from ``start`` whose slowest edge is fastest."""
        fastest: dict[tuple[int, int], float] = {(1 << start, start): float("inf")}
        for visited, last in self._states():
            reached = fastest.get((visited, last))
            if reached is None:
                continue
            for rank in self._steps(visited, last):
                state = (visited | 1 << rank, rank)
                fastest[state] = max(fastest.get(state, -1.0), min(reached, float(self._rates[last, rank])))
        return max(
            min(reached, float(self._rates[last, start]))
            for last in range(self._world)
            if last != start and (reached := fastest.get((self._whole, last))) is not None
        )

    def shortest(self, start: int, least: float) -> tuple[float, tuple[int, ...]] | None:
        """Latency and order of the shortest ring from ``start`` without edges below ``least``."""
        known: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {(1 << start, start): (0.0, (start,))}
        for visited, last in self._states():
            path = known.get((visited, last))
            if path is None:
                continue
            for rank in self._steps(visited, last):
                if self._rates[last, rank] >= least:
                    state = (visited | 1 << rank, rank)
                    longer = (path[0] + float(self._times[last, rank]), (*path[1], rank))
                    known[state] = min(known.get(state, longer), longer)
        rings = [
            (path[0] + float(self._times[last, start]), path[1])
            for last in range(self._world)
            if last != start
            and self._rates[last, start] >= least
            and (path := known.get((self._whole, last))) is not None
        ]
        return min(rings) if rings else None

    def _states(self) -> Iterator[tuple[int, int]]:
        """All sets of visited ranks, smaller ones first, with each last rank."""
        return ((visited, last) for visited in range(1, self._whole + 1) for last in range(self._world))

    def _steps(self, visited: int, last: int) -> list[int]:
        free = [rank for rank in range(self._world) if not visited >> rank & 1]
        if self._members[self._nodes[last]] & ~visited:
            return [rank for rank in free if self._nodes[rank] == self._nodes[last]]
        return free


# ---- search: thresholds, and moves that keep directions ----


def _search(rates: Matrix, times: Matrix, nodes: Sequence[int]) -> tuple[int, ...]:
    """Raise the threshold as long as a ring without edges below it is found; then shorten that ring.

    Changing nodes costs more than all else, so that rings which enter a node twice are never preferred.
    """
    world = len(nodes)
    home = np.asarray(nodes)
    entries = len(set(nodes)) if 1 < len(set(nodes)) < world else 0  # else every ring has equally many
    crossing = (home[:, None] != home[None, :]).astype(np.float64) * (2 * world if entries else 0)
    apart = ~np.eye(world, dtype=bool)
    numbers = np.random.default_rng(SEED)
    best = ring_order(nodes)
    levels = np.unique(rates[apart])
    low, high = int(np.searchsorted(levels, bottleneck(best, rates))), len(levels) - 1
    while low < high:  # invariant: a ring of level `low` is known
        middle = (low + high + 1) // 2
        below = (rates < levels[middle]).astype(np.float64)
        order = _improve(best, crossing + below, numbers, enough=2.0 * world * entries)
        reached = bottleneck(order, rates)
        if reached >= levels[middle]:
            best, low = order, int(np.searchsorted(levels, reached))
        else:
            high = middle - 1
    slow = (rates < EQUAL * levels[low]).astype(np.float64)
    scale = float(times[apart].max()) * world + 1.0
    return _improve(best, (crossing * world + slow) * scale + times, numbers, enough=0.0, kicks=0)


def _improve(
    start: tuple[int, ...], cost: Matrix, numbers: np.random.Generator, *, enough: float, kicks: int = KICKS
) -> tuple[int, ...]:
    """A ring of less cost in all, by exchanges of segments and reversals; kicked when none helps.

    enough: no ring costs less.
    """
    best = order = np.asarray(start)
    best_cost = _cost(order, cost)
    for kick in range(kicks + 1):
        if kick:
            order = _exchanged(best, *sorted(numbers.choice(len(best), 3, replace=False)))
        order = _descend(order, cost)
        total = _cost(order, cost)
        if total < best_cost:
            best, best_cost = order, total
        if best_cost <= enough:
            break
    return tuple(int(rank) for rank in best)


def _cost(order: Any, cost: Matrix) -> float:
    return float(cost[order, np.roll(order, -1)].sum())


def _exchanged(order: Any, i: int, j: int, k: int) -> Any:
    """order[i+1..j] and order[j+1..k] change places: no edge is turned round."""
    return np.concatenate((order[: i + 1], order[j + 1 : k + 1], order[i + 1 : j + 1], order[k + 1 :]))


def _descend(order: Any, cost: Matrix) -> Any:
    """Take the best move, most expensive edges first, until none helps."""
    improved = True
    while improved:
        improved = False
        edges = cost[order, np.roll(order, -1)]
        for place in np.argsort(-edges, kind="stable"):
            if edges[place] <= 0:
                break
            moved = _best_move(np.roll(order, -1 - int(place)), cost)  # its expensive edge is now the last
            if moved is not None:
                order, improved = moved, True
                break
    return order


def _best_move(order: Any, cost: Matrix) -> Any:
    """The best move that replaces the edge from the last rank to the first; None if none helps."""
    world = len(order)
    after = np.roll(order, -1)
    edge = cost[order, after]
    # Segments 0..j and j+1..k change places, k < N - 1: in place of the edges after N - 1, j and k come
    # last -> j + 1, k -> 0 and j -> k + 1.
    j, k = np.triu_indices(world - 1, 1)
    gain = (
        edge[-1] + edge[j] + edge[k]
        - cost[order[-1], order[j + 1]] - cost[order[k], order[0]] - cost[order[j], order[k + 1]]
    )  # fmt: skip
    at = int(np.argmax(gain))
    if gain[at] > 1e-9:
        return np.concatenate((order[j[at] + 1 : k[at] + 1], order[: j[at] + 1], order[k[at] + 1 :]))
    # The segment 0..j is turned round: last -> j and 0 -> j + 1, and every edge within runs the other way.
    j = np.arange(1, world - 1)
    forward, backward = np.cumsum(edge), np.cumsum(cost[after, order])
    gain = (
        edge[-1] + edge[j] + forward[j - 1]
        - cost[order[-1], order[j]] - cost[order[0], order[j + 1]] - backward[j - 1]
    )  # fmt: skip
    at = int(np.argmax(gain))
    if gain[at] > 1e-9:
        return np.concatenate((order[: j[at] + 1][::-1], order[j[at] + 1 :]))
    return None
