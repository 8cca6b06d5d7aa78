"""Ranks of different nodes: several nodes on one machine, each rank's RDMARING_HOST_ID telling which."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from nodes import FAR, SUMS
from worlds import run_world


@pytest.mark.parametrize(
    ("world", "per", "interleaved"),
    [(2, 1, ""), (3, 1, ""), (4, 2, ""), (4, 2, "1"), (5, 2, "")],
    ids=["2x1", "3x1", "2x2", "2x2-interleaved", "2+2+1"],
)
def test_all_collectives_between_nodes(world: int, per: int, interleaved: str, tmp_path: Path) -> None:
    env = {"PER": str(per), "INTERLEAVED": interleaved}
    ran = run_world(world, FAR + SUMS, tmp_path, env=env, timeout_s=110)
    assert ran.code == 0, ran.output
    assert ran.of(0, "transports") == (["tcp"] if per == 1 else ["shm", "tcp"])
    if interleaved:
        assert ran.of(0, "order") == [0, 2, 1, 3]
        assert ran.of(1, "peers") == [0, 0, 1]


def test_a_dead_rank_is_named_on_all_nodes(tmp_path: Path) -> None:
    source = (
        FAR
        + """
comm = rr.init(timeout_s=30)
x = np.ones(1000, np.float32)
comm.all_reduce(x)
if comm.rank == 2:
    time.sleep(0.3)  # the others are through the first operation too
    say(at=time.time())
    os.kill(os.getpid(), signal.SIGKILL)
said_error(lambda: [comm.all_reduce(x, algorithm=a) for a in ("ring", "direct") * 1000])
"""
    )
    ran = run_world(4, source, tmp_path)
    for rank in (0, 1, 3):
        assert ran.of(rank, "error") == "PeerDiedError", ran.output
        assert ran.of(rank, "peer") == 2
        assert ran.of(rank, "at") - ran.of(2, "at") < 1.5, ran.output


def test_a_mismatch_between_nodes_is_told_with_both_calls(tmp_path: Path) -> None:
    source = (
        FAR
        + """
comm = rr.init(timeout_s=30)
x = np.ones(100_000, np.float32)
comm.all_reduce(x)
comm.barrier()
if comm.rank == 1:
    said_error(lambda: comm.broadcast(x, root=0))
else:
    said_error(lambda: comm.all_reduce(x[:5 if comm.rank == 2 else 50_000]))
"""
    )
    ran = run_world(3, source, tmp_path)
    for rank in range(3):
        assert ran.of(rank, "error") == "MismatchError", ran.output
        assert len(set(re.findall(r"broadcast|50000|of 5 ", ran.of(rank, "text")))) >= 2, ran.output
        assert ran.of(rank, "seconds") < 1.0, ran.output


def test_abort_reaches_other_nodes(tmp_path: Path) -> None:
    source = (
        FAR
        + """
comm = rr.init(timeout_s=30)
x = np.ones(100_000, np.float32)
comm.all_reduce(x)
if comm.rank == 0:
    work = comm.all_reduce(x, async_op=True)
    time.sleep(0.3)
    comm.abort("enough")
    said_error(lambda: work.wait())
elif comm.rank == 1:
    time.sleep(1)  # in user code meanwhile
    said_error(lambda: comm.all_reduce(x))
else:
    said_error(lambda: comm.all_reduce(x))
"""
    )
    ran = run_world(3, source, tmp_path)
    for rank in range(3):
        assert ran.of(rank, "error") == "AbortedError", ran.output
        assert "enough" in ran.of(rank, "text")
        assert ran.of(rank, "seconds") < 1.5, ran.output


def test_a_rank_that_closed_and_one_that_is_late(tmp_path: Path) -> None:
    source = (
        FAR
        + """
comm = rr.init(timeout_s=30)
x = np.ones(100_000, np.float32)
comm.all_reduce(x)
if comm.rank == 1:
    time.sleep(6)  # beyond every keepalive: late is not lost
    say(sum=float(comm.all_reduce(np.full(3_000_000, 2.0, np.float32))[0]))
    comm.close()
else:
    say(sum=float(comm.all_reduce(np.full(3_000_000, 2.0, np.float32))[0]))
    said_error(lambda: [comm.all_reduce(x) for _ in range(3)])
"""
    )
    ran = run_world(2, source, tmp_path)
    assert ran.of(0, "sum") == ran.of(1, "sum") == 4.0
    assert ran.of(0, "error") == "PeerClosedError", ran.output


def test_a_late_rank_is_named_by_the_time_out(tmp_path: Path) -> None:
    source = (
        FAR
        + """
comm = rr.init(timeout_s=30)
x = np.ones(100_000, np.float32)
comm.all_reduce(x)
if comm.rank == 1:
    time.sleep(4)
else:
    said_error(lambda: comm.all_reduce(x, async_op=True, timeout_s=1.5).wait())
"""
    )
    ran = run_world(2, source, tmp_path)
    assert ran.of(0, "error") == "OperationTimeoutError", ran.output
    assert "never entered: rank 1" in ran.of(0, "text")


def test_nothing_is_left_after_close(tmp_path: Path) -> None:
    source = (
        FAR
        + """
def descriptors():
    return len(os.listdir("/proc/self/fd"))
before = None
for turn in range(4):
    with rr.init(timeout_s=30) as comm:
        comm.all_reduce(np.ones(100_000, np.float32))
        other = comm.dup()
        other.all_reduce(np.ones(10, np.float32), algorithm="ring")
        other.close()
        comm.barrier()
    before = before or descriptors()
say(grown=descriptors() - before)
"""
    )
    ran = run_world(3, source, tmp_path)
    for rank in range(3):
        assert ran.of(rank, "grown") <= 0, ran.output


def test_rdma_can_be_required(tmp_path: Path) -> None:
    source = (
        FAR
        + """
said_error(lambda: rr.init(timeout_s=30, require="rdma"))
"""
    )
    ran = run_world(2, source, tmp_path, env={"RDMARING_LIBIBVERBS": "/nowhere/libibverbs.so.1"})
    for rank in range(2):
        assert ran.of(rank, "error") == "SetupError", ran.output
        assert "RDMA is required" in ran.of(rank, "text")


def test_strangers_are_turned_away_and_the_ranks_meet(tmp_path: Path) -> None:
    source = (
        FAR
        + """
import random, socket
def listening():  # this process's TCP ports
    inodes = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            inodes.add(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            pass
    found = []
    for name in ("tcp", "tcp6"):
        for line in open(f"/proc/self/net/{name}").read().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                found.append(int(fields[1].split(":")[1], 16))
    return found
hosted = set(listening())
comm = rr.init(timeout_s=30)
ports = [port for port in listening() if port not in hosted]
seed = random.Random(comm.rank)
keep = []
for port in ports:
    for what in (b"", seed.randbytes(48), b"GET / HTTP/1.0\\r\\n\\r\\n" * 5, b"RRRF" + bytes(60)):
        stranger = socket.create_connection(("127.0.0.1", port))
        stranger.sendall(what)
        if what:
            keep.append(stranger)
        else:
            stranger.close()
x = np.ones(100_000, np.float32)
for _ in range(50):
    comm.all_reduce(x); x[:] = 1
say(sum=float(comm.all_reduce(x)[0]))
comm.close()
"""
    )
    ran = run_world(2, source, tmp_path, env={"RDMARING_LOG": "warning"})
    assert ran.code == 0, ran.output
    assert ran.of(0, "sum") == ran.of(1, "sum") == 2.0
    for rank in range(2):
        assert re.search(rf"rank {rank} turned [34] connection\(s\) away that proved nothing", ran.output), ran.output


@pytest.mark.long
def test_a_rank_that_is_late_to_its_first_operation_is_waited_for(tmp_path: Path) -> None:
    """Its kernel takes connections that it does not answer: the time-out is the caller's."""
    source = (
        FAR
        + """
comm = rr.init(timeout_s=150)
if comm.rank == 1:
    time.sleep(float(os.environ["LATE"]))
x = np.ones(100_000, np.float32)
said_error(lambda: comm.all_reduce(x))
"""
    )
    ran = run_world(2, source, tmp_path, env={"LATE": "100"}, timeout_s=160)
    assert ran.of(0, "error") is None and ran.of(0, "seconds") > 90, ran.output
