"""Operations between nodes that streams run and that fail: every rank is told why, and no stream hangs for ever."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_nodes import SMALL_SLOTS, nodes, of
from gpu_worlds import CAPTURE, STREAMS, run_gpus

START = """
comm = rr.init(device="cuda", timeout_s=60)
p, me = ga.Producer(comm._ordinal("cuda")), comm.rank
x = everyone(comm, 60_000, np.float32)
a = ga.Numba(p, x[me])
comm.all_reduce(a)
comm.synchronize()
sync(p)
"""


@pytest.mark.parametrize("one_queue", [False, True], ids=["queues", "one queue"])
@pytest.mark.parametrize("when", ["before it enters", "inside"])
def test_a_death(when: str, one_queue: bool, tmp_path: Path) -> None:
    """A rank is killed that never came, or in the middle of its list: the others are told, and their streams let go."""
    world = 4
    ran = run_gpus(
        world,
        nodes(2)
        + STREAMS
        + START
        + f"""
if me == 3:
    if {when == "inside"}:
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
        env=SMALL_SLOTS,
        seed=32,
        one_queue=one_queue,
    )
    for rank in range(world - 1):
        assert ran.of(rank, "error") in ("PeerDiedError", "PeerFailedError"), ran.output
        assert ran.of(rank, "seconds") < 15
        assert ran.of(rank, "drained"), ran.output
    assert "PeerDiedError" in {ran.of(rank, "error") for rank in range(world - 1)}
    assert ran.of(1, "peer") == 3 or ran.of(2, "peer") == 3, ran.output


def test_time_is_over(tmp_path: Path) -> None:
    """One rank's stream stands before the list for longer than the time-out; then it runs through all the same."""
    ran = run_gpus(
        2,
        nodes()
        + STREAMS
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
""",
        tmp_path,
        seed=33,
    )
    errors = {ran.of(rank, "error") for rank in range(2)}
    assert "OperationTimeoutError" in errors and errors <= {"OperationTimeoutError", "PeerFailedError"}, ran.output
    assert ran.of(1, "held")
    for rank in range(2):
        assert ran.of(rank, "seconds") < 15 and ran.of(rank, "drained"), ran.output
        assert "link down" not in ran.of(rank, "text"), "nothing is wrong with the link"


def test_an_abort(tmp_path: Path) -> None:
    """Of a list whose peer's stream does not come."""
    ran = run_gpus(
        2,
        nodes()
        + STREAMS
        + START
        + """
gate = Gate(p) if me else None
comm.all_reduce(a)
if me == 0:
    threading.Timer(0.3, comm.abort, ["a test"]).start()
said_error(comm.synchronize)
if me:
    gate.open()
drained(p)
comm.close()
""",
        tmp_path,
        seed=34,
        env=SMALL_SLOTS,
    )
    assert ran.of(0, "error") == "AbortedError", ran.output
    assert ran.of(1, "error") in ("PeerFailedError", "AbortedError", "PeerClosedError"), ran.output
    for rank in range(2):
        assert ran.of(rank, "seconds") < 10 and ran.of(rank, "drained"), ran.output


def test_a_mismatch_moves_nothing(tmp_path: Path) -> None:
    ran = run_gpus(
        2,
        nodes()
        + STREAMS
        + START
        + """
comm.all_reduce(a, op="max" if me else "sum")
said_error(comm.synchronize)
drained(p)
comm.close()
""",
        tmp_path,
        seed=35,
    )
    assert of(ran, 2, "error") == ["MismatchError"] * 2 and of(ran, 2, "drained") == [True, True]


def test_a_capture_is_refused(tmp_path: Path) -> None:
    """A launch is nothing that the host sees, so nobody would carry: said so; the communicator works on."""
    ran = run_gpus(
        2,
        nodes()
        + STREAMS
        + CAPTURE
        + START
        + """
said_error(lambda: capture(p, lambda: comm.all_reduce(a)))
plan = comm.plan_all_reduce(a)
said_error(lambda: capture(p, plan))
comm.all_reduce(a)
say(wrong=wrong(a, 2 * x.sum(0)))
comm.close()
""",
        tmp_path,
        seed=23,
    )
    for rank in range(2):
        errors = [what for what in ran.said[rank] if "error" in what]
        assert [each["error"] for each in errors] == ["ArgumentError"] * 2, ran.output
        assert (
            "the host takes part in it: between nodes it carries slices between streams and links" in errors[0]["text"]
        )
    assert of(ran, 2, "wrong") == [0, 0]
