"""The measuring behind `rdmaring bench`: sizes, data whose sum is known, requests, formulas, counting."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.corrupting import Corrupting

import rdmaring as rr
from rdmaring.bench import data
from rdmaring.bench.cases import IN_PLACE, OUT_OF_PLACE, Request, RequestError, make_cases, make_request
from rdmaring.bench.measure import Bench
from rdmaring.bench.records import Traffic, bus_factor, report_dict
from rdmaring.bench.sizes import SizesError, format_bytes, parse_sizes
from rdmaring.buffers import CODE_BY_NAME
from rdmaring.cli.tables import BenchTable

OPS = ("sum", "prod", "min", "max", "avg")
FLOATS = ("float16", "bfloat16", "float32", "float64")
UFUNCS = {"sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


# ---- sizes ----


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("1M", (1 << 20,)),
        ("8:64:x2", (8, 16, 32, 64)),
        ("8:64", (8, 16, 32, 64)),
        ("8:100", (8, 16, 32, 64)),
        ("1k:1KiB", (1024,)),
        ("64K,8,1GB", (65536, 8, 1 << 30)),
        ("1:1000:x10", (1, 10, 100, 1000)),
        ("10:40:+10, 7", (10, 20, 30, 40, 7)),
        ("8:32,16", (8, 16, 32)),
    ],
)
def test_sizes(text: str, sizes: tuple[int, ...]) -> None:
    assert parse_sizes(text) == sizes


def test_the_default_sizes_are_those_of_the_field() -> None:
    assert parse_sizes("8:256M:x2") == tuple(1 << bit for bit in range(3, 29))


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "x",
        "8:4",
        "0",
        "-8",
        "1.5M",
        "1e6",
        "8:16:x1",
        "8:16:2",
        "8:16:+0",
        "1:2:x2:3",
        "9P",
        "1:1M:+1",
    ],
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(SizesError):
        parse_sizes(text)


@given(st.integers(1, 1 << 40), st.integers(2, 5), st.integers(1, 10**6))
def test_growth_stays_inside(first: int, factor: int, step: int) -> None:
    last = first * 100
    times = parse_sizes(f"{first}:{last}:x{factor}")
    assert times[0] == first
    assert all(b == a * factor for a, b in pairwise(times))
    assert times[-1] <= last < times[-1] * factor


def test_bytes_for_people() -> None:
    assert [format_bytes(size) for size in (8, 1000, 1536, 1 << 20, 1 << 40)] == [
        "8 B",
        "1000 B",
        "1.5 KiB",
        "1 MiB",
        "1 TiB",
    ]


# ---- data whose result is known ----


def exact(op: str, values: list[Any]) -> Any:
    """The result by Python's own numbers, which do not round."""
    total = values[0]
    for value in values[1:]:
        total = {"sum": total + value, "avg": total + value, "prod": total * value}.get(
            op, min(total, value) if op == "min" else max(total, value)
        )
    return total


@given(
    st.sampled_from(sorted(CODE_BY_NAME)),
    st.sampled_from(OPS),
    st.integers(1, 400),
    st.randoms(use_true_random=False),
)
def test_any_order_of_combining_gives_the_crafted_result(name: str, op: str, world: int, random: Any) -> None:
    """As a tree of random shape and order, each partial result rounded to the dtype."""
    if op == "avg" and name not in FLOATS:
        op = "sum"
    dtype = data.dtype_named(name)
    parts = [data.contribution(op, dtype, rank, world) for rank in range(world)]
    while len(parts) > 1:
        left = parts.pop(random.randrange(len(parts)))
        right = parts.pop(random.randrange(len(parts)))
        parts.append(UFUNCS[op](left, right).astype(dtype))
    (result,) = parts
    if op == "avg":
        working = np.float64 if name == "float64" else np.float32
        result = (result.astype(working) * np.array(1 / world, working)).astype(dtype)
    assert data.count_wrong(result, data.combined(op, dtype, world), 0) == 0


@pytest.mark.parametrize("world", [1, 2, 3, 8, 13])
@pytest.mark.parametrize("name", sorted(CODE_BY_NAME))
def test_the_crafted_result_is_the_exact_one(name: str, world: int) -> None:
    dtype = data.dtype_named(name)
    bits = 8 * dtype.itemsize
    for op in OPS:
        floating = name in FLOATS
        if op == "avg" and not floating:
            continue
        number = (lambda value: Fraction(float(value))) if floating else int
        rows = [[number(v) for v in data.contribution(op, dtype, rank, world)] for rank in range(world)]
        wanted = [exact(op, list(column)) for column in zip(*rows, strict=True)]
        if op == "avg":
            # 1/world and the result are each rounded to float32, then the result to the dtype.
            working, eps = (np.float64, 2**-52) if name == "float64" else (np.float32, 2**-23)
            own_eps = {"float16": 2**-10, "bfloat16": 2**-7}.get(name, 0)
            got = [Fraction(float(v)) for v in data.combined(op, dtype, world).astype(working)]
            for value, total in zip(got, wanted, strict=True):
                assert abs(value - total / world) <= abs(total / world) * Fraction(eps + own_eps)
            continue
        if not floating:
            wrapped = [value % (1 << bits) for value in wanted]
            signed = name.startswith("int")
            wanted = [value - (1 << bits) if signed and value >> (bits - 1) else value for value in wrapped]
        assert [number(v) for v in data.combined(op, dtype, world)] == wanted, op


@pytest.mark.parametrize("name", sorted(CODE_BY_NAME))
@pytest.mark.parametrize("op", OPS[:4])
def test_a_missing_or_doubled_contribution_shows(name: str, op: str) -> None:
    dtype, world = data.dtype_named(name), 5
    parts = [data.contribution(op, dtype, rank, world) for rank in range(world)]
    right = data.combined(op, dtype, world)
    missing = UFUNCS[op].reduce(np.stack(parts[1:]).astype(np.float64 if name in FLOATS else dtype), axis=0)
    assert data.count_wrong(missing.astype(dtype), right, 0) > data.PERIOD // 10
    if op in ("sum", "prod"):
        doubled = UFUNCS[op](right, parts[2]).astype(dtype)
        assert data.count_wrong(doubled, right, 0) > data.PERIOD // 10


@given(st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 2))
def test_patterns_go_on_where_they_are_cut(start: int, count: int, ranks: int) -> None:
    pattern = data.contribution(None, np.dtype(np.int16), ranks, 3)
    array = np.zeros(count, np.int16)
    data.fill(array, pattern, start)
    assert np.array_equal(array, pattern[(start + np.arange(count)) % data.PERIOD])
    assert data.count_wrong(array, pattern, start) == 0
    assert data.count_wrong(~array, pattern, start) == count
    data.fill(array, data.inverted(pattern), start)
    assert data.count_wrong(array, pattern, start) == count


def test_wrong_elements_are_counted_across_blocks() -> None:
    count = 2 * data.BLOCK_ELEMENTS + 3 * data.PERIOD + 5
    array = np.zeros(count, np.uint8)
    pattern = data.contribution("sum", np.dtype(np.uint8), 0, 1)
    data.fill(array, pattern, 17)
    places = [0, data.PERIOD, data.BLOCK_ELEMENTS - 1, data.BLOCK_ELEMENTS, count - 1]
    array[places] += 1
    assert data.count_wrong(array, pattern, 17) == len(places)
    assert data.count_wrong(np.roll(array, 64), pattern, 17) > count // 2


def test_minus_zero_and_nan_are_wrong() -> None:
    pattern = np.zeros(data.PERIOD, np.float32)
    assert data.count_wrong(np.array([-0.0, np.nan, 0.0], np.float32), pattern, 0) == 2


# ---- requests ----


def test_requests_name_the_option_that_is_wrong() -> None:
    for given_, option in (
        ({"collectives": "allreduce"}, "--collective"),
        ({"algorithms": "ring,rong"}, "--algorithm"),
        ({"algorithms": "ring,ring"}, "--algorithm"),
        ({"dtypes": "float8"}, "--dtype"),
        ({"ops": "add"}, "--op"),
        ({"sizes": "8:1"}, "--sizes"),
    ):
        with pytest.raises(RequestError) as caught:
            make_request(**given_)
        assert caught.value.option == option
        assert "accepted" in str(caught.value)


def test_what_no_combination_can_serve_is_an_error_and_what_one_can_is_left_out() -> None:
    for given_, option in (
        ({"ops": "avg", "dtypes": "int8"}, "--op"),
        ({"algorithms": "naive", "collectives": "broadcast"}, "--algorithm"),
        ({"collectives": "all_reduce,broadcast", "algorithms": "naive"}, "--algorithm"),
        ({"collectives": "all_gather", "plan": True}, "--plan"),
        ({"collectives": "broadcast", "places": (OUT_OF_PLACE,)}, "--out-of-place"),
        ({"root": 2}, "--root"),
    ):
        with pytest.raises(RequestError) as caught:
            make_cases(make_request(**given_), 2)
        assert caught.value.option == option
    cases = make_cases(make_request(ops="sum,avg", dtypes="int8,float32", sizes="8"), 2)
    assert [(case.dtype.name, case.op) for case in cases.served] == [
        ("int8", "sum"),
        ("float32", "sum"),
        ("float32", "avg"),
    ]
    assert len(cases.skipped) == 1


def test_sizes_are_rounded_down_to_elements_and_algorithms_stand_together() -> None:
    cases = make_cases(make_request(algorithms="ring,naive", dtypes="float64", sizes="1,7,8,20"), 2)
    assert [(case.count, case.nbytes, case.algorithm) for case in cases.served] == [
        (1, 8, "ring"),
        (1, 8, "naive"),
        (2, 16, "ring"),
        (2, 16, "naive"),
    ]


# ---- formulas ----


def test_bus_factors() -> None:
    for world in range(1, 20):
        assert bus_factor("all_reduce", world) == pytest.approx(2 * (world - 1) / world)
        assert bus_factor("reduce_scatter", world) == pytest.approx((world - 1) / world)
        assert bus_factor("all_gather", world) == pytest.approx((world - 1) / world)
        for collective in ("all_to_all", "gather", "scatter"):
            assert bus_factor(collective, world) == pytest.approx((world - 1) / world)
        assert bus_factor("broadcast", world) == bus_factor("reduce", world) == 1


def test_the_busiest_rank_and_link() -> None:
    """Naive all-reduce of 10 bytes among 3: everything goes through rank 0."""
    traffic = Traffic(4, (20, 10, 10), (20, 10, 10), ((0, 10, 10), (10, 0, 0), (11, 0, 0)))
    assert traffic.busiest_rank == (0, 0.5)
    assert traffic.busiest_link == (2, 0, 11)


# ---- measuring, in a world of one ----


@pytest.fixture
def comm() -> Iterator[Any]:
    with rr.init(0, 1, "127.0.0.1:1") as made:
        yield made


def quick(**given_: Any) -> Request:
    return make_request(**{"sizes": "4,8K", "samples": 3, "warmup": 1, "batch": 2, **given_})


@pytest.mark.parametrize("ways", [{}, {"registered": True}, {"plan": True, "collectives": "all_reduce,broadcast"}])
def test_a_world_of_one(comm: Any, ways: dict[str, Any]) -> None:
    every = "all_reduce,reduce_scatter,all_gather,broadcast,reduce,all_to_all,gather,scatter"
    request = quick(**{"collectives": every, "dtypes": "float32,bfloat16,int8", "ops": "sum,avg,max", **ways})
    cases = make_cases(request, 1)
    seen: list[Any] = []
    report = Bench(comm, request, cases).run(seen.append)
    assert report.wrong == 0
    assert tuple(seen) == report.lines
    assert [line.case for line in report.lines] == list(cases.served)
    for line in report.lines:
        assert set(line.cells) == set(line.case.places)
        assert line.traffic.sent == (0,) and line.traffic.links == ((0,),)
        for cell in line.cells.values():
            assert 0 < cell.min_us <= cell.median_us <= cell.p99_us <= cell.max_us
            assert (cell.samples, cell.calls, cell.wrong) == (3, 2, 0)
            assert cell.algbw_gb_s == pytest.approx(line.case.nbytes / cell.median_us / 1e3)


def test_a_corrupted_result_is_counted(comm: Any) -> None:
    request = quick(dtypes="float32,float64", sizes="4,1M")
    report = Bench(Corrupting(comm), request, make_cases(request, 1)).run()  # type: ignore[arg-type]
    for line in report.lines:
        # One element in the call before the timed ones, one in the call after them.
        wanted = 2 if line.case.dtype == np.float32 else 0
        assert {place: cell.wrong for place, cell in line.cells.items()} == {
            OUT_OF_PLACE: wanted,
            IN_PLACE: wanted,
        }
    assert report.wrong == 8


def test_an_input_that_is_not_left_alone_is_counted(comm: Any) -> None:
    class Scribbling(Corrupting):
        def all_reduce(self, x: Any, out: Any = None, **more: Any) -> Any:
            result = self._comm.all_reduce(x, out, **more)
            if out is not None:
                x[-1] += 1
            return result

    request = quick(dtypes="int32", sizes="4K")
    (line,) = Bench(Scribbling(comm), request, make_cases(request, 1)).run().lines  # type: ignore[arg-type]
    assert {place: cell.wrong for place, cell in line.cells.items()} == {OUT_OF_PLACE: 2, IN_PLACE: 0}


def test_what_is_not_checked_is_not_called_right(comm: Any) -> None:
    request = quick(check=False)
    report = Bench(Corrupting(comm), request, make_cases(request, 1)).run()  # type: ignore[arg-type]
    assert all(cell.wrong is None for line in report.lines for cell in line.cells.values())
    assert report_dict(report)["wrong"] is None
    table = BenchTable(request)
    assert table.row(report.lines[0]).split()[8] == "N/A"
    assert "not checked" in table.closing(report)[0]
