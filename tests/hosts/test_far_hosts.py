"""Collectives and failures between hosts that are network namespaces, over TCP."""

from __future__ import annotations

from pathlib import Path

import pytest
from beds import run_hosts

SUMS = """
import itertools, ml_dtypes
with rr.init(timeout_s=60) as comm:
    r, n = comm.rank, comm.size
    for count in (1, 4097, 300_000):
        for dtype in (np.float32, ml_dtypes.bfloat16):
            want = np.arange(count) % 7 * n + n * (n - 1) / 2
            given = (np.arange(count) % 7 + r).astype(dtype)
            sums = ("ring", "biring", "tree", "halving", "direct", "hierarchical", "hierarchical-ring")
            for algorithm in (None, *sums):
                x = given.copy()
                comm.all_reduce(x, algorithm=algorithm)
                assert np.array_equal(x.astype(np.float64), want), (count, dtype, algorithm)
            edges = np.cumsum([0] + [len(part) for part in np.array_split(np.arange(count), n)])
            part = np.empty(edges[r + 1] - edges[r], dtype)
            for algorithm in (None, "halving"):
                comm.reduce_scatter(given, out=part, algorithm=algorithm)
                assert np.array_equal(part.astype(np.float64), want[edges[r]:edges[r + 1]])
            for algorithm in (None, "biring", "doubling"):
                whole = np.zeros(count, dtype)
                comm.all_gather(part, out=whole, algorithm=algorithm)
                assert np.array_equal(whole.astype(np.float64), want)
            for root, algorithm in itertools.product(range(n), (None, "tree", "binomial")):
                x = given.copy()
                comm.broadcast(x, root=root, algorithm=algorithm)
                assert np.array_equal(x.astype(np.float64), np.arange(count) % 7 + root)
                x = given.copy()
                comm.reduce(x, root=root, algorithm=algorithm)
                assert np.array_equal(x.astype(np.float64), want if r == root else given.astype(np.float64))
    comm.barrier()
    say(transports=sorted({link.transport for link in comm.links}), paths=[link.path for link in comm.links],
        nodes=comm.node_count)
"""


@pytest.mark.parametrize("hosts", [2, 4])
@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
def test_all_collectives_over_tcp(hosts: int, family: str, tmp_path: Path) -> None:
    ran = run_hosts(hosts, 1, SUMS, tmp_path, *(["--ipv6"] if family == "IPv6" else []), timeout_s=90)
    assert ran.code == 0, ran.output
    for rank in range(hosts):
        assert ran.of(rank, "transports") == ["tcp"]
        assert ran.of(rank, "nodes") == hosts
        for path in ran.of(rank, "paths"):
            assert path.startswith("[") == (family == "IPv6"), path


def test_two_ranks_a_host_share_memory(tmp_path: Path) -> None:
    ran = run_hosts(2, 2, SUMS, tmp_path, timeout_s=90)
    assert ran.code == 0, ran.output
    for rank in range(4):
        assert ran.of(rank, "transports") == ["shm", "tcp"]


def test_link_local_addresses_alone_are_enough(tmp_path: Path) -> None:
    source = """
import subprocess
with rr.init(timeout_s=60) as comm:
    time.sleep(1.5)  # the rendezvous is over on both: what follows has link-local addresses alone
    subprocess.run(["ip", "-6", "addr", "flush", "dev", "eth0", "scope", "global"], check=True)
    x = np.ones(10_000, np.float32)
    said_error(lambda: comm.all_reduce(x))
    say(sum=float(x[0]), path=comm.links[0].path)
"""
    ran = run_hosts(2, 1, source, tmp_path, "--ipv6", timeout_s=90)
    assert ran.code == 0, ran.output
    for rank in range(2):
        assert ran.of(rank, "sum") == 2.0, ran.output
        assert ran.of(rank, "path").startswith("[fe80::"), ran.output


def test_a_lost_host_is_noticed_within_six_seconds(tmp_path: Path) -> None:
    source = """
import subprocess
comm = rr.init(timeout_s=60)
x = np.ones(1_000_000, np.float32)
comm.all_reduce(x)
comm.barrier()
if comm.rank == 1:
    time.sleep(0.5)
    say(cut=time.time())
    subprocess.run(["ip", "link", "set", "eth0", "down"], check=True)
    time.sleep(12)
    say(late=True)
else:
    said_error(lambda: comm.all_reduce(x))
"""
    ran = run_hosts(3, 1, source, tmp_path, timeout_s=90)
    for rank in (0, 2):
        assert ran.of(rank, "error") == "PeerDiedError", ran.output
        assert ran.of(rank, "peer") == 1
        assert ran.of(rank, "at") - ran.of(1, "cut") < 6, ran.output
        assert "cut off" in ran.of(rank, "text")
