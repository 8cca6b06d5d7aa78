"""``check="finite"``: the first rank and element with a NaN or an infinity, before anything runs."""

from __future__ import annotations

import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from worlds import run_world

from rdmaring._native import ffi, lib
from rdmaring.buffers import CODE_BY_NAME

DTYPES = {"float64": np.float64, "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def first(name: str, vector: np.ndarray) -> int:
    index = ffi.new("int64_t *")
    assert lib.rr_first_nonfinite(CODE_BY_NAME[name], ffi.cast("void *", vector.ctypes.data), vector.size, index) == 0
    return int(index[0])


@pytest.mark.parametrize("name", DTYPES)
def test_the_first_one_is_found(name: str) -> None:
    rng = np.random.default_rng(7)
    for count in (0, 1, 5, 1023, 1024, 1025, 5000):
        vector = rng.standard_normal(count).astype(DTYPES[name])
        assert first(name, vector) == -1
        for _ in range(10 if count else 0):
            where = np.sort(rng.integers(0, count, 2))
            bad = vector.copy()
            bad[where[0]] = rng.choice([np.nan, np.inf, -np.inf])
            bad[where[1]] = np.inf
            assert first(name, bad) == where[0]


def test_the_largest_finite_numbers_are_finite_and_integers_always() -> None:
    for name, dtype in DTYPES.items():
        top = ml_dtypes.finfo(dtype).max
        assert first(name, np.array([top, -top, 0, ml_dtypes.finfo(dtype).smallest_subnormal], dtype)) == -1
    bits = struct.unpack("<i", struct.pack("<f", np.nan))[0]
    assert first("int32", np.full(9, bits, np.int32)) == -1


def test_all_ranks_hear_of_the_first_and_go_on(tmp_path: Path) -> None:
    ran = run_world(
        3,
        """
        with rr.init(timeout_s=60, check="finite") as comm:
            R = comm.rank
            def refused(call):
                try:
                    call()
                except rr.NonFiniteError as error:
                    return [error.peer, error.index, str(error)]
                return None
            x = np.ones(5000, np.float32)
            for turn in range(3):  # the third call would be a remembered one
                comm.all_reduce(x)
                x[:] = 1
            if R > 0:
                x[4000 - R] = np.nan
            kept = x.copy()
            say(whole=refused(lambda: comm.all_reduce(x)), same=bool(np.array_equal(kept, x, equal_nan=True)))
            pieces = [np.ones(10), np.ones(20)]
            if R == 2:
                pieces[1][3] = -np.inf
            say(pieces=refused(lambda: comm.all_reduce(pieces)), reduced=refused(lambda: comm.reduce(x.copy(), root=0)))
            say(scattered=refused(lambda: comm.reduce_scatter(x)))
            say(work=refused(lambda: comm.all_reduce(x, async_op=True)))
            held = np.ones(100, np.float32)
            plan = comm.plan_all_reduce(held)
            plan()
            held[:] = 1
            held[17] = np.inf if R == 1 else 0
            say(plan=refused(plan), started=refused(plan.start))
            comm.broadcast(x, root=0)  # no reduction: NaNs may travel
            y = np.full(7, R, np.int64)
            comm.all_reduce(y)
            comm.all_reduce(np.zeros(0, np.float32))
            say(sum=int(y[0]))
        """,
        tmp_path,
        timeout_s=60,
    )
    assert ran.code == 0, ran.output
    for rank in range(3):
        assert ran.of(rank, "whole")[:2] == [1, 3999]
        assert "element 3999 of rank 1's input is a NaN or an infinity" in ran.of(rank, "whole")[2]
        assert ran.of(rank, "same")
        assert ran.of(rank, "pieces")[:2] == [2, 13]
        for name in ("reduced", "scattered", "work"):
            assert ran.of(rank, name)[:2] == [1, 3999], name
        for name in ("plan", "started"):
            assert ran.of(rank, name)[:2] == [1, 17], name
        assert ran.of(rank, "sum") == 3


def test_both_checks_together(tmp_path: Path) -> None:
    ran = run_world(
        2,
        """
        with rr.init(timeout_s=60) as comm:
            x = np.arange(100_000, dtype=np.float32)
            comm.all_reduce(x)
            say(right=bool((x == 2 * np.arange(100_000)).all()), checks=sorted(comm._settings.checks))
        """,
        tmp_path,
        env={"RDMARING_CHECK": "crc, finite"},
        timeout_s=60,
    )
    assert ran.code == 0, ran.output
    assert ran.of(1, "right")
    assert ran.of(1, "checks") == ["crc", "finite"]
