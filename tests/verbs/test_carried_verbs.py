"""Operations on GPU memory between nodes that streams run, carried over verbs: completions late and out of order."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_worlds import STREAMS
from verbs.gpus import SUMS, run_gpu_verbs, wrongs

STREAMS_RUN = {"RDMARING_CUDA_BETWEEN_NODES": "streams"}
SMALL_SLOTS = {"RDMARING_SLOT_BYTES": "8192", "RDMARING_SLOT_COUNT": "2"}
ONE_SLOT = {"RDMARING_SLOT_BYTES": "4096", "RDMARING_SLOT_COUNT": "1"}
DISORDER = "delay_us=300,reorder=1,dmabuf=1"


@pytest.mark.parametrize(
    ("world", "spec", "env"),
    [
        pytest.param(2, f"seed=3,{DISORDER}", {}, id="2 nodes"),
        pytest.param(3, f"seed=4,{DISORDER}", {**SMALL_SLOTS, "RDMARING_VERBS_QPS": "3"}, id="3 nodes, 3 queue pairs"),
        pytest.param(4, f"seed=5,{DISORDER}", {**SMALL_SLOTS, "PER": "2"}, id="2 nodes of 2"),
    ],
)
def test_sums(world: int, spec: str, env: dict[str, str], tmp_path: Path) -> None:
    """All that NICs touch are slots in host memory: nothing is registered that GPUs have."""
    done = run_gpu_verbs(world, SUMS, tmp_path, spec, env={**STREAMS_RUN, **env}, seed=9, count=20_001, delay_us=50)
    assert done.ran.code == 0, done.ran.output
    assert wrongs(done, world) == []
    per = int(env.get("PER", "1"))
    for rank in range(world):
        links = done.of(rank, "links")
        assert sorted((transport, gpu) for transport, gpu, _ in links) == [("shm", "cuda_ipc")] * (per - 1) + [
            ("verbs", "carried")
        ] * (world - per)
        counts = done.reports[rank]["counts"]
        assert counts["gpu_read"] == counts["gpu_written"] == 0
    done.clean(world)


def test_by_itself_the_host_runs_them(tmp_path: Path) -> None:
    """Over verbs NICs reach GPU memory, which carried slots in host memory would forgo."""
    done = run_gpu_verbs(2, SUMS, tmp_path, "dmabuf=1", seed=9, count=5001)
    assert done.ran.code == 0, done.ran.output
    for rank in range(2):
        assert [gpu for _, gpu, _ in done.of(rank, "links")] == ["gpudirect"]


TURNS = """
with rr.init(device="cuda", timeout_s=60) as comm:
    p, me, bad = ga.Producer(comm._ordinal("cuda")), comm.rank, 0
    for turn in range(8):
        other = comm.dup() if turn else comm  # streams, delays and queue pairs of its own; its slots are given back
        x = everyone(comm, COUNT, np.int32) + turn
        a = ga.Numba(p, x[me])
        for _ in range(3):
            other.all_reduce(a, algorithm="ring")
        bad += wrong(a, x.sum(0) * comm.size**2)
        say(sent=other.last.sent_bytes) if turn == 0 else other.close()
    say(bad=bad)
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_one_slot_and_many_delays(seed: int, tmp_path: Path) -> None:
    spec = f"seed={seed},{DISORDER}"
    done = run_gpu_verbs(2, TURNS, tmp_path, spec, env={**STREAMS_RUN, **ONE_SLOT}, seed=seed, count=9001, delay_us=500)
    assert done.ran.code == 0, done.ran.output
    assert [done.of(rank, "bad") for rank in range(2)] == [0, 0]
    done.clean(2)


DEATH = """
comm = rr.init(device="cuda", timeout_s=60)
p, me = ga.Producer(comm._ordinal("cuda")), comm.rank
x = everyone(comm, COUNT, np.float32)
a = ga.Numba(p, x[me])
comm.all_reduce(a, algorithm="ring")
comm.synchronize()
sync(p)
if me == 1:
    gate = Gate(p)
    comm.all_reduce(a, algorithm="ring")
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)
comm.all_reduce(a, algorithm="ring")
said_error(comm.synchronize)
end = time.monotonic() + 20
while not idle(p) and time.monotonic() < end:
    time.sleep(0.01)
say(drained=idle(p))
comm.close()
"""


def test_a_death_inside(tmp_path: Path) -> None:
    source = STREAMS + DEATH
    done = run_gpu_verbs(3, source, tmp_path, DISORDER, env={**STREAMS_RUN, **SMALL_SLOTS}, count=60_000, seed=5)
    for rank in (0, 2):
        assert done.of(rank, "error") in ("PeerDiedError", "PeerFailedError"), done.ran.output
        assert done.of(rank, "seconds") < 15 and done.of(rank, "drained"), done.ran.output


@pytest.mark.parametrize("action", ["flush", "port_down"])
def test_an_edge_is_made_anew_inside(action: str, tmp_path: Path) -> None:
    """Queue pairs fail, or the port does and comes back: what the slots hold is sent again."""
    spec = f"{DISORDER},{action}_after=40" + (",port_up_after_ms=700" if action == "port_down" else "")
    done = run_gpu_verbs(2, TURNS, tmp_path, spec, env={**STREAMS_RUN, **ONE_SLOT}, count=9001, seed=5)
    assert done.ran.code == 0, done.ran.output
    assert [done.of(rank, "bad") for rank in range(2)] == [0, 0]
