"""Complaints of setting up RDMA that no other test provokes."""

from __future__ import annotations

from pathlib import Path

from verbs.simulated import NODES, run_verbs
from verbs_sim import build
from worlds import run_world

# Rail 0 of node 0 has its neighbour on rail 1 of node 1, and the other way round: names and order of the NICs differ.
CROSSED = {
    "VERBS_SIM_RANK_0": "host=1,gids=v2:10.1.0.1,gids.1=v2:10.2.0.1",
    "VERBS_SIM_RANK_1": "host=1,gids=v2:10.1.0.1,gids.1=v2:10.2.0.1",
    "VERBS_SIM_RANK_2": "host=2,gids=v2:10.2.0.2,gids.1=v2:10.1.0.2",
    "VERBS_SIM_RANK_3": "host=2,gids=v2:10.2.0.2,gids.1=v2:10.1.0.2",
}


def test_rails_numbered_otherwise_at_the_other_end_meet_in_their_subnets(tmp_path: Path) -> None:
    source = """
with rr.init(timeout_s=30) as comm:
    x = np.ones(50_000, np.float32)
    comm.all_reduce(x, algorithm="direct")
    far = [link for link in comm.links if link.transport == "verbs"]
    say(sum=float(x[0]), ends=[link.path.split(" (")[0].split(" ", 2)[2] for link in far],
        devices=[link.device for link in far])
"""
    done = run_verbs(4, source, tmp_path, "devices=2", env={**CROSSED, "PER": "2"})
    assert done.ran.code == 0, done.ran.output
    for rank in range(4):
        assert done.of(rank, "sum") == 4.0
        ends = done.of(rank, "ends")
        assert ends, done.ran.output
        for ours, theirs in (pair.split(" -> ") for pair in ends):
            assert ours.rsplit(".", 2)[0] == theirs.rsplit(".", 2)[0], ends  # of one subnet
    # and each rank of a node has a rail of its own
    assert set(done.of(0, "devices")).isdisjoint(done.of(1, "devices"))
    done.clean(4)


def test_ranks_that_offer_no_common_transport_end_at_once_on_both(tmp_path: Path) -> None:
    """One allows RDMA alone, the other TCP alone: no hang, and each knows which rank, and what it allows."""
    source = """
os.environ["RDMARING_TRANSPORT"] = "verbs" if me == 0 else "tcp"
said_error(lambda: rr.init(timeout_s=20).close())
"""
    values = build.environment("", fabric=str(tmp_path), sysfs_root=tmp_path / "sysfs")
    done = run_world(2, NODES + source, tmp_path, env=values)
    assert done.code == 0, done.output
    assert done.of(0, "error") == done.of(1, "error") == "SetupError"
    assert "the edge to rank 1 has none: no RDMA: rank 1: its settings allow TCP only" in done.of(0, "cause")
    assert done.of(0, "hint")
    assert done.of(1, "cause").startswith("rank 0 (pid ") and "has left" in done.of(1, "cause")
    assert done.of(1, "hint") == "look at the output of rank 0"
    assert max(done.of(rank, "seconds") for rank in range(2)) < 15


LOST = """
def work():
    with rr.init(timeout_s=20) as comm:
        x = np.ones(50_000, np.float32)
        for k in range(4000):
            comm.all_reduce(x)
            x[:] = 1
said_error(work)
"""


def test_a_lost_acknowledgement_names_port_addresses_peer_and_what_to_try(tmp_path: Path) -> None:
    """Error 12 of whoever has set up RoCE for the first time."""
    env = {
        "VERBS_SIM_RANK_1": "drop_link_after=60",
        "RDMARING_VERBS_RETRY_TIMEOUT_S": "0.2",
        "RDMARING_VERBS_RECONNECT_S": "0",
    }
    done = run_verbs(2, LOST, tmp_path, "gids=v2:10.0.0.%r", env=env)
    told = next(what for rank in range(2) for what in done.ran.said[rank] if "RETRY_EXC_ERR" in what.get("text", ""))
    peer = int(told["cause"].split("writing to rank ")[1][0])  # told by the rank that found it, or by its peer
    me = 1 - peer
    for part in (
        f"writing to rank {peer} failed with RETRY_EXC_ERR (12, vendor code",
        "no acknowledgement came",
        "packets of full MTU are dropped on the way",
        "Device sim0 port 1",
        f"10.0.0.{me + 1} to 10.0.0.{peer + 1} (RoCE v2)",
    ):
        assert part in told["cause"], told
    assert "rdmaring doctor --peer HOST compares GIDs and subnets" in told["hint"]
    assert "RDMARING_VERBS_RETRY_TIMEOUT_S" in told["hint"]
    done.clean(2)
