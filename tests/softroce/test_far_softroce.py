"""Collectives and failures over real soft-RoCE, in guests that boot the distribution's kernel."""

from __future__ import annotations

from pathlib import Path

import pytest
from beds import run_softroce

# Guests compute some fifty times slower than their host: few sizes, each with a purpose: one message, uneven
# chunks, several slices a chunk.
SUMS = """
with rr.init(timeout_s=100, require="rdma") as comm:
    r, n = comm.rank, comm.size
    import ml_dtypes
    bfloat16 = np.dtype(ml_dtypes.bfloat16)
    for count, registered in ((1, False), (4099, True), (4099, False), (600_001, True), (300_001, False)):
        for dtype in (np.float32, bfloat16):
            def fresh(k):
                return comm.empty(k, dtype) if registered else np.empty(k, dtype)
            want = np.arange(count) % 7 * n + n * (n - 1) / 2
            given = (np.arange(count) % 7 + r).astype(dtype)
            for algorithm in (None, "ring", *(("hierarchical",) if n > comm.node_count else ())):
                x = fresh(count); x[:] = given
                comm.all_reduce(x, algorithm=algorithm)
                assert np.array_equal(x.astype(np.float64), want), (count, dtype, algorithm, x[:9], want[:9])
            edges = np.cumsum([0] + [len(part) for part in np.array_split(np.arange(count), n)])
            part = fresh(edges[r + 1] - edges[r])
            comm.reduce_scatter(given, out=part)
            assert np.array_equal(part.astype(np.float64), want[edges[r]:edges[r + 1]])
            whole = fresh(count)
            comm.all_gather(part, out=whole)
            assert np.array_equal(whole.astype(np.float64), want)
            root = n - 1
            x = fresh(count); x[:] = given
            comm.broadcast(x, root=root)
            assert np.array_equal(x.astype(np.float64), np.arange(count) % 7 + root)
            x[:] = given
            comm.reduce(x, root=root)
            assert np.array_equal(x.astype(np.float64), want if r == root else given.astype(np.float64))
    comm.barrier()
    say(transports=sorted({link.transport for link in comm.links}), device=[link.device for link in comm.links],
        paths=[link.path for link in comm.links])
"""


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("guests", "ranks", "options"),
    [
        pytest.param(2, 2, (), id="2x2"),
        pytest.param(2, 1, ("--loss", "1%", "--delay", "1ms"), id="2x1-loss-and-delay"),
        pytest.param(2, 1, (), id="2x1", marks=pytest.mark.long),
        pytest.param(3, 1, (), id="3x1", marks=pytest.mark.long),
    ],
)
def test_all_collectives_over_soft_roce(guests: int, ranks: int, options: tuple[str, ...], tmp_path: Path) -> None:
    ran = run_softroce(guests, ranks, SUMS, tmp_path, *options, timeout_s=330)
    assert ran.code == 0, ran.output
    for rank in range(guests * ranks):
        assert ran.of(rank, "transports") == (["verbs"] if ranks == 1 else ["shm", "verbs"])
        assert "rxe0/1" in ran.of(rank, "device")
        assert any("RoCE v2" in path for path in ran.of(rank, "paths")), ran.output


@pytest.mark.timeout(300)
def test_a_killed_rank_is_named_over_soft_roce(tmp_path: Path) -> None:
    source = """
comm = rr.init(timeout_s=100, require="rdma")
x = comm.empty(300_000, np.float32)
comm.all_reduce(x)
if comm.rank == 1:
    time.sleep(0.3)  # the others are through the first operation too
    say(at=time.time())
    os.kill(os.getpid(), signal.SIGKILL)
said_error(lambda: [comm.all_reduce(x, algorithm="ring") for _ in range(1000)])
import subprocess
comm.close()
say(left=subprocess.run(["rdma", "resource", "show", "qp"], capture_output=True, text=True).stdout,
    regions=subprocess.run(["rdma", "resource", "show", "mr"], capture_output=True, text=True).stdout)
"""
    ran = run_softroce(2, 1, source, tmp_path, timeout_s=240)
    assert ran.of(0, "error") == "PeerDiedError", ran.output
    assert ran.of(0, "peer") == 1
    assert ran.of(0, "seconds") < 10, ran.output
    # queue pairs of the kernel itself (GSI) stay
    assert "type RC" not in ran.of(0, "left"), ran.output
    assert ran.of(0, "regions").strip() == "", ran.output
