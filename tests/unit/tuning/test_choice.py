"""The choice: the least of what is predicted or measured, the same wherever the same is shared."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from rdmaring.choice import (
    ALIKE,
    ALIKE_CROWDED,
    ALIKE_TINY,
    ALL_PEERS,
    ALL_PEERS_WORLD_MAX,
    SHARED_LINE_BYTES,
    Candidate,
    Chooser,
    Explanation,
    candidates_of,
    rounded,
)
from rdmaring.schedule.cluster import LevelCost
from rdmaring.schedule.cost import predict
from rdmaring.tuning.constants import KINDS, MAILBOX_BYTES_MAX, Constants, Table, built_in, in_mailbox

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce")
SIZES = [8 << step for step in range(24)]


def far(latency_s: float, s_per_byte: float) -> Constants:
    level = LevelCost(latency_s, s_per_byte)
    constants = built_in("tcp", None)
    return replace(constants, **{kind: replace(getattr(constants, kind), far=level) for kind in KINDS})


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("nodes", [[0] * 2, [0] * 8, [0, 1, 2, 3], [0, 0, 1, 1, 1]], ids=str)
def test_the_least_is_chosen(collective: str, nodes: list[int]) -> None:
    chooser = Chooser(nodes, built_in("tcp" if max(nodes) else "shm", 2))
    for nbytes in SIZES:
        times = {each.algorithm: each.seconds for each in chooser.candidates(collective, nbytes)}
        choice = chooser.choose(collective, nbytes)
        least = min(times.values())
        factor = ALIKE_CROWDED if nodes == [0] * 8 else ALIKE
        assert times[choice.algorithm] <= factor * least
        alike = [name for name in chooser.trusted(nbytes) if times.get(name, math.inf) <= factor * least]
        tiny = factor if nodes != [0] * 2 else ALIKE_TINY
        if in_mailbox("direct1", nbytes, chooser.world) and times.get("direct1", math.inf) <= tiny * least:
            alike = ["direct1"]
        assert choice.algorithm == alike[0] if alike else times[choice.algorithm] == least
        assert choice.mailbox == in_mailbox(choice.algorithm, nbytes, len(nodes))
        assert choice == Chooser(nodes, built_in("tcp" if max(nodes) else "shm", 2)).choose(collective, nbytes)


def test_few_hops_where_latency_is_all_and_few_bytes_where_it_is_none() -> None:
    # 16 nodes: a ring has 30 hops and moves 30/16 of the vector, one-shot has 1 and moves 15.
    nodes = list(range(16))
    slow = Chooser(nodes, far(1e-3, 1e-9))
    assert slow.choose("all_reduce", 8).algorithm == "direct1"
    ring = slow.candidate("all_reduce", "ring", 64 << 10)
    assert slow.best("all_reduce", slow.candidates("all_reduce", 64 << 10), 64 << 10).algorithm != "ring"
    assert ring.predicted_s > 30 * 1e-3
    thick = Chooser(nodes, far(1e-9, 1e-6))
    times = {each.algorithm: each.predicted_s for each in thick.candidates("all_reduce", 64 << 20)}
    assert min(times, key=lambda name: times[name]) in ("ring", "biring", "direct", "halving")
    assert times["direct1"] > 4 * min(times.values())


def test_candidates_fit_the_world() -> None:
    assert "naive" not in candidates_of("all_reduce", [0] * 4)
    assert "hierarchical" not in candidates_of("all_reduce", [0] * 4)
    assert "hierarchical" not in candidates_of("all_reduce", [0, 1, 2, 3])
    assert "hierarchical" in candidates_of("all_reduce", [0, 1, 1, 2])
    wide = candidates_of("all_reduce", [0] * (ALL_PEERS_WORLD_MAX + 1))
    assert "ring" in wide and not set(ALL_PEERS) & set(wide)
    assert set(candidates_of("barrier", [0] * 4)) == set(candidates_of("all_reduce", [0] * 4))


def test_a_barrier_is_a_tiny_message() -> None:
    choice = Chooser([0] * 8, built_in("shm", 2)).choose("barrier", 0)
    assert (choice.algorithm, choice.mailbox) == ("direct1", True)


def test_measured_times_go_before_predictions() -> None:
    ring, tree = ((8, 1e-6), (1 << 20, 1e-3)), ((8, 2e-6), (1 << 20, 1e-4))
    table = Table((4,), {("all_reduce", "ring"): ring, ("all_reduce", "tree"): tree})
    constants = replace(built_in("shm", 2), tables=(table,))
    chooser = Chooser([0] * 4, constants)
    assert chooser.choose("all_reduce", 8).algorithm == "ring"
    assert chooser.choose("all_reduce", 1 << 20).algorithm == "tree"
    assert "measured 1 us" in chooser.choose("all_reduce", 8).reason
    # direct was not measured, so it does not stand against what was.
    assert chooser.candidate("all_reduce", "direct", 8).measured_s is None
    # Another shape, and another collective: predictions.
    assert "predicted" in Chooser([0] * 5, constants).choose("all_reduce", 8).reason
    assert "predicted" in chooser.choose("broadcast", 8).reason
    assert "predicted" in chooser.choose("all_reduce", 3 << 20).reason  # far beyond what was measured


def test_between_measured_sizes() -> None:
    table = Table((2,), {("all_reduce", "ring"): ((1000, 1e-6), (4000, 4e-6), (16000, 4e-6))})
    for nbytes, seconds in ((1, 1e-6), (1000, 1e-6), (2000, 2e-6), (4000, 4e-6), (9000, 4e-6), (32000, 8e-6)):
        found = table.measured_s("all_reduce", "ring", nbytes)
        assert found is not None and math.isclose(found, seconds, rel_tol=1e-12)
    assert table.measured_s("all_reduce", "ring", 32001) is None
    assert table.measured_s("all_reduce", "tree", 1000) is None


def test_a_mailbox_tells_nothing_of_rows() -> None:
    edge = MAILBOX_BYTES_MAX
    table = Table((4,), {("all_reduce", "direct1"): ((edge // 2, 1e-6), (edge, 2e-6), (4 * edge, 4e-3))})
    assert table.measured_s("all_reduce", "direct1", edge) == pytest.approx(2e-6)
    assert table.measured_s("all_reduce", "direct1", edge + 1) == pytest.approx(4e-3)


def test_sizes_are_rounded_up_by_less_than_an_eighth() -> None:
    for nbytes in [*range(600), 16384, 16385, (1 << 30) - 1, 1 << 30]:
        assert nbytes <= rounded(nbytes) <= max(nbytes, nbytes * 9 / 8), nbytes
        assert rounded(rounded(nbytes)) == rounded(nbytes)
    assert [rounded(1 << k) for k in range(40)] == [1 << k for k in range(40)]
    assert len({rounded(nbytes) for nbytes in range(1 << 16, 1 << 17)}) == 9


def test_crowded_nodes_have_constants_of_their_own() -> None:
    constants = built_in("shm", 2)
    assert constants.costs("ring", 8, 2, 2) is constants.rows
    assert constants.costs("ring", 8, 3, 3) is constants.rows_crowded
    assert constants.costs("direct1", 8, 3, 3) is constants.mailbox_crowded
    assert constants.costs("direct1", 1 << 20, 3, 2) is constants.rows
    assert constants.costs("ring", (16 << 20) - 1, 2, 2) is constants.rows
    assert constants.costs("ring", 16 << 20, 2, 2) is constants.rows_large
    assert constants.costs("ring", 16 << 20, 4, 3) is constants.rows_large_crowded
    assert built_in("shm", None).kind("direct1", 8, 60, 60) == "mailbox"


def test_the_digest_tells_any_number_and_no_name() -> None:
    constants = built_in("tcp", 2)
    assert constants.digest == built_in("tcp", 2).digest != 0
    assert replace(constants, source="elsewhere").digest == constants.digest
    others = [
        built_in("tcp", 3),
        built_in("verbs", 2),
        replace(constants, tables=(Table((2,), {("all_reduce", "ring"): ((8, 1e-6),)}),)),
        replace(constants, tables=(Table((2,), {("all_reduce", "ring"): ((8, 1.0000000000000002e-6),)}),)),
        *(replace(constants, **{kind: replace(getattr(constants, kind), row_s=1.25e-6)}) for kind in KINDS),
    ]
    assert len({each.digest for each in others} | {constants.digest}) == len(others) + 1


def test_an_explanation_is_text_with_fields() -> None:
    chooser = Chooser([0] * 4, built_in("shm", 2))
    choice = chooser.choose("all_reduce", 1 << 20)
    found = Explanation("all_reduce", 1 << 20, chooser, choice, chooser.candidates("all_reduce", 1 << 20))
    assert found.startswith(f"all_reduce of 1048576 bytes among 4 ranks: {choice.algorithm} (predicted ")
    assert [each.algorithm for each in found.candidates] == list(candidates_of("all_reduce", [0] * 4))
    for each in found.candidates:
        line = next(line for line in found.splitlines() if line.split()[0] == each.algorithm)
        assert ("chosen" in line) == (each.algorithm == choice.algorithm)
    assert f"{chooser.constants.digest:08x}" in found.constants


def test_rows_begin_when_both_ends_have_opened() -> None:
    chooser = Chooser([0, 1, 2], far(1e-3, 1e-9))
    costs = chooser.constants.rows
    for name, nbytes, hops in (("ring", 8, 1), ("direct1", 1 << 20, 1), ("direct1", 8, 0)):
        used = costs if hops else chooser.constants.mailbox
        alone = predict("all_reduce", name, nbytes, (1, 1, 1), used)
        assert math.isclose(chooser.candidate("all_reduce", name, nbytes).predicted_s, alone + hops * 1e-3)


def test_of_predictions_that_are_alike_a_tiny_message_is_taken_then_direct_but_a_ring_between_hosts():
    def chosen(*, tiny, nodes=(0, 0), nbytes=8, tiny_s=1.2e-6):
        chooser = Chooser(nodes, built_in("shm", 2))
        alike = [("direct1", tiny, tiny_s), ("ring", False, 1e-6), ("direct", False, 1.4e-6), ("tree", False, 1.6e-6)]
        return chooser.best("all_reduce", [Candidate(*each, None) for each in alike], nbytes).algorithm

    assert chosen(tiny=True, tiny_s=1.05e-6) == "direct1"
    assert chosen(tiny=True) == "direct"  # two algorithms on processors of their own cross where the model says
    assert chosen(tiny=True, nodes=(0, 0, 0)) == chosen(tiny=True, nodes=(0, 1)) == "direct1"
    assert chosen(tiny=False) == "direct"
    assert chosen(tiny=False, nbytes=1 << 20) == "direct"
    assert chosen(tiny=False, nodes=(0, 1), nbytes=1 << 20) == "direct"
    assert chosen(tiny=False, nodes=(0, 1), nbytes=SHARED_LINE_BYTES) == "ring"
    unlike = [Candidate("direct", False, 1.6e-6, None), Candidate("tree", False, 1e-6, None)]
    assert Chooser((0, 0), built_in("shm", 2)).best("all_reduce", unlike, 8).algorithm == "tree"
    crowded = [Candidate("direct", False, 2.9e-6, None), Candidate("tree", False, 1e-6, None)]
    for nodes, name in (((0, 0), "tree"), ((0, 0, 0), "direct"), ((0, 0, 0, 1), "tree")):
        assert Chooser(nodes, built_in("shm", 2)).best("all_reduce", crowded, 1 << 15).algorithm == name
