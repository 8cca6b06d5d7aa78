"""Contributions whose exact result is known in whatever order they are combined.

One period of a pattern is made for each rank, and repeated along the vector. Its length is prime, so that a
result shifted by a chunk, a slice or a cache line does not look right.

- Integers: any bits. Addition and multiplication wrap, hence every order gives the same; factors are odd,
  because a product with many even ones would be 0 whatever went missing.
- Floats, sum and avg: integers so small that every partial sum is exact in the dtype. Where there are
  more ranks than that leaves room for, only some of them contribute to an element, others to the next.
- Floats, prod: signs and powers of two, so few that no partial product leaves the dtype's normal range.
- min, max and what only moves data: any integers that the dtype holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rdmaring.buffers import CODE_BY_NAME

Array = NDArray[Any]

PERIOD = 1021  # elements; prime
BLOCK_ELEMENTS = 64 * PERIOD  # compared at once: what is made on the way stays in a cache

# Floats: integers up to here are exact.
EXACT_MAX = {"float16": 1 << 11, "bfloat16": 1 << 8, "float32": 1 << 24, "float64": 1 << 53}
FACTORS_MAX = 14  # of 2 or 1/2 in one product: float16 is normal from 2^-14 to 2^15


class DtypeError(ValueError):
    """No such dtype, or it needs a package that is not installed."""


def dtype_named(name: str) -> np.dtype[Any]:
    """The dtype of that name.

    Raises:
        DtypeError: it is not served, or needs ml_dtypes.
    """
    if name not in CODE_BY_NAME:
        raise DtypeError(f"{name!r} is no dtype that is served; accepted are {', '.join(CODE_BY_NAME)}")
    if name == "bfloat16":
        try:
            import ml_dtypes
        except ImportError:
            hint = "pip install 'rdmaring[bfloat16]'"
            raise DtypeError(f"bfloat16 needs ml_dtypes; install it by: {hint}") from None
        name = ml_dtypes.bfloat16
    return np.dtype(name)


def contribution(op: str | None, dtype: np.dtype[Any], rank: int, world: int) -> Array:
    """One period of what ``rank`` gives; op None: to a collective that only moves data."""
    bits = random_bits(rank)
    exact_max = EXACT_MAX.get(dtype.name)
    if exact_max is None:
        wrapped = bits.astype(f"u{dtype.itemsize}")
        return (wrapped | 1 if op == "prod" else wrapped).view(dtype)
    if op == "prod":
        exponents = np.where(contributes(rank, world, FACTORS_MAX), (bits % 3).astype(np.int64) - 1, 0)
        signs = np.where(bits >> 63, -1.0, 1.0)
        return (signs * np.exp2(exponents)).astype(dtype)
    if op in ("sum", "avg"):
        bound = max(1, exact_max // world)
        values = np.where(contributes(rank, world, exact_max // bound), _between(bits, bound), 0)
    else:
        values = _between(bits, exact_max)
    return values.astype(dtype)


def combined(op: str, dtype: np.dtype[Any], world: int) -> Array:
    """One period of the result of all ranks' contributions, in whatever order they are combined.

    avg is the exact sum, times 1/world in float32 (float64 for float64), rounded to the dtype once.
    """
    floating = dtype.name in EXACT_MAX
    # Of floats, the sums and products are exact in float64, whatever the dtype.
    wide = np.dtype(np.float64) if floating else dtype
    total = contribution(op, dtype, 0, world).astype(wide)
    for rank in range(1, world):
        total = UFUNC[op](total, contribution(op, dtype, rank, world).astype(wide))
    if op != "avg":
        return np.asarray(total.astype(dtype))
    working = np.dtype(np.float64 if dtype.name == "float64" else np.float32)
    return np.asarray((total.astype(working) * np.full(1, 1.0 / world, working)).astype(dtype))


UFUNC = {"sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


def inverted(pattern: Array) -> Array:
    """The pattern with all bits flipped: differs from it in every element."""
    return np.asarray((~_raw(pattern)).view(pattern.dtype))


def fill(array: Array, pattern: Array, start: int) -> None:
    """Repeat the pattern over ``array``, which begins at element ``start`` of the vector."""
    turned = np.roll(pattern, -(start % PERIOD))
    whole = array.size // PERIOD * PERIOD
    array[:whole].reshape(-1, PERIOD)[:] = turned
    array[whole:] = turned[: array.size - whole]


def by_period(array: Array, start: int, *patterns: Array) -> Iterator[tuple[Array, ...]]:
    """Pieces of ``array``, which begins at element ``start`` of the vector, each with what the patterns have there."""
    turned = [np.roll(pattern, -(start % PERIOD)) for pattern in patterns]
    for begin in range(0, array.size, BLOCK_ELEMENTS):
        block = array[begin : begin + BLOCK_ELEMENTS]
        whole = block.size // PERIOD * PERIOD
        yield block[:whole].reshape(-1, PERIOD), *turned
        yield block[whole:], *(pattern[: block.size - whole] for pattern in turned)


def count_wrong(array: Array, pattern: Array, start: int) -> int:
    """How many elements of ``array``, which begins at element ``start``, have other bits than the pattern."""
    return sum(int(np.count_nonzero(part != right)) for part, right in by_period(_raw(array), start, _raw(pattern)))


def _raw(array: Array) -> Array:
    return array.view(f"u{array.dtype.itemsize}")


def random_bits(rank: int) -> NDArray[np.uint64]:
    """64 bits an element that look random, equal on every machine (the finalizer of splitmix64)."""
    with np.errstate(over="ignore"):
        places = np.arange(PERIOD, dtype=np.uint64) + np.uint64(1 + rank * PERIOD)
        bits = places * np.uint64(0x9E3779B97F4A7C15)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return bits ^ (bits >> np.uint64(31))


def _between(bits: NDArray[np.uint64], bound: int) -> NDArray[np.int64]:
    """Integers from -bound to bound."""
    return (bits % np.uint64(2 * bound + 1)).astype(np.int64) - bound


def contributes(rank: int, world: int, ranks_max: int) -> NDArray[np.bool_]:
    """To which elements this rank contributes, where at most ``ranks_max`` may."""
    return (np.arange(PERIOD) + rank) % world < ranks_max
