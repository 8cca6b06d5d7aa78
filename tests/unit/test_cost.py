"""Closed forms against values computed by hand, with round constants."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest

from rdmaring.schedule import ALGORITHMS, ScheduleError
from rdmaring.schedule.cost import FORMS, Costs, LevelCost, Shape, bound, predict

US = 1e-6
NS = 1e-9
MIB = 1 << 20
# alpha 1 us and beta 1 ns in a node, 10 us and 4 ns between nodes; whole chunks, no overhead, free additions
BARE = Costs(LevelCost(US, NS), LevelCost(10 * US, 4 * NS), 0.0, 0.0, 0.0, slice_bytes=1 << 40)
FULL = Costs(LevelCost(US, NS), LevelCost(10 * US, 4 * NS), NS / 4, 0.5 * US, 0.25 * US)


def test_ring_is_the_textbook_formula() -> None:
    # 4 ranks, 4000 bytes: 6 steps of 1 us and 1000 ns
    assert predict("all_reduce", "ring", 4000, [4], BARE) == pytest.approx(12 * US)
    assert predict("reduce_scatter", "ring", 4000, [4], BARE) == pytest.approx(6 * US)
    assert predict("all_gather", "ring", 4000, [4], BARE) == pytest.approx(6 * US)
    # one rank a node: every step is 10 us and 1000 * 4 ns
    assert predict("all_reduce", "ring", 4000, [1] * 4, BARE) == pytest.approx(84 * US)


def test_ring_over_two_nodes_takes_each_far_hop_as_often_as_it_lies_on_the_way() -> None:
    # 4 ranks on 2 nodes, 0 bytes: of 6 hops 3 are far and 3 near, by turns
    assert predict("all_reduce", "ring", 0, [2, 2], BARE) == pytest.approx(33 * US)


def test_ring_with_all_terms() -> None:
    # 2 ranks, 8000 bytes, chunks of 4000 in one slice. Start: row 0.5 + slice 0.25 us. Two hops of 1 us latency,
    # 4 us wire, 0.5 + 0.25 us overhead; the first adds 1 us of additions.
    assert predict("all_reduce", "ring", 8000, [2], FULL) == pytest.approx((0.75 + 2 * 5.75 + 1) * US)


def test_slices_overlap_transfer_with_addition() -> None:
    # a chain over 3 ranks with 8 slices of 1000 bytes: 2 hops of 1 + 1 us for the first, 7 slices of 1 us behind it
    costs = Costs(LevelCost(US, NS), LevelCost(US, NS), NS, 0.0, 0.0, slice_bytes=1000)
    assert predict("broadcast", "ring", 8000, [3], costs) == pytest.approx((2 * 2 + 7) * US)
    # with additions as dear as transfers a hop is 1 us longer, and the slices still come 1 us apart
    assert predict("reduce", "ring", 8000, [3], costs) == pytest.approx((2 * 3 + 7) * US)


def test_direct_counts_latency_once_a_step() -> None:
    # 4 ranks, 4000 bytes: 3 chunks of 1 us through the port, 1 us latency, twice
    assert predict("all_reduce", "direct", 4000, [4], BARE) == pytest.approx(8 * US)
    assert predict("reduce_scatter", "direct", 4000, [4], BARE) == pytest.approx(4 * US)
    assert predict("all_gather", "direct", 4000, [4], BARE) == pytest.approx(4 * US)
    assert predict("all_to_all", "direct", 4000, [4], BARE) == pytest.approx(4 * US)
    # one-shot: 3 vectors of 4 us through the port
    assert predict("all_reduce", "direct1", 4000, [4], BARE) == pytest.approx(13 * US)
    assert predict("broadcast", "direct", 4000, [4], BARE) == pytest.approx(13 * US)
    assert predict("reduce", "direct", 4000, [4], BARE) == pytest.approx(13 * US)


def test_naive_grows_with_the_world() -> None:
    # 3 vectors of 4 us in, 3 out, 1 us latency each way
    assert predict("all_reduce", "naive", 4000, [4], BARE) == pytest.approx(26 * US)


def test_halving_takes_log_steps() -> None:
    # 8 ranks, 8000 bytes: 4 + 2 + 1 us and 3 latencies, twice
    assert predict("all_reduce", "halving", 8000, [8], BARE) == pytest.approx(20 * US)
    assert predict("all_gather", "doubling", 8000, [8], BARE) == pytest.approx(10 * US)


def test_shared_processors_bound_what_ranks_do() -> None:
    # 4 ranks on 1 processor: every rank has 6 rows and 2 more that begin and end, of 1 us each
    alone = Costs(LevelCost(0, 0), LevelCost(0, 0), 0.0, US, 0.0)
    shared = Costs(LevelCost(0, 0), LevelCost(0, 0), 0.0, US, 0.0, processors_per_node=1)
    assert predict("all_reduce", "ring", 8, [4], alone) == pytest.approx(7 * US)
    assert predict("all_reduce", "ring", 8, [4], shared) == pytest.approx(28 * US)


def test_ranks_of_a_node_share_its_rails() -> None:
    one = BARE.far_share(8)
    assert (one, Costs(BARE.near, BARE.far, 0, 0, 0, rails=8).far_share(8)) == (8, 1)
    assert Costs(BARE.near, BARE.far, 0, 0, 0, rails=4).far_share(1, channels=2) == 0.5
    assert Costs(BARE.near, BARE.far, 0, 0, 0, rails=8, oversubscription=2.0).far_share(8) == 2.0


def test_hierarchical_beats_the_flat_ring_where_latency_between_nodes_is_long() -> None:
    costs = Costs(LevelCost(2 * US, NS / 8), LevelCost(1000 * US, NS), NS / 16, US, US)
    flat = predict("all_reduce", "ring", 65536, [4, 4], costs)
    assert flat > 1.9 * predict("all_reduce", "hierarchical", 65536, [4, 4], costs)


def test_bound() -> None:
    assert bound("all_reduce", 4000, [4], BARE) == pytest.approx(6 * US)
    assert bound("all_gather", 4000, [4], BARE) == pytest.approx(3 * US)
    assert bound("broadcast", 4000, [4], BARE) == pytest.approx(4 * US)
    # 2 nodes of 2: each node sends the vector once over its one rail, 16 us; its ranks' ports take 6 us
    assert bound("all_reduce", 4000, [2, 2], BARE) == pytest.approx(16 * US)


@pytest.mark.parametrize(("collective", "algorithm"), sorted(FORMS))
def test_no_form_is_below_the_bound_or_shrinks(collective: str, algorithm: str) -> None:
    """Whatever the algorithm: more bytes, more latency, slower additions never take less time."""
    for shape in (
        Shape.even(2, 2),
        Shape.even(16, 16),
        Shape.even(16, 4),
        Shape.even(13, 1),
        Shape.of_sizes((3, 5, 1)),
    ):
        times = [predict(collective, algorithm, nbytes, shape, FULL) for nbytes in (0, 8, 4096, MIB, 256 * MIB)]
        assert all(less <= more * (1 + 1e-9) for less, more in pairwise(times))
        assert times[0] > 0
        dearer = Costs(LevelCost(3 * US, NS), LevelCost(30 * US, 4 * NS), NS, US, US)
        assert predict(collective, algorithm, MIB, shape, dearer) > times[3]
        if shape.nodes == 1:
            assert times[4] >= bound(collective, 256 * MIB, shape, FULL)


def test_every_schedule_has_a_form() -> None:
    assert set(ALGORITHMS) <= set(FORMS)


def test_a_prediction_of_131072_ranks_takes_microseconds() -> None:
    shape = Shape.even(131072, 8)
    begin = time.process_time()  # not what other processes take
    for _ in range(100):
        predict("all_reduce", "hierarchical", MIB, shape, FULL)
        predict("all_reduce", "halving", MIB, shape, FULL)
    assert (time.process_time() - begin) / 200 < 2e-3


def test_shapes() -> None:
    assert Shape.even(10, 4) == Shape.of_sizes((4, 4, 2)) == Shape.of_ranks("aaaabbbbcc")
    assert Shape.even(3, 8) == Shape.of_sizes((3,))


def test_one_rank_takes_a_row() -> None:
    assert predict("all_reduce", "ring", MIB, [1], FULL) == FULL.row_s


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ScheduleError, match="'star'; there are ring"):
        predict("all_reduce", "star", 8, [4], FULL)
    with pytest.raises(ScheduleError, match="collective must be"):
        predict("sum", "ring", 8, [4], FULL)
    with pytest.raises(ValueError, match="nbytes"):
        predict("all_reduce", "ring", -1, [4], FULL)
    with pytest.raises(ValueError, match="channels"):
        predict("all_reduce", "ring", 8, [4], FULL, channels=0)
    with pytest.raises(ValueError, match="nodes"):
        predict("all_reduce", "ring", 8, [], FULL)
    with pytest.raises(ValueError, match="latency_s"):
        LevelCost(-1.0, 0.0)
    with pytest.raises(ValueError, match="rails"):
        Costs(BARE.near, BARE.far, 0, 0, 0, rails=0)
