"""Right sums over verbs: all modes, several queue pairs out of order, one slot, tiny messages, odd devices."""

from __future__ import annotations

from pathlib import Path

import pytest
from verbs.simulated import run_verbs

SUMS = """
import ml_dtypes
counts = [int(word) for word in os.environ.get("COUNTS", "1 5 9 10 11 4097 300000").split()]
with rr.init(timeout_s=50) as comm:
    r, n = comm.rank, comm.size
    for count in counts:
        for dtype in (np.float32, ml_dtypes.bfloat16):
            want = np.arange(count) % 7 * n + n * (n - 1) / 2  # exact in bfloat16, too
            given = (np.arange(count) % 7 + r).astype(dtype)
            for algorithm in (None, "ring", "direct"):
                for memory in ("registered", "ordinary", "list"):
                    if memory == "list":
                        x = np.array_split(given.copy(), 5)
                        for i in (1, 3):  # every other piece in registered memory
                            x[i] = comm.empty(max(len(x[i]), 1), dtype)[:len(x[i])]
                        for part, from_ in zip(x, np.array_split(given, 5)):
                            part[:] = from_
                        comm.all_reduce([part for part in x if len(part)], algorithm=algorithm)
                        x = np.concatenate(x)
                    else:
                        x = comm.empty(count, dtype) if memory == "registered" else np.empty(count, dtype)
                        x[:] = given
                        comm.all_reduce(x, algorithm=algorithm)
                    wrong = np.flatnonzero(x.astype(np.float64) != want)
                    assert not len(wrong), (count, dtype, algorithm, memory, len(wrong), wrong[:9])
            edges = np.cumsum([0] + [len(part) for part in np.array_split(np.arange(count), n)])
            part = np.empty(edges[r + 1] - edges[r], dtype)
            comm.reduce_scatter(given, out=part)
            assert np.array_equal(part.astype(np.float64), want[edges[r]:edges[r + 1]])
            whole = comm.empty(count, dtype)
            comm.all_gather(part, out=whole)
            assert np.array_equal(whole.astype(np.float64), want)
            for root in range(n):
                x = comm.empty(count, dtype); x[:] = given
                comm.broadcast(x, root=root)
                assert np.array_equal(x.astype(np.float64), np.arange(count) % 7 + root)
    comm.barrier()
    say(links=[[link.transport, link.device, link.rail, link.streams, link.path] for link in comm.links],
        reasons=[link.reason for link in comm.links])
"""

SLOTS = {"RDMARING_SLOT_BYTES": "4096"}
CASES = {
    "plain": (2, "", {}),
    "three ranks": (3, "seed=5", {}),
    "checked": (3, "seed=6,delay_us=100,reorder=1", {"RDMARING_CHECK": "crc", "RDMARING_VERBS_QPS": "2"}),
    "two nodes of two": (4, "", {"PER": "2"}),
    "2 queue pairs, late": (2, "seed=11,delay_us=200,reorder=1", {"RDMARING_VERBS_QPS": "2"}),
    "4 queue pairs, late": (2, "seed=12,delay_us=200,reorder=1", {"RDMARING_VERBS_QPS": "4"}),
    "3 queue pairs, later": (2, "seed=13,delay_us=1500,reorder=1", {"RDMARING_VERBS_QPS": "3", "COUNTS": "5 300000"}),
    "one slot": (2, "seed=14,delay_us=100", {**SLOTS, "RDMARING_SLOT_COUNT": "1", "COUNTS": "1 20001"}),
    "two slots": (2, "seed=15", {**SLOTS, "RDMARING_SLOT_COUNT": "2"}),
    "no inline data": (2, "seed=16,max_inline=0", {}),
    "one piece, few requests": (2, "seed=17,max_sge=1,max_qp_wr=140,max_inline=64", {}),
    "infiniband": (2, "link_layer=infiniband", {}),
    "ipv6 only": (2, "gids=v2:fe80::%r;v2:fd00::%r", {}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_sums_are_right(case: str, tmp_path: Path) -> None:
    world, spec, env = CASES[case]
    done = run_verbs(world, SUMS, tmp_path, spec, env=env, timeout_s=110)
    assert done.ran.code == 0, done.ran.output
    done.clean(world)
    for rank in range(world):
        far = [link for link in done.of(rank, "links") if link[0] != "shm"]
        assert far and all(link[:3] == ["verbs", "sim0/1", 0] for link in far)
        assert all(link[3] == int(env.get("RDMARING_VERBS_QPS", "1")) for link in far)
        if case == "infiniband":
            assert all(link[4].startswith("LID ") for link in far)
        if case == "ipv6 only":
            assert all(link[4].startswith("GID 1 fd00::") for link in far)


TINY = """
with rr.init(timeout_s=50) as comm:
    x = np.zeros(1)
    for k in range(300):
        x[0] = comm.rank + k
        comm.all_reduce(x)
        assert x[0] == comm.size * k + comm.size * (comm.size - 1) / 2, (k, x)
    big = np.full(4096, comm.rank + 1, np.float32)  # the largest tiny message: 16 KiB
    comm.all_reduce(big, algorithm="direct")
    assert (big == comm.size * (comm.size + 1) / 2).all()
    say(sent=[link.sent_bytes for link in comm.links])
"""


@pytest.mark.parametrize("spec", ["", "seed=3,delay_us=300,reorder=1"])
def test_tiny_messages(spec: str, tmp_path: Path) -> None:
    done = run_verbs(3, TINY, tmp_path, spec)
    assert done.ran.code == 0, done.ran.output
    done.clean(3)
    # one request a message and peer, once more where the peer came late; set-up's none
    for report in done.reports.values():
        assert 2 * (300 + 1) <= report["counts"]["sends"] <= 4 * (300 + 1) + 40, report
        assert report["counts"]["recvs"] <= 2 * 136 + report["counts"]["recv_completions"], report


@pytest.mark.parametrize("seed", range(3))
def test_a_bell_that_comes_late_spoils_no_later_message(seed: int, tmp_path: Path) -> None:
    """Bytes with IMM may land long after those that came behind them, until their completion."""
    many = TINY.replace("range(300)", "range(1500)")
    done = run_verbs(3, many, tmp_path, f"seed={seed},delay_us=100,reorder_us=3000", timeout_s=100)
    assert done.ran.code == 0, done.ran.output
    done.clean(3)


WOKEN = """
with rr.init(timeout_s=50) as comm:
    x = np.zeros(1)
    comm.all_reduce(x)
    for k in range(31):
        if comm.rank == k % 2:
            time.sleep(0.02)  # by then the other sleeps
        began = time.monotonic()
        comm.all_reduce(x)
        say(began=began, done=time.monotonic())
"""


def woken_after_s(tmp_path: Path) -> list[float]:
    """From the late rank's call to the end of the other's, in order."""
    done = run_verbs(2, WOKEN, tmp_path)
    assert done.ran.code == 0, done.ran.output
    done.clean(2)
    calls = [[what for what in done.ran.said[rank] if "began" in what] for rank in (0, 1)]
    return sorted(calls[1 - k % 2][k]["done"] - calls[k % 2][k]["began"] for k in range(31))


def test_a_late_rank_wakes_those_that_sleep_for_its_short_message(tmp_path: Path) -> None:
    """Asleep, a rank looks by itself every 10 ms: woken, it is back much sooner, but for want of a processor."""
    seen: list[list[float]] = []
    while len(seen) < 3 and not any(after_s[len(after_s) // 2] < 0.003 for after_s in seen):
        seen.append(woken_after_s(tmp_path))
    assert seen[-1][len(seen[-1]) // 2] < 0.003, seen


ASLEEP = """
with rr.init(timeout_s=50) as comm:
    x = comm.empty(100_000, np.float32)
    x[:] = 1
    comm.all_reduce(x)
    for k in range(5):
        if comm.rank == 0:
            time.sleep(0.3)
        spent = time.process_time()
        began = time.monotonic()
        comm.all_reduce(x)
        say(cpu_s=time.process_time() - spent, waited_s=time.monotonic() - began)
    say(value=float(x[0]))
"""


def test_an_idle_rank_sleeps_on_the_completion_channel(tmp_path: Path) -> None:
    done = run_verbs(2, ASLEEP, tmp_path)
    assert done.ran.code == 0, done.ran.output
    assert done.of(0, "value") == 64
    done.clean(2)
    waits = [what for what in done.ran.said[1] if "cpu_s" in what]
    assert all(what["waited_s"] > 0.25 for what in waits)
    assert min(what["cpu_s"] for what in waits) < 0.1, waits


FREED = """
import gc
with rr.init(timeout_s=50) as comm:
    for k in range(20):
        x = comm.empty(50_000 + 5000 * k, np.float32)
        x[:] = k
        comm.all_reduce(x)
        assert (x == 2 * k).all()
        del x
        gc.collect()
    say(done=True)
"""


def test_registrations_go_with_their_memory(tmp_path: Path) -> None:
    done = run_verbs(2, FREED, tmp_path, "seed=2,delay_us=100")
    assert done.ran.code == 0, done.ran.output
    done.clean(2)


SEVERAL = """
with rr.init(timeout_s=50) as comm:
    x = comm.empty(60_000, np.float32)
    for k in range(3):
        with comm.dup() as other, comm.split(0, key=comm.size - comm.rank) as turned:
            works = []
            arrays = [c.empty(50_000 + i, np.float32) for i, c in enumerate((comm, other, turned))]
            for array, c in zip(arrays, (comm, other, turned)):
                array[:] = c.rank + 1
                works.append(c.all_reduce(array, async_op=True))
            for work in works:
                work.wait(timeout_s=30)
            want = comm.size * (comm.size + 1) / 2
            assert all((array == want).all() for array in arrays)
            x[:] = 1
            turned.all_reduce(x)  # registered memory serves all communicators
            assert (x == comm.size).all()
        x[:] = 2
        comm.all_reduce(x)  # what the others have closed is not ours
        assert (x == 2 * comm.size).all()
    if os.fork() == 0:
        try:
            comm.all_reduce(x)
        except rr.ForkedError:
            comm.close()  # takes nothing of the parent's away
            os._exit(0)
        os._exit(1)
    assert os.wait()[1] == 0
    x[:] = 3
    comm.all_reduce(x)
    assert (x == 3 * comm.size).all()
"""


def test_several_communicators_share_a_device_and_a_child_touches_nothing(tmp_path: Path) -> None:
    done = run_verbs(3, SEVERAL, tmp_path, "seed=8,delay_us=50", env={"RDMARING_VERBS_QPS": "2"})
    assert done.ran.code == 0, done.ran.output
    done.clean(3)
