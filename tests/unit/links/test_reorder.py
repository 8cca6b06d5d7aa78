"""The best ring, against all rings, and where all are too many against rings that are known to be there."""

from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np
import pytest

from rdmaring.diagnose.links.reorder import best_ring, bottleneck, edges_of, length


def visits_once(order: tuple[int, ...], nodes: list[int]) -> bool:
    changes = sum(nodes[a] != nodes[b] for a, b in [*pairwise(order), (order[-1], order[0])])
    return changes == (len(set(nodes)) if len(set(nodes)) > 1 else 0)


def all_rings(world: int, nodes: list[int]) -> list[tuple[int, ...]]:
    return [(0, *rest) for rest in permutations(range(1, world)) if visits_once((0, *rest), nodes)]


def random_edges(seed: int, world: int) -> tuple[np.ndarray, np.ndarray]:
    """Few different rates, so that ties are common."""
    numbers = np.random.default_rng(seed)
    kinds = numbers.integers(2, 9)
    rates = numbers.integers(1, kinds + 1, (world, world)).astype(np.float64)
    return rates, numbers.integers(1, 20, (world, world)).astype(np.float64)


@pytest.mark.parametrize("seed", range(60))
def test_exact_is_the_best_of_all_rings(seed: int) -> None:
    world = 3 + seed % 5
    numbers = np.random.default_rng([seed, 1])
    rates, latencies = random_edges(seed, world)
    nodes = list(range(world)) if seed % 2 else [int(n) for n in numbers.integers(0, 3, world)]
    rings = all_rings(world, nodes)
    best = max((bottleneck(ring, rates), -length(ring, latencies)) for ring in rings)
    found = best_ring(rates, latencies, nodes)
    assert sorted(found.order) == list(range(world)) and found.order[0] == 0
    assert visits_once(found.order, nodes)
    assert (found.bottleneck_gb_s, -found.latency_us) == best
    assert found.exact


@pytest.mark.parametrize("seed", range(60))
def test_search_finds_nearly_as_fast_a_ring_as_there_is(seed: int) -> None:
    world = 4 + seed % 4
    rates, latencies = random_edges(seed, world)
    nodes = list(range(world)) if seed % 2 else [rank % 3 for rank in range(world)]
    best = max(bottleneck(ring, rates) for ring in all_rings(world, nodes))
    found = best_ring(rates, latencies, nodes, exact_ranks_max=0)
    assert sorted(found.order) == list(range(world))
    assert visits_once(found.order, nodes)
    assert found.bottleneck_gb_s == best
    assert not found.exact


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("world", [12, 24, 48])
def test_search_avoids_slow_edges_of_many_ranks(world: int, seed: int) -> None:
    """A tenth of the edges is slow, two of them in the ring as it is; a ring without slow edges is planted."""
    numbers = np.random.default_rng([world, seed])
    rates = np.where(numbers.random((world, world)) < 0.1, 12.5, 25.0) * numbers.uniform(0.98, 1.0, (world, world))
    for edge in ((0, 1), (3, 4)):
        rates[edge] = 12.5
    planted = tuple(int(rank) for rank in numbers.permutation(world))
    for edge in edges_of(planted):
        rates[edge] = 25.0
    found = best_ring(rates, None)
    assert sorted(found.order) == list(range(world))
    assert found.bottleneck_before_gb_s <= 12.5
    assert found.bottleneck_gb_s >= 0.98 * 25.0
    assert found.worth


@pytest.mark.parametrize("seed", range(10))
def test_search_keeps_the_ranks_of_a_node_together(seed: int) -> None:
    numbers = np.random.default_rng(seed)
    nodes = [rank % 6 for rank in range(24)]
    near = np.equal.outer(nodes, nodes)
    rates = np.where(near, 10.0, 1.0) * numbers.uniform(0.9, 1.0, (24, 24))
    slow = numbers.choice(6, 2, replace=False)
    rates[np.ix_([r for r in range(24) if nodes[r] == slow[0]], [r for r in range(24) if nodes[r] == slow[1]])] = 0.1
    found = best_ring(rates, None, nodes)
    assert visits_once(found.order, nodes)
    assert found.bottleneck_gb_s >= 0.9


def test_direction_matters() -> None:
    """0 -> 1 -> 2 -> 0 is slow, and the same ring turned round is fast."""
    rates = np.full((3, 3), 1.0)
    for edge in ((0, 2), (2, 1), (1, 0)):
        rates[edge] = 5.0
    found = best_ring(rates, None)
    assert found.order == (0, 2, 1)
    assert (found.bottleneck_before_gb_s, found.bottleneck_gb_s, found.gain) == (1.0, 5.0, 5.0)


def test_rates_that_are_nearly_equal_leave_the_choice_to_latency() -> None:
    numbers = np.random.default_rng(5)
    rates = numbers.uniform(0.99, 1.0, (6, 6))
    rates[0, 1] = 0.5
    latencies = np.full((6, 6), 50.0)
    for edge in edges_of((0, 4, 2, 5, 1, 3)):
        latencies[edge] = 5.0
    for exact_ranks_max in (9, 0):
        found = best_ring(rates, latencies, exact_ranks_max=exact_ranks_max)
        assert found.order == (0, 4, 2, 5, 1, 3)
        assert found.latency_us == 30.0 and found.worth


@pytest.mark.parametrize("world", [1, 2])
def test_there_is_one_ring_of_one_or_two(world: int) -> None:
    found = best_ring(np.full((world, world), 3.0), None)
    assert found.order == found.order_before == tuple(range(world))
    assert found.gain == 1.0 and not found.worth


def test_a_gain_within_noise_is_not_worth_a_change() -> None:
    rates = np.full((4, 4), 10.0)
    rates[0, 1] = 9.7
    found = best_ring(rates, None)
    assert found.bottleneck_gb_s == 10.0
    assert not found.worth
