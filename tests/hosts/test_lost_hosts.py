"""A node that is gone, an edge that is cut and a node that is cut off are told apart, between network namespaces."""

from __future__ import annotations

from pathlib import Path

import pytest
from beds import run_hosts
from verdicts import PRELUDE, verdict
from worlds import Ran

CUTS = """
import subprocess
comm = rr.init(timeout_s=60)
x = np.ones(300_000, np.float32)
comm.all_reduce(x, algorithm="direct")  # joins every pair
time.sleep(0.5)
paths = {link.peer: link.path.rpartition("-> ")[2].rpartition(":")[0] for link in comm.links}

def cut(peer):
    # Frames to a host that is nowhere: as a filter, or a cable, would drop them.
    nowhere = ["lladdr", "02:00:00:00:99:99", "nud", "permanent", "dev", "eth0"]
    subprocess.run(["ip", "neigh", "replace", paths[peer], *nowhere], check=True)
"""


def noticed(ran: Ran, cutter: int, ranks: tuple[int, ...], within_s: float) -> None:
    for rank in ranks:
        assert ran.of(rank, "at") - ran.of(cutter, "cut") < within_s, ran.output


def test_a_cut_edge_is_no_lost_host(tmp_path: Path) -> None:
    """Ranks 0 and 1 hear nothing of each other; rank 2 hears both, waits in the operation, and is asked."""
    source = """
if comm.rank < 2:
    cut(1 - comm.rank)
    say(cut=time.time())
judged(lambda: comm.all_reduce(x, algorithm="direct"))
"""
    ran = run_hosts(3, 1, PRELUDE + CUTS + source, tmp_path, timeout_s=90)
    for rank in range(3):
        found = verdict(ran, rank)
        assert (found["kind"], found["rank"], found["peer"]) == ("link_down", 0, 1), ran.output
        assert found["transport"] == "tcp", found
    assert {ran.of(rank, "error") for rank in (0, 1)} <= {"LinkError", "PeerFailedError"}, ran.output
    assert "LinkError" in (ran.of(0, "error"), ran.of(1, "error")), ran.output
    assert ran.of(2, "error") == "PeerFailedError", ran.output
    assert any("is heard by rank 2" in line for line in verdict(ran, 2)["evidence"]), ran.output
    noticed(ran, 0, (0, 1, 2), 8)


def test_a_lost_host_and_what_it_says_itself(tmp_path: Path) -> None:
    source = """
if comm.rank == 1:
    say(cut=time.time())
    subprocess.run(["ip", "link", "set", "eth0", "down"], check=True)
judged(lambda: comm.all_reduce(x))
"""
    ran = run_hosts(3, 1, PRELUDE + CUTS + source, tmp_path, timeout_s=90)
    for rank in range(3):  # the lost one, too, which hears of no other
        found = verdict(ran, rank)
        assert (found["kind"], found["rank"]) == ("host_gone", 1), ran.output
        assert ran.of(rank, "error") in ("PeerDiedError", "PeerFailedError"), ran.output
    assert "no other node answers" in verdict(ran, 1)["text"], ran.output
    noticed(ran, 1, (0, 2), 8)


@pytest.mark.long
def test_two_ranks_a_host_agree_on_a_lost_host(tmp_path: Path) -> None:
    source = """
if comm.rank == 2:
    say(cut=time.time())
    subprocess.run(["ip", "link", "set", "eth0", "down"], check=True)
judged(lambda: comm.all_reduce(x))
"""
    ran = run_hosts(2, 2, PRELUDE + CUTS + source, tmp_path, timeout_s=90)
    for rank in (0, 1):
        found = verdict(ran, rank)
        assert found["kind"] == "host_gone" and found["rank"] in (2, 3), ran.output
    assert verdict(ran, 0) == verdict(ran, 1)  # one finder a node
    noticed(ran, 2, (0, 1), 8)
