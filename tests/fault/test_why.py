"""`rdmaring why` on jobs that live, hang, are stopped, or are killed in part: from outside, without their help."""

from __future__ import annotations

import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from outside import job, stuck, why
from worlds import RDMARING

from rdmaring._native import ffi, lib
from rdmaring.diagnose import segments
from rdmaring.diagnose.why import alike


@pytest.mark.parametrize("where", ["shm", "tcp"])
def test_a_rank_in_user_code(where: str, tmp_path: Path) -> None:
    source = """
if comm.rank == 1:
    time.sleep(60)
comm.all_reduce(np.ones(300_000), algorithm="ring")
"""
    with job(3, source, tmp_path, where) as (launcher, pids):
        until = time.monotonic() + 20
        group = stuck(launcher)
        while [each["op"] for each in group["ranks"]] != [3, None, 3]:
            assert time.monotonic() < until, group  # a busy machine may let one rank come to it much later
            group = stuck(launcher)
        assert group["verdict"]["kind"] == "never_entered" and group["verdict"]["rank"] == 1, group
        assert [each["pid"] for each in group["ranks"]] == pids
        assert "all_reduce of 300000 float64" in group["ranks"][0]["call"]
        # by a rank's pid, and by the job's number
        for arguments in ([str(pids[2])], ["--job", group["job"]]):
            code, document = why(*arguments)
            assert code == 1 and document["groups"][0]["verdict"]["rank"] == 1
        text = subprocess.run([RDMARING, "why", str(launcher)], capture_output=True, text=True, timeout=30, check=False)
        assert text.returncode == 1 and "never entered: rank 1 (pid" in text.stdout, text.stdout
        assert f"rank 1 (pid {pids[1]}) in user code" in text.stdout, text.stdout


def test_a_stopped_rank_and_a_live_job(tmp_path: Path) -> None:
    source = """
x = np.ones(100_000)
while True:
    comm.all_reduce(x)
"""
    with job(3, source, tmp_path) as (launcher, pids):
        code, document = why(str(launcher))
        assert code == 0 and document["groups"][0]["verdict"] is None, document
        os.kill(pids[2], signal.SIGSTOP)
        group = stuck(launcher)
        assert group["verdict"]["kind"] == "stopped" and group["verdict"]["rank"] == 2, group
        assert group["ranks"][2]["life"] == "stopped"


@pytest.mark.skipif(os.geteuid() != 0, reason="a pid namespace of its own needs root")
def test_ranks_in_a_pid_namespace_of_their_own(tmp_path: Path) -> None:
    """A page tells the pid that its owner has there: another process, or none, bears that number here."""
    source = """
if comm.rank == 1:
    time.sleep(60)
comm.all_reduce(np.ones(300_000), algorithm="ring")
"""
    by = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    with job(3, source, tmp_path, by=by) as (launcher, inner):
        group = stuck(next(pid for pid in descendants(launcher) if innermost(pid) == inner[0]))
        assert group["verdict"]["kind"] == "never_entered" and group["verdict"]["rank"] == 1, group
        assert [each["life"] for each in group["ranks"]] == ["runs"] * 3, group
        pids = [each["pid"] for each in group["ranks"]]
        assert [innermost(pid) for pid in pids] == inner and set(pids) <= set(descendants(launcher)), group
        os.kill(pids[2], signal.SIGSTOP)
        os.kill(pids[0], signal.SIGSTOP)
        os.kill(pids[1], signal.SIGKILL)
        time.sleep(0.3)
        group = stuck(pids[0])
        assert [each["life"] for each in group["ranks"]] == ["stopped", "ended", "stopped"], group


def innermost(pid: int) -> int:
    return int(re.findall(r"^NSpid:.*\b(\d+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)[0])


def descendants(pid: int) -> list[int]:
    children = [
        int(each) for task in Path(f"/proc/{pid}/task").iterdir() for each in (task / "children").read_text().split()
    ]
    return [*children, *(each for child in children for each in descendants(child))]


def test_a_killed_rank_while_the_others_cannot_tell(tmp_path: Path) -> None:
    """All are stopped, one is killed: its page is read out of a neighbour's memory."""
    source = """
x = np.ones(100_000)
while True:
    comm.all_reduce(x)
"""
    with job(3, source, tmp_path) as (launcher, pids):
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        os.kill(pids[1], signal.SIGKILL)
        time.sleep(0.3)
        group = stuck(launcher)
        assert group["verdict"]["kind"] == "died" and group["verdict"]["rank"] == 1, group
        assert [each["life"] for each in group["ranks"]] == ["stopped", "ended", "stopped"]


def test_nothing_is_found_and_wrong_usage() -> None:
    code, document = why("--job", "0123456789abcdef")
    assert code == 3 and document["groups"] == []
    for arguments in (["1", "--job", "1"], ["--json", "--watch"], ["4194305"]):
        done = subprocess.run([RDMARING, "why", *arguments], capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 2 and "Usage" in done.stderr, done.stderr


HEAD = int.to_bytes(0x45474150474E5252, 8, "little")
# Maps a segment whose page it was given, as a rank would.
HOSTILE = """
import mmap, os, sys, time
data = bytes.fromhex(sys.argv[1])
descriptor = os.memfd_create("rdmaring-segment")
os.write(descriptor, data)
room = mmap.mmap(descriptor, len(data))
print("there", flush=True)
time.sleep(60)
"""


def page_version() -> int:
    size, record = lib.rr_page_bytes(), ffi.new("rr_rank_seen *")
    return next(
        number
        for number in range(1, 99)
        if lib.rr_page_read(HEAD + bytes([number]) + bytes(size), size, 0, record) != -2
    )


def page(world: int, rank: int, pid: int, comm: int) -> bytes:
    """Of a rank that has entered op 1 and waits."""
    words = [page_version(), world, rank, pid]
    data = bytearray(lib.rr_page_bytes())
    data[:24] = HEAD + b"".join(int.to_bytes(word, 4, "little") for word in words)
    data[64:68] = int.to_bytes(1, 4, "little")  # its state: open
    data[80:88] = int.to_bytes(comm, 8, "little")
    data[192:200] = int.to_bytes(1 << 8, 8, "little")  # entries[0]
    return bytes(data)


@pytest.mark.parametrize("world", [1 << 16, 1 << 20], ids=["believed", "refused"])
def test_a_page_that_claims_a_large_world_takes_little(world: int) -> None:
    line = [sys.executable, "-c", HOSTILE, page(world, 7, os.getpid(), 0xC0FFEE).hex()]
    with subprocess.Popen(line, stdout=subprocess.PIPE) as hostile:
        try:
            assert hostile.stdout is not None and hostile.stdout.readline() == b"there\n"
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
            code, document = why(str(hostile.pid))
            grown = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss - before
        finally:
            hostile.kill()
    assert grown < 150 * 1024, f"{grown} KiB"  # records of 2^16 ranks alone are more
    if world == 1 << 16:
        assert code in (0, 1) and len(document["groups"][0]["absent"]) == world - 1, document
    else:
        told = f"process {hostile.pid}: its page claims a world of {world} ranks; up to {1 << 16} are believed"
        assert code == 3 and told in document["refused"], document


def test_pages_of_one_communicator_that_differ_in_its_size() -> None:
    """The most frequent claim is believed."""
    found = segments.Segments()
    for inode, (world, rank) in enumerate([(4, 0), (60_000, 59_999), (4, 1)]):
        found.pages["0:1", inode] = segments.record(page(world, rank, 100 + rank, 5), 100 + rank, found)
    assert sorted(found.pages[place].rank for place in alike(found)) == [0, 1]
    assert list(found.unbelieved) == [100 + 59_999] and not found.refused
    assert "the others of its communicator tell of 4" in found.unbelieved[60_099]


def test_bytes_of_any_kind_are_no_page() -> None:
    size = lib.rr_page_bytes()
    found = segments.Segments()
    assert segments.record(b"", 1, found) is None and segments.record(bytes(size), 1, found) is None
    seed = random.SystemRandom().randrange(1 << 32)
    source = random.Random(seed)
    head, version = HEAD, page_version()
    for _ in range(300):
        rank = int.to_bytes(8, 4, "little") + int.to_bytes(source.randrange(8), 4, "little")
        data = head + bytes([version, 0, 0, 0]) + rank + int.to_bytes(1 + source.randrange(1 << 30), 4, "little")
        seen = segments.record(data + source.randbytes(size - len(data)), 1, found)
        assert seen is not None and 0 <= seen.rank < 8 and seen.world == 8, f"seed {seed}"
        assert len(ffi.string(seen.call)) < 240, f"seed {seed}"
    assert segments.record(head + bytes([version + 1, 0, 0, 0]) + bytes(size), 7, found) is None
    assert found.versions == {7}
