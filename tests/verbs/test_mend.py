"""Links over verbs that fail while both ends live: made anew, and nothing is lost and nothing comes twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from verbs.simulated import Verbs, run_verbs

# Rounds of all ways that bytes go: granted memory, slots, beside the line, tiny, point to point.
ROUNDS = """
rng = np.random.default_rng(int(os.environ.get("SEED", "0")))
with rr.init(timeout_s=40) as comm:
    n, r = comm.size, comm.rank
    granted = comm.empty(300_000, np.float32)
    until = time.monotonic() + float(os.environ.get("SECONDS", "0"))
    k = 0
    rounds = int(os.environ.get("ROUNDS", "30"))
    while k < rounds or comm.all_reduce(np.array([int(time.monotonic() < until)]), op="max")[0]:
        k += 1
        granted[:] = np.arange(granted.size) % 1000 + r + k
        comm.all_reduce(granted, algorithm="ring")
        wanted = n * (np.arange(granted.size) % 1000 + k) + n * (n - 1) // 2
        assert (granted == wanted).all(), f"wrong sum of granted memory in round {k}"
        for count in (70_000, 600, 20):
            x = (np.arange(count) % 97 + r * k).astype(np.float32)
            comm.all_reduce(x)
            wanted = n * (np.arange(count) % 97) + k * (n * (n - 1) // 2)
            assert (x == wanted).all(), f"wrong sum of {count} in round {k}"
        one = comm.all_reduce(np.array([float(r + k)]))
        assert one[0] == n * k + n * (n - 1) / 2, f"wrong sum of one in round {k}"
        got = np.empty(5000, np.int64)
        work = comm.recv(got, (r - 1) % n, async_op=True)
        comm.send(np.arange(5000) * k + r, (r + 1) % n)
        work.wait()
        assert (got == np.arange(5000) * k + (r - 1) % n).all(), f"wrong message in round {k}"
    say(reconnects={link.peer: link.reconnects for link in comm.links}, rounds=k)
    comm.barrier()
"""


def mended(done: Verbs, world: int = 2) -> list[dict[str, int]]:
    assert done.ran.code == 0, done.ran.output
    done.clean(world)
    counts = [done.of(rank, "reconnects") for rank in range(world)]
    for rank in range(world):
        for peer, count in counts[rank].items():
            assert counts[int(peer)][str(rank)] == count, counts  # both ends count rounds alike
    return counts


TROUBLES = {
    "flush": "flush_after={at}",
    "qp_fatal": "qp_fatal_after={at}",
    "no acknowledgement": "wc_error={at}:RETRY_EXC_ERR:0x81",
    "no answer": "wc_error={at}:RESP_TIMEOUT_ERR:0x81",
}


@pytest.mark.parametrize("at", [7, 40, 90])
@pytest.mark.parametrize("trouble", TROUBLES)
def test_trouble_is_mended(trouble: str, at: int, tmp_path: Path) -> None:
    done = run_verbs(2, ROUNDS, tmp_path, f"seed={at}", env={"VERBS_SIM_RANK_1": TROUBLES[trouble].format(at=at)})
    assert mended(done)[0] == {"1": 1}


@pytest.mark.parametrize("seed", range(6))
def test_with_delays_and_several_queue_pairs(seed: int, tmp_path: Path) -> None:
    """Trouble on two ranks, at sends that the seed says; completions late and out of order between queue pairs."""
    at = [10 + 37 * seed, 25 + 61 * seed]
    kinds = ["flush_after", "qp_fatal_after"]
    env = {
        "VERBS_SIM_RANK_0": f"{kinds[seed % 2]}={at[0]}",
        "VERBS_SIM_RANK_1": f"{kinds[seed % 2 - 1]}={at[1]}",
        "RDMARING_VERBS_QPS": str(1 + seed % 4),
        "ROUNDS": "12",
    }
    done = run_verbs(3, ROUNDS, tmp_path, f"seed={seed},delay_us=300,reorder=1", env=env, timeout_s=100)
    counts = mended(done, 3)
    assert 1 <= counts[0]["1"] <= 2, counts


def test_few_requests_and_small_slots(tmp_path: Path) -> None:
    slots = {"RDMARING_SLOT_BYTES": "4096", "RDMARING_SLOT_COUNT": "2"}
    env = {"VERBS_SIM_RANK_1": "flush_after=90", "ROUNDS": "6", **slots}
    done = run_verbs(2, ROUNDS, tmp_path, "seed=5,max_sge=1,max_qp_wr=140,max_inline=0,delay_us=100", env=env)
    assert mended(done)[0] == {"1": 1}


def test_a_port_that_comes_back(tmp_path: Path) -> None:
    env = {"VERBS_SIM_RANK_1": "port_down_after_ms=800,port_up_after_ms=1600", "SECONDS": "2.5"}
    done = run_verbs(2, ROUNDS, tmp_path, env=env)
    assert mended(done)[0]["1"] in (1, 2)  # of collectives, and of messages if that was up


def test_gids_that_moved_in_their_table(tmp_path: Path) -> None:
    source = ROUNDS.replace("say(reconnects", "say(path=comm.links[0].path, reconnects")
    table = "gids=v2:10.0.0.%r;v2:fe80::%r"  # the types, read from sysfs, are alike in both rows
    done = run_verbs(2, source, tmp_path, table, env={"VERBS_SIM_RANK_1": "move_gids_after=60"})
    assert mended(done)[0] == {"1": 1}
    assert done.of(0, "path").startswith("GID 0 10.0.0.1 -> 10.0.0.2"), done.of(0, "path")
    assert done.of(1, "path").startswith("GID 1 10.0.0.2 -> 10.0.0.1"), done.of(1, "path")


def test_a_peer_in_user_code_is_waited_for(tmp_path: Path) -> None:
    """It hears of the trouble in its next call: that is no reason to lose the link."""
    source = """
with rr.init(timeout_s=30) as comm:
    x = np.ones(100_000, np.float32)
    comm.all_reduce(x)
    if comm.rank == 0:
        time.sleep(2.5)
    began = time.monotonic()
    for k in range(5):
        x[:] = comm.rank + k
        comm.all_reduce(x)
        assert (x == 1 + 2 * k).all()
    say(seconds=time.monotonic() - began, reconnects={link.peer: link.reconnects for link in comm.links})
    comm.barrier()
"""
    env = {"VERBS_SIM_RANK_1": "flush_after_ms=900", "RDMARING_VERBS_RECONNECT_S": "0.5"}
    done = run_verbs(2, source, tmp_path, env=env)
    assert mended(done)[0] == {"1": 1}
    assert done.of(1, "seconds") > 1.5 > done.of(0, "seconds")


def test_a_port_that_stays_down_is_the_error(tmp_path: Path) -> None:
    env = {"VERBS_SIM_RANK_1": "port_down_after=60", "RDMARING_VERBS_RECONNECT_S": "1.5"}
    source = "\n".join("    " + line for line in ROUNDS.splitlines())
    done = run_verbs(2, f"def work():\n{source}\nsaid_error(work)\n", tmp_path, env=env)
    assert done.ran.code == 0, done.ran.output
    for rank in range(2):
        said = next(what for what in done.ran.said[rank] if "error" in what)
        assert said["error"] in ("LinkError", "PeerFailedError"), said
        assert said["seconds"] < 6, said
    said = next(what for what in done.ran.said[1] if "error" in what)
    assert "device sim0: port 1 went down; it could not be made anew within 1.5 s" in said["text"], said
    assert "ip link" in said["hint"]
    done.clean(2)


def test_many_short_waits_for_the_peer_come_to_an_end(tmp_path: Path) -> None:
    """The wire is cut, and ranks run in turns, as on a loaded machine: each wait is too short for user code."""
    source = """
comm = rr.init(timeout_s=40)
x = np.ones(3000)
comm.all_reduce(x)
pids = [int(pid) for pid in comm.all_gather(np.array([os.getpid()]))]
comm.barrier()
if comm.rank == 0 and os.fork() == 0:
    until = time.monotonic() + 25
    try:
        while time.monotonic() < until:
            for runs, waits in (pids, pids[::-1]):
                os.kill(waits, signal.SIGSTOP)
                os.kill(runs, signal.SIGCONT)
                time.sleep(0.25)
    except ProcessLookupError:  # one is through
        pass
    for pid in pids:
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            continue
    os._exit(0)
begin = time.monotonic()
try:
    while True:
        comm.all_reduce(x, timeout_s=40)
except rr.RdmaringError as error:
    say(error=type(error).__name__, seconds=time.monotonic() - begin)
"""
    env = {"RDMARING_VERBS_RECONNECT_S": "2", "VERBS_SIM_RANK_1": "drop_link_after_ms=1500"}
    ran = run_verbs(2, source, tmp_path, env=env, timeout_s=90).ran
    for rank in range(2):
        assert ran.of(rank, "error") in ("LinkError", "PeerFailedError"), ran.output
        assert ran.of(rank, "seconds") < 10, ran.output
