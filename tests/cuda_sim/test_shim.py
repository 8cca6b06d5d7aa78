"""The kernels' source, compiled for the CPU: against numpy, and bit by bit against the passes of the CPU device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from cuda_sim.cpu_kernels import GpuFault, Library, edges_are_intact, placed

from rdmaring._native import ffi, lib

Array = npt.NDArray[Any]

DTYPES: dict[str, Any] = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16} | {
    name: np.dtype(name).type
    for name in ("float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
}
SMALL = ("float16", "bfloat16")
FLOATS = (*SMALL, "float32", "float64")
UFUNCS = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}
# One thread's turn is 4 packs: with 8 threads the largest has turns, single packs and a tail in every dtype.
COUNTS = (0, 1, 7, 16, 33, 129, 613)
SEED = 50


@pytest.fixture(scope="module")
def kernels() -> Library:
    return Library()


def data(rng: np.random.Generator, dtype: str, count: int, any_bits: bool) -> Array:
    """Any bits, NaN, infinity and subnormals among them, or floats near 1 whose sums and products round."""
    if any_bits or dtype not in FLOATS:
        return np.frombuffer(rng.bytes(count * np.dtype(DTYPES[dtype]).itemsize), DTYPES[dtype]).copy()
    return np.asarray((rng.uniform(0.25, 4.0, count) * rng.choice([-1.0, 1.0], count)).astype(DTYPES[dtype]))


def by_cpu(dtype: str, op: str, sources: Sequence[Array], factor: float = 1.0) -> Array:
    """The pass of the CPU device. factor: 1 is none."""
    out = np.empty_like(sources[0])
    pointers = ffi.new("void *[]", [ffi.cast("void *", source.ctypes.data) for source in sources])
    status = lib.rr_reduce_apply(
        getattr(lib, f"RR_{dtype.upper()}"),
        getattr(lib, f"RR_{op.upper()}"),
        ffi.cast("void *", out.ctypes.data),
        ffi.cast("void **", pointers),
        len(sources),
        out.size,
        factor,
        0,
    )
    assert status == lib.RR_OK
    return out


def by_numpy(dtype: str, op: str, sources: Sequence[Array], factor: float = 1.0, wide: bool = False) -> Array:
    """In order, in float32 for the 16-bit floats, rounded once; wide: not rounded."""
    accumulated = np.float32 if dtype in SMALL else DTYPES[dtype]
    with np.errstate(all="ignore"):
        total = sources[0].astype(accumulated)
        for source in sources[1:]:
            total = UFUNCS[op](total, source.astype(accumulated))
        if factor != 1.0:
            total = total * accumulated(factor)
        return np.asarray(total if wide else total.astype(DTYPES[dtype]))


def same(got: Array, want: Array, zero_sign: bool = True) -> bool:
    """Equal bits; a NaN equals any NaN; without zero_sign -0 equals +0."""
    assert got.dtype == want.dtype and got.shape == want.shape
    bits = np.dtype(f"u{got.dtype.itemsize}")
    equal = got.view(bits) == want.view(bits)
    if got.dtype.kind not in "iu":
        with np.errstate(invalid="ignore"):
            equal |= np.isnan(got) & np.isnan(want)
            if not zero_sign:
                equal |= (got == 0) & (want == 0)
    return bool(equal.all())


@pytest.mark.parametrize("op", UFUNCS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_numpy_and_the_cpu_device(kernels: Library, dtype: str, op: str) -> None:
    rng = np.random.default_rng(SEED)
    item = np.dtype(DTYPES[dtype]).itemsize
    for count in COUNTS:
        for source_count in range(1, 10):
            any_bits = bool(rng.integers(2))
            # Half of all passes have every vector at a multiple of 16.
            offsets = rng.integers(0, 16 // item, 18) * item * rng.integers(2)
            values = [data(rng, dtype, count, any_bits) for _ in range(source_count)]
            sources = [placed(value, offset) for value, offset in zip(values, offsets, strict=False)]
            targets = [placed(np.empty_like(values[0]), offset) for offset in offsets[9 : 9 + rng.integers(1, 10)]]
            kernels.run(f"rr_{op}_{dtype}", targets, sources, count)
            where = f"seed {SEED}, count {count}, {source_count} sources, offsets {offsets}"
            want = by_cpu(dtype, op, values)
            for target in targets:
                if source_count == 1:
                    assert target.tobytes() == values[0].tobytes(), where
                assert same(target, want), where
                assert same(target, by_numpy(dtype, op, values), zero_sign=op in ("sum", "prod")), where
                assert edges_are_intact(target), where
            for source, value in zip(sources, values, strict=True):
                assert source.tobytes() == value.tobytes(), where


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_factor_multiplies_once_in_the_accumulated_type(kernels: Library, dtype: str) -> None:
    rng = np.random.default_rng(SEED + 1)
    for count in COUNTS:
        for source_count in (1, 2, 3, 9):
            values = [data(rng, dtype, count, any_bits=False) for _ in range(source_count)]
            sources = [placed(value) for value in values]
            for op, factor in (("sum", 1 / source_count), ("sum", 0.3), ("max", -2.5), ("min", 1 / 3), ("prod", 1e-5)):
                target = placed(np.empty_like(values[0]))
                kernels.run(f"rr_{op}_{dtype}", [target], sources, count, factor=factor)
                assert same(target, by_numpy(dtype, op, values, factor))
                assert same(target, by_cpu(dtype, op, values, factor))


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name not in FLOATS])
def test_integers_ignore_the_factor(kernels: Library, dtype: str) -> None:
    values = [data(np.random.default_rng(SEED + 2), dtype, 77, any_bits=True) for _ in range(2)]
    target = placed(np.empty_like(values[0]))
    kernels.run(f"rr_sum_{dtype}", [target], [placed(value) for value in values], 77, factor=0.5)
    assert same(target, by_numpy(dtype, "sum", values))


@pytest.mark.parametrize("op", UFUNCS)
@pytest.mark.parametrize("dtype", SMALL)
def test_parts_may_be_float32(kernels: Library, dtype: str, op: str) -> None:
    rng = np.random.default_rng(SEED + 3)
    for count in COUNTS:
        for source_count in range(1, 10):
            mask, wide = int(rng.integers(1 << source_count)), bool(rng.integers(2))
            values = [
                np.asarray(rng.uniform(0.25, 4.0, count).astype(np.float32 if mask >> s & 1 else DTYPES[dtype]))
                for s in range(source_count)
            ]
            offset = 4 * int(rng.integers(4)) * int(rng.integers(2))
            sources = [placed(value, offset) for value in values]
            target = placed(np.zeros(count, np.float32 if wide else DTYPES[dtype]), offset)
            factor = float(rng.choice([1.0, 0.2]))
            kernels.run(
                f"rr_{op}_{dtype}", [target], sources, count,
                factor=None if factor == 1.0 else factor, wide_sources=mask, wide=wide,
            )  # fmt: skip
            assert same(target, by_numpy(dtype, op, values, factor, wide)), f"{count} of {source_count}, mask {mask:b}"
            assert edges_are_intact(target)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_destination_may_be_a_source(kernels: Library, dtype: str) -> None:
    rng = np.random.default_rng(SEED + 4)
    for count in COUNTS[1:]:
        for offset in (0, np.dtype(DTYPES[dtype]).itemsize):
            values = [data(rng, dtype, count, any_bits=False) for _ in range(3)]
            arrays = [placed(value, offset) for value in values]
            kernels.run(f"rr_sum_{dtype}", [arrays[1], arrays[2]], arrays, count)
            want = by_cpu(dtype, "sum", values)
            assert same(arrays[1], want) and same(arrays[2], want)
            assert arrays[0].tobytes() == values[0].tobytes()


def test_small_floats_round_once_and_follow_the_order(kernels: Library) -> None:
    def one(dtype: str, *values: float) -> float:
        target = placed(np.zeros(19, DTYPES[dtype]))
        kernels.run(f"rr_sum_{dtype}", [target], [placed(np.full(19, value, DTYPES[dtype])) for value in values], 19)
        assert same(target, np.full_like(target, target[0]))
        return float(target[0])

    assert one("float16", 2048.0, 1.0, 1.0) == 2050.0  # rounding each step gives 2048
    assert one("float16", 65504.0, 65504.0, -65504.0) == 65504.0  # float32 in between does not overflow
    assert one("float16", 65504.0, 16.0) == np.inf
    assert one("bfloat16", 256.0, 1.0, 1.0) == 258.0
    assert one("float32", 1e8, -1e8, 1.0) == 1.0
    assert one("float32", 1.0, 1e8, -1e8) == 0.0


@pytest.mark.parametrize("dtype", FLOATS)
def test_of_equal_zeros_the_earliest_stays_and_any_nan_wins(kernels: Library, dtype: str) -> None:
    def one(op: str, *values: float) -> float:
        target = placed(np.zeros(21, DTYPES[dtype]))
        kernels.run(f"rr_{op}_{dtype}", [target], [placed(np.full(21, value, DTYPES[dtype])) for value in values], 21)
        return float(target[20])

    for op in ("min", "max"):
        assert np.signbit(one(op, -0.0, 0.0)) and not np.signbit(one(op, 0.0, -0.0))
        for position in range(3):
            values = [1.0, 2.0, 3.0]
            values[position] = np.nan
            assert np.isnan(one(op, *values))
    assert np.signbit(one("sum", -0.0, -0.0)) and not np.signbit(one("sum", -0.0, 0.0))


@pytest.mark.parametrize("geometry", [(1, 1), (1, 512), (3, 32), (300, 7)])
def test_the_grid_changes_nothing_but_who_does_it(kernels: Library, geometry: tuple[int, int]) -> None:
    values = [data(np.random.default_rng(SEED + 5), "float32", 5001, any_bits=False) for _ in range(2)]
    target = placed(np.zeros_like(values[0]))
    sources = [placed(value) for value in values]
    kernels.run("rr_sum_float32", [target], sources, 5001, grid=geometry[0], block=geometry[1])
    assert same(target, by_numpy("float32", "sum", values))


@pytest.mark.parametrize("offset", [0, 4])
def test_what_is_noted_is_what_was_touched(kernels: Library, offset: int) -> None:
    sources = [placed(np.zeros(5001, np.float32), offset) for _ in range(2)]
    target = placed(np.zeros(5001, np.float32), offset)
    launch = kernels.run("rr_sum_float32", [target], sources, 4999, note=True)
    begins = [launch.address_of[array.ctypes.data] for array in (*sources, target)]
    assert launch.reads == [(begin, begin + 4 * 4999) for begin in begins[:2]]
    assert launch.writes == [(begins[2], begins[2] + 4 * 4999)]


@pytest.mark.parametrize("dtype", ["float32", "int16"])
def test_an_address_that_is_not_there_ends_the_launch(kernels: Library, dtype: str) -> None:
    source, short = placed(np.zeros(100, DTYPES[dtype])), placed(np.zeros(99, DTYPES[dtype]))
    with pytest.raises(GpuFault) as fault:
        kernels.run(f"rr_sum_{dtype}", [short], [source, source], 100)
    assert fault.value.number == 700 and fault.value.writes
    with pytest.raises(GpuFault) as fault:
        kernels.run(f"rr_sum_{dtype}", [source], [source, short], 100)
    assert fault.value.number == 700 and not fault.value.writes


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_an_address_below_the_elements_alignment_ends_the_launch(kernels: Library, dtype: str) -> None:
    good, bad = placed(np.zeros(50, DTYPES[dtype])), placed(np.zeros(50, DTYPES[dtype]), 1)
    with pytest.raises(GpuFault) as fault:
        kernels.run(f"rr_sum_{dtype}", [good], [good, bad], 50)
    assert fault.value.number == 716
    assert fault.value.bytes == np.dtype(DTYPES[dtype]).itemsize


def test_all_kernels_are_there_with_the_parameter_of_the_engine(kernels: Library) -> None:
    for dtype in DTYPES:
        for op in UFUNCS:
            assert kernels.parameter_bytes(f"rr_{op}_{dtype}") == 176
    assert kernels.parameter_bytes("rr_avg_float32") is None
