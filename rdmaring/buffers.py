"""Arrays as the library sees them: address, element count, dtype, and whether they lie in GPU memory.

numpy arrays are taken as they are. Others come in by DLPack or the buffer protocol, without a copy; those in GPU memory
by DLPack or ``__cuda_array_interface__`` (rdmaring.cuda.inputs).
What cannot be used as it is raises an error that names the argument; nothing is copied behind the
caller's back.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import is_
from typing import TYPE_CHECKING, Any

import numpy as np

from rdmaring._native import ffi
from rdmaring.errors import ArgumentError, ArgumentTypeError

if TYPE_CHECKING:
    from rdmaring.cuda.inputs import Input

BYTES = ffi.typeof("char[]")
UINTPTR = ffi.typeof("uintptr_t")
EXTENT = ffi.typeof("rr_extent[]")
from_buffer, cast, new = ffi.from_buffer, ffi.cast, ffi.new  # looked up once
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
NAME_BY_CODE = {code: name for name, code in CODE_BY_NAME.items()}
FLOAT_CODES = frozenset((0, 1, 2, 3))
HALF_CODES = frozenset((2, 3))
LIST_BYTES_MAX = 4 << 20  # of a list that is remembered: in a larger one the check takes a small part of the time
LISTS_MAX = 8
DLPACK_GPU = (2, 13)  # kDLCUDA, kDLCUDAManaged
IMMUTABLE = frozenset(("jax", "jaxlib"))  # nobody may write what they share; DLPack before 1.0 cannot say so
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
    pieces: list[Any]  # what each array exports, as cdata char[]: its memory stays while this lives
    count: int  # elements in all
    dtype: np.dtype[Any]
    code: int
    _table: np.ndarray[Any, Any] | None = None
    gpu: int | None = None  # the device whose memory the pieces are in, by its number; None: the host's
    keep: Any = None  # of a GPU: what holds the memory
    streams: tuple[int | None, ...] = ()  # of a GPU: on which the owners of the pieces go on; None: unknown

    @property
    def where(self) -> str:
        """For errors."""
        return "host memory" if self.gpu is None else f"memory of GPU {self.gpu}"

    @property
    def pointer(self) -> Any:
        """Of the one piece."""
        return self.pieces[0]

    @property
    def address(self) -> int:
        """Of the one piece."""
        return address_of(self.pieces[0])

    @property
    def nbytes(self) -> int:
        return self.count * self.dtype.itemsize

    @property
    def table(self) -> np.ndarray[Any, Any]:
        """Address and bytes of each piece, a row each: what C takes as extents."""
        if self._table is None:
            self._table = np.empty((len(self.pieces), 2), np.uintp)
            # a char* for each: cffi fills them in one call, where a cast for each would take most of the time
            pointers = ffi.new("char *[]", self.pieces)
            self._table[:, 0] = np.frombuffer(ffi.buffer(pointers), np.uintp)
            self._table[:, 1] = list(map(len, self.pieces))
        return self._table


def address_of(pointer: Any) -> int:
    return int(cast(UINTPTR, pointer))


def extents(vector: Vector | None) -> tuple[Any, int]:
    """The pieces as C takes them: rr_extent[], and how many."""
    if vector is None:
        return ffi.NULL, 0
    if len(vector.pieces) == 1:  # a table of numpy's would take most of the time of a call
        return new(EXTENT, [(vector.pieces[0], vector.nbytes)]), 1
    return ffi.from_buffer("rr_extent[]", vector.table), len(vector.pieces)


def _is_host_torch(given: Any) -> bool:
    """By torch's own word: its __dlpack_device__ takes 5 us."""
    return type(given).__module__.startswith("torch") and bool(getattr(given, "is_cpu", False))


def of_torch(given: Any) -> np.ndarray[Any, Any] | None:
    """A torch tensor in host memory as numpy shares it, in a tenth of the time that DLPack takes.

    None: it is something else, or a tensor that DLPack, or what is raised on that way, has to deal with.
    """
    if not _is_host_torch(given):
        return None
    try:
        array = given.numpy()  # shares memory or raises: of bfloat16, gradients, sparse and conjugated tensors
    except (RuntimeError, TypeError, ValueError):
        return None
    return array if isinstance(array, np.ndarray) else None


def _by_dlpack(given: Any, name: str) -> np.ndarray[Any, Any]:
    try:
        if str(getattr(given, "dtype", "")).endswith("bfloat16"):
            return _bfloat16(given, name)
        array = np.from_dlpack(given)
    except ArgumentTypeError:
        raise
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        text = f"{name} is a {type(given).__name__} that numpy cannot share: {error}"
        raise ArgumentTypeError(text) from None
    if not array.flags.writeable and hasattr(given, "__array__"):
        # numpy before 2.1 takes every import for read-only; torch's __array__ shares the same memory
        other = np.asarray(given)
        same = other.ctypes.data == array.ctypes.data and other.dtype == array.dtype
        return other if same else array
    return array


def _bfloat16(given: Any, name: str) -> np.ndarray[Any, Any]:
    """An array of bfloat16 in host memory, which DLPack has and numpy's import of it has not.

    Raises what the producer raises, and ArgumentTypeError where ml_dtypes, which numpy has bfloat16 from, is missing.
    """
    from rdmaring.cuda import dlpack  # needs nothing of CUDA

    found = dlpack.take(given, name, None)
    if found.device_type != dlpack.CPU:
        raise ArgumentTypeError(f"{name} is a {type(given).__name__} on another device: {found.device_type} of DLPack")
    width, strides = found.dtype.itemsize, None
    if not math.prod(found.shape):
        return np.empty(found.shape, found.dtype)
    nbytes = math.prod(found.shape) * width
    if found.strides is not None:
        strides = tuple(each * width for each in found.strides)
        nbytes = width + sum((dim - 1) * step for dim, step in zip(found.shape, strides, strict=True))
    memory: Any = (ctypes.c_char * nbytes).from_address(found.address)
    memory.owner = found.owner  # lives as long as the array's base
    array: np.ndarray[Any, Any] = np.ndarray(found.shape, found.dtype, memory, strides=strides)
    array.flags.writeable = not found.readonly
    return array


def as_array(given: Any, name: str) -> np.ndarray[Any, Any]:
    """``given`` as a numpy array that shares its memory."""
    if isinstance(given, np.ma.MaskedArray):
        raise ArgumentTypeError(f"{name} is a masked array; accepted are plain ones", hint=f"pass {name}.filled(...)")
    if isinstance(given, np.ndarray):
        return np.asarray(given)
    shared = of_torch(given)
    if shared is not None:
        return shared
    if hasattr(given, "__dlpack__"):
        array = _by_dlpack(given, name)
        if type(given).__module__.partition(".")[0] in IMMUTABLE:
            array = array.view()
            array.flags.writeable = False
        return array
    try:
        return np.asarray(memoryview(given))
    except TypeError:
        raise ArgumentTypeError(
            f"{name} is a {type(given).__name__}; accepted are numpy arrays, and objects with __dlpack__, "
            "__cuda_array_interface__ or the buffer protocol, or a list of these"
        ) from None


def _piece(array: np.ndarray[Any, Any], name: str, writable: bool) -> Any:
    if not array.flags.c_contiguous:
        raise ArgumentError(
            f"{name} is not contiguous (shape {array.shape}, strides {array.strides}); accepted is C order, gapless",
            hint=f"pass a copy made by numpy.ascontiguousarray({name}), and copy the result back",
        )
    if writable and not array.flags.writeable:
        raise ArgumentError(f"{name} is read-only; the result would be written to it", hint="pass out=")
    # ml_dtypes' dtypes have no buffer protocol of their own
    raw = array if array.dtype.kind in "fiu" else array.reshape(-1).view(np.uint8)
    return from_buffer(BYTES, raw, writable)


def _check_apart(vector: Vector, name: str) -> None:
    """Two pieces that are written share no byte."""
    spans = vector.table[vector.table[:, 1] > 0]
    begins = np.sort(spans[:, 0])
    ends = np.sort(spans[:, 0] + spans[:, 1])
    # Sorted each for itself: the pieces are apart just when every end comes before the begin that follows.
    if (ends[:-1] > begins[1:]).any():
        raise ArgumentError(f"arrays of the list {name} overlap in memory; accepted are arrays apart")


def _plain_list(given: Sequence[Any], name: str, writable: bool) -> Vector | None:
    """A list of numpy arrays of one dtype that are fit to be used, quickly; None: something is to be said of it."""
    if type(given[0]) is not np.ndarray or given[0].dtype.kind not in "fiu":
        return None
    dtype = given[0].dtype
    if list(map(type, given)).count(np.ndarray) != len(given) or not _of_one_dtype(given, dtype):
        return None
    try:
        # refuses what is not C-contiguous, and what is read-only where it would be written
        pieces = [from_buffer(BYTES, array, writable) for array in given]
    except (ValueError, BufferError):
        return None
    count = sum(map(len, pieces)) // dtype.itemsize
    return Vector(given, pieces, count, dtype, dtype_code(dtype, name))


def _of_one_dtype(arrays: Sequence[np.ndarray[Any, Any]], dtype: np.dtype[Any]) -> bool:
    """count() compares by identity first, many times faster than a generator."""
    return [array.dtype for array in arrays].count(dtype) == len(arrays)


class KnownLists:
    """Lists of small arrays that were checked before, so that a call looks only at what may have changed.

    Holding an array keeps its id its own, and its exported buffer keeps its memory in place. What is held in all is
    bounded by LISTS_MAX times LIST_BYTES_MAX.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Vector, tuple[Any, ...]]] = {}

    def vector(self, given: Sequence[Any], name: str) -> Vector:
        """``as_vector(given, name, writable=True)``, which says what it raises."""
        vector, arrays = self._known.get(id(given), (None, ()))
        if vector is not None and len(arrays) == len(given) and all(map(is_, arrays, given)):
            flags = [array.flags.writeable for array in arrays]
            if all(flags) and _of_one_dtype(arrays, vector.dtype):
                return vector
        vector = as_vector(given, name, writable=True)
        if all(type(array) is np.ndarray for array in given):
            if vector.count * vector.dtype.itemsize <= LIST_BYTES_MAX:
                if len(self._known) >= LISTS_MAX:
                    self._known.clear()
                self._known[id(given)] = (vector, tuple(given))
        return vector

    def clear(self) -> None:
        self._known.clear()


def as_vector(given: Any, name: str, *, writable: bool) -> Vector:
    """Check ``given``, an array or a list of arrays of one dtype, and find its pieces.

    Raises:
        ArgumentTypeError: no array, or a dtype that is not served.
        ArgumentError: not contiguous, read-only where it would be written, mixed dtypes, an empty list.
    """
    if type(given) is np.ndarray:
        code = dtype_code(given.dtype, name)
        return Vector(given, [_piece(given, name, writable)], given.size, given.dtype, code)
    several = isinstance(given, (list, tuple))
    items: Sequence[Any] = given if several else (given,)
    if not items:
        raise ArgumentError(f"{name} is an empty list; accepted is a list of at least one array")
    vector = _plain_list(given, name, writable) if several else None
    if vector is None and is_on_gpu(items[0]):
        vector = _on_gpu(given, items, name, several=several, writable=writable)
    if vector is None:
        vector = _checked_one_by_one(given, items, name, several=several, writable=writable)
    if len(items) > 1 and writable:
        _check_apart(vector, name)
    return vector


def _checked_one_by_one(given: Any, items: Sequence[Any], name: str, *, several: bool, writable: bool) -> Vector:
    pieces: list[Any] = []
    count, dtype = 0, None
    for index, item in enumerate(items):
        label = f"{name}[{index}]" if several else name
        if index and is_on_gpu(item):
            raise ArgumentError(f"{label} is in GPU memory, {name}[0] in host memory; accepted is one of the two")
        array = as_array(item, label)
        dtype_code(array.dtype, label)
        dtype = array.dtype if dtype is None else dtype
        if array.dtype != dtype:
            raise ArgumentTypeError(f"{label} has dtype {array.dtype}, {name}[0] has {dtype}; accepted is one dtype")
        pieces.append(_piece(array, label, writable))
        count += array.size
    assert dtype is not None
    return Vector(given, pieces, count, dtype, dtype_code(dtype, name))


def is_on_gpu(given: object) -> bool:
    """Whether it is an array in GPU memory, as one of the two protocols says. Imports nothing."""
    kind = type(given)
    if issubclass(kind, np.ndarray) or _is_host_torch(given):
        return False
    if hasattr(kind, "__dlpack_device__"):
        return bool(given.__dlpack_device__()[0] in DLPACK_GPU)  # type: ignore[attr-defined]
    return hasattr(given, "__cuda_array_interface__")


def _on_gpu(given: Any, items: Sequence[Any], name: str, *, several: bool, writable: bool) -> Vector:
    from rdmaring.cuda import inputs  # whoever has no GPU does not pay for it

    found: list[Input] = []
    for index, item in enumerate(items):
        label = f"{name}[{index}]" if several else name
        if not is_on_gpu(item):
            raise ArgumentError(f"{label} is in host memory, {name}[0] in GPU memory; accepted is one of the two")
        piece = inputs.take(item, label, writable=writable)
        dtype_code(piece.dtype, label)
        if found and piece.dtype != found[0].dtype:
            raise ArgumentTypeError(
                f"{label} has dtype {piece.dtype}, {name}[0] has {found[0].dtype}; accepted is one dtype"
            )
        if found and piece.ordinal != found[0].ordinal:
            raise ArgumentError(
                f"{label} is on GPU {piece.ordinal}, {name}[0] on GPU {found[0].ordinal}; accepted is one GPU a rank"
            )
        found.append(piece)
    dtype = found[0].dtype
    table = np.array([(each.address, each.count * dtype.itemsize) for each in found], np.uintp)
    pieces = [ffi.cast("char *", each.address) for each in found]
    count = sum(each.count for each in found)
    code = dtype_code(dtype, name)
    streams = tuple({each.stream for each in found})
    owners = [each.owner for each in found]
    return Vector(given, pieces, count, dtype, code, table, found[0].ordinal, owners, streams)


def check_together(one: Vector, name: str, other: Vector, other_name: str) -> None:
    """Two vectors of one call lie in host memory, or on one GPU.

    Raises:
        ArgumentError: they do not.
    """
    if one.gpu != other.gpu:
        raise ArgumentError(
            f"{name} is in {one.where}, {other_name} in {other.where}; accepted is the same for both",
            hint=f"copy one of them, or make {name} by comm.empty(..., device=)",
        )


def check_overlap(given: Vector, out: Vector, *, same_allowed: bool) -> None:
    """Input and output are the same memory, or share none.

    Raises:
        ArgumentError: they overlap in part.
    """
    if overlaps(given, out, same_allowed):
        raise ArgumentError("out overlaps the input in part; accepted are the same memory or none in common")


def overlaps(given: Vector, out: Vector, same_allowed: bool) -> bool:
    """Whether any of their pieces do. same_allowed: and they are not the same ones."""
    if len(given.pieces) == len(out.pieces) == 1:
        return overlap(given.address, given.nbytes, out.address, out.nbytes, same_allowed)
    ours, theirs = given.table, out.table
    if same_allowed and np.array_equal(ours, theirs):
        return False
    ours, theirs = ours[ours[:, 1] > 0], theirs[theirs[:, 1] > 0]
    theirs = theirs[np.argsort(theirs[:, 0])]
    ends = theirs[:, 0] + theirs[:, 1]  # ascending: pieces of an output are apart
    # The output's last piece that begins before the end of ours must end before ours begins.
    last = np.searchsorted(theirs[:, 0], ours[:, 0] + ours[:, 1], "left")
    touched = last > 0
    return bool((ends[last[touched] - 1] > ours[touched, 0]).any())


def overlap(begin: int, nbytes: int, other: int, other_nbytes: int, same_allowed: bool) -> bool:
    """Whether two stretches of memory share a byte. same_allowed: and are not the same one."""
    if same_allowed and begin == other and nbytes == other_nbytes:
        return False
    return bool(nbytes and other_nbytes) and begin < other + other_nbytes and other < begin + nbytes
