"""Complaints of hosts, containers and interfaces that no other test provokes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from beds import run_hosts
from nodes import FAR
from worlds import PRELUDE, RDMARING, collect, run_world


def test_a_tiny_dev_shm_does_not_matter(tmp_path: Path) -> None:
    """Docker gives 64 MB; here it is 64 KiB, and read-only. Vectors are in memfds."""
    if os.geteuid() != 0:
        pytest.skip("mount namespaces need root")
    script = tmp_path / "ranks.py"
    script.write_text(
        PRELUDE
        + """
with rr.init(timeout_s=60) as comm:
    facts = os.statvfs("/dev/shm")
    x = comm.empty(1 << 22, np.float32)
    x[:] = comm.rank + 1
    comm.all_reduce(x)
    say(right=bool((x == 3).all()), bytes=facts.f_blocks * facts.f_frsize, files=os.listdir("/dev/shm"))
"""
    )
    mount = "mount -t tmpfs -o size=64k,ro none /dev/shm"
    line = ["unshare", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh", RDMARING, "run", "-n", "2", str(script)]
    done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=90, check=False)
    ran = collect(done.returncode, done.stdout)
    assert ran.code == 0, ran.output
    for rank in range(2):
        assert ran.of(rank, "right"), ran.output
        assert (ran.of(rank, "bytes"), ran.of(rank, "files")) == (65536, [])


def test_containers_of_one_kernel_are_two_nodes_and_it_is_said(tmp_path: Path) -> None:
    """One boot id, two network namespaces: the ranks do not take each other for neighbours."""
    source = """
del os.environ["RDMARING_HOST_ID"]
with rr.init(timeout_s=40) as comm:
    x = comm.all_reduce(np.ones(100_000, np.float32))
    (link,) = comm.links
    say(sum=float(x[0]), transport=link.transport, reason=link.reason, nodes=comm.node_count)
"""
    ran = run_hosts(2, 1, source, tmp_path)
    assert ran.code == 0, ran.output
    for rank in range(2):
        assert (ran.of(rank, "sum"), ran.of(rank, "transport"), ran.of(rank, "nodes")) == (2.0, "tcp", 2)
        assert "the same kernel, and another network namespace" in ran.of(rank, "reason")


def test_a_bridge_that_all_hosts_have_alike_is_not_taken_for_a_way(tmp_path: Path) -> None:
    """docker0 has 172.17.0.1 on every host: whoever dials it reaches itself."""
    source = """
import subprocess
for words in ("link add docker0 type bridge", "addr add 172.17.0.1/16 dev docker0", "link set docker0 up"):
    subprocess.run(["ip", *words.split()], check=True)
with rr.init(timeout_s=40) as comm:
    x = comm.all_reduce(np.ones(100_000, np.float32))
    say(sum=float(x[0]), path=comm.links[0].path)
"""
    ran = run_hosts(2, 1, source, tmp_path)
    assert ran.code == 0, ran.output
    for rank in range(2):
        assert ran.of(rank, "sum") == 2.0
        ours, theirs = ran.of(rank, "path").split(" -> ")
        assert not ours.startswith(("172.17.", "127.")) and not theirs.startswith(("172.17.", "127.")), ran.output


def test_a_rendezvous_on_loopback_is_told_as_the_mistake_it_is(tmp_path: Path) -> None:
    """/etc/hosts leads rank 0's own name to 127.0.1.1, and the other host then dials itself."""
    source = """
os.environ["RDMARING_RENDEZVOUS"] = "127.0.0.1:29417"
os.environ.pop("RDMARING_RENDEZVOUS_HOSTED", None)
said_error(lambda: rr.init(timeout_s=3).close())
"""
    ran = run_hosts(2, 1, source, tmp_path)
    assert ran.of(1, "error") == "SetupError", ran.output
    assert "rank 1 found no rendezvous at 127.0.0.1:29417" in ran.of(1, "cause")
    assert "127.0.0.1 is this host's own loopback, where another host is never reached" in ran.of(1, "hint")
    assert "RDMARING_RENDEZVOUS" in ran.of(1, "hint") and "/etc/hosts" in ran.of(1, "hint")
    assert "rank 1 of 2 did not come" in ran.of(0, "cause"), ran.output


FEW_FILES = """
import resource
def work():
    comm = rr.init(timeout_s=25)
    comm.all_reduce(np.ones(100_000))
    comm.close()
limit = len(os.listdir("/proc/self/fd")) - 1 + int(os.environ["MORE"])
if me == 1:
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
say(limit=limit)
said_error(work)
"""
HERE = 'me = int(os.environ["RDMARING_RANK"])\n'


@pytest.mark.parametrize("more", [12, 14])
def test_too_few_open_files_end_the_set_up_on_all_ranks_with_the_limit(more: int, tmp_path: Path) -> None:
    ran = run_world(6, HERE + FEW_FILES, tmp_path, "--keep-going", env={"MORE": str(more)})
    assert ran.of(1, "error") == "SystemCallError", ran.output
    words = f"too many open files: this process may have {ran.of(1, 'limit')} (RLIMIT_NOFILE)"
    assert words in ran.of(1, "cause")
    assert "ulimit -n" in ran.of(1, "hint") and "--ulimit nofile=" in ran.of(1, "hint")
    for rank in (0, 2, 3, 4, 5):
        assert ran.of(rank, "error") == "SetupError", ran.output
        assert f"rank 1 could not set up: {words}" in ran.of(rank, "cause"), ran.output
        assert ran.of(rank, "seconds") < 20


def test_too_few_open_files_for_sockets_between_nodes(tmp_path: Path) -> None:
    ran = run_world(4, FAR + FEW_FILES, tmp_path, "--keep-going", env={"MORE": "12"})
    assert ran.of(1, "error") == "SystemCallError", ran.output
    assert "too many open files: this process may have" in ran.of(1, "cause")
    assert "ulimit -n" in ran.of(1, "hint")


def test_the_parts_of_a_slow_set_up_are_told(tmp_path: Path) -> None:
    """Rank 1 comes 1.5 s late: what rank 0 waited for has a name."""
    source = """
import logging, re
lines = []
class Kept(logging.Handler):
    def emit(self, record):
        lines.append(record.getMessage())
logger = logging.getLogger("rdmaring")
logger.addHandler(Kept()); logger.setLevel("INFO")
if os.environ["RDMARING_RANK"] == "0":
    open("begun", "w").close()
else:
    while not os.path.exists("begun"):
        time.sleep(0.01)
    time.sleep(1.5)
rr.init(timeout_s=60).close()
(line,) = [line for line in lines if "set-up of 2 ranks took" in line]
say(line=line, times=[float(each) for each in re.findall(r"([0-9.]+) s", line)])
"""
    script = f"import os\nos.chdir({str(tmp_path)!r})\n" + source
    ran = run_world(2, script, tmp_path)
    assert ran.code == 0, ran.output
    for rank in range(2):
        whole, *parts = ran.of(rank, "times")
        line = ran.of(rank, "line")
        assert line.startswith(f"rank {rank}: set-up of 2 ranks took")
        for name in ("the ranks met", "links", "agreement", "probes and GPU"):
            assert f"{name} " in line
        assert abs(sum(parts) - whole) < 0.005, line  # rounded to milliseconds
    assert ran.of(0, "times")[1] > 1.0, ran.output
