"""The verdict of each class of trouble: right, the same on all ranks, in the exception and in every rank's log."""

from __future__ import annotations

from pathlib import Path

import pytest
from verdicts import agreed, run, verdict

import rdmaring as rr

LARGE, TINY = "np.ones(1 << 18, np.float32)", "np.ones(2, np.float32)"


@pytest.mark.parametrize("x", [LARGE, TINY], ids=["large", "tiny"])
@pytest.mark.parametrize("where", ["shm", "tcp"])
def test_died(where: str, x: str, tmp_path: Path) -> None:
    source = f"""
comm = rr.init(timeout_s=30)
x = {x}
comm.all_reduce(x)
if comm.rank == 1:
    time.sleep(0.3)  # the others are through the first operation too
    os.kill(os.getpid(), signal.SIGKILL)
judged(lambda: [comm.all_reduce(x) for _ in range(3)])
"""
    ran = run(3, source, tmp_path, where)
    found = agreed(ran, (0, 2), "died", 1)
    assert found["op"] == 2 and found["collective"] == "all_reduce"
    assert found["text"].startswith("died: rank 1 (pid "), found
    for rank in (0, 2):
        assert ran.of(rank, "error") == "PeerDiedError" and ran.of(rank, "seconds") < 1.5, ran.output
    if where == "shm":  # the ranks of a node hear one finder
        assert verdict(ran, 0) == verdict(ran, 2)


@pytest.mark.parametrize("where", ["shm", "tcp"])
def test_mismatch_names_the_odd_rank(where: str, tmp_path: Path) -> None:
    source = """
comm = rr.init(timeout_s=30)
comm.all_reduce(np.ones(1000))
if comm.rank == 1:
    time.sleep(0.2)
judged(lambda: comm.all_reduce(np.ones(50_001 if comm.rank == 1 else 50_000)))
"""
    ran = run(3, source, tmp_path, where)
    found = agreed(ran, (0, 1, 2), "mismatch", 1)
    assert "50001 float64" in found["text"] and "50000 float64" in found["text"]
    assert found["peer"] in (0, 2) and found["op"] == 2


@pytest.mark.parametrize("where", ["shm", "tcp", "mixed"])
def test_never_entered_is_the_first_cause_of_a_chain(where: str, tmp_path: Path) -> None:
    """A broadcast in a chain: rank 3 waits for rank 2, which waits for rank 1, which is in user code."""
    source = """
comm = rr.init(timeout_s=30)
x = np.ones(300_000)
comm.barrier()
if comm.rank == 1:
    time.sleep(3)
judged(lambda: comm.all_reduce(x, algorithm="ring", timeout_s=1.2))
"""
    ran = run(4, source, tmp_path, where)
    found = agreed(ran, (0, 2, 3), "never_entered", 1)
    assert "never entered: rank 1 (pid " in found["text"] and "user code" in found["text"]
    for rank in (0, 2, 3):
        assert ran.of(rank, "error") in ("OperationTimeoutError", "PeerFailedError"), ran.output
        assert ran.of(rank, "seconds") < 2.2
    if where == "shm":
        assert verdict(ran, 0) == verdict(ran, 2) == verdict(ran, 3)
        assert ran.of(0, "error") == ran.of(2, "error") == "OperationTimeoutError"
        # whoever comes late is told, too
        assert ran.of(1, "error") == "PeerFailedError" and verdict(ran, 1) == verdict(ran, 0)


# Rank 1 is stopped while it waits in the operation: the last rank enters late.
STOPPED = """
comm = rr.init(timeout_s=30)
x = np.ones(300_000)
pids = comm.all_gather(np.array([os.getpid()]))
comm.barrier()
if comm.rank == 1:
    stop_soon(os.getpid(), {stop_s})
if comm.rank == {late}:
    time.sleep({enter_s})
judged(lambda: comm.all_reduce(x, algorithm="ring", timeout_s=2))
if comm.rank == 0:
    time.sleep(1)  # the others are through
    os.kill(int(pids[1]), signal.SIGKILL)
"""


@pytest.mark.parametrize("where", ["shm", "mixed"])
def test_stopped(where: str, tmp_path: Path) -> None:
    """Over two nodes (mixed) ranks 2 and 3 know it from rank 0, which shares rank 1's node."""
    ran = run(4, STOPPED.format(stop_s=0.3, late=3, enter_s=0.7), tmp_path, where)
    found = agreed(ran, (0, 2, 3), "stopped", 1)
    assert "stopped by a signal" in found["text"], found
    for rank in (0, 2, 3):
        assert ran.of(rank, "seconds") < 4, ran.output


def test_stopped_in_user_code_on_another_node(tmp_path: Path) -> None:
    source = STOPPED.format(stop_s=0.1, late=1, enter_s=20)
    found = agreed(run(4, source, tmp_path, "mixed"), (0, 2, 3), "stopped", 1)
    assert "in user code" in found["text"], found


def test_stopped_where_no_rank_of_its_node_can_look(tmp_path: Path) -> None:
    """In the operation it would answer when asked; in user code no rank answers, so what it does stays open."""
    found = agreed(run(3, STOPPED.format(stop_s=0.3, late=2, enter_s=0.7), tmp_path, "tcp"), (0, 2), "stopped", 1)
    assert "silent while its node answers" in found["text"], found
    (tmp_path / "user").mkdir()
    ran = run(3, STOPPED.format(stop_s=0.1, late=1, enter_s=20), tmp_path / "user", "tcp")
    found = agreed(ran, (0, 2), "never_entered", 1)
    assert "in user code or stopped" in found["text"], found


@pytest.mark.parametrize("where", ["shm", "tcp"])
def test_a_rank_that_closed_has_not_entered(where: str, tmp_path: Path) -> None:
    source = """
comm = rr.init(timeout_s=30)
comm.barrier()
if comm.rank == 2:
    comm.close()
else:
    judged(lambda: comm.all_reduce(np.ones(100_000)))
"""
    ran = run(3, source, tmp_path, where)
    found = agreed(ran, (0, 1), "never_entered", 2)
    assert "closed its communicator" in found["text"]


# Rank 0 begins with one communicator, rank 1 with the other.
CROSSED = """
comm = rr.init(timeout_s=30)
other = comm.dup()
x = np.ones(100_000)
comm.all_reduce(x); other.all_reduce(x)
first = comm if comm.rank == 0 else other
"""


@pytest.mark.parametrize("where", ["shm", "tcp"])
def test_two_communicators_in_different_order(where: str, tmp_path: Path) -> None:
    """Rank 0 waits in one, rank 1 in the other: nobody is in user code, and the cycle is printed."""
    source = (
        CROSSED
        + """
judged(lambda: first.all_reduce(x, timeout_s=2))
time.sleep(1)  # the other finds it, too
"""
    )
    ran = run(2, source, tmp_path, where)
    for rank in range(2):
        found = agreed(ran, (rank,), "order", 1 - rank)
        assert found["text"].count("waits in communicator") == 2, found
        assert f"order: rank {rank} waits in communicator" in found["text"]


@pytest.mark.parametrize("where", ["shm", "tcp"])
def test_an_order_is_found_by_who_sees_the_other_close(where: str, tmp_path: Path) -> None:
    """Rank 0's time is over long before rank 1's, and it closes at once."""
    source = (
        CROSSED
        + """
judged(lambda: first.all_reduce(x, timeout_s=1 if comm.rank == 0 else 20))
other.close()
comm.close()
"""
    )
    ran = run(2, source, tmp_path, where)
    for rank in range(2):
        found = agreed(ran, (rank,), "order", 1 - rank)
        assert found["text"].count("waits in communicator") == 2, found
    assert "closed its communicator" in ran.of(1, "text") and "order: rank 1 waits in" in ran.of(1, "text"), ran.output
    assert ran.of(1, "seconds") < 10


@pytest.mark.parametrize("where", ["shm", "tcp"])
def test_a_recv_without_a_send(where: str, tmp_path: Path) -> None:
    source = """
comm = rr.init(timeout_s=30)
comm.barrier()
if comm.rank == 0:
    judged(lambda: comm.recv(np.empty(10), 1, timeout_s=1))
else:
    time.sleep(2)
"""
    found = agreed(run(2, source, tmp_path, where), (0,), "never_entered", 1)
    assert "has not sent message 1" in found["text"], found


def test_the_edge_of_an_error_without_a_verdict() -> None:
    """Sender first: from the peer to this rank, unless it sends. With one it is the verdict's: see agreed()."""
    assert rr.CorruptError("", rank=1, peer=0).link == "0->1"
    assert rr.OperationTimeoutError("", rank=1, peer=0, collective="send").link == "1->0"
    assert rr.OperationTimeoutError("", rank=1, peer=0, collective="recv").link == "0->1"
    assert rr.AbortedError("", rank=1).link is None
