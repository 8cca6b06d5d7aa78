"""Ordinary memory among the ranks of a node: staged, through common slots, through a link's own slots, by CMA."""

from __future__ import annotations

from pathlib import Path

import pytest
from worlds import run_world


# Slots of 4 KiB: a vector needs many, common ones run out, and links fall back to their own.
@pytest.mark.parametrize(("world", "slots"), [(3, 1), (4, 2), (8, 1), (8, 4)])
def test_mixed_memory_gives_right_sums(world: int, slots: int, tmp_path: Path) -> None:
    ran = run_world(
        world,
        """
        comm = rr.init(timeout_s=60)
        N, R = comm.size, comm.rank
        def vector(rank, n, salt):
            return np.random.default_rng([rank, n, salt]).integers(-99, 100, n).astype(np.float32)
        def memory(kind, values):
            if kind == 1:
                held = comm.empty(values.size, np.float32); held[:] = values
                return held
            return values.copy()
        cases = 0
        for salt, n in enumerate((5, 1021, 7001, 40009, 300007)):
            whole = np.sum([vector(r, n, salt) for r in range(N)], axis=0, dtype=np.float64)
            kind = (R + salt) % 3
            for algorithm in ("direct", "ring", "direct1"):
                x = memory(kind, vector(R, n, salt))
                for turn in range(3):  # the same buffers again: what peers still read must not be overwritten
                    x[:] = vector(R, n, salt) + turn
                    comm.all_reduce(x, algorithm=algorithm)
                    assert (x == whole + turn * N).all(), (n, algorithm, turn, kind)
                    cases += 1
            pieces = np.array_split(vector(R, n, salt), 3)
            pieces = [memory((kind + i) % 3, p) for i, p in enumerate(pieces)]
            comm.all_reduce(pieces)
            assert (np.concatenate(pieces) == whole).all(), ("pieces", n)
            part = comm.reduce_scatter(memory(kind, vector(R, n, salt)), algorithm="direct")
            assert (part == np.array_split(whole, N)[R]).all(), ("reduce_scatter", n)
            gathered = comm.all_gather(memory(kind, part), out=np.empty(n, np.float32), algorithm="direct")
            assert (gathered == whole).all(), ("all_gather", n)
            y = memory(kind, vector(R, n, salt))
            comm.broadcast(y, root=salt % N)
            assert (y == vector(salt % N, n, salt)).all(), ("broadcast", n)
            z = comm.reduce(memory(kind, vector(R, n, salt)), root=salt % N)
            assert R != salt % N or (z == whole).all(), ("reduce", n)
            cases += 5
        say(cases=cases)
        """,
        tmp_path,
        env={"RDMARING_SLOT_BYTES": "4096", "RDMARING_SLOT_COUNT": str(slots)},
        timeout_s=110,
    )
    assert ran.code == 0, ran.output
    assert ran.of(0, "cases") == 5 * (9 + 5)


def test_staged_input_takes_no_more_memory_than_its_bound(tmp_path: Path) -> None:
    """Vectors of up to 4 MiB are copied whole among many ranks; larger ones take no memory of their size."""
    ran = run_world(
        5,
        """
        def registered_kib():
            return sum(int(l.split()[1]) for l in open("/proc/self/smaps") if l.startswith("Shared_"))
        comm = rr.init(timeout_s=60)
        x = np.ones(4 << 20, np.float32)
        comm.all_reduce(x[: 1 << 14])
        before = registered_kib()
        comm.all_reduce(x[: 1 << 20])
        staged = registered_kib() - before
        comm.all_reduce(x)
        say(staged=staged, large=registered_kib() - before - staged)
        """,
        tmp_path,
    )
    assert ran.code == 0, ran.output
    for rank in range(5):
        assert ran.of(rank, "staged") >= 4 << 10, ran.output  # it was: 4 MiB here, and what peers show of theirs
        assert ran.of(rank, "large") < 24 << 10, ran.output  # far below five ranks' 16 MiB


def test_it_is_looked_at_whether_cores_share_a_cache(tmp_path: Path) -> None:
    """Slots that are filled say how far their reader is; registered memory of two ranks needs none."""
    ran = run_world(
        2,
        """
        comm = rr.init(timeout_s=60)
        held = comm.empty(1 << 18, np.float32)
        held[:] = 1
        comm.all_reduce(held)
        before = comm.links[0].line_ns
        x = np.ones(1 << 18, np.float32)
        for turn in range(8):
            x[:] = comm.rank + turn
            comm.all_reduce(x)
            assert (x == 1 + 2 * turn).all()
        say(before=before, after=comm.links[0].line_ns)
        """,
        tmp_path,
        timeout_s=60,
    )
    assert ran.code == 0, ran.output
    for rank in range(2):
        assert ran.of(rank, "before") is None
        assert 0 < ran.of(rank, "after") <= 62_500  # 1 ms for 16 lines bounds what is told
