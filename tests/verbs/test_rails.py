"""A rail that stays dead: the work of its edges moves to another rail of the two nodes, and all sums are right."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from verbs.simulated import Verbs, run_verbs
from verbs.test_mend import ROUNDS

# What a rank says of its first edge once all sums were right, and what its program's log got.
KEEP = """
import logging
logged = []
class Kept(logging.Handler):
    def emit(self, record):
        logged.append([record.levelname, record.getMessage()])
logging.getLogger("rdmaring").addHandler(Kept())

def say_rails(comm):
    link = comm.links[0]
    say(rail=link.rail, rails=list(link.rails), device=link.device, failovers=link.failovers, moved=link.moved)
    say(reconnects=link.reconnects, logged=logged)
"""
SOURCE = KEEP + ROUNDS.replace("    say(reconnects", "    say_rails(comm)\n    say(counts", 1)
MOVED = {"rail": 1, "rails": [1], "device": "sim1/1", "failovers": 1, "moved": "channel 0 from sim0/1 to sim1/1"}
# No port is told of a wire that is cut: no acknowledgement comes, now and after it was made anew on the same rail.
DEAD = {"port": "port_down_after={at}", "device": "device_fatal_after={at}", "wire": "drop_link_after={at}"}
RETRIES = "timeout_percent=2"  # of 4.3 s, until a request that nobody acknowledges fails


def moved(done: Verbs, world: int = 2) -> list[dict[str, Any]]:
    assert done.ran.code == 0, done.ran.output
    done.clean(world)
    return [{key: done.of(rank, key) for key in MOVED} for rank in range(world)]


@pytest.mark.parametrize(("dead", "at"), [("port", 30), ("device", 75), ("wire", 50)])
def test_the_work_moves_to_the_other_rail(dead: str, at: int, tmp_path: Path) -> None:
    env = {"VERBS_SIM_RANK_1": f"fault_device=0,{DEAD[dead].format(at=at)}", "ROUNDS": "10"}
    done = run_verbs(2, SOURCE, tmp_path, f"seed={at},devices=2,{RETRIES}", env=env, timeout_s=100)
    assert moved(done) == [MOVED] * 2
    for rank in range(2):
        told = sorted(text for level, text in done.of(rank, "logged") if level == "WARNING")
        # once a channel, in whichever order: of collectives, and of messages if that was in use
        assert 1 <= len(told) <= 2, told
        assert told[0].startswith(
            f"rank {rank}: channel 0 of the link to rank {1 - rank} moves from sim0/1 to sim1/1"
        ), told


GRANTED = (
    KEEP
    + """
with rr.init(timeout_s=60) as comm:
    n, r = comm.size, comm.rank
    x, y = comm.empty(2_000_000, np.float32), np.empty(2_000_000, np.float32)
    for k in range(4):
        for vector in (x, y):  # written into its place; through slots
            vector[:] = np.arange(vector.size) % 1000 + r + k
            comm.all_reduce(vector, algorithm="ring")
            wanted = n * (np.arange(vector.size) % 1000 + k) + n * (n - 1) // 2
            assert (vector == wanted).all(), f"wrong sum in round {k}"
    say_rails(comm)
    comm.barrier()
"""
)


def run_drawn(seed: int, tmp_path: Path) -> None:
    """A rank, a moment and a way to die of the seed; completions late and out of order between queue pairs."""
    draw = random.Random(seed)
    world, channels, at = draw.choice([2, 3]), 1 + seed % 2, draw.randrange(20, 200)
    dead = draw.choice(sorted(DEAD))
    env = {
        f"VERBS_SIM_RANK_{draw.randrange(2)}": f"fault_device=0,{DEAD[dead].format(at=at)}",
        "RDMARING_VERBS_QPS": str(1 + seed % 4),
        "RDMARING_CHANNELS": str(channels),
        "ROUNDS": "8",
    }
    source = SOURCE if seed % 3 else GRANTED
    spec = f"seed={seed},devices=2,{RETRIES},delay_us=300,reorder=1"
    done = run_verbs(world, source, tmp_path, spec, env=env, timeout_s=150)
    assert done.ran.code == 0, f"seed {seed}, {dead} at {at}: {done.ran.output}"
    done.clean(world)
    for rank in range(2):  # the edge of ranks 0 and 1 has a first channel on rail 0
        assert done.of(rank, "failovers") == 1, f"seed {seed}, {dead} at {at}: {done.ran.output}"
        assert done.of(rank, "rails") == [1]


@pytest.mark.parametrize("seed", range(4))
def test_drawn_deaths_of_a_rail(seed: int, tmp_path: Path) -> None:
    run_drawn(seed, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4, 40))
def test_more_drawn_deaths_of_a_rail(seed: int, tmp_path: Path) -> None:
    run_drawn(seed, tmp_path)


def test_each_end_has_lost_another_rail(tmp_path: Path) -> None:
    """Rail 0 of rank 0 and rail 1 of rank 1 are left out: both channels go over the crossed pair."""
    env = {
        "VERBS_SIM_RANK_0": "fault_device=0,port_down_after=60",
        "VERBS_SIM_RANK_1": "fault_device=1,port_down_after=60",
        "RDMARING_CHANNELS": "2",
        "ROUNDS": "8",
    }
    done = run_verbs(2, SOURCE, tmp_path, f"devices=2,{RETRIES}", env=env, timeout_s=100)
    assert done.ran.code == 0, done.ran.output
    done.clean(2)
    assert (done.of(0, "rails"), done.of(1, "rails")) == ([1], [0])
    assert done.of(0, "moved") == "channel 0 from sim0/1 to sim1/1; channel 1 from the peer's sim1/1 to its sim0/1"
    assert done.of(1, "moved") == "channel 0 from the peer's sim0/1 to its sim1/1; channel 1 from sim1/1 to sim0/1"


def test_a_peer_in_user_code_is_waited_for(tmp_path: Path) -> None:
    """It hears of the dead rail in its next call: a wait longer than reconnect_s is no reason to lose the link."""
    source = (
        KEEP
        + """
with rr.init(timeout_s=60) as comm:
    x = np.ones(100_000, np.float32)
    comm.all_reduce(x)
    if comm.rank == 0:
        time.sleep(4)
    for k in range(5):
        x[:] = comm.rank + k
        comm.all_reduce(x)
        assert (x == 1 + 2 * k).all()
    say_rails(comm)
    comm.barrier()
"""
    )
    env = {"VERBS_SIM_RANK_1": "fault_device=0,port_down_after_ms=1200", "RDMARING_VERBS_RECONNECT_S": "1.5"}
    done = run_verbs(2, source, tmp_path, f"devices=2,{RETRIES}", env=env, timeout_s=100)
    assert moved(done) == [MOVED] * 2


def test_all_rails_dead_is_the_error(tmp_path: Path) -> None:
    source = "\n".join("    " + line for line in SOURCE.splitlines())
    env = {"VERBS_SIM_RANK_1": "port_down_after=60", "RDMARING_VERBS_RECONNECT_S": "1.5", "RDMARING_CHANNELS": "2"}
    done = run_verbs(2, f"def work():\n{source}\nsaid_error(work)\n", tmp_path, "devices=2", env=env, timeout_s=100)
    assert done.ran.code == 0, done.ran.output
    said = [next(what for what in done.ran.said[rank] if "error" in what) for rank in range(2)]
    assert {each["error"] for each in said} <= {"LinkError", "PeerFailedError"}, said
    assert "port 1 went down; it could not be made anew within 1.5 s, on this rail or another" in said[1]["text"], said
    assert "ip link" in said[1]["hint"]
    assert all(each["seconds"] < 30 for each in said), said  # strict: tests/verbs/test_mend.py, with one rail
    done.clean(2)
