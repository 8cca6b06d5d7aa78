"""Arrays of torch, cupy, JAX, numba and others in GPU memory: where they lie, and behind which work of theirs.

By DLPack where there is one: its producer orders its work onto our stream, and it has bfloat16. Else by
``__cuda_array_interface__`` (numba): our stream waits for the stream that it names. Nothing is copied.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from rdmaring.cuda import dlpack
from rdmaring.cuda.context import Device, any_device, device
from rdmaring.cuda.memory import pointer_attribute
from rdmaring.errors import ArgumentError, ArgumentTypeError, CudaError

MEMORY_ON_GPU = 2  # CU_MEMORYTYPE_DEVICE
IMMUTABLE = frozenset(("jax", "jaxlib"))


@dataclass(frozen=True, slots=True)
class Input:
    """A contiguous array in GPU memory. owner: what keeps its memory.

    stream: on which its owner goes on working with it, by handle; None: nothing tells.
    """

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    ordinal: int
    owner: Any
    stream: int | None = None

    @property
    def count(self) -> int:
        return math.prod(self.shape)


def take(given: Any, name: str, *, writable: bool) -> Input:
    """Check a device array, and let our stream of its device wait for the producer's work on it.

    Raises:
        ArgumentTypeError: elements of a kind that is not served.
        ArgumentError: not contiguous, read-only where it would be written, misaligned.
        CudaError: cuda-python, the driver or the memory is not there.
    """
    found, readonly = _by_dlpack(given, name) if hasattr(given, "__dlpack__") else _by_interface(given, name)
    if type(given).__module__.partition(".")[0] in IMMUTABLE:
        readonly = True
    if writable and readonly:
        hint = "pass out= an array that may be written, such as comm.empty(..., device='cuda')"
        raise ArgumentError(f"{name} is read-only; the result would be written to it", hint=hint)
    if found.count and found.address % found.dtype.itemsize:
        raise ArgumentError(
            f"{name} lies at {found.address:#x}, which is no multiple of its {found.dtype.itemsize} bytes an element"
        )
    return found


def _by_dlpack(given: Any, name: str) -> tuple[Input, bool]:
    where = device(given.__dlpack_device__()[1])
    try:
        got = dlpack.take(given, name, int(where.stream))
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, (ArgumentError, ArgumentTypeError, CudaError)):
            raise
        raise ArgumentTypeError(f"{name} is a {type(given).__name__} that cannot be shared: {error}") from None
    if got.strides is not None:
        _check_contiguous(got.shape, got.strides, 1, name)
    if got.device_type not in dlpack.ON_GPU or got.device_id != where.ordinal:
        raise ArgumentError(f"{name} tells of device {where.ordinal} and exports memory of {got.device_id}")
    stream = _current_stream(given, where)
    return Input(got.address, got.shape, got.dtype, where.ordinal, (given, got.owner), stream), got.readonly


def _current_stream(given: Any, where: Device) -> int | None:
    """DLPack tells of no stream; where its package has a current one, that is it."""
    own = getattr(given, "_library_stream", None)  # of a DeviceArray
    if own is not None:
        return int(own)
    package = type(given).__module__.partition(".")[0]
    module = sys.modules.get(package)
    if package == "torch" and module is not None:
        return int(module.cuda.current_stream(where.ordinal).cuda_stream)
    if package == "cupy" and module is not None:
        with module.cuda.Device(where.ordinal):
            return int(module.cuda.get_current_stream().ptr)
    return None


def _by_interface(given: Any, name: str) -> tuple[Input, bool]:
    facts = given.__cuda_array_interface__
    if facts.get("mask") is not None:
        raise ArgumentTypeError(f"{name} is a masked array; accepted are plain ones")
    dtype = _dtype(given, facts, name)
    shape = tuple(int(dim) for dim in facts["shape"])
    address, readonly = facts["data"]
    address = int(address or 0)
    if facts.get("strides") is not None:
        _check_contiguous(shape, tuple(facts["strides"]), dtype.itemsize, name)
    where = device(_ordinal(address, name) if math.prod(shape) else 0)
    stream = facts.get("stream")
    if stream == 0:
        raise ArgumentError(f"{name} names stream 0; the protocol has 1 for the legacy stream, 2 for the thread's")
    if stream is not None:
        where.wait_for(int(stream))
    stream = None if stream is None else int(stream)
    return Input(address, shape, dtype, where.ordinal, given, stream), bool(readonly)


def _dtype(given: Any, facts: dict[str, Any], name: str) -> np.dtype[Any]:
    text = str(facts["typestr"])
    if text[1:] == "V2" and str(getattr(given, "dtype", "")).endswith("bfloat16"):
        return dlpack.bfloat16(name)
    try:
        return np.dtype(text)
    except TypeError:
        raise ArgumentTypeError(f"{name} has elements of type {text!r}, which numpy does not have") from None


def _ordinal(address: int, name: str) -> int:
    """The device of memory that nothing else tells of."""
    try:
        where = any_device()
        kind = int(pointer_attribute(where, address, "MEMORY_TYPE"))
        ordinal = int(pointer_attribute(where, address, "DEVICE_ORDINAL"))
    except CudaError as error:
        if error.driver_error != "CUDA_ERROR_INVALID_VALUE":
            raise
        raise ArgumentError(f"{name} lies at {address:#x}, where the CUDA driver knows of no memory") from None
    if kind != MEMORY_ON_GPU:
        raise ArgumentError(f"{name} lies in host memory; accepted is GPU memory, or a numpy array on the same memory")
    return ordinal


def _check_contiguous(shape: tuple[int, ...], strides: tuple[int, ...], step: int, name: str) -> None:
    if not all(shape):
        return
    expected = step
    for dim, stride in zip(reversed(shape), reversed(strides), strict=True):
        if dim != 1 and stride != expected:
            raise ArgumentError(
                f"{name} is not contiguous (shape {shape}, strides {strides}); accepted is C order, gapless",
                hint=f"pass {name}.contiguous() (torch) or cupy.ascontiguousarray({name}), and copy the result back",
            )
        expected *= dim


def stream_handle(given: Any, name: str) -> int:
    """The driver's handle of a stream: of a number, or of an object of torch, cupy, numba or cuda-python.

    Raises:
        ArgumentTypeError: it is none.
    """
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    if hasattr(given, "__cuda_stream__"):
        return int(given.__cuda_stream__()[1])
    for attribute in ("cuda_stream", "ptr"):  # torch, cupy
        handle = getattr(given, attribute, None)
        if isinstance(handle, int):
            return handle
    handle = getattr(given, "handle", given)  # numba: a c_void_p
    handle = getattr(handle, "value", handle)
    if handle is None:
        return 0
    try:
        return int(handle)
    except (TypeError, ValueError):
        raise ArgumentTypeError(
            f"{name} is a {type(given).__name__}; accepted are a stream of torch, cupy, numba or cuda-python, "
            "or its handle"
        ) from None
