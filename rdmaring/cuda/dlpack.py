"""DLPack, both ways, for GPU memory: numpy's own serves host memory only. The structures are those of dlpack.h 1.0."""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np

from rdmaring.errors import ArgumentTypeError
from rdmaring.single import Single

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
ON_GPU = frozenset((CUDA, CUDA_MANAGED))
READ_ONLY = 1  # flag of a versioned tensor
VERSION = (1, 0)
KIND_BY_CODE = {0: "int", 1: "uint", 2: "float", 4: "bfloat"}
CODE_BY_KIND = {"i": 0, "u": 1, "f": 2, "V": 4, "c": 5}  # numpy sees bfloat16 as V


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)  # called with the GIL held


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


assert (ctypes.sizeof(_Tensor), ctypes.sizeof(_Managed), ctypes.sizeof(_Versioned)) == (48, 64, 80)

# A capsule keeps the pointer to its name: these live as long as the program.
PLAIN, PLAIN_USED = ctypes.c_char_p(b"dltensor"), ctypes.c_char_p(b"used_dltensor")
NEW, NEW_USED = ctypes.c_char_p(b"dltensor_versioned"), ctypes.c_char_p(b"used_dltensor_versioned")

_api = ctypes.pythonapi
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(("PyCapsule_New", _api))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", _api))
# In a destructor the capsule has no reference left, and must not get one: it comes as an address.
_dying_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_dying_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))


@dataclass(frozen=True, slots=True)
class Import:
    """What a producer gave. owner: holds its memory until it is dropped."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None  # in elements; None: C order
    dtype: np.dtype[Any]
    device_type: int
    device_id: int
    readonly: bool
    owner: Any


class _Owner(Single):
    """Calls the producer's deleter when it is dropped."""

    __slots__ = ("__weakref__",)

    def __init__(self, deleter: int | None, managed: int) -> None:
        if deleter:
            weakref.finalize(self, _Deleter(deleter), managed)


def dtype_of(code: int, bits: int, lanes: int, name: str) -> np.dtype[Any]:
    """numpy's dtype of an element; ``name`` is the argument's, for the error."""
    kind = KIND_BY_CODE.get(code)
    if kind is None or lanes != 1 or bits % 8 or (kind == "bfloat" and bits != 16):
        raise ArgumentTypeError(f"{name} has DLPack elements of code {code}, {bits} bits, {lanes} lanes: not served")
    if kind == "bfloat":
        return bfloat16(name)
    try:
        return np.dtype(f"{kind}{bits}")
    except TypeError:
        raise ArgumentTypeError(f"{name} has elements {kind}{bits}, which numpy does not have") from None


def bfloat16(name: str) -> np.dtype[Any]:
    """Its dtype, which numpy has from ml_dtypes."""
    try:
        import ml_dtypes
    except ImportError:
        raise ArgumentTypeError(
            f"{name} is of bfloat16, for which numpy needs the package ml_dtypes",
            hint="pip install 'rdmaring[bfloat16]'",
        ) from None
    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return found


def take(given: Any, name: str, stream: int | None) -> Import:
    """Import what ``given`` exports, ordered by its producer onto ``stream``; -1: not ordered; None: host memory.

    Raises what the producer raises, and ArgumentTypeError.
    """
    try:
        capsule = given.__dlpack__(stream=stream, max_version=VERSION)
    except TypeError:  # a producer from before max_version
        capsule = given.__dlpack__(stream=stream)
    if _valid(capsule, NEW):
        address = _pointer(capsule, NEW)
        new = _Versioned.from_address(address)
        if new.major > VERSION[0]:
            raise ArgumentTypeError(f"{name} exports DLPack {new.major}.{new.minor}; accepted is version 1")
        _rename(capsule, NEW_USED)
        return _import(new.tensor, bool(new.flags & READ_ONLY), _Owner(new.deleter, address), name)
    if _valid(capsule, PLAIN):
        address = _pointer(capsule, PLAIN)
        plain = _Managed.from_address(address)
        _rename(capsule, PLAIN_USED)
        return _import(plain.tensor, False, _Owner(plain.deleter, address), name)
    raise ArgumentTypeError(f"{name} exports no DLPack tensor, but {capsule!r}")


def _import(tensor: _Tensor, readonly: bool, owner: _Owner, name: str) -> Import:
    return Import(
        (tensor.data or 0) + tensor.byte_offset,
        tuple(tensor.shape[i] for i in range(tensor.ndim)),
        tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else None,
        dtype_of(tensor.code, tensor.bits, tensor.lanes, name),
        tensor.device_type,
        tensor.device_id,
        readonly,
        owner,
    )


# ---- the other way ----

_exported: dict[int, tuple[Any, ...]] = {}  # by address of the structure: what it needs to live


def _drop(managed: int) -> None:
    _exported.pop(managed, None)


def _capsule_dies(capsule: int) -> None:
    """A capsule that nobody took still owns its tensor."""
    for name in (PLAIN, NEW):
        if _dying_valid(capsule, name):
            _drop(_dying_pointer(capsule, name))


_drop_for_c, _capsule_dies_for_c = _Deleter(_drop), _Destructor(_capsule_dies)


def give(address: int, shape: tuple[int, ...], dtype: np.dtype[Any], ordinal: int, owner: Any, versioned: bool) -> Any:
    """A capsule of a C-contiguous array in GPU memory, whose ``owner`` lives until the consumer lets go."""
    dims = (ctypes.c_int64 * len(shape))(*shape)
    step, steps = 1, []
    for dim in reversed(shape):
        steps.append(step)
        step *= dim
    strides = (ctypes.c_int64 * len(shape))(*reversed(steps))
    code = CODE_BY_KIND[dtype.kind]
    tensor = _Tensor(address, CUDA, ordinal, len(shape), code, dtype.itemsize * 8, 1, dims, strides, 0)
    deleter = ctypes.cast(_drop_for_c, ctypes.c_void_p)
    made: _Versioned | _Managed
    made = _Versioned(*VERSION, None, deleter, 0, tensor) if versioned else _Managed(tensor, None, deleter)
    place = ctypes.addressof(made)
    _exported[place] = (made, dims, strides, owner)
    return _new(place, NEW if versioned else PLAIN, ctypes.cast(_capsule_dies_for_c, ctypes.c_void_p))
