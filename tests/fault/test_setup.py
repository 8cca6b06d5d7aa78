"""Each step by which a node's ranks come to share memory, refused, late, stopped or the last; and what fails then."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from worlds import Ran, run_world

SHIM = Path(__file__).with_name("setup_shim.c")
# Steps of a rank in the middle of three, in their order: call, from which one of its calls on.
BEFORE_SEGMENT = [("getrandom", 1), ("socket", 1), ("bind", 1), ("listen", 1), ("memfd_create", 1)]
BEFORE_SEGMENT += [("posix_fallocate", 1), ("mmap", 1)]
SOCKETS = [("socket", 2), ("connect", 1), ("sendmsg", 1), ("accept4", 1), ("recvmsg", 1), ("mmap of a peer's", 1)]
SOCKETS += [("sendmsg", 2)]
SPARED = [("syscall", 1), ("getsockopt", 1), ("process_vm_readv", 1)]  # syscall: pidfd_open

HEARD = """
import logging
class Records(logging.Handler):
    def emit(self, record):
        if record.levelno == logging.WARNING:
            say(warned=record.getMessage())
logging.getLogger("rdmaring").addHandler(Records())
"""

# Sums, messages, then one lost communicator after the other: each of a node that came apart anew.
AFTERWARDS = HEARD + """
comm = rr.init(timeout_s=float(os.environ["LIMIT"]))
r, n = comm.rank, comm.size
say(transports=sorted({link.transport for link in comm.links}), reasons=[link.reason for link in comm.links])
for count in (3, 4097, 300_000):
    x = np.arange(count, dtype=np.float32) + r
    comm.all_reduce(x)
    assert np.array_equal(x, n * np.arange(count, dtype=np.float32) + n * (n - 1) / 2), count
if r:
    comm.send(np.full(100_000, r, np.int32), 0)
else:
    for peer in range(1, n):
        assert (comm.recv(np.zeros(100_000, np.int32), peer) == peer).all()
kept = comm.dup()
for what in ("mismatch", "time-out", "abort"):
    lost = comm.dup()
    if what != "time-out":
        lost.barrier()
    x = np.ones(50_000, np.float32)
    say(now=what)
    if what == "mismatch":
        said_error(lambda: lost.broadcast(x, 0) if r == 1 else lost.all_reduce(x))
    elif what == "time-out":
        said_error(lambda: time.sleep(1.5) if r == 1 else lost.all_reduce(x, timeout_s=0.7))
    else:
        if r == 1:
            threading.Timer(0.2, lambda: lost.abort("enough")).start()
        said_error(lambda: lost.all_reduce(x) if r else (time.sleep(0.5), lost.all_reduce(x)))
    try:
        lost.close()
    except rr.RdmaringError:
        pass
    kept.barrier()
say(now="kill")
time.sleep(0.5)  # all are through the barrier
if r == n - 1:
    os.kill(os.getpid(), signal.SIGKILL)
said_error(lambda: [kept.all_reduce(np.ones(1000, np.float32), algorithm="ring") for _ in range(2000)])
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> str:
    built = tmp_path_factory.mktemp("shim") / "setup_shim.so"
    line = [os.environ.get("CC", "cc"), "-O1", "-shared", "-fPIC", "-o", str(built), str(SHIM), "-ldl"]
    subprocess.run(line, check=True)
    return str(built)


def run(
    source: str, tmp_path: Path, shim: str, call: str, at: int, way: str, *, last: int = 0, limit_s: float = 20
) -> Ran:
    """Three ranks, of which the one in the middle has the fault."""
    preload = [shim, *os.environ.get("LD_PRELOAD", "").split()]
    env = {"LD_PRELOAD": " ".join(preload), "FAULT": call, "FAULT_RANK": "1", "FAULT_AT": str(at), "FAULT_WAY": way}
    env |= {"FAULT_LAST": str(last or at), "LIMIT": str(limit_s)}
    return run_world(3, source, tmp_path, env=env, timeout_s=100)


def errors_after(ran: Ran, rank: int) -> dict[str, dict[str, Any]]:
    """What the rank raised, by what was done to it."""
    found, now = {}, ""
    for said in ran.said[rank]:
        now = said.get("now", now)
        if said.get("error"):
            found[now] = said
    return found


def right_errors(ran: Ran) -> None:
    """No rank ends by a signal but the one that was killed, and each names what happened to it."""
    assert "SIGSEGV" not in ran.output and "SIGABRT" not in ran.output and "SIGBUS" not in ran.output, ran.output
    for rank in range(3):
        found = errors_after(ran, rank)
        assert found["mismatch"]["error"] == "MismatchError", ran.output
        assert "broadcast" in found["mismatch"]["text"] and "all_reduce" in found["mismatch"]["text"], ran.output
        assert found["abort"]["error"] == "AbortedError" and "enough" in found["abort"]["text"], ran.output
        if rank != 1:
            assert found["time-out"]["error"] == "OperationTimeoutError", ran.output
            assert "never entered: rank 1" in found["time-out"]["text"], ran.output
        if rank != 2:
            assert (found["kill"]["error"], found["kill"]["peer"]) == ("PeerDiedError", 2), ran.output
        assert all(said["seconds"] < 6 for said in found.values()), ran.output


def apart(ran: Ran, cause: str) -> None:
    """Shared memory was given up by all, which stands in each rank's links and, once a communicator, in the log."""
    for rank in range(3):
        assert ran.of(rank, "transports") == ["tcp"], ran.output
        assert all(f"no shared memory: rank 1: {cause}" in reason for reason in ran.of(rank, "reasons")), ran.output
        warned = [said["warned"] for said in ran.said[rank] if "given up" in said.get("warned", "")]
        assert len(warned) == (5 if rank == 0 else 0) and all(cause in each for each in warned), ran.output


CAUSES = {
    ("socket", 2): "cannot reach rank 0, which tells of the same host",
    ("connect", 1): "cannot reach rank 0, which tells of the same host",
    ("sendmsg", 1): "cannot send this rank's segment to rank 0: sendmsg",
    ("accept4", 1): "accept: Operation not permitted",
    ("recvmsg", 1): "recvmsg on a node's socket: Operation not permitted",
    ("mmap of a peer's", 1): "cannot map the segment of rank 2: Operation not permitted",
    ("sendmsg", 2): "sendmsg on a node's socket: Operation not permitted",
}


@pytest.mark.parametrize(
    ("call", "at"),
    [pytest.param(*step, marks=() if step == ("connect", 1) else pytest.mark.long) for step in SOCKETS],
)
def test_a_node_that_came_apart_fails_as_others_do(call: str, at: int, tmp_path: Path, shim: str) -> None:
    # The other calls of the kind fail, too: each communicator split off comes apart alike.
    ran = run(AFTERWARDS, tmp_path, shim, call, at, f"refuse {errno.EPERM}", last=1000)
    apart(ran, CAUSES[call, at])
    right_errors(ran)


@pytest.mark.parametrize(
    ("call", "at"), [pytest.param(*step, marks=() if step[0] == "syscall" else pytest.mark.long) for step in SPARED]
)
def test_what_shared_memory_can_spare(call: str, at: int, tmp_path: Path, shim: str) -> None:
    ran = run(AFTERWARDS, tmp_path, shim, call, at, f"refuse {errno.ENOSYS}", last=1000)
    for rank in range(3):
        assert ran.of(rank, "transports") == ["shm"], ran.output
    right_errors(ran)


MADE = HEARD + """
begin = time.monotonic()
def made():
    with rr.init(timeout_s=float(os.environ["LIMIT"])) as comm:
        say(transports=sorted({link.transport for link in comm.links}), made=time.monotonic() - begin)
        x = np.full(10_000, comm.rank, np.int64)
        comm.all_reduce(x)
        assert (x == comm.size * (comm.size - 1) // 2).all()
said_error(made)
"""


@pytest.mark.parametrize(("call", "at"), BEFORE_SEGMENT)
def test_a_rank_without_a_segment_is_named_on_all(call: str, at: int, tmp_path: Path, shim: str) -> None:
    ran = run(MADE, tmp_path, shim, call, at, f"refuse {errno.ENOMEM}")
    assert "Cannot allocate memory" in ran.of(1, "text"), ran.output
    for rank in (0, 2):
        assert ran.of(rank, "error") == "SetupError", ran.output
        assert "rank 1 could not set up: " in ran.of(rank, "text"), ran.output
        assert "Cannot allocate memory" in ran.of(rank, "text"), ran.output
    assert all(ran.of(rank, "seconds") < 5 for rank in range(3)), ran.output


ALL_STEPS = [*BEFORE_SEGMENT, *SOCKETS]
QUICK = [("memfd_create", 1), ("sendmsg", 1), ("sendmsg", 2)]


def steps() -> list[Any]:
    return [pytest.param(*step, marks=() if step in QUICK else pytest.mark.long) for step in ALL_STEPS]


@pytest.mark.parametrize(("call", "at"), steps())
def test_a_rank_that_dies_is_named_at_once(call: str, at: int, tmp_path: Path, shim: str) -> None:
    ran = run(MADE, tmp_path, shim, call, at, "die 0.3")
    for rank in (0, 2):
        assert ran.of(rank, "error") == "SetupError", ran.output
        assert "rank 1 (pid " in ran.of(rank, "text") and "was lost" in ran.of(rank, "text"), ran.output
        assert ran.of(rank, "seconds") < 5, ran.output


@pytest.mark.parametrize(("call", "at"), steps())
def test_a_rank_that_is_late_is_waited_for(call: str, at: int, tmp_path: Path, shim: str) -> None:
    ran = run(MADE, tmp_path, shim, call, at, "stop 1.5", limit_s=3)
    for rank in range(3):
        assert ran.of(rank, "transports") == ["shm"], ran.output
        assert ran.of(rank, "error") is None, ran.output
        assert "warned" not in str(ran.said), ran.output


@pytest.mark.parametrize(("call", "at"), steps())
def test_a_rank_that_stays_stopped_is_named_in_time(call: str, at: int, tmp_path: Path, shim: str) -> None:
    ran = run(MADE, tmp_path, shim, call, at, "die 5", limit_s=2)
    for rank in (0, 2):
        assert ran.of(rank, "error") == "SetupError", ran.output
        assert "rank 1 did not take part in a round within 2" in ran.of(rank, "text"), ran.output
        assert 1.5 < ran.of(rank, "seconds") < 4.5, ran.output


# Of this job's ranks alone: other jobs of the machine wait for strangers, too.
STRANGERS = """
import os, socket, sys, time
kept, known = [], set()
def sockets_of_the_job():
    inodes = set()
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            if open(f"/proc/{process}/stat").read().rsplit(")", 1)[1].split()[1] == sys.argv[1]:
                for fd in os.listdir(f"/proc/{process}/fd"):
                    inodes.add(os.readlink(f"/proc/{process}/fd/{fd}").removeprefix("socket:[").rstrip("]"))
        except OSError:
            pass
    lines = [line.split() for line in open("/proc/net/unix").read().splitlines()[1:]]
    return {words[7] for words in lines if len(words) == 8 and words[6] in inodes and len(words[7]) == 33}
while len(known) < 3:
    for name in sockets_of_the_job() - known:
        known.add(name)
        for what in ("silent", "junk", "closed"):
            one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            one.connect(chr(0) + name[1:])
            if what == "junk":
                one.send(b"junk")
            if what == "closed":
                one.close()
            kept.append(one)
print('SAY {"disturbed": 3}', flush=True)
time.sleep(3)
"""
DISTURBED = """
import subprocess
if os.environ["RDMARING_RANK"] == "2":
    stranger = subprocess.Popen([sys.executable, "-c", os.environ["STRANGERS"], str(os.getppid())])
"""


def test_strangers_on_a_nodes_sockets_hold_up_nobody(tmp_path: Path, shim: str, monkeypatch: Any) -> None:
    monkeypatch.setenv("STRANGERS", STRANGERS)
    ran = run(DISTURBED + MADE, tmp_path, shim, "connect", 1, "stop 1.5")
    assert ran.of(2, "disturbed") == 3, ran.output
    for rank in range(3):
        assert ran.of(rank, "transports") == ["shm"] and ran.of(rank, "error") is None, ran.output
        assert ran.of(rank, "made") < 6, ran.output


@pytest.mark.long
def test_a_time_out_of_more_than_20_s_is_the_one_that_counts(tmp_path: Path, shim: str) -> None:
    """There was a fixed limit of 20 s: the node came apart, silently."""
    ran = run(MADE, tmp_path, shim, "sendmsg", 1, "stop 22", limit_s=60)
    for rank in range(3):
        assert ran.of(rank, "transports") == ["shm"], ran.output
        assert 21 < ran.of(rank, "made") < 40 and "warned" not in str(ran.said), ran.output
