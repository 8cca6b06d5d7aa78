"""All-reduce in two levels: proven for every shape, against formulas, on numbers, and with faults put in."""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate

import numpy as np
import pytest
from unit.schedule.machine import POST_FACTOR, Machine
from unit.schedule.mutants import mutants_of_row
from unit.schedule.shapes import EVEN, NAMES, UNEVEN, WIDE, nodes_of, shaped
from unit.schedule.test_mutants import check_mutant

from rdmaring.schedule import Schedule, ScheduleError, generate
from rdmaring.schedule.rows import chunk_begins
from rdmaring.schedule.verify import verify

LONG = pytest.mark.long


def far_bytes(schedule: Schedule, nodes: Sequence[int]) -> list[Fraction]:
    """What each node's ranks send to other nodes, as a fraction of the vector."""
    begins = chunk_begins(schedule.chunk_count, schedule.weights)
    sent = [Fraction(0)] * len(set(nodes))
    for rank in range(schedule.world):
        for row in schedule.rows(rank):
            far = sum(nodes[send.peer] != nodes[rank] for send in row.sends)
            sent[nodes[rank]] += far * Fraction(begins[row.chunk_end] - begins[row.chunk_begin], begins[-1])
    return sent


@pytest.mark.parametrize(
    ("algorithm", "sizes"),
    [
        *(("hierarchical", sizes) for sizes in EVEN),
        *(pytest.param("hierarchical-ring", sizes, marks=LONG if sum(sizes) > 16 else ()) for sizes in EVEN),
    ],
    ids=str,
)
def test_every_shape_to_six_nodes_of_six_holds(algorithm: str, sizes: tuple[int, ...]) -> None:
    nodes = nodes_of(sizes)
    schedule = generate("all_reduce", algorithm, len(nodes), nodes=nodes)
    proof = verify(schedule)
    assert proof.sent == tuple(schedule.sent(rank) for rank in range(schedule.world))
    assert schedule.weights is None


@pytest.mark.parametrize("algorithm", NAMES)
@pytest.mark.parametrize(
    "sizes", [pytest.param(sizes, marks=LONG if sum(sizes) > 9 else ()) for sizes in UNEVEN], ids=str
)
def test_uneven_nodes_hold_wherever_their_ranks_are(algorithm: str, sizes: tuple[int, ...]) -> None:
    for seed in (None, 1):
        for schedule in shaped(algorithm, [sizes], seed):
            verify(schedule)


@pytest.mark.parametrize("algorithm", NAMES)
@pytest.mark.parametrize(
    "sizes", [pytest.param(sizes, marks=LONG if sum(sizes) > 12 else ()) for sizes in WIDE], ids=str
)
def test_many_nodes_and_large_ones_hold(algorithm: str, sizes: tuple[int, ...]) -> None:
    for schedule in shaped(algorithm, [sizes], seed=2):
        verify(schedule)


# ---- formulas ----


@pytest.mark.parametrize("sizes", [*EVEN, *UNEVEN, *WIDE], ids=str)
def test_steps_and_bytes_are_those_of_the_formula(sizes: tuple[int, ...]) -> None:
    """Each rank sends 2 (s - 1)/s inside its node; each node sends the vector once, or 2 (J - 1)/J of it."""
    count, inside = len(sizes), max(sizes) > 1
    for algorithm in NAMES:
        nodes = nodes_of(sizes)
        schedule = generate("all_reduce", algorithm, len(nodes), nodes=nodes)
        ring = count > 1 and (algorithm == "hierarchical-ring" or count > 8)
        hops = 2 * (count - 1) if ring else min(count - 1, 2)
        assert schedule.step_count == hops + 2 * inside
        of_node = Fraction(1) if hops == 1 else Fraction(2 * (count - 1), count)
        assert far_bytes(schedule, nodes) == [of_node] * count
        for rank, node in enumerate(nodes):
            size = sizes[node]
            assert schedule.sent(rank) == Fraction(2 * (size - 1), size) + of_node / size


def test_rails_are_side_by_side() -> None:
    """The k-th rank of a node talks to the k-th of the others, and to its neighbours."""
    nodes = nodes_of((4, 4, 4), seed=3)
    place = {rank: nodes[:rank].count(nodes[rank]) for rank in range(12)}
    for algorithm in NAMES:
        schedule = generate("all_reduce", algorithm, 12, nodes=nodes)
        for rank in range(12):
            peers = {send.peer for row in schedule.rows(rank) for send in row.sends}
            far = {peer for peer in peers if nodes[peer] != nodes[rank]}
            assert far and {place[peer] for peer in far} == {place[rank]}
            assert {peer for peer in peers if nodes[peer] == nodes[rank]} | {rank} == {
                peer for peer in range(12) if nodes[peer] == nodes[rank]
            }


def test_the_grid_is_the_common_refinement_of_the_cuts() -> None:
    """Nodes of two and three ranks: cuts at 1/3, 1/2 and 2/3."""
    schedule = generate("all_reduce", "hierarchical", 5, nodes=[0, 0, 1, 1, 1])
    assert schedule.weights == (2, 1, 1, 2)
    owners = {
        (rank, row.chunk_begin) for rank in range(5) for row in schedule.rows(rank) if row.receives and len(row.sends)
    }
    assert owners == {(0, 0), (0, 1), (1, 2), (1, 3), (2, 0), (3, 1), (3, 2), (4, 3)}
    assert generate("all_reduce", "hierarchical-ring", 5, nodes=[0, 0, 1, 1, 1]).weights == (2, 2, 1, 1, 1, 1, 2, 2)


def test_one_node_is_the_inner_half_and_one_rank_a_node_the_outer() -> None:
    for world in range(1, 7):
        alone = verify(generate("all_reduce", "hierarchical", world, nodes=[5] * world))
        direct = verify(generate("all_reduce", "direct", world))
        assert (alone.sent, alone.busiest_link, alone.orders) == (direct.sent, direct.busiest_link, direct.orders)
        far = verify(generate("all_reduce", "hierarchical-ring", world, nodes=range(world)))
        ring = verify(generate("all_reduce", "ring", world))
        assert (far.sent, far.busiest_link, far.orders) == (ring.sent, ring.busiest_link, ring.orders)
    assert generate("all_reduce", "hierarchical", 2, nodes=[0, 1]).step_count == 1
    apart = verify(generate("all_reduce", "hierarchical", 5, nodes=range(5)))
    assert apart.orders == verify(generate("all_reduce", "direct", 5)).orders


def test_order_of_additions() -> None:
    nodes = [0, 1, 0, 1, 1, 0]
    assert set(verify(generate("all_reduce", "hierarchical", 6, nodes=nodes)).orders) == {"((0 + 2 + 5) + (1 + 3 + 4))"}
    assert (
        verify(generate("all_reduce", "hierarchical-ring", 6, nodes=nodes)).orders
        == (
            "((1 + 3 + 4) + (0 + 2 + 5))",
            "((0 + 2 + 5) + (1 + 3 + 4))",
        )
        * 3
    )
    three = verify(generate("all_reduce", "hierarchical", 7, nodes=[0, 0, 1, 2, 2, 2, 1]))
    assert set(three.orders) == {"((0 + 1) + (2 + 6) + (3 + 4 + 5))"}


# ---- identity and arguments ----


def test_equal_shapes_are_equal_and_others_differ() -> None:
    for algorithm in NAMES:
        plain = generate("all_reduce", algorithm, 4)
        assert generate("all_reduce", algorithm, 4, nodes=[3, 3, 3, 3]) == plain
        two = generate("all_reduce", algorithm, 4, nodes=[0, 0, 1, 1])
        assert generate("all_reduce", algorithm, 4, nodes=(7, 7, -2, -2)) == two
        others = [[0, 1, 0, 1], [0, 1, 1, 0], [0, 0, 0, 1], [0, 1, 1, 1], [0, 1, 2, 3], [0, 0, 1, 2]]
        identities = {generate("all_reduce", algorithm, 4, nodes=nodes).identity for nodes in others}
        assert len(identities | {plain.identity, two.identity}) == len(others) + 2
    assert len({generate("all_reduce", algorithm, 4, nodes=[0, 0, 1, 1]).identity for algorithm in NAMES}) == 2


@pytest.mark.parametrize(
    ("algorithm", "nodes", "message"),
    [
        ("hierarchical", [0, 0, 1], "nodes must name one node for each of 4 ranks, not 3"),
        ("hierarchical", [], "nodes must name one node for each of 4 ranks, not 0"),
        ("ring", [0, 0, 1, 1], "ring knows no nodes; nodes are taken by hierarchical, hierarchical-ring"),
    ],
)
def test_nodes_that_do_not_fit(algorithm: str, nodes: list[int], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        generate("all_reduce", algorithm, 4, nodes=nodes)


def test_no_ring_order_for_nodes() -> None:
    with pytest.raises(ScheduleError, match="hierarchical visits no ring"):
        generate("all_reduce", "hierarchical", 4, order=[0, 2, 1, 3], nodes=[0, 0, 1, 1])


def test_rows_of_one_of_many_ranks_are_made_at_once() -> None:
    schedule = generate("all_reduce", "hierarchical-ring", 8192, nodes=[rank // 8 for rank in range(8192)])
    rows = schedule.rows(5000)
    assert len(rows) == 8 * 1024 + 1023 + 8 * 1024 - 1
    assert len(schedule._cache) == 1


# ---- on numbers ----


@pytest.mark.parametrize("seed", range(24))
def test_the_sum_is_right_on_any_shape_and_in_any_order_of_events(seed: int) -> None:
    choose = random.Random(seed)
    sizes = [choose.randint(1, 4) for _ in range(choose.randint(1, 5))]
    schedule = generate("all_reduce", choose.choice(NAMES), sum(sizes), nodes=nodes_of(sizes, seed))
    count = choose.choice((0, 1, 7, 40, 101))
    if choose.random() < 0.5:
        begins = chunk_begins(schedule.chunk_count, schedule.weights)
        offsets = [count * begin // begins[-1] for begin in begins]
    else:
        offsets = [0, *accumulate(choose.randint(0, 5) for _ in range(schedule.chunk_count))]
    numbers = np.random.default_rng(seed)
    inputs = [numbers.integers(-99, 99, offsets[-1], dtype=np.int64) for _ in range(schedule.world)]
    machine = Machine(
        schedule, inputs, offsets, in_place=choose.random() < 0.5, slice_elements=choose.randint(1, 9), seed=seed
    )
    for output in machine.run():
        np.testing.assert_array_equal(output, POST_FACTOR * np.sum(inputs, axis=0))


# ---- faults ----


@pytest.mark.parametrize("algorithm", NAMES)
@pytest.mark.parametrize(
    "sizes",
    [(3,), (1, 1), (2, 2), (2, 1), (2, 3), (1, 1, 1), (2, 2, 2), (1, 2, 3), (1, 2) * 4 + (1,)],
    ids=str,
)
def test_faults_are_rejected(algorithm: str, sizes: tuple[int, ...]) -> None:
    """Every single fault of the first and of one other rank where there are few rows, else a sample."""
    seed = 7
    print(f"seed {seed}")
    choose = random.Random(f"{seed} {algorithm} {sizes}")
    (schedule,) = shaped(algorithm, [sizes], seed=4)
    verify(schedule)
    kinds = set()
    for rank in {0, choose.randrange(schedule.world)}:
        mutants = [
            mutant for index in range(len(schedule.rows(rank))) for mutant in mutants_of_row(schedule, rank, index)
        ]
        for mutant in choose.sample(mutants, min(len(mutants), 150)):
            check_mutant(schedule, rank, mutant)
            kinds.add(mutant.kind)
    assert kinds >= {"drop row", "duplicate row", "drop send", "drop receive", "wrong chunk", "wrong peer"}


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("algorithm", NAMES)
@pytest.mark.parametrize("sizes", [(2, 2), (2, 1), (3, 2), (2, 2, 2), (1, 2, 3)], ids=str)
def test_every_single_fault_is_rejected(algorithm: str, sizes: tuple[int, ...]) -> None:
    (schedule,) = shaped(algorithm, [sizes])
    for rank in range(schedule.world):
        for index in range(len(schedule.rows(rank))):
            for mutant in mutants_of_row(schedule, rank, index):
                check_mutant(schedule, rank, mutant)
