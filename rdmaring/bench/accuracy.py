"""How far a result is from the exact one, in units in the last place (ulp) of its dtype.

Sums and products of floats are tried on data that round at every step: all bits of the significand drawn, magnitudes
apart, and all of one sign, since where sums cancel the error in ulp tells of the data and not of the algorithm. What
is expected is computed by numpy in float64; of dtypes of eight bytes in long double, which holds more.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rdmaring.bench.data import FACTORS_MAX, PERIOD, UFUNC, Array, by_period, contributes, random_bits

ULP_MAX = 2.0**64  # errors beyond, and results that are no numbers, count as this
# Bits of the significand, the hidden one among them, and the least exponent of a normal number.
FORMATS = {"float16": (11, -14), "bfloat16": (8, -126), "float32": (24, -126), "float64": (53, -1022)}
OCTAVES = 4  # over which the magnitudes of summands are spread, from 2 downwards: 4096 stay finite in float16


def rounds(op: str | None, dtype: np.dtype[Any]) -> bool:
    """Whether a result depends on how often, and in which order, it is rounded."""
    return op in ("sum", "avg", "prod") and dtype.name in FORMATS


def drawn(op: str, dtype: np.dtype[Any], rank: int, world: int) -> Array:
    """One period of what ``rank`` gives, equal on every machine; for dtypes and operations that round."""
    bits = random_bits(rank)
    significands = 1 + (bits >> np.uint64(12)) * 2.0**-52
    if op == "prod":  # around 1, and so few that no partial product leaves the normal range of float16
        factors = np.ldexp(significands, -(bits & np.uint64(1)).astype(int))
        return np.asarray(np.where(contributes(rank, world, FACTORS_MAX), factors, 1.0).astype(dtype))
    return np.asarray(np.ldexp(significands, -(bits % np.uint64(OCTAVES)).astype(int)).astype(dtype))


def expected(op: str, dtype: np.dtype[Any], world: int) -> Array:
    """One period of the result of all ranks' ``drawn``, in the wide type."""
    wide = wide_of(dtype)
    total = drawn(op, dtype, 0, world).astype(wide)
    for rank in range(1, world):
        total = UFUNC[op](total, drawn(op, dtype, rank, world).astype(wide))
    return np.asarray(total / wide.type(world) if op == "avg" else total)


def wide_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type in which results of ``dtype`` are compared."""
    return np.dtype(np.longdouble if dtype.itemsize == 8 else np.float64)


def error_ulp(array: Array, pattern: Array, start: int) -> float:
    """The largest |element - pattern| in ulp of the array's dtype at the pattern's value; of integers an ulp is 1.

    pattern: one period of what is expected, rounded or wide; the array begins at element ``start`` of the vector.
    """
    wide = wide_of(array.dtype)
    right = pattern.astype(wide)
    scale = _per_ulp(right, array.dtype)  # powers of two: scaling rounds nothing
    largest = 0.0
    for part, scale_here, right_here in by_period(array, start, scale, right * scale):
        if part.size:
            with np.errstate(invalid="ignore"):
                worst = float(np.abs(part.astype(wide) * scale_here - right_here).max())
            largest = max(largest, worst if worst <= ULP_MAX else ULP_MAX)
    return largest


def _per_ulp(values: Array, dtype: np.dtype[Any]) -> Array:
    """1 / ulp of ``dtype`` at each of the values."""
    if dtype.name not in FORMATS:
        return np.ones(PERIOD, values.dtype)
    precision, exponent_min = FORMATS[dtype.name]
    exponents = np.frexp(values)[1] - 1  # |value| = 1.x * 2^exponent
    exponents = np.where(values == 0, exponent_min, np.maximum(exponents, exponent_min))
    return np.asarray(np.ldexp(np.ones(PERIOD, values.dtype), precision - 1 - exponents))
