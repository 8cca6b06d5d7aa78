"""The error column of `rdmaring bench`: units in the last place, the data they are measured on, what ranks report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from unit.corrupting import Corrupting

import rdmaring as rr
from rdmaring.bench import accuracy, data
from rdmaring.bench.cases import Request, make_cases, make_request
from rdmaring.bench.measure import Bench
from rdmaring.chunks import aligned
from rdmaring.cli.tables import ulp_text

FLOATS = ["float16", "bfloat16", "float32", "float64"]


def distance(got: Any, wanted: Any, dtype: np.dtype[Any]) -> Fraction:
    """In ulp of dtype at the wanted value, by fractions; the ulp is what lies between neighbours there."""
    exact = Fraction(float(wanted))
    below = np.array(abs(float(wanted)), dtype)
    if Fraction(float(below)) > abs(exact):
        below = np.nextafter(below, dtype.type(0))
    unit = Fraction(float(np.nextafter(below, dtype.type(np.inf)))) - Fraction(float(below))
    return abs(Fraction(float(got)) - exact) / unit


@pytest.mark.parametrize("name", FLOATS)
def test_the_error_is_the_distance_in_neighbours(name: str) -> None:
    dtype = data.dtype_named(name)
    rng = np.random.default_rng(5)
    exponents = rng.integers(-16, 12, data.PERIOD)
    exponents[:9] = 0 if name in ("float16", "bfloat16") else -140
    wanted = rng.uniform(-2, 2, data.PERIOD) * 2.0**exponents
    wanted[::50] = 2.0 ** exponents[::50]  # where the ulp below is half of the ulp above
    wanted[7] = 0
    count = 3 * data.PERIOD + 11
    places = (np.arange(count) + 5) % data.PERIOD
    got = (wanted[places] * (1 + rng.uniform(-0.02, 0.02, count))).astype(dtype)
    got[places == 7] = 0
    by_hand = max(distance(value, wanted[place], dtype) for value, place in zip(got, places, strict=True))
    assert by_hand > 1
    assert accuracy.error_ulp(got, wanted, 5) == pytest.approx(float(by_hand), rel=1e-12)
    assert accuracy.error_ulp(wanted.astype(dtype)[places], wanted.astype(dtype), 5) == 0


def test_what_is_no_number_is_as_far_as_can_be() -> None:
    wanted = np.ones(data.PERIOD)
    for value in (np.nan, np.inf, -np.inf):
        got = np.ones(data.PERIOD, np.float32)
        got[100] = value
        assert accuracy.error_ulp(got, wanted, 0) == accuracy.ULP_MAX
    whole = np.arange(data.PERIOD, dtype=np.int64) + (1 << 62)
    assert accuracy.error_ulp(whole + 3, whole, 0) == 3


@pytest.mark.parametrize("op", ["sum", "avg", "prod"])
@pytest.mark.parametrize("name", FLOATS)
def test_the_data_round_and_stay_normal(name: str, op: str) -> None:
    dtype = data.dtype_named(name)
    for world in (2, 3000, 7):
        parts = [accuracy.drawn(op, dtype, rank, world) for rank in range(world)]
        assert all((part > 0).all() for part in parts)
        wanted = accuracy.expected(op, dtype, world)
        smallest, largest = ml_dtypes.finfo(dtype).tiny, ml_dtypes.finfo(dtype).max
        assert (wanted > float(smallest)).all() and (wanted < float(largest)).all()
        if world == 7:
            combine = {"sum": np.add.reduce, "avg": np.mean, "prod": np.multiply.reduce}[op]
            wide = np.stack([part.astype(np.longdouble) for part in parts])
            assert np.allclose(combine(wide, axis=0).astype(float), wanted.astype(float), rtol=1e-15)
    assert len({part.tobytes() for part in parts}) == 7
    total = parts[0]
    for part in parts[1:7]:
        total = data.UFUNC[op](total, part).astype(dtype)
    if op == "sum":
        assert accuracy.error_ulp(total, accuracy.expected(op, dtype, 7), 0) > 0.5, "each step rounds"


def test_the_text_of_an_error() -> None:
    assert [ulp_text(each) for each in (0.0, 0.5, 1.234, 999.9, 2.0**64)] == ["0", "0.50", "1.23", "999.90", "2e+19"]


# ---- in a world of one ----


@pytest.fixture
def comm() -> Iterator[Any]:
    with rr.init(0, 1, "127.0.0.1:1") as made:
        yield made


def quick(**given: Any) -> Request:
    return make_request(**{"sizes": "8K", "samples": 1, "warmup": 0, "batch": 1, **given})


def test_one_bit_is_one_ulp_and_what_is_not_checked_has_no_error(comm: Any) -> None:
    request = quick(dtypes="float32,float64,int8", ops="sum,max")
    for line in Bench(Corrupting(comm), request, make_cases(request, 1)).run().lines:  # type: ignore[arg-type]
        wanted = 1 if line.case.dtype == np.float32 else 0
        assert [cell.error_ulp for cell in line.cells.values()] == [wanted, wanted], line
    request = quick(check=False)
    (line,) = Bench(comm, request, make_cases(request, 1)).run().lines
    assert {cell.error_ulp for cell in line.cells.values()} == {None}


# ---- between ranks ----


def by_order(name: str, orders: list[list[int]], bounds: list[int], *, narrow: bool) -> float:
    """The error of sums in which each chunk is added in its own order; narrow: rounded to the dtype at each step."""
    dtype = data.dtype_named(name)
    world = len(orders[0])
    patterns = [accuracy.drawn("sum", dtype, rank, world) for rank in range(world)]
    wanted = accuracy.expected("sum", dtype, world)
    working = dtype if name == "float64" else np.dtype(np.float32)
    worst = 0.0
    for order, begin, end in zip(orders, bounds, bounds[1:], strict=False):
        places = np.arange(begin, end) % data.PERIOD
        total = patterns[order[0]][places].astype(working)
        for rank in order[1:]:
            total = total + patterns[rank][places].astype(working)
            total = total.astype(dtype).astype(working) if narrow else total
        got = total.astype(dtype).astype(np.longdouble)
        with np.errstate(under="ignore"):
            unit = np.spacing(np.abs(wanted[places]).astype(working).astype(dtype).astype(working))
        if name in ("float16", "bfloat16"):  # all sums here are normal
            unit = 2.0 ** (np.floor(np.log2(wanted[places])) - {"float16": 10, "bfloat16": 7}[name])
        worst = max(worst, float((np.abs(got - wanted[places]) / unit).max()))
    return worst


def test_ranks_report_the_error_of_their_order(tmp_path: Path) -> None:
    """Ring and direct on three ranks, against sums in the order that each of them states, by numpy."""
    what = ["--dtype", "bfloat16,float16,float32,float64,int32", "--op", "sum,max", "--algorithm", "ring,direct"]
    command = [sys.executable, "-m", "rdmaring.cli.main", "bench", "-n", "3", *what]
    command += ["--sizes", "24K", "--iters", "1", "--warmup", "0", "--batch", "1", "--json"]
    done = subprocess.run(
        command, cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert len(rows) == 5 * 2 * 2
    for row in rows:
        errors = {row[place]["error_ulp"] for place in ("in_place", "out_of_place")}
        if row["op"] == "max" or row["dtype"] == "int32":
            assert errors == {0}, row
            continue
        count, itemsize = row["count"], data.dtype_named(row["dtype"]).itemsize
        bounds = [int(each) for each in aligned(count, 3, itemsize)]
        orders = [[0, 1, 2]] * 3 if row["algorithm"] == "direct" else [[1, 2, 0], [2, 0, 1], [0, 1, 2]]
        wanted = by_order(row["dtype"], orders, bounds, narrow=row["algorithm"] == "ring")
        assert list(errors) == [pytest.approx(wanted, rel=1e-9)], row
        assert (row["algorithm"] == "ring") == (wanted > 0.51) or row["dtype"] in ("float32", "float64"), row
