"""A slice that never arrives, and after which none comes on its edge: what was sent is compared with what came."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from verdicts import agreed, run

from rdmaring._native import ffi, lib, verdict_of

# Over the edge FROM->TO the next slice is lost, once the rank that sends it says so.
LOSING = """
from rdmaring.transport import Sockets
from rdmaring.transport.contract import Head, Kind
class Losing(Sockets):
    name = "losing"
    left = 0
    def send(self, head, body):
        mine = (self.edge.rank, self.edge.peer) == (FROM, TO)
        if mine and Losing.left and body and Head.parse(head).kind == Kind.DATA:
            Losing.left -= 1
            return True
        return super().send(head, body)

comm = rr.init(timeout_s=30, transport=Losing)
x = np.ones(COUNT)
comm.all_to_all(x)
Losing.left = 1
def both():
    comm.all_to_all(x, timeout_s=2)
    comm.broadcast(x, root=0, algorithm="direct", timeout_s=2)  # which needs no edge between ranks 1 and 2
"""


def losing(frm: int, to: int, count: int, then: str) -> str:
    return LOSING.replace("FROM", str(frm)).replace("TO", str(to)).replace("COUNT", str(count)) + then


@pytest.mark.parametrize("where", ["tcp", "mixed"])
def test_the_others_wait_in_the_next_operation(where: str, tmp_path: Path) -> None:
    """Rank 2 lacks a slice of the first: nobody else does, and all wait for it to enter the second."""
    source = losing(1, 2, 4000, "judged(both)")
    found = agreed(run(4, source, tmp_path, where), (0, 1, 2, 3), "link_down", 1)
    assert found["peer"] == 2
    assert found["text"] == "link down: the edge 1->2 has lost what was sent on it, and both ends live"
    assert "has sent 1 slice more than came" in found["evidence"][0]


def records(world: int) -> Any:
    """All wait in operation 5, each for data of the rank before it."""
    seen = ffi.new("rr_rank_seen[]", world)
    for rank in range(world):
        each = seen[rank]
        each.rank, each.world, each.pid, each.known, each.page_state = rank, world, 100 + rank, 1, 1
        each.life, each.op_entered, each.op_done, each.collective = lib.RR_LIFE_RUNS, 5, 4, 0
        each.wait_kind[0], each.wait_peer[0], each.wait_row[0] = lib.RR_WAIT_DATA, (rank - 1) % world, 3
        each.pace_peer, each.lacks_peer = -1, -1
    return seen


def edge(seen: Any, op: int = 5) -> tuple[int, int | None, int | None]:
    """As rank 0 finds it, with the operation."""
    found = ffi.new("rr_verdict *")
    lib.rr_verdict_search(seen, len(seen), 0, op, found)
    each = verdict_of(found)
    assert each is not None and each.kind == "link_down", each
    return each.rank, each.peer, each.op


def test_who_lacks_what_was_sent_goes_before_who_is_furthest_behind() -> None:
    seen = records(4)
    seen[3].wait_row[0] = 1
    assert edge(seen) == (2, 3, 5)
    seen[1].lacks_peer, seen[1].lacks = 0, 2
    assert edge(seen) == (0, 1, 5)


def test_who_waits_in_an_earlier_operation_is_further_behind() -> None:
    """Rank 2's sender is through with that one: it has sent all."""
    seen = records(4)
    for rank in (0, 1, 3):
        seen[rank].op_entered, seen[rank].op_done = 6, 5
    seen[3].wait_kind[0] = lib.RR_WAIT_ENTRY
    assert edge(seen, op=6) == (1, 2, 5)


def test_who_waits_is_told_with_the_operation_that_it_is_in() -> None:
    """Ranks 0 and 1 are one further than rank 3, which waits for the one that has ended."""
    seen = records(4)
    for rank in (0, 1):
        seen[rank].op_entered, seen[rank].op_done = 6, 5
    seen[2].life = lib.RR_LIFE_ENDED
    found = ffi.new("rr_verdict *")
    for collective, name in ((0, " (all_reduce)"), (-1, "")):
        seen[3].collective = collective
        lib.rr_verdict_search(seen, 4, 0, 6, found)
        verdict = verdict_of(found)
        assert verdict is not None and (verdict.kind, verdict.rank, verdict.peer) == ("died", 2, 3)
        assert verdict.text.endswith(f"; rank 3 waits for it in row 3 of op 5{name}"), verdict.text


@pytest.mark.parametrize("mover", [1, 2])
def test_an_edge_that_gets_on_is_not_down(mover: int) -> None:
    """Its sender is through: what it has sent lies in its kernel, and gets less, as it or the receiver sees."""
    seen = records(4)
    for rank in (0, 1, 3):
        seen[rank].op_entered, seen[rank].op_done = 6, 5
    seen[3].wait_kind[0] = lib.RR_WAIT_ENTRY
    seen[mover].pace_peer, seen[mover].pace_moved_ns = 3 - mover, 100_000_000
    found = ffi.new("rr_verdict *")
    lib.rr_verdict_search(seen, 4, 0, 6, found)
    assert verdict_of(found) is None
    seen[mover].pace_moved_ns = 1_500_000_000
    assert edge(seen, op=6) == (1, 2, 5)


def test_the_last_word_of_the_operation_before_makes_no_cycle() -> None:
    """Ranks 0 and 1 waited for each other elsewhere before rank 1 was stopped: told late, it is no wait of now."""
    seen = records(2)
    here, there = 7, 8
    for rank in (0, 1):
        seen[rank].comm, seen[rank].process = here, 100 + rank
    seen[0].wait_kind[0], seen[0].waited_ns = lib.RR_WAIT_ENTRY, 2_000_000_000
    seen[1].op_entered, seen[1].op_done, seen[1].life = 4, 4, lib.RR_LIFE_UNKNOWN
    seen[1].else_kind, seen[1].else_comm, seen[1].else_process = lib.RR_WAIT_ENTRY, there, 100
    found = ffi.new("rr_verdict *")
    for quiet_ns, kind in ((1_900_000_000, "never_entered"), (400_000_000, "order")):
        seen[1].else_quiet_ns = quiet_ns
        lib.rr_verdict_search(seen, 2, 0, 5, found)
        each = verdict_of(found)
        assert each is not None and each.kind == kind, each
