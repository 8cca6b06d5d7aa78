"""Which edge, rank or host is named, and that nothing is where nothing is slow."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from unit.links.made import edges_between, members_of

from rdmaring.diagnose.links.records import Slow
from rdmaring.diagnose.links.verdict import find_slow, groups_of, suspects

SEEDS = range(60)


def named(slow: tuple[Slow, ...]) -> list[tuple[str, object, str]]:
    """("edge", (2, 4), "sending") or ("host", (3,), "both")."""
    return [
        (each.what, (each.source, each.target) if each.what == "edge" else each.ranks, each.direction) for each in slow
    ]


@pytest.mark.parametrize("world", [2, 3, 4, 6, 12])
def test_nothing_is_named_where_nothing_is_slow(world: int) -> None:
    nodes = list(range(world))
    for seed in SEEDS:
        for noise in (0.05, 0.25):
            edges = edges_between(nodes, lambda a, b: 0.025, noise=noise, seed=seed)
            assert find_slow(edges, members_of(nodes)) == ((), ()), (seed, noise)


@pytest.mark.parametrize("world", [2, 3, 4, 6, 12])
def test_the_one_slow_edge_is_named_and_its_direction(world: int) -> None:
    nodes = list(range(world))
    for seed in SEEDS:
        slow_pair = tuple(random.Random(seed).sample(nodes, 2))
        edges = edges_between(
            nodes, lambda a, b, pair=slow_pair: 0.0125 if (a, b) == pair else 0.025, noise=0.12, seed=seed
        )
        slow, _ = find_slow(edges, members_of(nodes))
        assert named(slow) == [("edge", slow_pair, "sending")], seed
        assert 0.4 < slow[0].ratio < 0.62
        assert f"rank {slow_pair[0]} -> rank {slow_pair[1]}" in slow[0].text


@pytest.mark.parametrize("direction", ["both", "sending", "receiving"])
@pytest.mark.parametrize("world", [3, 4, 6, 12])
def test_a_host_is_named_when_all_its_edges_are_slow(world: int, direction: str) -> None:
    nodes = list(range(world))
    for seed in SEEDS:
        bad = random.Random(seed).randrange(world)

        def rate(a: int, b: int, bad: int = bad) -> float:
            touched = (a == bad and direction != "receiving") or (b == bad and direction != "sending")
            return 0.0125 if touched else 0.025

        slow, _ = find_slow(edges_between(nodes, rate, noise=0.12, seed=seed), members_of(nodes))
        assert named(slow) == [("host", (bad,), direction)], seed


def test_a_host_of_several_ranks_is_named_with_all_of_them() -> None:
    nodes = [0, 0, 1, 1, 2, 2]
    edges = edges_between(nodes, lambda a, b: 1.0 if 1 in (nodes[a], nodes[b]) and nodes[a] != nodes[b] else 2.0)
    slow, _ = find_slow(edges, members_of(nodes))
    assert named(slow) == [("host", (2, 3), "both")]
    assert slow[0].transport == "tcp" and slow[0].ratio == 0.5
    assert "host host1 (ranks 2, 3) is slow sending and receiving over tcp" in slow[0].text


def test_a_slow_rank_inside_a_node_is_a_rank() -> None:
    slow, _ = find_slow(edges_between([0] * 4, lambda a, b: 0.5 if 2 in (a, b) else 1.0), members_of([0] * 4))
    assert named(slow) == [("rank", (2,), "both")]


def test_a_slow_host_and_a_slow_edge_elsewhere_are_both_named() -> None:
    nodes = list(range(6))
    edges = edges_between(nodes, lambda a, b: 0.5 if 4 in (a, b) else 0.4 if (a, b) == (1, 2) else 1.0)
    slow, _ = find_slow(edges, members_of(nodes))
    assert named(slow) == [("host", (4,), "both"), ("edge", (1, 2), "sending")]


def test_two_slow_edges_of_one_sender_do_not_make_a_host() -> None:
    nodes = list(range(5))
    edges = edges_between(nodes, lambda a, b: 0.5 if (a, b) in ((1, 2), (1, 3)) else 1.0)
    slow, _ = find_slow(edges, members_of(nodes))
    assert named(slow) == [("edge", (1, 2), "sending"), ("edge", (1, 3), "sending")]


def test_transports_are_compared_with_themselves_alone() -> None:
    """Shared memory is ten times as fast as TCP here, and nobody minds."""
    nodes = [0, 0, 1, 1]
    assert find_slow(edges_between(nodes, lambda a, b: 1.0), members_of(nodes)) == ((), ())


def test_edges_that_scatter_widely_are_not_judged_by_their_median() -> None:
    """Half of them at 1, half at 2, as on two sockets: the slower half is no fault."""
    nodes = list(range(6))
    edges = edges_between(nodes, lambda a, b: 1.0 if (a + b) % 2 else 2.0)
    assert find_slow(edges, members_of(nodes))[0] == ()


def test_ranks_that_share_cpus_are_not_judged() -> None:
    nodes = [0, 0, 0, 1]
    members = members_of(nodes, cpus_a_node=2)
    edges = edges_between(nodes, lambda a, b: 0.1 if (a, b) == (0, 1) else 1.0)
    slow, notes = find_slow(edges, members)
    assert slow == ()
    assert notes == ("edges inside node 0 (host0): 3 ranks share 2 CPUs, and their rates depend on who runs when",)
    assert [group.transport for group in groups_of(edges, members)[0]] == ["tcp"]
    slow, notes = find_slow(edges, members_of(nodes))
    assert named(slow) == [("edge", (0, 1), "sending")] and notes == ()


def test_suspects_are_what_may_be_slow_slowest_first() -> None:
    nodes = list(range(4))
    rates = {(0, 1): 0.5, (2, 3): 0.8, (3, 0): 0.9}
    edges = edges_between(nodes, lambda a, b: rates.get((a, b), 1.0))
    assert suspects(edges, members_of(nodes)) == [(0, 1), (2, 3)]
    assert suspects(edges_between(nodes, lambda a, b: 1.0), members_of(nodes)) == []
    whole_host = edges_between(nodes, lambda a, b: 0.5 if 1 in (a, b) else 1.0)
    assert set(suspects(whole_host, members_of(nodes))) == {
        (a, b) for a in nodes for b in nodes if a != b and 1 in (a, b)
    }


def test_the_evidence_names_figures_the_other_direction_and_counters() -> None:
    nodes = list(range(4))
    edges = edges_between(nodes, lambda a, b: 0.5 if (a, b) == (2, 1) else 1.0)
    members = members_of(nodes)
    members[2] = replace(members[2], counters={"net/eth0/tx_errors": 12, "net/eth0/tx_bytes": 10**9})
    (slow,) = find_slow(edges, members)[0]
    text = "\n".join(slow.evidence)
    assert slow.text == "edge rank 2 -> rank 1 (host2 -> host1, tcp) is slow: 0.5 GB/s, 0.50 of the others"
    assert "the 11 edges like it: 1 GB/s (median)" in text
    assert "measured once, each the median of its messages: 0.5 GB/s" in text
    assert "the other direction, rank 1 -> rank 2: 1 GB/s" in text
    assert "expected 2.5 GB/s (eth0 runs at 20000 Mbit/s): 0.20 of it" in text
    assert "counters of rank 2 (host2) meanwhile: net/eth0/tx_errors +12" in text
    assert "tx_bytes" not in text
