"""``check="finite"`` on communicators whose default is a GPU: host arrays are looked at, GPU arrays refused by all."""

from __future__ import annotations

from pathlib import Path

from gpu_worlds import run_gpus

WORLD = """
with rr.init(device="cuda", check="finite", timeout_s=60) as comm:
    producer = ga.Producer(comm._ordinal("cuda"))
    R = comm.rank
    def refused(call):
        try:
            call()
        except (rr.NonFiniteError, rr.UnsupportedError) as error:
            return [type(error).__name__, error.peer, getattr(error, "index", None), str(error)]
        return None
    x = np.ones(5000, np.float32)
    say(clean=refused(lambda: comm.all_reduce(x)), sum=float(x.max()))
    x[:] = 1
    if R == 1:
        x[3999] = np.nan
    kept = x.copy()
    say(whole=refused(lambda: comm.all_reduce(x)), same=bool(np.array_equal(kept, x, equal_nan=True)))
    say(work=refused(lambda: comm.all_reduce(x, async_op=True)), part=refused(lambda: comm.reduce_scatter(x)))
    held = np.ones(100, np.float32)
    plan = comm.plan_all_reduce(held)
    plan()
    say(planned=float(held.min()))
    held[:] = 1
    held[17] = np.inf if R == 0 else 0
    say(plan=refused(plan), started=refused(plan.start))
    device = ga.Torch(producer, np.ones(100, np.float32))
    mixed = device if R == 1 else held * 0
    say(mixed=refused(lambda: comm.all_reduce(mixed)), device=refused(lambda: comm.all_reduce(device)))
    least = ga.Torch(producer, np.full(1, R + 5, np.int64))  # as the agreement's own operation, on the GPU
    comm.all_reduce(least, op="min")
    moved = comm.all_gather(ga.Torch(producer, np.full(3, np.nan, np.float32)))  # no reduction: it may travel
    say(least=int(host(least)[0]), moved=bool(np.isnan(host(moved)).all()))
"""


def test_host_arrays_are_looked_at_and_gpu_arrays_refused_by_all(tmp_path: Path) -> None:
    ran = run_gpus(2, WORLD, tmp_path)
    assert ran.code == 0, ran.output
    for rank in range(2):
        assert ran.of(rank, "clean") is None
        assert ran.of(rank, "sum") == ran.of(rank, "planned") == 2
        for name in ("whole", "work", "part"):
            assert ran.of(rank, name)[:3] == ["NonFiniteError", 1, 3999], name
        assert ran.of(rank, "same")
        for name in ("plan", "started"):
            assert ran.of(rank, name)[:3] == ["NonFiniteError", 0, 17], name
        assert ran.of(rank, "mixed")[:2] == ["UnsupportedError", 1]
        assert "rank 1's vector is in GPU memory" in ran.of(rank, "mixed")[3]
        assert ran.of(rank, "device")[:2] == ["UnsupportedError", 0]
        assert ran.of(rank, "least") == 5
        assert ran.of(rank, "moved")
