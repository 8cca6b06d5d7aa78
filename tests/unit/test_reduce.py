"""rr_reduce_apply: every dtype, operation and SIMD level of this machine against numpy.

Random data come from fixed seeds, so a failure repeats. Results are compared bit by bit, NaNs as one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from rdmaring._native import ffi, lib

Array = npt.NDArray[Any]

FLOATS: dict[str, tuple[int, Any]] = {
    "float32": (lib.RR_FLOAT32, np.float32),
    "float64": (lib.RR_FLOAT64, np.float64),
    "float16": (lib.RR_FLOAT16, np.float16),
    "bfloat16": (lib.RR_BFLOAT16, ml_dtypes.bfloat16),
}
INTEGERS: dict[str, tuple[int, Any]] = {
    "int8": (lib.RR_INT8, np.int8),
    "int16": (lib.RR_INT16, np.int16),
    "int32": (lib.RR_INT32, np.int32),
    "int64": (lib.RR_INT64, np.int64),
    "uint8": (lib.RR_UINT8, np.uint8),
    "uint16": (lib.RR_UINT16, np.uint16),
    "uint32": (lib.RR_UINT32, np.uint32),
    "uint64": (lib.RR_UINT64, np.uint64),
}
DTYPES = FLOATS | INTEGERS
REDOPS = {"sum": lib.RR_SUM, "prod": lib.RR_PROD, "min": lib.RR_MIN, "max": lib.RR_MAX, "avg": lib.RR_AVG}
UFUNCS = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum, "avg": np.add}

LEVEL_NAMES = ["scalar", "x86-64-v3", "x86-64-v4"]
BEST_NAME: str = ffi.string(lib.rr_simd_name()).decode()
LEVELS = range(LEVEL_NAMES.index(BEST_NAME) + 1)

COUNTS = [0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 1000]


def apply(dtype: str, redop: str, sources: Sequence[Array], out: Array, scale: float = 1.0, level: int = 0) -> int:
    """The status of one call; `out` has the result. Arrays: one-dimensional, contiguous, of `dtype`."""
    pointers = ffi.new("void *[]", [ffi.cast("void *", source.ctypes.data) for source in sources])
    return int(
        lib.rr_reduce_apply(
            DTYPES[dtype][0],
            REDOPS[redop],
            ffi.cast("void *", out.ctypes.data),
            ffi.cast("void **", pointers),
            len(sources),
            out.size,
            scale,
            level,
        )
    )


def reduced(dtype: str, redop: str, sources: Sequence[Array], scale: float = 1.0, level: int = 0) -> Array:
    out = np.empty_like(sources[0])
    assert apply(dtype, redop, sources, out, scale, level) == lib.RR_OK
    return out


def expected(dtype: str, redop: str, sources: Sequence[Array], scale: float = 1.0) -> Array:
    """In order, in float32 for the 16-bit floats; factor and product in the type of the accumulation."""
    numpy_dtype = DTYPES[dtype][1]
    wide = np.float32 if dtype in ("float16", "bfloat16") else numpy_dtype
    with np.errstate(all="ignore"):
        total = sources[0].astype(wide)
        for source in sources[1:]:
            total = UFUNCS[redop](total, source.astype(wide))
        if dtype in FLOATS and (scale != 1.0 or redop == "avg"):
            total = total * wide(scale / len(sources) if redop == "avg" else scale)
        return np.asarray(total.astype(numpy_dtype))


def random_array(rng: np.random.Generator, dtype: str, count: int, any_bits: bool) -> Array:
    """Any bits, NaN, infinity and subnormals among them, or floats near 1 whose sums and products round."""
    numpy_dtype = np.dtype(DTYPES[dtype][1])
    if any_bits or dtype in INTEGERS:
        return np.frombuffer(rng.bytes(count * numpy_dtype.itemsize), dtype=numpy_dtype).copy()
    values = rng.uniform(0.25, 4.0, count) * rng.choice([-1.0, 1.0], count)
    return np.asarray(values.astype(numpy_dtype))


def assert_same(got: Array, want: Array, zero_sign: bool = True) -> None:
    """Equal bits; a NaN equals any NaN; without zero_sign -0 equals +0."""
    assert got.dtype == want.dtype and got.shape == want.shape
    bits = np.dtype(f"u{got.dtype.itemsize}")
    same = got.view(bits) == want.view(bits)
    if got.dtype.kind not in "iu":
        with np.errstate(invalid="ignore"):  # signalling NaNs in bfloat16
            same |= np.isnan(got) & np.isnan(want)
            if not zero_sign:
                same |= (got == 0) & (want == 0)
    wrong = np.flatnonzero(~same)
    assert wrong.size == 0, f"element {wrong[0]} is {got[wrong[0]]}, not {want[wrong[0]]} ({wrong.size} differ)"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("redop", ["sum", "prod", "min", "max"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_numpy(dtype: str, redop: str, level: int) -> None:
    rng = np.random.default_rng(20)
    for count in COUNTS:
        for source_count in range(1, 10):
            any_bits = bool(rng.integers(2))
            sources = [random_array(rng, dtype, count, any_bits) for _ in range(source_count)]
            # numpy leaves open which of two equal zeros minimum and maximum return; see the test below.
            assert_same(
                reduced(dtype, redop, sources, level=level),
                expected(dtype, redop, sources),
                zero_sign=redop in ("sum", "prod"),
            )


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_avg_and_scale_multiply_once_in_the_accumulated_type(dtype: str, level: int) -> None:
    rng = np.random.default_rng(21)
    for count in COUNTS:
        for source_count in (1, 2, 3, 4, 7):
            sources = [random_array(rng, dtype, count, any_bits=False) for _ in range(source_count)]
            for redop, scale in (("avg", 1.0), ("avg", 0.3), ("sum", 1 / 3), ("max", -2.5), ("prod", 1e-5)):
                assert_same(reduced(dtype, redop, sources, scale, level), expected(dtype, redop, sources, scale))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_avg_of_four_is_the_mean(dtype: str, level: int) -> None:
    rng = np.random.default_rng(22)
    values = rng.integers(-20, 20, (4, 77))  # sums and quarters fit every dtype exactly
    sources = [np.asarray(row.astype(DTYPES[dtype][1])) for row in values]
    got = reduced(dtype, "avg", sources, level=level)
    assert_same(got, np.asarray(values.mean(axis=0).astype(DTYPES[dtype][1])), zero_sign=False)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_zeros_nans_and_infinities(dtype: str, level: int) -> None:
    def one(redop: str, *values: float, scale: float = 1.0) -> float:
        sources = [np.full(67, value, DTYPES[dtype][1]) for value in values]
        out = reduced(dtype, redop, sources, scale, level)
        assert_same(out, np.full_like(out, out[0]))
        return float(out[0])

    def is_negative_zero(value: float) -> bool:
        return value == 0 and bool(np.signbit(value))

    assert is_negative_zero(one("sum", -0.0, -0.0))
    assert not is_negative_zero(one("sum", -0.0, 0.0))
    assert is_negative_zero(one("sum", 0.0, 0.0, scale=-1.0))
    for redop in ("min", "max"):  # of equal values the earlier source's
        assert is_negative_zero(one(redop, -0.0, 0.0))
        assert not is_negative_zero(one(redop, 0.0, -0.0))
        assert is_negative_zero(one(redop, -0.0, 0.0, -0.0, 0.0))
        for position in range(4):
            values = [1.0, 2.0, 3.0, 4.0]
            values[position] = np.nan
            assert np.isnan(one(redop, *values))
    assert np.isnan(one("sum", np.inf, -np.inf))
    assert np.isnan(one("prod", 0.0, np.inf))
    assert one("min", np.inf, -np.inf) == -np.inf
    assert one("max", -np.inf, 5.0) == 5.0


@pytest.mark.parametrize("level", LEVELS)
def test_small_floats_round_once(level: int) -> None:
    def one(dtype: str, *values: float) -> float:
        sources = [np.full(35, value, DTYPES[dtype][1]) for value in values]
        return float(reduced(dtype, "sum", sources, level=level)[34])

    assert one("float16", 2048.0, 1.0, 1.0) == 2050.0  # rounding each step gives 2048
    assert one("float16", 2048.0, 1.0) == 2048.0  # ties to even
    assert one("float16", 2050.0, 1.0) == 2052.0
    assert one("bfloat16", 256.0, 1.0, 1.0) == 258.0
    assert one("bfloat16", 256.0, 1.0) == 256.0
    assert one("bfloat16", 258.0, 1.0) == 260.0
    assert one("float16", 65504.0, 15.0) == 65504.0
    assert one("float16", 65504.0, 16.0) == np.inf
    assert one("float16", 65504.0, 65504.0, -65504.0) == 65504.0  # float32 in between does not overflow
    assert one("float16", 2.0**-24, 2.0**-24) == 2.0**-23  # subnormals are kept
    assert one("bfloat16", 2.0**-133, 2.0**-133) == 2.0**-132


@pytest.mark.parametrize("level", LEVELS)
def test_sources_are_taken_in_order(level: int) -> None:
    big, small = np.full(41, 1e8, np.float32), np.full(41, 1.0, np.float32)
    assert np.all(reduced("float32", "sum", [big, -big, small], level=level) == 1.0)
    assert np.all(reduced("float32", "sum", [small, big, -big], level=level) == 0.0)


@pytest.mark.parametrize("level", LEVELS)
def test_integers_wrap(level: int) -> None:
    for dtype, (_, numpy_dtype) in INTEGERS.items():
        info = np.iinfo(numpy_dtype)
        top, one, two = (np.full(71, value, numpy_dtype) for value in (info.max, 1, 2))
        assert np.all(reduced(dtype, "sum", [top, one], level=level) == info.min)
        product = (int(info.max) * 2 - info.min) % 2**info.bits + info.min  # modulo 2^bits, into the range
        assert np.all(reduced(dtype, "prod", [top, two], level=level) == product)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_in_place_and_unaligned(dtype: str, level: int) -> None:
    rng = np.random.default_rng(23)
    numpy_dtype = np.dtype(DTYPES[dtype][1])
    for count in (1, 5, 33, 70, 500):
        for target in range(3):
            values = [random_array(rng, dtype, count, any_bits=False) for _ in range(3)]
            sources = []
            for value in values:
                raw = np.zeros(1 + value.nbytes, np.uint8)
                raw[1:] = value.view(np.uint8)
                sources.append(np.frombuffer(raw.data, numpy_dtype, count, offset=1))
            assert apply(dtype, "sum", sources, sources[target], level=level) == lib.RR_OK
            assert_same(sources[target].copy(), expected(dtype, "sum", values))
            for other in {0, 1, 2} - {target}:
                assert_same(sources[other].copy(), values[other])


def test_a_level_above_the_best_is_the_best() -> None:
    source = np.arange(50, dtype=np.float32)
    assert_same(reduced("float32", "sum", [source, source], level=99), source * np.float32(2))


def message_of(status: int) -> str:
    record = ffi.new("rr_error *")
    lib.rr_last_error(record)
    assert record.status == status
    return str(ffi.string(record.message).decode())


@pytest.mark.parametrize(
    ("dtype", "redop", "source_count", "scale", "level", "named"),
    [
        ("int32", "avg", 2, 1.0, 0, "avg of int32"),
        ("uint8", "sum", 2, 0.5, 0, "scale is 0.5"),
        ("float32", "sum", 0, 1.0, 0, "source_count is 0"),
        ("float32", "sum", 65, 1.0, 0, "source_count is 65"),
        ("float32", "sum", 2, 1.0, -1, "level is -1"),
    ],
)
def test_bad_arguments_change_nothing(
    dtype: str, redop: str, source_count: int, scale: float, level: int, named: str
) -> None:
    out = np.full(9, 3, DTYPES[dtype][1])
    status = apply(dtype, redop, [np.ones_like(out)] * source_count, out, scale, level)
    assert status == lib.RR_ERR_ARGUMENT
    assert named in message_of(status)
    assert np.all(out == 3)


def test_unknown_codes_and_addresses_are_refused() -> None:
    data = np.zeros(8, np.float32)
    at = ffi.cast("void *", data.ctypes.data)
    sources = ffi.cast("void **", pointers := ffi.new("void *[]", [at]))
    missing = ffi.cast("void **", absent := ffi.new("void *[]", [ffi.NULL]))
    calls = [
        ((12, 0, at, sources, 1, 8, 1.0, 0), "dtype is 12"),
        ((-1, 0, at, sources, 1, 8, 1.0, 0), "dtype is -1"),
        ((0, 5, at, sources, 1, 8, 1.0, 0), "redop is 5"),
        ((0, 0, ffi.NULL, sources, 1, 8, 1.0, 0), "dst is NULL"),
        ((0, 0, at, ffi.NULL, 1, 8, 1.0, 0), "sources is NULL"),
        ((0, 0, at, missing, 1, 8, 1.0, 0), "sources[0] is NULL"),
        ((0, 0, at, sources, 1, 2**63, 1.0, 0), f"count is {2**63}"),
    ]
    for arguments, named in calls:
        status = lib.rr_reduce_apply(*arguments)
        assert status == lib.RR_ERR_ARGUMENT
        assert named in message_of(status)
    assert pointers[0] == at and absent[0] == ffi.NULL


def test_a_destination_that_overlaps_a_source_by_a_part_is_refused() -> None:
    data = np.arange(10, dtype=np.float32)
    before = data.copy()
    assert apply("float32", "sum", [data[:8], data[2:]], data[2:]) == lib.RR_ERR_ARGUMENT
    assert "sources[0]" in message_of(lib.RR_ERR_ARGUMENT)
    assert_same(data, before)


def simd_name_under(value: str | None) -> str:
    environment = {key: text for key, text in os.environ.items() if key != "RDMARING_SIMD"}
    if value is not None:
        environment["RDMARING_SIMD"] = value
    code = "from rdmaring._native import ffi, lib; print(ffi.string(lib.rr_simd_name()).decode())"
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd="/").stdout.strip()


def test_the_environment_lowers_the_level() -> None:
    best = simd_name_under(None)
    for name in LEVEL_NAMES:
        lowered = min(LEVEL_NAMES.index(name), LEVEL_NAMES.index(best))
        assert simd_name_under(name) == LEVEL_NAMES[lowered]
    assert simd_name_under("none of ours") == best
    assert simd_name_under("") == best
