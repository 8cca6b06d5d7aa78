"""Every collective on real ranks, by every way of calling it, against numpy."""

from __future__ import annotations

from pathlib import Path

import pytest
from worlds import run_world

WORLDS = [1, 2, 3, 4, 8]

COMMON = """
import ml_dtypes
comm = rr.init(timeout_s=60)
N, R = comm.size, comm.rank
DTYPES = [np.dtype(d) for d in ("f4", "f8", "f2", ml_dtypes.bfloat16, "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")]

def vector(rank, n, dtype, salt=0):
    # small integers: sums of 8 ranks are exact in every dtype
    return np.random.default_rng([rank, n, salt]).integers(0, 4, n).astype(dtype)

def total(n, dtype, salt=0):
    return np.sum([vector(r, n, np.float64, salt) for r in range(N)], axis=0).astype(dtype)

def same(got, want, what):
    assert got.dtype == want.dtype and got.shape == want.shape, (what, got.dtype, got.shape)
    bad = np.flatnonzero(np.asarray(got != want))
    assert not bad.size, f"{what}: {bad.size} wrong, first at {bad[0]}: {got[bad[0]]} for {want[bad[0]]}"
"""


@pytest.mark.parametrize("world", WORLDS)
def test_all_reduce_counts_dtypes_algorithms(world: int, tmp_path: Path) -> None:
    ran = run_world(
        world,
        COMMON
        + """
cases = 0
for n in (0, 1, 2, N - 1, N, N + 1, 15, 17, 1000, 4097, 70001):
    for dtype in (DTYPES if n in (0, N + 1, 4097) else DTYPES[:2]):
        for algorithm in (None, "ring", "direct", "direct1", "naive"):
            x = vector(R, n, dtype)
            y = comm.all_reduce(x, algorithm=algorithm)
            assert y is x
            same(x, total(n, dtype), f"in place n={n} {dtype} {algorithm}")
            z, out = vector(R, n, dtype, 1), np.zeros(n, dtype)
            assert comm.all_reduce(z, out=out, algorithm=algorithm) is out
            same(out, total(n, dtype, 1), f"out of place n={n} {dtype} {algorithm}")
            same(z, vector(R, n, dtype, 1), "input left alone")
            r = comm.empty(n, dtype)
            r[:] = vector(R, n, dtype, 2)
            comm.all_reduce(r, algorithm=algorithm)
            same(r, total(n, dtype, 2), f"registered n={n} {dtype} {algorithm}")
            cases += 3
say(cases=cases)
""",
        tmp_path,
        timeout_s=110,
    )
    assert ran.code == 0, ran.output
    assert ran.of(0, "cases") >= (11 * 2 + 3 * 10) * 5 * 3


@pytest.mark.parametrize("world", [2, 3, 8])
def test_reductions(world: int, tmp_path: Path) -> None:
    ran = run_world(
        world,
        COMMON
        + """
for n in (5, 3000, 40000):
    for op, fold in (("sum", np.add), ("prod", np.multiply), ("min", np.minimum), ("max", np.maximum)):
        for dtype in ("f8", "i4", "u1", "i8"):
            want = fold.reduce([vector(r, n, dtype) for r in range(N)], dtype=dtype)
            same(comm.all_reduce(vector(R, n, dtype), op=op), want, f"{op} {dtype} {n}")
    want = np.mean([vector(r, n, "f8") for r in range(N)], axis=0)
    got = comm.all_reduce(vector(R, n, "f8"), op="avg")
    assert np.allclose(got, want, rtol=1e-15 * 4), "avg"
    for algorithm in ("ring", "direct", "naive"):
        got = comm.all_reduce(vector(R, n, "f4"), op="avg", scale=3.0, algorithm=algorithm)
        assert np.allclose(got, want * 3, rtol=3e-7), f"avg and scale by {algorithm}"
    half = np.full(n, 0.1, np.float16)
    exact = (np.float32(np.float16(0.1)) * N * np.float32(0.5)).astype(np.float16)
    got = comm.all_reduce(half, scale=0.5, algorithm="direct")
    assert (np.abs(got.view(np.int16) - exact.view(np.int16)) <= 1).all(), "float16 is added in float32"
wrap = comm.all_reduce(np.full(100, 120, np.int8))
same(wrap, np.full(100, 120 * N % 256, np.uint8).view(np.int8), "integers wrap")
nan = np.ones(20); nan[R] = np.nan
for op in ("min", "max", "sum"):
    got = comm.all_reduce(nan.copy(), op=op)
    assert np.isnan(got[:N]).all() and not np.isnan(got[N:]).any(), op
say(ok=True)
""",
        tmp_path,
    )
    assert ran.code == 0, ran.output
    assert ran.of(0, "ok")


@pytest.mark.parametrize("world", WORLDS)
def test_other_collectives(world: int, tmp_path: Path) -> None:
    ran = run_world(
        world,
        COMMON
        + """
for n in (0, 1, N - 1, N, 2 * N + 1, 5000, 300001):
    for algorithm in (None, "ring", "direct"):
        for registered in (False, True):
            def array(data):
                if not registered:
                    return data.copy()
                out = comm.empty(data.size, data.dtype); out[:] = data
                return out
            what = f"n={n} {algorithm} registered={registered}"
            parts = np.array_split(total(n, "f8"), N)
            x = array(vector(R, n, "f8"))
            same(comm.reduce_scatter(x, algorithm=algorithm), parts[R], "reduce_scatter " + what)
            same(x, vector(R, n, "f8"), "input left alone " + what)
            bounds = np.cumsum([0] + [p.size for p in parts])
            own = x[bounds[R]:bounds[R + 1]]
            comm.reduce_scatter(x, out=own, algorithm=algorithm)
            same(own, parts[R], "reduce_scatter in place " + what)
            whole = np.zeros(n)
            comm.all_gather(array(parts[R]), out=whole, algorithm=algorithm)
            same(whole, total(n, "f8"), "all_gather " + what)
            z = array(np.zeros(n)); z[bounds[R]:bounds[R + 1]] = parts[R]
            comm.all_gather(z[bounds[R]:bounds[R + 1]], out=z, algorithm=algorithm)
            same(z, total(n, "f8"), "all_gather in place " + what)
            root = n % N
            b = array(vector(R, n, "i4", 7))
            comm.broadcast(b, root=root, algorithm=algorithm)
            same(b, vector(root, n, "i4", 7), "broadcast " + what)
            x = array(vector(R, n, "f8", 3))
            y = comm.reduce(x, root=root, algorithm=algorithm)
            assert y is x
            same(x, total(n, "f8", 3) if R == root else vector(R, n, "f8", 3), "reduce " + what)
counts = [(r * 7) % 5 for r in range(N)]
x = vector(R, sum(counts), "f4", 9)
part = comm.reduce_scatter(x, counts=counts)
bounds = np.cumsum([0] + counts)
same(part, total(sum(counts), "f4", 9)[bounds[R]:bounds[R + 1]], "uneven reduce_scatter")
same(comm.all_gather(part, counts=counts), total(sum(counts), "f4", 9), "uneven all_gather")
same(comm.all_gather(np.full(3, R)), np.repeat(np.arange(N), 3), "all_gather makes its own output")
say(ok=True)
""",
        tmp_path,
        timeout_s=110,
    )
    assert ran.code == 0, ran.output
    assert all(ran.of(rank, "ok") for rank in range(world))


@pytest.mark.parametrize("world", [1, 2, 4])
def test_ways_of_calling(world: int, tmp_path: Path) -> None:
    ran = run_world(
        world,
        COMMON
        + """
for sizes in ([3], [5, 0, 7], [100, 1, 20000, 333], [40000, 40000]):
    for algorithm in (None, "ring"):
        pieces = [vector(R, n, "f4", i) for i, n in enumerate(sizes)]
        shaped = [p.reshape(-1, 1) for p in pieces]
        assert comm.all_reduce(shaped, algorithm=algorithm) is shaped
        for i, n in enumerate(sizes):
            same(pieces[i], total(n, "f4", i), f"list {sizes} {algorithm} piece {i}")
        pieces = [vector(R, n, "f4", i) for i, n in enumerate(sizes)]
        outs = [np.zeros(n, "f4") for n in reversed(sizes)]
        comm.all_reduce(pieces, out=outs, algorithm=algorithm)
        want = np.concatenate([total(n, "f4", i) for i, n in enumerate(sizes)])
        same(np.concatenate(outs), want, "list, out of place")
mixed = [np.full(5, R, "f4"), np.full(7, R, "f4")] if R % 2 else np.full(12, R, "f4")
comm.all_reduce(mixed)  # a list on some ranks, an array on others: one vector
same(np.concatenate(mixed) if R % 2 else mixed, np.full(12, N * (N - 1) / 2, "f4"), "list and array")
works = []
for i in range(20):
    x = vector(R, 1000 * i + 1, "f8", i)
    works.append((x, comm.all_reduce(x, async_op=True)))
y = vector(R, 10, "f8", 77)
comm.all_reduce(y)                      # blocking, behind twenty in flight
same(y, total(10, "f8", 77), "blocking behind asynchronous")
for i, (x, work) in enumerate(works):
    assert work.wait() is x and work.done()
    same(x, total(1000 * i + 1, "f8", i), f"asynchronous {i}")
for n in (1, 5000, 200000):
    for registered in (True, False):
        x = comm.empty(n, "f4") if registered else np.zeros(n, "f4")
        plan = comm.plan_all_reduce(x)
        for turn in range(5):
            x[:] = vector(R, n, "f4", turn)
            assert plan() is x
            same(x, total(n, "f4", turn), f"plan {n} turn {turn}")
        x[:] = vector(R, n, "f4", 9)
        plan.start().wait()
        same(x, total(n, "f4", 9), "plan, asynchronous")
a, b = comm.dup(), comm.dup()
half = comm.split(R % 2, key=-R)
x, y, z = (vector(R, 3000, "f8", i) for i in (1, 2, 3))
w1, w2 = a.all_reduce(x, async_op=True), b.all_reduce(y, async_op=True)
half.all_reduce(z)
w2.wait(); w1.wait()
same(x, total(3000, "f8", 1), "dup a"); same(y, total(3000, "f8", 2), "dup b")
peers = [r for r in range(N) if r % 2 == R % 2]
same(z, np.sum([vector(r, 3000, "f8", 3) for r in peers], axis=0), "split")
assert half.rank == peers[::-1].index(R)
assert comm.split(None if R == 0 else 1) is None or R
r = a.empty(50000, "f8"); r[:] = vector(R, 50000, "f8", 5)
b.all_reduce(r)
same(r, total(50000, "f8", 5), "memory serves every communicator")
for part in (a, b, half):
    part.close(); part.close()
comm.barrier()
first = np.array([2.0 ** 53, 1.0, -(2.0 ** 53), 3.0][:N] + [0.0] * (4 - min(N, 4)))
for n in (1, 7, 5000, 30000):
    got = comm.all_reduce(np.full(n, first[R % 4] if R < 4 else 0.0), order="rank")
    want = 0.0
    for r in range(N):
        want = want + first[r]
    assert (got == want).all(), ("rank order", n, got[0], want)
say(ok=True)
""",
        tmp_path,
    )
    assert ran.code == 0, ran.output
    assert all(ran.of(rank, "ok") for rank in range(world))


def test_serials_wrap(tmp_path: Path) -> None:
    """Mailbox serials have 32 bits: a long job meets the wrap."""
    ran = run_world(
        3,
        """
        import dataclasses
        from rdmaring import group, rendezvous, settings
        from rdmaring.communicator import Communicator
        chosen = dataclasses.replace(settings.read(os.environ, 20.0), serial_start=(1 << 32) - 50)
        meeting = rendezvous.join(timeout_s=20.0)
        handle = group.create(meeting.rank, meeting.world, meeting.exchange, chosen)
        comm = Communicator(handle, meeting.rank, meeting.world, "world", chosen, meeting)
        for turn in range(200):
            x = np.full(3, turn + comm.rank); comm.all_reduce(x)
            assert (x == 3 * turn + 3).all(), (turn, x)
            y = np.full(30000, turn + comm.rank); comm.all_reduce(y, algorithm="ring")
            assert (y == 3 * turn + 3).all(), turn
        say(ok=True)
        """,
        tmp_path,
    )
    assert ran.code == 0, ran.output
    assert ran.of(2, "ok")


def test_without_cma(tmp_path: Path) -> None:
    ran = run_world(
        3,
        """
        comm = rr.init(timeout_s=20)
        assert all(link.ordinary == "slots" and "RDMARING_CMA=0" in link.reason for link in comm.links)
        for algorithm in (None, "ring", "naive"):
            x = np.arange(2_000_000.0) + comm.rank
            comm.all_reduce(x, algorithm=algorithm)
            assert (x == 3 * np.arange(2_000_000.0) + 3).all(), algorithm
        say(ok=True)
        """,
        tmp_path,
        env={"RDMARING_CMA": "0"},
    )
    assert ran.code == 0, ran.output
    assert ran.of(0, "ok")


def test_bits_do_not_depend_on_slots_or_memory(tmp_path: Path) -> None:
    """Equal schedule and chunk bounds: the same bits from slots, CMA and registered memory."""
    hashes = set()
    for slot_bytes, cma in (("4096", "0"), ("262144", "0"), ("65536", "1")):
        ran = run_world(
            3,
            """
            import hashlib
            comm = rr.init(timeout_s=20)
            data = np.random.default_rng(comm.rank).standard_normal(123457).astype(np.float32)
            def digest(x): return hashlib.sha256(x.tobytes()).hexdigest()
            found = []
            for algorithm in ("ring", "direct"):
                found.append(digest(comm.all_reduce(data.copy(), algorithm=algorithm)))
                r = comm.empty(data.size); r[:] = data
                found.append(digest(comm.all_reduce(r, algorithm=algorithm)))
                assert found[-1] == found[-2], algorithm
            say(found=found)
            """,
            tmp_path,
            env={"RDMARING_SLOT_BYTES": slot_bytes, "RDMARING_CMA": cma},
        )
        assert ran.code == 0, ran.output
        hashes |= {tuple(ran.of(rank, "found")) for rank in range(3)}
    assert len(hashes) == 1


@pytest.mark.long
@pytest.mark.timeout(600)
def test_more_elements_than_32_bits_count(tmp_path: Path) -> None:
    ran = run_world(
        2,
        """
        comm = rr.init(timeout_s=300)
        count = (1 << 32) + 5
        x = comm.empty(count, np.int8)
        x[::1 << 20] = comm.rank + 1
        x[-3:] = comm.rank + 5
        for algorithm in (None, "ring"):
            comm.all_reduce(x, algorithm=algorithm)
        assert (x[-3:] == 22).all() and (x[:-3:1 << 20] == 6).all() and not x[1 << 32 | 1]
        assert int(np.count_nonzero(x)) == (1 << 12) + 1 + 3
        say(ok=True)
        """,
        tmp_path,
        timeout_s=550,
    )
    assert ran.code == 0, ran.output
    assert ran.of(1, "ok")
