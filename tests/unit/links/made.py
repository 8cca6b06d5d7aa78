"""Edges and members as they could have been measured, for tests of what is made of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rdmaring.diagnose.links.records import Edge, Expected, Member, Report, Ring, RingEdge
from rdmaring.diagnose.links.reorder import best_ring, edges_of
from rdmaring.diagnose.links.verdict import find_slow


def members_of(nodes: list[int], cpus_a_node: int = 64) -> list[Member]:
    return [Member(rank, node, f"host{node}", 100 + rank, tuple(range(cpus_a_node))) for rank, node in enumerate(nodes)]


def edges_between(
    nodes: list[int],
    rate: Callable[[int, int], float],
    *,
    noise: float = 0.0,
    seed: int = 0,
    far: str = "tcp",
    wrong: dict[tuple[int, int], int] | None = None,
) -> list[Edge]:
    """rate(source, target) in GB/s, made worse by up to ``noise`` of it; times 10 inside a node."""
    numbers = np.random.default_rng(seed)
    edges = []
    for source, home in enumerate(nodes):
        for target, other in enumerate(nodes):
            if source == target:
                continue
            inside = home == other
            value = rate(source, target) * (10 if inside else 1) * (1 - noise * float(numbers.random()))
            edges.append(
                Edge(
                    source,
                    target,
                    "shm" if inside else far,
                    "" if inside else "eth0",
                    value,
                    3.0 if inside else 40.0,
                    1 << 20,
                    5,
                    (wrong or {}).get((source, target), 0),
                    Expected(None, "memory of this machine") if inside else Expected(2.5, "eth0 runs at 20000 Mbit/s"),
                    (value,),
                )
            )
    return edges


def report_of(nodes: list[int], edges: list[Edge], members: list[Member] | None = None) -> Report:
    """What probe() would say of these edges."""
    world = len(nodes)
    who = members_of(nodes) if members is None else members
    rates = np.zeros((world, world))
    for edge in edges:
        rates[edge.source, edge.target] = edge.gb_s
    best = best_ring(rates, None, nodes)
    slow, notes = find_slow(edges, who)
    order = best.order_before
    transfers_us = {pair: 1e4 / float(rates[pair]) for pair in edges_of(order)}  # of 10 MB at that rate
    elapsed_us = max(transfers_us.values())
    carried = tuple(
        RingEdge(*pair, 10**7, elapsed_us, taken_us, 5.0, taken_us) for pair, taken_us in transfers_us.items()
    )
    return Report(
        version="0",
        world=world,
        seed=7,
        seconds=1.5,
        members=tuple(who),
        edges=tuple(edges),
        ring=Ring(order, 1 << 22, elapsed_us, 0.5, 0, carried),
        slow=slow,
        not_judged=notes,
        best_order=best.order,
        best_bottleneck_gb_s=best.bottleneck_gb_s,
        bottleneck_gb_s=best.bottleneck_before_gb_s,
        best_is_exact=best.exact,
        best_is_worth=best.worth,
    )
