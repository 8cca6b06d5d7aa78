"""Operations on GPU memory, on streams: whoever waits for a rank that failed is told its name, and in time."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_nodes import nodes
from gpu_worlds import STREAMS, run_gpus

# Rank 1 fails 0.8 s after the others have called. FAULT: how. Whoever stopped it ends it: nobody else would.
SOURCE = """
comm = rr.init(device="cuda", timeout_s=2.0 if FAULT == "stopped" else 60.0)
me, p = comm.rank, ga.Producer(comm._ordinal("cuda"))
count = 20_000 + (FAULT == "mismatch" and me == 1)
a = ga.Numba(p, values(me, 20_000, np.float32))
b = ga.Numba(p, values(me, count, np.float32))
comm.all_reduce(a)
comm.synchronize()
place = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pid")
if me == 1:
    with open(place + ".new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(place + ".new", place)
comm.all_reduce(a)
comm.synchronize()

def told():
    try:
        comm.all_reduce(b)
        comm.synchronize()
    except rr.RdmaringError as error:
        v = error.verdict
        say(error=type(error).__name__, kind=v and v.kind, edge=v and [v.rank, v.peer], text=str(error), at=time.time())

if me != 1 or FAULT == "mismatch":
    told()
elif FAULT == "aborted":
    time.sleep(0.8)
    say(failed_at=time.time())
    comm.abort("the test says so")
    say(local=time.time())
else:
    time.sleep(0.8)
    say(failed_at=time.time())
    os.kill(os.getpid(), signal.SIGKILL if FAULT == "killed" else signal.SIGSTOP)
if me == 0 and FAULT == "stopped":
    time.sleep(2)  # rank 2 is through
    os.kill(int(open(place).read()), signal.SIGKILL)
drained(p, 10)
"""
KINDS = {"killed": {"died"}, "stopped": {"stopped", "never_entered"}, "mismatch": {"mismatch"}}


@pytest.mark.parametrize("apart", [False, True], ids=["one node", "three nodes"])
@pytest.mark.parametrize(
    ("fault", "within_s"),
    [("killed", 3.0), ("aborted", 3.0), ("mismatch", 3.0), pytest.param("stopped", 6.0, marks=pytest.mark.long)],
)
def test_a_failed_rank_is_named_in_time(fault: str, within_s: float, apart: bool, tmp_path: Path) -> None:
    between = nodes() if apart else ""
    source = f"FAULT = {fault!r}\n" + between + STREAMS + SOURCE
    ran = run_gpus(3, source, tmp_path, "--keep-going", seed=51)
    for rank in (0, 2):
        assert ran.of(rank, "drained"), ran.output
        error, kind, edge = (ran.of(rank, name) for name in ("error", "kind", "edge"))
        if fault == "aborted":
            assert "the test says so" in ran.of(rank, "text"), ran.output
        else:
            assert kind in KINDS[fault], (rank, error, kind, ran.output)
            assert (1 in edge) if fault == "mismatch" else (edge[0] == 1), (rank, edge, ran.output)
        if fault != "mismatch":
            assert ran.of(rank, "at") - ran.of(1, "failed_at") < within_s, ran.output
    if fault == "aborted":
        assert ran.of(1, "local") - ran.of(1, "failed_at") < 1.0
