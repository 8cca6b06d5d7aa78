"""The verdict `slow`: ranks that get on, held up by one edge; never for want of a processor, never for a stuck edge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from outside import job, stuck
from verdicts import PREFERRED, SLOW_EDGE, run, slow_edge

from rdmaring._native import ffi, lib, verdict_of


def test_a_slow_edge_is_named_at_a_time_out(tmp_path: Path) -> None:
    source = """
comm = rr.init(timeout_s=30, transport=Throttled)
x = np.ones(4_000_000, np.float32)
judged_with_processor(lambda: comm.all_reduce(x, algorithm="ring", timeout_s=3))
"""
    ran = run(3, PREFERRED + SLOW_EDGE + source, tmp_path, "tcp")
    found = slow_edge(ran, 3, 1, 2)
    assert found is None or "the edge 1->2 holds the others up" in found["text"], found


@pytest.mark.long
def test_why_names_it_on_a_job_that_lives(tmp_path: Path) -> None:
    source = """
x = np.ones(100_000, np.float32)
while True:
    comm.all_reduce(x, algorithm="ring")
"""
    before, options = PREFERRED + SLOW_EDGE, "timeout_s=60, transport=Throttled"
    with job(3, source, tmp_path, "tcp", before, options) as (launcher, _):
        group = stuck(launcher)
        found = group["verdict"]
        assert (found["kind"], found["rank"], found["peer"]) == ("slow", 1, 2), group
        assert [each["state"] for each in group["ranks"]] == ["open"] * 3, group


def records(shares: list[int], far: int = 1) -> Any:
    """Ranks of a ring, each with the share of its edge; all move and have their processors."""
    world = len(shares)
    seen = ffi.new("rr_rank_seen[]", world)
    for rank, share in enumerate(shares):
        each = seen[rank]
        each.rank, each.world, each.pid, each.known, each.page_state = rank, world, 100 + rank, 1, 1
        each.life, each.op_entered, each.op_done, each.collective = lib.RR_LIFE_RUNS, 5, 4, 0
        each.pace_peer, each.pace_far, each.busy_permille = (rank + 1) % world, far, share
        each.pace_span_ns, each.starved_permille = 2_000_000_000, 10
    return seen


def slow(seen: Any) -> tuple[int, int] | None:
    found = ffi.new("rr_verdict *")
    lib.rr_verdict_slow(seen, len(seen), 5, found)
    each = verdict_of(found)
    return None if each is None else (each.rank, -1 if each.peer is None else each.peer)


@pytest.mark.parametrize("world", [2, 3, 8])
def test_three_times_the_median(world: int) -> None:
    assert slow(records([900, *[299] * (world - 1)])) == (0, 1)
    assert slow(records([900, *[300] * (world - 1)])) is None
    assert slow(records([100] * (world - 1) + [499])) is None, "an edge that is idle half the time holds up nobody"


def test_edges_between_nodes_are_compared_with_each_other() -> None:
    seen = records([950, 10, 940, 10])
    for rank in (1, 3):
        seen[rank].pace_far = 0
    assert slow(seen) is None, "both edges between the nodes are as busy: that is how the network is"
    seen[2].busy_permille = 100
    assert slow(seen) == (0, 1)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("starved", [301, -1])
def test_never_for_want_of_a_processor(rank: int, starved: int) -> None:
    seen = records([990, 10, 10])
    seen[rank].starved_permille = starved
    assert slow(seen) is None


def test_what_does_not_move_is_not_slow() -> None:
    seen = records([990, 10, 10])
    for each in range(3):
        seen[each].pace_moved_ns = 3_000_000_000
    assert slow(seen) is None
