"""Operations that streams run and that fail: every rank is told why, and no stream hangs for ever."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_worlds import CAPTURE, STREAMS, run_gpus

START = """
comm = rr.init(device="cuda")
p, me = ga.Producer(), comm.rank
x = everyone(comm, 6000, np.float32)
a = ga.Numba(p, x[me])
comm.all_reduce(a)
comm.synchronize()
sync(p)
"""


def test_a_mismatch(tmp_path: Path) -> None:
    """Calls that return at once: the next wait raises; nothing has moved, and what comes behind runs."""
    ran = run_gpus(
        2,
        STREAMS
        + START
        + """
comm.all_reduce(a, op="max" if me else "sum")
said_error(comm.synchronize)
said_error(lambda: comm.all_reduce(a))
drained(p)
comm.close()
""",
        tmp_path,
        seed=31,
    )
    for rank in range(2):
        errors = [what for what in ran.said[rank] if "error" in what]
        assert [each["error"] for each in errors] == ["MismatchError"] * 2, ran.output
        assert "all_reduce of 6000 float32" in errors[0]["text"] and errors[0]["seconds"] < 5
        assert ran.of(rank, "drained"), ran.output


QUEUES = pytest.mark.parametrize("one_queue", [False, True], ids=["queues", "one queue"])


@pytest.mark.parametrize(
    ("inside", "one_queue"),
    [(False, False), (True, False), (True, True)],
    ids=["before it enters", "inside", "inside, one queue"],
)
def test_a_death(inside: bool, one_queue: bool, tmp_path: Path) -> None:
    """A rank is killed that never came, or whose stream is in the list: the others' streams are let go."""
    ran = run_gpus(
        3,
        STREAMS
        + START
        + f"""
if me == 1:
    if {inside}:
        gate = Gate(p)
        comm.all_reduce(a)
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)
comm.all_reduce(a)
said_error(comm.synchronize)
drained(p)
comm.close()
""",
        tmp_path,
        seed=32,
        one_queue=one_queue,
    )
    for rank in (0, 2):
        assert ran.of(rank, "error") == "PeerDiedError", ran.output
        assert ran.of(rank, "peer") == 1 and ran.of(rank, "seconds") < 15
        assert ran.of(rank, "drained"), ran.output


def test_time_is_over(tmp_path: Path) -> None:
    """One rank's stream stands before the list for longer than the time-out: later it runs through all the same."""
    ran = run_gpus(
        2,
        STREAMS
        + START
        + """
gate = Gate(p) if me else None
work = comm.all_reduce(a, timeout_s=1.5, async_op=True)
work.wait()
said_error(work.synchronize)
if me:
    say(held=not idle(p))
    gate.open()
drained(p)
comm.close()
say(blocks=__import__("rdmaring.cuda.blocks").cuda.blocks.sweep() >= 0)
""",
        tmp_path,
        seed=33,
    )
    assert {ran.of(rank, "error") for rank in range(2)} <= {"OperationTimeoutError", "PeerFailedError"}, ran.output
    assert "OperationTimeoutError" in {ran.of(rank, "error") for rank in range(2)}
    assert ran.of(1, "held")
    for rank in range(2):
        assert ran.of(rank, "seconds") < 15 and ran.of(rank, "drained"), ran.output
    assert "may still read and write" in ran.of(1, "hint"), ran.output


@QUEUES
def test_abort_of_calls_and_of_launched_graphs(one_queue: bool, tmp_path: Path) -> None:
    """Rank 1 does not launch: rank 0's graph waits for ever, until abort() lets it go; so does a second launch."""
    ran = run_gpus(
        2,
        STREAMS
        + CAPTURE
        + START
        + """
step = comm.plan_all_reduce(a)
graph = capture(p, step)
comm.barrier()
if me == 0:
    launch(p, graph)
    time.sleep(0.5)
    say(before=idle(p))
    threading.Timer(0.2, comm.abort, ["a test"]).start()
    drained(p)
    launch(p, graph)
    drained(p)
    said_error(lambda: comm.all_reduce(a))
comm.close()
""",
        tmp_path,
        seed=34,
        one_queue=one_queue,
    )
    assert ran.code == 0, ran.output
    assert ran.of(0, "before") is False
    assert [what["drained"] for what in ran.said[0] if "drained" in what] == [True, True]
    assert ran.of(0, "error") == "AbortedError"


def test_a_race_is_seen(tmp_path: Path) -> None:
    """A canary for test_no_races: an array whose producer nobody tells of."""
    from cuda_sim import race_checker

    ran = run_gpus(
        2,
        STREAMS + START + "comm.all_reduce(ga.Untold(p, x[me]))\nsync(p)\ncomm.close()\n",
        tmp_path,
        race_log=tmp_path / "log",
    )
    assert ran.code == 0, ran.output
    assert race_checker.check(tmp_path / "log")
