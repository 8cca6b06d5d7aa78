"""The algorithms of few hops, and the ring both ways, on real ranks against numpy in float64."""

from __future__ import annotations

from pathlib import Path

import pytest
from worlds import Ran, run_world

WORLDS = [2, 3, 4, 5, 8]

COMMON = """
import functools, hashlib, ml_dtypes
comm = rr.init(timeout_s=60)
N, R = comm.size, comm.rank
DTYPES = [np.dtype(d) for d in ("f4", ml_dtypes.bfloat16, "i4")]

@functools.cache
def vectors(n, dtype, salt=0):
    # small integers: sums of 8 ranks are exact in every dtype
    return [np.random.default_rng([r, n, salt]).integers(-4, 5, n).astype(dtype) for r in range(N)]

@functools.cache
def total(n, dtype, salt=0):
    return np.sum([x.astype(np.float64) for x in vectors(n, dtype, salt)], axis=0)

def same(got, want, what):
    bad = np.flatnonzero(got.astype(np.float64) != want)
    assert got.shape == want.shape and not bad.size, f"{what}: {bad.size} wrong, first at {bad[:1]}"

def array(values, registered):
    made = comm.empty(values.size, values.dtype) if registered else np.empty(values.size, values.dtype)
    made[:] = values
    return made
"""


def run_cases(world: int, source: str, tmp_path: Path, env: dict[str, str] | None = None) -> Ran:
    """Every rank goes through all of ``source``."""
    ran = run_world(world, COMMON + source + "\nsay(through=True)\n", tmp_path, env=env, timeout_s=110)
    assert ran.code == 0, ran.output
    assert all(ran.of(rank, "through") for rank in range(world))
    return ran


@pytest.mark.parametrize("world", WORLDS)
def test_all_reduce(world: int, tmp_path: Path) -> None:
    ran = run_cases(
        world,
        """
cases = 0
for algorithm in ("biring", "tree", "halving"):
    for n in (0, 1, 2 * N + 1, 4097, 70001):
        for dtype in DTYPES if n in (1, 4097) else DTYPES[:1]:
            for registered in (False, True):
                what = f"{algorithm} n={n} {dtype} registered={registered}"
                x = array(vectors(n, dtype)[R], registered)
                assert comm.all_reduce(x, algorithm=algorithm) is x
                same(x, total(n, dtype), "in place " + what)
                x, out = array(vectors(n, dtype, 1)[R], registered), array(np.zeros(n, dtype), registered)
                comm.all_reduce(x, out=out, algorithm=algorithm)
                same(out, total(n, dtype, 1), "out of place " + what)
                same(x, vectors(n, dtype, 1)[R].astype(np.float64), "input left alone " + what)
                cases += 2
    mean = total(5000, "f4") / N * 3
    got = comm.all_reduce(vectors(5000, "f4")[R].copy(), op="avg", scale=3.0, algorithm=algorithm)
    assert np.allclose(got, mean, rtol=3e-7, atol=1e-6), f"avg and scale by {algorithm}"
    peak = np.max(vectors(5000, "i4"), axis=0)
    assert np.array_equal(comm.all_reduce(vectors(5000, "i4")[R].copy(), op="max", algorithm=algorithm), peak)
    given = [vectors(30001, "f4", i)[R].copy() for i in range(3)]
    works = [comm.all_reduce(x, algorithm=algorithm, async_op=True) for x in given]
    for i, work in enumerate(works):
        same(work.wait(), total(30001, "f4", i), f"asynchronous {i} by {algorithm}")
say(cases=cases)
""",
        tmp_path,
    )
    assert [ran.of(rank, "cases") for rank in range(world)] == [3 * 9 * 2 * 2] * world


@pytest.mark.parametrize("world", WORLDS)
def test_parts_of_any_size(world: int, tmp_path: Path) -> None:
    """reduce_scatter and all_gather: even, uneven, empty parts, and a vector so large that scratch goes in rounds."""
    run_cases(
        world,
        """
cuts = [[r % 2 * 3 + 1 for r in range(N)], [0 if r % 3 == 1 else 900 + r for r in range(N)], [0] * (N - 1) + [4097]]
cuts += [[n.size for n in np.array_split(np.zeros(count), N)] for count in (0, 1, 300_000 * N + 1 if N == 3 else N + 1)]
for counts in cuts:
    n, bounds = sum(counts), np.cumsum([0, *counts])
    mine = slice(bounds[R], bounds[R + 1])
    for dtype in DTYPES if counts == cuts[1] else DTYPES[:1]:
        for registered in (False, True):
            what = f"{counts} {dtype} registered={registered}"
            x = array(vectors(n, dtype)[R], registered)
            part = comm.reduce_scatter(x, counts=counts, algorithm="halving")
            same(part, total(n, dtype)[mine], "reduce_scatter " + what)
            same(x, vectors(n, dtype)[R].astype(np.float64), "input left alone " + what)
            comm.reduce_scatter(x, out=x[mine], counts=counts, algorithm="halving")
            same(x[mine], total(n, dtype)[mine], "reduce_scatter in place " + what)
            for algorithm in ("doubling", "biring"):
                whole = array(np.zeros(n, dtype), registered)
                comm.all_gather(part, out=whole, counts=counts, algorithm=algorithm)
                same(whole, total(n, dtype), f"all_gather by {algorithm} " + what)
                whole[:] = 0
                whole[mine] = part
                comm.all_gather(whole[mine], out=whole, counts=counts, algorithm=algorithm)
                same(whole, total(n, dtype), f"all_gather in place by {algorithm} " + what)
""",
        tmp_path,
    )


@pytest.mark.parametrize("world", WORLDS)
def test_rooted(world: int, tmp_path: Path) -> None:
    run_cases(
        world,
        """
for algorithm in ("tree", "binomial"):
    for n in (0, 1, 4097, 700_001 if N == 5 else 333):  # a cell of scratch above 1 MiB: in rounds
        for dtype in DTYPES if n == 4097 else DTYPES[:1]:
            for root in (0, N - 1) if n == 4097 else (N // 2,):
                for registered in (False, True):
                    what = f"by {algorithm} n={n} {dtype} root={root} registered={registered}"
                    x = array(vectors(n, dtype)[R], registered)
                    comm.broadcast(x, root=root, algorithm=algorithm)
                    same(x, vectors(n, dtype)[root].astype(np.float64), "broadcast " + what)
                    x = array(vectors(n, dtype)[R], registered)
                    assert comm.reduce(x, root=root, algorithm=algorithm) is x
                    wanted = total(n, dtype) if R == root else vectors(n, dtype)[R].astype(np.float64)
                    same(x, wanted, "reduce " + what)
""",
        tmp_path,
    )


def test_bits_are_the_same_on_all_ranks_and_from_any_memory(tmp_path: Path) -> None:
    """They depend on the schedule and the chunk bounds alone: slots of any size, peers' memory, registered memory."""
    hashes = set()
    for slot_bytes, cma in (("4096", "0"), ("65536", "1")):
        ran = run_cases(
            5,
            """
data = np.random.default_rng(R).standard_normal(123_457).astype(np.float32)
found = []
for algorithm in ("biring", "tree", "halving"):
    for registered in (False, True):
        x = array(data, registered)
        found.append(hashlib.sha256(comm.all_reduce(x, algorithm=algorithm).tobytes()).hexdigest())
    assert found[-1] == found[-2], algorithm
say(found=found)
""",
            tmp_path,
            env={"RDMARING_SLOT_BYTES": slot_bytes, "RDMARING_CMA": cma},
        )
        hashes |= {tuple(ran.of(rank, "found")) for rank in range(5)}
    assert len(hashes) == 1


def test_memory_freed_as_soon_as_a_rank_is_through(tmp_path: Path) -> None:
    """A rank with nothing to send to another may be through, and free its array, before that one has begun."""
    run_cases(
        4,
        """
for turn in range(30):
    x = comm.empty(3, np.float32)  # the last rank's chunk of three elements is empty
    x[:] = R + turn
    comm.all_reduce(x, algorithm="direct")
    assert (x == 6 + 4 * turn).all(), (turn, x)
    del x
    y = comm.empty(3, np.float32)
    y[:] = R
    comm.reduce(y, root=turn % 4, algorithm="binomial")
    assert (y == (6 if R == turn % 4 else R)).all(), (turn, y)
    del y
""",
        tmp_path,
    )
