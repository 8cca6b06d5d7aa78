"""What a communicator does otherwise once its vectors are in GPU memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from rdmaring._native import ffi
from rdmaring.buffers import Vector, as_vector
from rdmaring.chunks import even
from rdmaring.cuda import attach
from rdmaring.cuda.context import device
from rdmaring.cuda.inputs import stream_handle
from rdmaring.cuda.memory import Allocation, bytes_at, staging
from rdmaring.errors import ArgumentError
from rdmaring.plan import NativePlan

if TYPE_CHECKING:
    from rdmaring.running import Runner


def use(comm: Runner, ordinal: int | None) -> None:
    """From now on vectors are in the memory of GPU ``ordinal``; None: of the one there is. Collective, the first time.

    Raises:
        ArgumentError: there is another one already.
        CudaError: on some rank the GPU cannot be used; all ranks raise.
    """
    found = comm._gpu
    if found is None:
        assert ordinal is not None
        comm._gpu = attach.join(comm._handle, ordinal, lambda mine: _gather(comm, mine))
        comm._forget_plans()
        comm._lists.clear()
    elif ordinal is not None and ordinal != found.device.ordinal:
        raise ArgumentError(
            f"the array is on GPU {ordinal}; this communicator's are on GPU {found.device.ordinal}; "
            "accepted is one GPU a rank and communicator",
            hint="make another communicator by dup()",
        )


def _gather(comm: Runner, mine: bytes) -> list[bytes]:
    """An ordinary all_gather of host memory: a rank that calls something else meanwhile gets a mismatch."""
    part = as_vector(np.frombuffer(mine, np.uint8), "x", writable=False)
    everyone = np.empty((comm.size, len(mine)), np.uint8)
    offsets = even(everyone.size, comm.size)
    native = comm._native("all_gather", part, everyone.size, offsets=offsets)
    comm._run_here(native, part, as_vector(everyone, "out", writable=True), None, False, None)
    return [row.tobytes() for row in everyone]


def run(
    comm: Runner,
    native: NativePlan,
    given: Vector | None,
    out: Vector | None,
    result: Vector | None,
    async_op: bool,
    timeout_s: float | None,
    stream: Any,
) -> Any:
    """Run on device memory; host arrays are copied there, and back when the operation has ended.

    Raises:
        ArgumentError: ``stream`` on a communicator of host memory.
    """
    found = comm._gpu
    if found is None:
        raise ArgumentError(
            "stream is given, and the arrays are in host memory; accepted is a stream with arrays in GPU memory"
        )
    if stream is not None:
        found.device.wait_for(stream_handle(stream, "stream"))
    then = None
    if any(vector is not None and vector.gpu is None and vector.count for vector in (given, out)):
        sends_only = native.shape.collective == "broadcast" and native.shape.root == comm.rank
        given, out, then = _staged(found, given, out, own=async_op, back=not sends_only)
    found.order()
    return comm._run_here(native, given, out, result, async_op, timeout_s, then)


def again(
    comm: Runner,
    native: NativePlan,
    given: Vector | None,
    out: Vector | None,
    async_op: bool,
    timeout_s: float | None,
) -> Any:
    """Run a plan once more: the producers' streams may hold new work on its arrays.

    Raises:
        ArgumentError: an array has other memory than when the plan was made.
    """
    source = _fresh(given)
    target = source if out is given else _fresh(out)
    return comm._run(native, source, target, async_op, timeout_s)


def _fresh(vector: Vector | None) -> Vector | None:
    if vector is None or vector.gpu is None:
        return vector
    now = as_vector(vector.given, "the plan's array", writable=False)
    if not np.array_equal(now.table, vector.table):
        raise ArgumentError("an array of the plan has other memory than when the plan was made", hint="make a new plan")
    return now


# ---- host arrays ----


def _bytes_of(vector: Vector) -> list[np.ndarray[Any, Any]]:
    """The pieces of a host vector, which must live meanwhile."""
    return [bytes_at(int(address), int(nbytes)) for address, nbytes in vector.table if nbytes]


def _on_device(found: attach.Attached, vector: Vector, which: int, *, own: bool) -> Vector:
    """Room for it in GPU memory. own: of its own, not that of the call before."""
    nbytes = vector.count * vector.dtype.itemsize
    memory = Allocation(found.device, nbytes) if own else found.scratch(which, nbytes)
    table = np.array([(memory.address, nbytes)], np.uintp)
    pieces = [ffi.cast("char *", memory.address)]
    ordinal = found.device.ordinal
    return Vector(vector.given, pieces, vector.count, vector.dtype, vector.code, table, ordinal, (memory, vector))


def _upload(found: attach.Attached, vector: Vector, to: Vector) -> None:
    address = int(to.table[0, 0])
    for part in _bytes_of(vector):
        staging(found.device).upload(address, part)
        address += part.nbytes


def _download(found: attach.Attached, vector: Vector, origin: Vector) -> None:
    address = int(origin.table[0, 0])
    for part in _bytes_of(vector):
        staging(found.device).download(part, address)
        address += part.nbytes


def _staged(
    found: attach.Attached, given: Vector | None, out: Vector | None, *, own: bool, back: bool
) -> tuple[Vector | None, Vector | None, Callable[[], None] | None]:
    """Device copies of both, and what brings the result back."""
    source = target = None
    if given is not None:
        source = _on_device(found, given, 0, own=own)
        _upload(found, given, source)
    if out is not None:
        same = given is not None and (out is given or np.array_equal(out.table, given.table))
        target = source if same else _on_device(found, out, 1, own=own)
    if out is None or not back:
        return source, target, None
    written, origin = out, target
    assert origin is not None
    return source, target, lambda: _download(found, written, origin)


# ---- messages ----


def message(vector: Vector, *, sends: bool) -> tuple[Vector, Callable[[], None] | None]:
    """A host copy of a device vector of one piece, for a message; and what takes a received one to the device."""
    where = device(vector.gpu or 0)
    host = np.empty(vector.count, vector.dtype)
    raw = host.reshape(-1).view(np.uint8)
    address = int(vector.table[0, 0])
    copy = as_vector(host, "x", writable=True)
    copy.given, copy.keep = vector.given, vector
    if not sends:
        return copy, lambda: staging(where).upload(address, raw)
    if raw.nbytes:
        staging(where).download(raw, address)
    return copy, None
