"""Hierarchical all-reduce over verbs between two nodes of two ranks, completions late and out of order."""

from __future__ import annotations

from pathlib import Path

from verbs.simulated import run_verbs

SUMS = """
os.environ["RDMARING_HOST_ID"] = f"node-{int(os.environ['RDMARING_RANK']) // 2}"
with rr.init(timeout_s=60, require="rdma") as comm:
    r, n = comm.rank, comm.size
    for count, registered in ((1, False), (4099, True), (300_001, False), (300_001, True)):
        for algorithm in ("hierarchical", "hierarchical-ring"):
            x = comm.empty(count) if registered else np.empty(count, np.float32)
            x[:] = np.arange(count) % 7 + r
            comm.all_reduce(x, algorithm=algorithm)
            assert np.array_equal(x, np.arange(count) % 7 * n + n * (n - 1) / 2), (count, registered, algorithm)
    say(nodes=comm._nodes, transports=sorted({link.transport for link in comm.links}))
"""


def test_sums(tmp_path: Path) -> None:
    done = run_verbs(4, SUMS, tmp_path, "seed=3,delay_us=300,reorder=1", timeout_s=100)
    assert done.ran.code == 0, done.ran.output
    for rank in range(4):
        assert done.ran.of(rank, "nodes") == [0, 0, 1, 1]
        assert done.ran.of(rank, "transports") == ["shm", "verbs"]
        assert done.reports[rank]["violations"] == []
