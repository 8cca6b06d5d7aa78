"""The simulator against hand-computed times, formulas, closed forms and itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rdmaring.schedule import ALGORITHMS, SHAPED, Schedule, generate
from rdmaring.schedule.cluster import Cluster, Costs, LevelCost
from rdmaring.schedule.collectives import collective_named
from rdmaring.schedule.cost import predict
from rdmaring.schedule.rows import ScheduleError
from rdmaring.schedule.simulate import Simulator, simulate

US = 1e-6
NS = 1e-9
MIB = 1 << 20
NODE = Costs(LevelCost(1 * US, NS / 10), LevelCost(10 * US, NS / 3), NS / 20, 0.1 * US, 0.1 * US)
FABRIC = Costs(
    LevelCost(2 * US, NS / 100), LevelCost(5 * US, NS / 40), NS / 200, 0.2 * US, 0.1 * US, slice_bytes=MIB, rails=8
)


def schedule_of(collective: str, algorithm: str, world: int, per_node: int | None = None) -> Schedule:
    root = 0 if collective_named(collective).rooted else None
    nodes = [rank // per_node for rank in range(world)] if algorithm in SHAPED and per_node else None
    return generate(collective, algorithm, world, root, nodes=nodes)


def test_a_ring_of_two_by_hand() -> None:
    # 8000 bytes, chunks of 4000. Start: row and slice, 0.75 us. Each hop: 4 us wire, 1 us latency, 0.75 us; the first
    # adds 4000 bytes, 1 us.
    costs = Costs(LevelCost(US, NS), LevelCost(US, NS), NS / 4, 0.5 * US, 0.25 * US)
    found = simulate(schedule_of("all_reduce", "ring", 2), 8000, Cluster(costs, (2,)))
    assert found.seconds == pytest.approx(13.25 * US)
    assert found.sent == (8000.0, 8000.0)
    assert found.work == pytest.approx((3 * 0.75 * US + US,) * 2)


def test_slices_overlap_transfer_and_addition() -> None:
    # 8 slices of 1000 bytes along 3 ranks: the first takes 1 us wire, 1 us latency, 1 us addition a hop, the others
    # follow 1 us apart
    costs = Costs(LevelCost(US, NS), LevelCost(US, NS), NS, 0.0, 0.0, slice_bytes=1000)
    found = simulate(schedule_of("reduce", "ring", 3), 8000, Cluster(costs, (3,)))
    assert found.seconds == pytest.approx((2 * 3 + 7) * US)


@pytest.mark.parametrize("arrays", [False, True])
def test_the_textbook(arrays: bool) -> None:
    """The ring's bytes per rank are flat in N and its time is the bound; naive's root sends (N - 1) vectors."""
    costs = Costs(LevelCost(0.0, NS), LevelCost(0.0, NS), 0.0, 0.0, 0.0, slice_bytes=1 << 40)
    for world in (2, 4, 8, 16):
        ring = simulate(schedule_of("all_reduce", "ring", world), MIB, Cluster(costs, (world,)), arrays=arrays)
        assert ring.sent == pytest.approx([2 * (world - 1) / world * MIB] * world)
        assert ring.seconds == pytest.approx(2 * (world - 1) / world * MIB * NS)
        naive = simulate(schedule_of("all_reduce", "naive", world), MIB, Cluster(costs, (world,)))
        assert naive.sent == pytest.approx([(world - 1) * MIB] + [MIB] * (world - 1))
        assert naive.seconds == pytest.approx(2 * (world - 1) * MIB * NS)


@pytest.mark.parametrize(("collective", "algorithm"), sorted(ALGORITHMS))
def test_no_closed_form_is_far_off(collective: str, algorithm: str) -> None:
    """Whatever the algorithm, of one node or of nodes with a rank each."""
    for world, per_node in ((4, 4), (6, 6), (8, 1)):
        cluster = Cluster.even(NODE, world, per_node)
        simulator = Simulator(schedule_of(collective, algorithm, world, per_node), cluster.sizes)
        for nbytes in (8, 65536, 4 * MIB):
            closed = predict(collective, algorithm, nbytes, cluster.sizes, cluster.costs)
            simulated = simulator.run(nbytes, cluster).seconds
            assert closed == pytest.approx(simulated, rel=0.35), (world, per_node, nbytes)


@pytest.mark.parametrize("algorithm", ["ring", "biring"])
@pytest.mark.parametrize(("world", "per_node"), [(8, 8), (16, 4), (12, 1)])
def test_arrays_and_events_agree(algorithm: str, world: int, per_node: int) -> None:
    cluster = Cluster.even(NODE, world, per_node)
    simulator = Simulator(schedule_of("all_reduce", algorithm, world), cluster.sizes)
    for nbytes in (8, 65536, 8 * MIB):
        if algorithm == "biring" and 1 < per_node < world:
            continue  # both directions wait for each other in the window, and in what order is not the same
        events = simulator.run(nbytes, cluster, arrays=False)
        arrays = simulator.run(nbytes, cluster, arrays=True)
        assert arrays.seconds == pytest.approx(events.seconds, rel=0.005)
        assert arrays.sent == pytest.approx(events.sent)
        assert arrays.work == pytest.approx(events.work)


def test_arrays_with_a_slow_link_and_a_straggler_agree_with_events() -> None:
    cluster = Cluster(NODE, (4, 4), slow_links={(1, 2): 5.0}, stragglers={6: 3.0})
    simulator = Simulator(schedule_of("all_reduce", "ring", 8), cluster.sizes)
    events = simulator.run(4 * MIB, cluster, arrays=False).seconds
    assert simulator.run(4 * MIB, cluster, arrays=True).seconds == pytest.approx(events, rel=0.005)


def test_a_slow_link_bounds_the_ring() -> None:
    # every chunk crosses each link: 2(N-1)/N S at a fifth of the rate
    slow = Cluster(NODE, (8,), slow_links={(3, 4): 5.0})
    found = simulate(schedule_of("all_reduce", "ring", 8), 64 * MIB, slow).seconds
    assert found == pytest.approx(2 * 7 / 8 * 64 * MIB * NS / 10 * 5, rel=0.02)


def test_a_slow_link_matters_where_it_is_used() -> None:
    slow = Cluster(NODE, (8,), slow_links={(2, 5): 50.0})
    ring = schedule_of("all_reduce", "ring", 8)
    assert simulate(ring, MIB, slow).seconds == simulate(ring, MIB, Cluster(NODE, (8,))).seconds
    direct = schedule_of("all_reduce", "direct", 8)
    assert simulate(direct, MIB, slow).seconds > simulate(direct, MIB, Cluster(NODE, (8,))).seconds


def test_a_straggler_delays_everybody() -> None:
    schedule = schedule_of("all_reduce", "ring", 8)
    alone = simulate(schedule, 16 * MIB, Cluster(NODE, (8,)))
    slow = simulate(schedule, 16 * MIB, Cluster(NODE, (8,), stragglers={5: 4.0}))
    # its port carries 2(N-1)/N S at a quarter of the rate
    assert slow.seconds == pytest.approx(4 * alone.seconds, rel=0.05)


def test_jitter_is_replayed_by_its_seed() -> None:
    schedule = schedule_of("all_reduce", "ring", 8)
    clusters = [Cluster(NODE, (8,), jitter=0.5, seed=seed) for seed in (7, 7, 8)]
    first, again, other = (simulate(schedule, 65536, cluster).seconds for cluster in clusters)
    assert first == again != other
    assert first > simulate(schedule, 65536, Cluster(NODE, (8,))).seconds


def test_rails_carry_side_by_side() -> None:
    # 2 nodes x 4 ranks, everybody sends 4 of 8 chunks between nodes, twice
    schedule = schedule_of("all_reduce", "direct", 8)
    one, four = (simulate(schedule, 64 * MIB, Cluster(replace(NODE, rails=rails), (4, 4))).seconds for rails in (1, 4))
    assert one == pytest.approx(2 * 4 * 64 * MIB / 2 * NS / 3, rel=0.02)
    assert four < one / 2


def test_a_narrow_way_between_nodes_counts_for_all_rails() -> None:
    schedule = schedule_of("all_reduce", "direct", 8)
    costs = replace(NODE, rails=4, oversubscription=4.0)
    found = simulate(schedule, 64 * MIB, Cluster(costs, (4, 4))).seconds
    assert found == pytest.approx(2 * 4 * 64 * MIB / 2 * NS / 3, rel=0.02)


def test_ranks_that_share_a_processor_take_turns() -> None:
    costs = Costs(LevelCost(0.0, 0.0), LevelCost(0.0, 0.0), 0.0, US, 0.0, processors_per_node=1)
    schedule = schedule_of("all_reduce", "ring", 4)
    found = simulate(schedule, 8, Cluster(costs, (4,)))
    assert found.seconds == pytest.approx(4 * 7 * US)  # 4 ranks of 7 rows
    assert predict("all_reduce", "ring", 8, [4], costs) == pytest.approx(found.seconds)


def test_long_pipelines_are_extrapolated() -> None:
    cluster = Cluster(NODE, (4,))
    schedule = schedule_of("all_reduce", "ring", 4)
    found = simulate(schedule, 256 * MIB, cluster)
    assert found.extrapolated
    assert found.sent == pytest.approx([1.5 * 256 * MIB] * 4)
    assert found.seconds == pytest.approx(predict("all_reduce", "ring", 256 * MIB, [4], cluster.costs), rel=0.02)


@pytest.mark.parametrize(("algorithm", "tolerance"), [("ring", 0.001), ("halving", 0.08), ("tree", 0.08)])
def test_what_is_extrapolated_is_what_all_slices_take(
    algorithm: str, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of halving are of different lengths: the shorter vectors keep slices of the shortest."""
    cluster, schedule = Cluster(NODE, (8,)), schedule_of("all_reduce", algorithm, 8)
    few = Simulator(schedule, (8,)).run(64 * MIB, cluster, slices_max=250)
    monkeypatch.setattr("rdmaring.schedule.simulate.LONGEST_MAX", 1 << 20)
    whole = Simulator(schedule, (8,)).run(64 * MIB, cluster)
    assert few.extrapolated and not whole.extrapolated
    assert few.seconds == pytest.approx(whole.seconds, rel=tolerance)
    assert few.sent == pytest.approx(whole.sent)


class _Unfolded(Simulator):
    """Every rank by itself."""

    def fold(self, nbytes: float, cluster: Cluster) -> None:
        return None


FOLDED = [
    ("all_reduce", "ring", 8, 8, 1),
    ("all_reduce", "biring", 6, 6, 1),
    ("all_reduce", "direct", 8, 1, 1),
    ("all_reduce", "direct", 8, 4, 4),
    ("all_reduce", "hierarchical", 12, 3, 3),
    ("all_reduce", "halving", 8, 8, 1),
    ("all_gather", "doubling", 8, 4, 4),
    ("all_to_all", "direct", 6, 2, 2),
]


@pytest.mark.parametrize(("collective", "algorithm", "world", "per_node", "standing"), FOLDED)
def test_ranks_that_stand_for_all_take_the_time_of_all(
    collective: str, algorithm: str, world: int, per_node: int, standing: int
) -> None:
    cluster = Cluster.even(replace(FABRIC, rails=2), world, per_node)
    schedule = schedule_of(collective, algorithm, world, per_node)
    for nbytes in (8, 65536) if algorithm in ("halving", "doubling") else (8, 65536, 8 * MIB):
        simulator = Simulator(schedule, cluster.sizes)
        fold = simulator.fold(nbytes, cluster)
        assert fold is not None and fold.world == standing
        folded, alone = simulator.run(nbytes, cluster), _Unfolded(schedule, cluster.sizes).run(nbytes, cluster)
        assert folded.seconds == pytest.approx(alone.seconds, rel=0.001)
        assert folded.sent == pytest.approx(alone.sent)
        assert folded.work == pytest.approx(alone.work)


@pytest.mark.parametrize(
    ("collective", "algorithm", "world", "per_node", "slices", "standing"),
    [
        ("all_reduce", "halving", 16, 4, 4, 4),
        ("all_reduce", "halving", 32, 1, 4, 4),
        ("all_reduce", "halving", 32, 32, 8, 8),
        ("all_gather", "doubling", 32, 2, 4, 16),  # large steps go far: it matters in which half of the world a rank is
    ],
)
def test_ranks_whose_slices_wait_alike_stand_for_all(
    collective: str, algorithm: str, world: int, per_node: int, slices: int, standing: int
) -> None:
    """Of rows of several slices it matters which half a partner keeps; of the steps with rows of one, it does not."""
    cluster = Cluster.even(FABRIC, world, per_node)
    schedule = schedule_of(collective, algorithm, world)
    nbytes = slices * FABRIC.slice_bytes
    simulator = Simulator(schedule, cluster.sizes)
    fold = simulator.fold(nbytes, cluster)
    assert fold is not None and fold.world == standing
    folded, alone = simulator.run(nbytes, cluster), _Unfolded(schedule, cluster.sizes).run(nbytes, cluster)
    assert folded.seconds == pytest.approx(alone.seconds, rel=1e-6)
    assert folded.sent == pytest.approx(alone.sent)
    assert folded.work == pytest.approx(alone.work)


def test_no_rank_stands_for_others_that_differ() -> None:
    assert Simulator(schedule_of("all_reduce", "tree", 8), (8,)).fold(8, Cluster(NODE, (8,))) is None
    assert Simulator(schedule_of("all_reduce", "halving", 6), (6,)).fold(8, Cluster(NODE, (6,))) is None
    ring = Simulator(schedule_of("all_reduce", "ring", 8), (8,))
    assert ring.fold(8, Cluster(NODE, (8,), stragglers={1: 2.0})) is None
    assert ring.fold(8, Cluster(replace(NODE, processors_per_node=2), (8,))) is None
    assert Simulator(schedule_of("all_reduce", "ring", 8), (5, 3)).fold(8, Cluster(NODE, (5, 3))) is None
    # of several slices it matters which half a partner keeps
    assert Simulator(schedule_of("all_reduce", "halving", 8), (8,)).fold(8 * MIB, Cluster(NODE, (8,))) is None


def test_channels_are_simulated_on_their_rails() -> None:
    # one rank a node, 2 rails: two channels take half the time of one
    costs = Costs(LevelCost(0.0, NS), LevelCost(0.0, NS), 0.0, 0.0, 0.0, slice_bytes=1 << 40, rails=2)
    cluster = Cluster.even(costs, 4, 1)
    one, two = (generate("all_reduce", "ring", 4, channels=channels) for channels in (1, 2))
    assert simulate(one, MIB, cluster).seconds == pytest.approx(1.5 * MIB * NS)
    assert simulate(two, MIB, cluster).seconds == pytest.approx(0.75 * MIB * NS)


def test_a_ring_of_512_ranks() -> None:
    cluster = Cluster.even(FABRIC, 512, 8)
    found = simulate(schedule_of("all_reduce", "ring", 512), MIB, cluster)
    assert found.seconds == pytest.approx(predict("all_reduce", "ring", MIB, cluster.sizes, FABRIC), rel=0.02)


@pytest.mark.long
def test_a_ring_of_4096_ranks() -> None:
    cluster = Cluster.even(FABRIC, 4096, 8)
    found = simulate(schedule_of("all_reduce", "ring", 4096), MIB, cluster)
    assert found.seconds == pytest.approx(predict("all_reduce", "ring", MIB, cluster.sizes, FABRIC), rel=0.02)


def test_wrong_arguments_are_named() -> None:
    ring = schedule_of("all_reduce", "ring", 4)
    with pytest.raises(ScheduleError, match="nodes have 5 ranks"):
        simulate(ring, 8, Cluster(NODE, (5,)))
    with pytest.raises(ValueError, match="rank 9 is slow"):
        Cluster(NODE, (4,), stragglers={9: 2.0})
    with pytest.raises(ScheduleError, match="not regular"):
        simulate(schedule_of("all_reduce", "tree", 6), 8, Cluster(NODE, (6,)), arrays=True)


def test_a_schedule_that_stops_is_named() -> None:
    ring = schedule_of("all_reduce", "ring", 3)
    deaf = replace(ring, make_rows=lambda rank: () if rank == 0 else ring.make_rows(rank))
    with pytest.raises(ScheduleError, match="rank 2: sends to rank 0 more often"):
        simulate(deaf, 8, Cluster(NODE, (3,)))
    mute = replace(ring, make_rows=lambda rank: tuple(replace(row, sends=()) for row in ring.make_rows(rank)))
    with pytest.raises(RuntimeError, match="rank 0, row 1 never ran"):
        simulate(mute, 8, Cluster(NODE, (3,)))
