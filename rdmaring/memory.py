"""Arrays in registered memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from rdmaring._native import check, ffi, lib
from rdmaring.buffers import dtype_code
from rdmaring.errors import ArgumentError

if TYPE_CHECKING:
    from rdmaring.cuda.array import DeviceArray


def _checked(shape: Any, dtype: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    wanted = np.dtype(dtype)
    dtype_code(wanted, "dtype")
    dims = (int(shape),) if np.ndim(shape) == 0 else tuple(int(dim) for dim in shape)
    if any(dim < 0 for dim in dims):
        raise ArgumentError(f"shape is {shape}; accepted are dimensions >= 0")
    return dims, wanted


def empty_on_gpu(shape: Any, dtype: Any, ordinal: int) -> DeviceArray:
    """A zeroed array in the memory of a GPU; freed with the last array on it.

    Raises:
        ArgumentError: a negative dimension.
        CudaError: no room for it, no such GPU, no driver.
    """
    from rdmaring.cuda.array import DeviceArray
    from rdmaring.cuda.context import device

    return DeviceArray(device(ordinal), *_checked(shape, dtype))


def empty(shape: Any, dtype: Any) -> np.ndarray[Any, Any]:
    """A zeroed array on memory that peers can map; freed with the last array on it.

    Raises:
        ArgumentError: a negative dimension.
        OutOfMemoryError: no room for it.
    """
    dims, wanted = _checked(shape, dtype)
    nbytes = math.prod(dims) * wanted.itemsize
    if nbytes == 0:
        return np.empty(dims, wanted)
    out = ffi.new("void **")
    check(lib.rr_memory_alloc(nbytes, out))
    owner = ffi.gc(out[0], lib.rr_memory_free, nbytes)
    # The array's base keeps the buffer object, which keeps `owner`.
    array: np.ndarray[Any, Any] = np.frombuffer(ffi.buffer(owner, nbytes), np.uint8).view(wanted).reshape(dims)
    return array
