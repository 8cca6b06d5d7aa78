"""Arrays as the library sees them: address, element count, dtype.

numpy arrays are taken as they are. Others come in by DLPack or the buffer protocol, without a copy.
What cannot be used as it is raises an error that names the argument; nothing is copied behind the
caller's back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from rdmaring._native import ffi
from rdmaring.errors import ArgumentError, ArgumentTypeError

BYTES = ffi.typeof("char[]")
CODE_BY_NAME: dict[str, int] = {
    "float32": 0,
    "float64": 1,
    "float16": 2,
    "bfloat16": 3,
    "int8": 4,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "uint8": 8,
    "uint16": 9,
    "uint32": 10,
    "uint64": 11,
}
_CODE_BY_DTYPE: dict[np.dtype[Any], int] = {}
FLOAT_CODES = frozenset((0, 1, 2, 3))
REDOP_CODE: dict[str, int] = {"sum": 0, "prod": 1, "min": 2, "max": 3, "avg": 4}


def dtype_code(dtype: np.dtype[Any], name: str) -> int:
    """The native code of a dtype; ``name`` is the argument's, for the error."""
    known = _CODE_BY_DTYPE.get(dtype)  # dtype.name takes microseconds
    if known is not None:
        return known
    code = CODE_BY_NAME.get(dtype.name)
    if code is None:
        raise ArgumentTypeError(f"{name} has dtype {dtype}; accepted are {', '.join(CODE_BY_NAME)}")
    if not dtype.isnative:
        raise ArgumentTypeError(
            f"{name} has dtype {dtype.str}, of the other byte order; accepted is this machine's",
            hint=f"use {name}.astype({name}.dtype.newbyteorder('='))",
        )
    _CODE_BY_DTYPE[dtype] = code
    return code


@dataclass(slots=True)
class Vector:
    """One vector in one or more pieces; keeps the caller's arrays alive."""

    given: Any  # what the caller passed: what calls return
    arrays: list[np.ndarray[Any, Any]]
    pieces: list[tuple[Any, int]]  # pointer as cdata, bytes
    count: int  # elements in all
    dtype: np.dtype[Any]
    code: int

    @property
    def pointer(self) -> Any:
        """Of the one piece."""
        return self.pieces[0][0]

    @property
    def range(self) -> list[tuple[int, int]]:
        """Addresses [begin, end) of the pieces."""
        begins = [int(ffi.cast("uintptr_t", pointer)) for pointer, _ in self.pieces]
        return [(begin, begin + size) for begin, (_, size) in zip(begins, self.pieces, strict=True)]


def as_array(given: Any, name: str) -> np.ndarray[Any, Any]:
    """``given`` as a numpy array that shares its memory."""
    if isinstance(given, np.ma.MaskedArray):
        raise ArgumentTypeError(f"{name} is a masked array; accepted are plain ones", hint=f"pass {name}.filled(...)")
    if isinstance(given, np.ndarray):
        return np.asarray(given)
    if hasattr(given, "__dlpack__"):
        try:
            array = np.from_dlpack(given)
            if not array.flags.writeable and hasattr(given, "__array__"):
                # numpy before 2.1 takes every import for read-only; torch's __array__ shares the same memory
                other = np.asarray(given)
                same = other.ctypes.data == array.ctypes.data and other.dtype == array.dtype
                return other if same else array
            return array
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise ArgumentTypeError(f"{name} is a {type(given).__name__} that numpy cannot share: {error}") from None
    try:
        return np.asarray(memoryview(given))
    except TypeError:
        raise ArgumentTypeError(
            f"{name} is a {type(given).__name__}; accepted are numpy arrays, and objects with __dlpack__ "
            "or the buffer protocol, or a list of these"
        ) from None


def _piece(array: np.ndarray[Any, Any], name: str, writable: bool) -> tuple[Any, int]:
    if not array.flags.c_contiguous:
        raise ArgumentError(
            f"{name} is not contiguous (shape {array.shape}, strides {array.strides}); accepted is C order, gapless",
            hint=f"pass a copy made by numpy.ascontiguousarray({name}), and copy the result back",
        )
    if writable and not array.flags.writeable:
        raise ArgumentError(f"{name} is read-only; the result would be written to it", hint="pass out=")
    # ml_dtypes' dtypes have no buffer protocol of their own
    raw = array if array.dtype.kind in "fiu" else array.reshape(-1).view(np.uint8)
    return ffi.from_buffer(BYTES, raw, writable), array.nbytes


def _check_apart(pieces: list[tuple[Any, int]], name: str) -> None:
    """Two pieces that are written share no byte."""
    spans = sorted((int(ffi.cast("uintptr_t", pointer)), size) for pointer, size in pieces if size)
    for (begin, size), (following, _) in pairwise(spans):
        if begin + size > following:
            raise ArgumentError(f"arrays of the list {name} overlap in memory; accepted are arrays apart")


def as_vector(given: Any, name: str, *, writable: bool) -> Vector:
    """Check ``given``, an array or a list of arrays of one dtype, and find its pieces.

    Raises:
        ArgumentTypeError: no array, or a dtype that is not served.
        ArgumentError: not contiguous, read-only where it would be written, mixed dtypes, an empty list.
    """
    if type(given) is np.ndarray:
        code = dtype_code(given.dtype, name)
        return Vector(given, [given], [_piece(given, name, writable)], given.size, given.dtype, code)
    several = isinstance(given, (list, tuple))
    items: Sequence[Any] = given if several else (given,)
    if not items:
        raise ArgumentError(f"{name} is an empty list; accepted is a list of at least one array")
    arrays: list[np.ndarray[Any, Any]] = []
    pieces: list[tuple[Any, int]] = []
    for index, item in enumerate(items):
        label = f"{name}[{index}]" if several else name
        array = as_array(item, label)
        dtype_code(array.dtype, label)
        if array.dtype != (arrays[0].dtype if arrays else array.dtype):
            raise ArgumentTypeError(
                f"{label} has dtype {array.dtype}, {name}[0] has {arrays[0].dtype}; accepted is one dtype"
            )
        arrays.append(array)
        pieces.append(_piece(array, label, writable))
    if len(pieces) > 1 and writable:
        _check_apart(pieces, name)
    return Vector(
        given, arrays, pieces, sum(a.size for a in arrays), arrays[0].dtype, dtype_code(arrays[0].dtype, name)
    )


def check_overlap(given: Vector, out: Vector, *, same_allowed: bool) -> None:
    """Input and output are the same memory, or share none.

    Raises:
        ArgumentError: they overlap in part.
    """
    ours, theirs = given.range, out.range
    if same_allowed and ours == theirs:
        return
    for begin, end in ours:
        for other_begin, other_end in theirs:
            if begin < other_end and other_begin < end:
                raise ArgumentError("out overlaps the input in part; accepted are the same memory or none in common")
