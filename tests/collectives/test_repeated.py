"""Calls whose like was checked before take a short way: with what still has to be checked, and the same results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from worlds import run_world

import rdmaring as rr
from rdmaring.collectives import BARRIER

CALLS: dict[str, Callable[..., Any]] = {
    "all_reduce": lambda comm, x, out, **more: comm.all_reduce(x, out=out, **more),
    "reduce_scatter": lambda comm, x, out, **more: comm.reduce_scatter(x, out=out, **more),
    "all_gather": lambda comm, x, out, **more: comm.all_gather(x, out=out, **more),
}


@pytest.fixture(params=CALLS)
def call(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """A collective of one rank that was called with eight float64, once."""
    with rr.init(0, 1) as comm:
        made = CALLS[request.param]
        made(comm, np.ones(8), np.zeros(8))
        assert any(key[0] == request.param for key in comm._known)
        yield lambda x, out, **more: made(comm, x, out, **more)


def strided() -> np.ndarray[Any, Any]:
    return np.zeros(16)[::2]


def read_only() -> np.ndarray[Any, Any]:
    found = np.zeros(8)
    found.flags.writeable = False
    return found


def test_it_is_called_again(call: Callable[..., Any]) -> None:
    for salt in range(3):
        x, out = np.arange(8.0) + salt, np.zeros(8)
        assert call(x, out) is out
        assert (out == np.arange(8.0) + salt).all() and (x == out).all()
    both = np.arange(8.0)
    assert call(both, both[:]).tolist() == list(range(8))  # a rank's own part, or the same memory
    assert call(read_only(), np.ones(8)).tolist() == [0.0] * 8  # the input may be read-only


WRONG: dict[str, tuple[Callable[[], tuple[Any, Any]], str]] = {
    "read-only": (lambda: (np.zeros(8), read_only()), "out is read-only"),
    "strided": (lambda: (np.zeros(8), strided()), "out is not contiguous"),
    "strided input": (lambda: (strided(), np.zeros(8)), "x is not contiguous"),
    "dtype": (lambda: (np.zeros(8), np.zeros(8, np.int64)), "out has dtype int64"),
    "overlap": (lambda: (lambda whole: (whole[:8], whole[4:12]))(np.zeros(12)), "overlaps"),
    "overlap from below": (lambda: (lambda whole: (whole[4:12], whole[:8]))(np.zeros(12)), "overlaps"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_refused_as_ever(case: str, call: Callable[..., Any]) -> None:
    arrays, said = WRONG[case]
    x, out = arrays()
    with pytest.raises(rr.CallError, match=said):
        call(x, out)
    assert call(np.ones(8), np.zeros(8)).tolist() == [1.0] * 8


def test_what_else_is_given_counts(call: Callable[..., Any]) -> None:
    with pytest.raises(rr.CallError, match="timeout_s is 0"):
        call(np.zeros(8), np.zeros(8), timeout_s=0)
    with pytest.raises(rr.CallError, match="algorithm is 'rign'"):
        call(np.zeros(8), np.zeros(8), algorithm="rign")
    assert call(np.ones(8), np.zeros(8), async_op=True).wait().tolist() == [1.0] * 8


def test_a_scale_of_nothing_is_a_scale() -> None:
    with rr.init(0, 1) as comm:
        for made in (comm.all_reduce, comm.reduce_scatter):
            assert made(np.ones(4), out=np.ones(4)).tolist() == [1.0] * 4
            assert made(np.ones(4), out=np.ones(4), scale=0.0).tolist() == [0.0] * 4
            assert made(np.ones(4), out=np.ones(4), op="max").tolist() == [1.0] * 4


@pytest.mark.parametrize("name", [*CALLS, "barrier"])
def test_a_closed_communicator_is_told(name: str) -> None:
    with rr.init(0, 1) as comm:
        for _ in range(2):
            comm.barrier() if name == "barrier" else CALLS[name](comm, np.ones(4), np.ones(4))
        assert BARRIER not in comm._known or name == "barrier"
    with pytest.raises(rr.ClosedError, match="is closed"):
        comm.barrier() if name == "barrier" else CALLS[name](comm, np.ones(4), np.ones(4))


@pytest.mark.parametrize("name", ["all_reduce", "reduce_scatter"])
def test_check_finite_looks_each_time(name: str) -> None:
    with rr.init(0, 1, check="finite") as comm:
        for _ in range(2):
            assert CALLS[name](comm, np.ones(2), np.zeros(2)).tolist() == [1.0, 1.0]
        with pytest.raises(rr.RdmaringError, match=r"nan|NaN"):
            CALLS[name](comm, np.array([1.0, np.nan]), np.ones(2))


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_repeat_calls(world: int, tmp_path: Path) -> None:
    ran = run_world(
        world,
        """
        comm = rr.init(timeout_s=60)
        N, R, n = comm.size, comm.rank, 7 * comm.size + 1  # parts are not all alike
        cuts = np.array_split(np.arange(n), N)
        for salt in range(4):
            x = np.arange(n, dtype=np.int64) * (R + 1) + salt
            whole = sum(np.arange(n, dtype=np.int64) * (r + 1) + salt for r in range(N))
            assert (comm.all_reduce(x, out=np.empty_like(x)) == whole).all()
            assert (comm.all_reduce(x, out=np.empty_like(x), op="max") == np.arange(n) * N + salt).all()
            part = comm.reduce_scatter(x, out=np.empty(cuts[R].size, np.int64))
            assert (part == whole[cuts[R]]).all()
            assert (comm.all_gather(part, out=np.empty(n, np.int64)) == whole).all()
            own = x[cuts[R][0] : cuts[R][-1] + 1]  # its own part of the input
            assert comm.reduce_scatter(x, out=own) is own
            out = np.zeros(n, np.int64)
            mine = out[cuts[R][0] : cuts[R][-1] + 1]
            mine[:] = whole[cuts[R]]
            assert (comm.all_gather(mine, out=out) == whole).all()
            comm.barrier()
        assert {key[0] for key in comm._known} == {"all_reduce", "reduce_scatter", "all_gather", "barrier"}
        comm.close()
        """,
        tmp_path,
    )
    assert ran.code == 0, ran.output
