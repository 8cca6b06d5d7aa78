"""Lists of arrays as one vector: what is remembered of them, and that many small ones are worth a list."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from nodes import FAR
from worlds import RDMARING, Ran, run_world

from rdmaring.buffers import KnownLists, as_vector, check_overlap
from rdmaring.errors import ArgumentError, ArgumentTypeError

ROOT = Path(__file__).resolve().parents[2]

LISTS = """
from itertools import pairwise
with rr.init(timeout_s=60) as comm:
    r, n = comm.rank, comm.size
    for seed, sizes in enumerate(([3] * 900, [0, 1, 0, 70_001, 5, 0], [1, 1], [256] * 1000, [20_000] * 20, [0, 0])):
        rng = np.random.default_rng([seed, r])
        given = [rng.integers(-99, 99, size).astype(np.float32) for size in sizes]
        everyone = [np.random.default_rng([seed, k]) for k in range(n)]
        want = [sum(rng.integers(-99, 99, size) for rng in everyone) for size in sizes]
        for algorithm in (None, "ring", "direct"):
            x = [array.copy() for array in given]
            for times in (1, n):                                  # a list that is known, too
                assert comm.all_reduce(x, algorithm=algorithm) is x
                assert all(np.array_equal(a, times * b) for a, b in zip(x, want)), (sizes[:9], algorithm)
            out = [np.empty_like(array) for array in given]
            comm.all_reduce(given, out=out[::-1] if sizes == sizes[::-1] else out, algorithm=algorithm)
            shown = out[::-1] if sizes == sizes[::-1] else out
            assert all(np.array_equal(a, b) for a, b in zip(shown, want))
            flat = np.concatenate(given)
            comm.all_reduce(flat, algorithm=algorithm)            # a list on one rank is an array on another
            assert np.array_equal(flat, np.concatenate(want))
            comm.all_reduce(given if r % 2 else np.concatenate(given), out=np.empty(sum(sizes), np.float32))
        x = [array.copy() for array in given]
        step = comm.plan_all_reduce(x)
        for times in range(3):
            assert step() is x
            assert all(np.array_equal(a, n**times * b) for a, b in zip(x, want))
        work = comm.all_reduce(x, async_op=True)
        assert all(np.array_equal(a, n**3 * b) for a, b in zip(work.wait(), want))
        assert all(np.array_equal(a, n**4 * b) for a, b in zip(step.start().wait(), want))
    # What is remembered of a list must not outlive what changes in it.
    x = [np.ones(10, np.float32) for _ in range(5)]
    comm.all_reduce(x)
    old, x[2] = x[2], np.full(30, 2.0, np.float32)
    comm.all_reduce(x)
    assert (old == n).all() and (x[2] == 2 * n).all() and (x[0] == n * n).all()
    x.append(np.ones(3, np.float32))
    comm.all_reduce(x)
    assert (x[5] == n).all() and (x[2] == 2 * n * n).all()
    x[1].flags.writeable = False
    for wrong in (x, x[:1] + [x[0]], [x[0], x[3].astype(int)], [x[0], x[2][::2]]):
        try:
            comm.all_reduce(wrong)
        except (ValueError, TypeError) as error:
            say(text=str(error))
"""


@pytest.mark.parametrize("world", [2, 3])
def test_lists_on_shared_memory(world: int, tmp_path: Path) -> None:
    check(run_world(world, LISTS, tmp_path))


def test_lists_over_tcp(tmp_path: Path) -> None:
    check(run_world(2, FAR + LISTS, tmp_path))


def check(ran: Ran) -> None:
    assert ran.code == 0, ran.output
    parts = ("x[1] is read-only", "x overlap in memory", "x[1] has dtype int64", "x[1] is not contiguous")
    for what, part in zip(ran.said[0], parts, strict=True):
        assert part in what["text"]


def test_many_small_tensors_are_worth_a_list(tmp_path: Path) -> None:
    """Measured at 3 and more; the margin is for a busy machine."""
    source = """
with rr.init(timeout_s=60) as comm:
    tensors = [np.zeros(256, np.float32) for _ in range(1000)]
    def seconds(call):
        best = np.full(7, np.inf)
        for k in range(len(best)):
            comm.barrier()
            begin = time.perf_counter()
            call()
            best[k] = time.perf_counter() - begin
        return comm.all_reduce(best, op="max").min()
    one_by_one = seconds(lambda: [comm.all_reduce(tensor) for tensor in tensors])
    say(ratio=one_by_one / seconds(lambda: comm.all_reduce(tensors)))
"""
    ran = run_world(2, source, tmp_path)
    assert ran.of(0, "ratio") > 1.5, ran.output


def test_gathered_and_packed_lists_are_measured(tmp_path: Path) -> None:
    """The script rests on how many pieces a link gathers."""
    header = (ROOT / "native" / "src" / "link.h").read_text()
    script = (ROOT / "scripts" / "gather_or_pack.py").read_text()
    most = re.search(r"#define RR_PIECES_MAX (\d+)u", header)
    assert most is not None and f"PIECES_MAX = {most[1]} " in script
    options = ("--apart", "--json", "--extents", "256,1K", "--bytes", "64K", "--rounds", "1")
    command = [RDMARING, "run", "-n", "2", str(ROOT / "scripts" / "gather_or_pack.py"), *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line.removeprefix("[0] ")) for line in done.stdout.splitlines()]
    assert [(row["extent_bytes"], row["slice_bytes"], row["transport"]) for row in rows] == [
        (256, 4096, ["tcp"]),
        (1024, 16384, ["tcp"]),
    ]
    assert all(row["pack_over_gather"] == pytest.approx(row["pack_us"] / row["gather_us"], rel=0.01) for row in rows)


# ---- without ranks ----


def test_a_known_list_is_checked_no_more_than_needed() -> None:
    known = KnownLists()
    arrays = [np.ones(5, np.float32) for _ in range(4)]
    first = known.vector(arrays, "x")
    assert known.vector(arrays, "x") is first
    assert [tuple(row) for row in first.table] == [(array.ctypes.data, 20) for array in arrays]
    with pytest.raises(ValueError, match="resize"):
        arrays[0].resize(1000)
    other = list(arrays)
    assert known.vector(other, "x") is not first
    arrays[1] = np.ones(6, np.float32)
    assert known.vector(arrays, "x").count == 21
    arrays[0].dtype = np.int32
    with pytest.raises(ArgumentTypeError, match=r"x\[1\] has dtype float32, x\[0\] has int32"):
        known.vector(arrays, "x")
    large = [np.ones(1 << 20, np.float32) for _ in range(2)]
    assert known.vector(large, "x") is not known.vector(large, "x")  # not kept alive


@pytest.mark.parametrize("seed", range(40))
def test_overlaps_are_found(seed: int) -> None:
    """Against the plain definition: two pieces that share a byte."""
    rng = np.random.default_rng(seed)
    memory = np.zeros(60, np.uint8)

    def drawn() -> tuple[list[np.ndarray], list[set[int]]]:
        spans = [sorted(rng.integers(0, 60, 2)) for _ in range(rng.integers(1, 4))]
        return [memory[a:b] for a, b in spans], [set(range(a, b)) for a, b in spans]

    (ours, our_bytes), (theirs, their_bytes) = drawn(), drawn()
    apart = sum(map(len, their_bytes)) == len(set().union(*their_bytes))
    if len(theirs) > 1 and not apart:
        with pytest.raises(ArgumentError, match="overlap in memory"):
            as_vector(theirs, "out", writable=True)
        return
    given, out = as_vector(ours, "x", writable=False), as_vector(theirs, "out", writable=True)
    if set().union(*our_bytes) & set().union(*their_bytes):
        with pytest.raises(ArgumentError, match="in part"):
            check_overlap(given, out, same_allowed=False)
    else:
        check_overlap(given, out, same_allowed=True)
