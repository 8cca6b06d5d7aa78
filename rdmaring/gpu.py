"""What a communicator does otherwise once its vectors are in GPU memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from rdmaring._native import check, ffi, lib
from rdmaring.buffers import Vector, as_vector, extents
from rdmaring.chunks import even
from rdmaring.cuda import attach, blocks
from rdmaring.cuda.context import Device, device
from rdmaring.cuda.inputs import stream_handle
from rdmaring.cuda.memory import Allocation, bytes_at, staging
from rdmaring.errors import ArgumentError
from rdmaring.plan import NativePlan
from rdmaring.topology import link_of
from rdmaring.work import Work, own_work, timeout_ns

if TYPE_CHECKING:
    from rdmaring.running import Runner

SLOT_BYTES = 512 << 10  # in GPU memory, where a copy's start costs as much as some hundred KiB
SLOT_COUNT = 4
EXECUTOR = "RDMARING_CUDA_BETWEEN_NODES"
EXECUTORS = ("streams", "host")
BEHIND_MAX = 256  # operations in flight that nobody waits for: as many launches a driver queues, and more


def use(comm: Runner, ordinal: int | None) -> None:
    """From now on vectors are in the memory of GPU ``ordinal``; None: of the one there is. Collective, the first time.

    Raises:
        ArgumentError: there is another one already.
        CudaError: on some rank the GPU cannot be used; all ranks raise.
    """
    found = comm._gpu
    if found is None:
        assert ordinal is not None
        sizes = _sizes(comm) if comm.size > 1 else None
        handle, nodes = comm._handle, comm._nodes
        comm._gpu = attach.join(
            handle, comm.rank, nodes, ordinal, sizes, lambda: _why_host(comm), lambda mine: _gather(comm, mine)
        )
        comm._forget_plans()
        comm._lists.clear()
    elif ordinal is not None and ordinal != found.device.ordinal:
        raise ArgumentError(
            f"the array is on GPU {ordinal}; this communicator's are on GPU {found.device.ordinal}; "
            "accepted is one GPU a rank and communicator",
            hint="make another communicator by dup()",
        )


def _sizes(comm: Runner) -> blocks.Geometry:
    settings = comm._settings
    slot_bytes = settings.slot_bytes or SLOT_BYTES
    neighbours = max(map(comm._nodes.count, comm._nodes))  # of the largest node: all ranks' slots are of one size
    return blocks.geometry(neighbours, settings.channels or 1, settings.slot_count or SLOT_COUNT, slot_bytes)


def _why_host(comm: Runner) -> str:
    """Why the host runs what goes between nodes, by the progress executor; "": streams do, or there is one node.

    Raises ArgumentError: RDMARING_CUDA_BETWEEN_NODES is none of EXECUTORS.
    """
    chosen = os.environ.get(EXECUTOR)
    if chosen and chosen not in EXECUTORS:
        raise ArgumentError(f"{EXECUTOR} is {chosen!r}; accepted are 'streams' and 'host'")
    if comm.node_count == 1:
        return ""
    if chosen:
        return "" if chosen == "streams" else f"{EXECUTOR}=host"
    far = [peer for peer, node in enumerate(comm._nodes) if node != comm._nodes[comm.rank]]
    verbs = any(link_of(comm._handle, comm.rank, peer).transport == "verbs" for peer in far)
    return "over verbs NICs may reach GPU memory, which they do where the host takes part" if verbs else ""


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
        ArgumentError: ``stream`` on a communicator of host memory; a capture of what the host takes part in.
    """
    found = comm._gpu
    if found is None:
        raise ArgumentError(
            "stream is given, and the arrays are in host memory; accepted is a stream with arrays in GPU memory"
        )
    streams = {handle for vector in (given, out) if vector is not None for handle in vector.streams}
    if stream is not None:
        handle = stream_handle(stream, "stream")
        found.device.wait_for(handle)
        streams = {handle}
    then = None
    on_host = any(vector is not None and vector.gpu is None and vector.count for vector in (given, out))
    captured = found.device.is_captured()
    if captured and (on_host or not native.listed or found.carries):
        _refuse_capture(found, native, on_host=on_host)
    if on_host:
        sends_only = native.shape.collective == "broadcast" and native.shape.root == comm.rank
        given, out, then = _staged(found, given, out, own=async_op, back=not sends_only)
        streams = {None}  # the copy back is the host's
    if native.listed:
        return _run_listed(comm, found, native, (given, out, result), streams, async_op, timeout_s, then, captured)
    if found.behind:
        found.behind[-1].order(int(found.device.stream))
    found.order()
    return comm._run_here(native, given, out, result, async_op, timeout_s, then)


def _refuse_capture(found: attach.Attached, native: NativePlan, *, on_host: bool) -> NoReturn:
    if on_host:
        why = "an array is in host memory"
    elif found.lists is None:
        why = found.staged_reason
    elif found.carries:
        why = "between nodes it carries slices between streams and links, and of a graph's launch it knows nothing"
    else:
        why = "streams do not run it by themselves (docs/CUDA.md, Streams)"
    raise ArgumentError(
        f"{native.shape.collective} is called while its stream is captured in a CUDA graph, and the host takes part in "
        f"it: {why}; accepted are operations whose links have gpu='cuda_ipc'",
        hint="end the capture before this call, and launch the graph's parts before and behind it",
    )


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


# ---- lists on streams ----


class StreamWork(Work):
    """An operation that streams run: ``wait`` orders the arrays' streams behind it, ``synchronize`` blocks the host."""

    _streams: tuple[int, ...] = ()  # of the arrays' owners; empty: unknown, and the host waits
    _device: Device

    def order(self, stream: int) -> None:
        """What is put into ``stream`` from now on runs behind it. Raises what ended it, if that is known."""
        handle = self._handle
        if handle is not None:
            check(lib.rr_work_order(handle, ffi.cast("void *", stream)))

    def wait(self, timeout_s: float | None = None) -> Any:
        """Let the streams of the arrays' owners go on behind it; returns the output array at once.

        Where nothing tells of these streams, or an array is in host memory: as ``synchronize``.

        Raises:
            RdmaringError: what ended the operation, if that is known by now; later calls raise it, too.
        """
        if not self._streams or self._then is not None or self._error is not None:
            return self.synchronize(timeout_s)
        for stream in self._streams:
            self.order(stream)
        return self._result

    def synchronize(self, timeout_s: float | None = None) -> Any:
        """Wait on the host for the end, and return the output array; as ``Work.wait`` otherwise."""
        return super().wait(timeout_s)

    def _settle(self) -> None:
        # Copies of the library's own come behind it, though it has ended: the driver does not know what we saw.
        if self._handle is not None and self._then is not None:
            self.order(int(self._device.stream))
        super()._settle()


def _run_listed(
    comm: Runner,
    found: attach.Attached,
    native: NativePlan,
    vectors: tuple[Vector | None, Vector | None, Vector | None],
    streams: set[int | None],
    async_op: bool,
    timeout_s: float | None,
    then: Callable[[], None] | None,
    captured: bool,
) -> Any:
    """vectors: input, output, what is returned. streams: of the owners; with None: not all are known."""
    given, out, result = vectors
    _settle(comm, found, async_op)
    known = tuple(stream for stream in streams if stream is not None)
    opaque = None in streams
    after = known if captured or not (async_op or opaque) else ()
    handles = ffi.new("void *[]", [ffi.cast("void *", stream) for stream in after])
    own = ffi.cast("void *", int(found.device.stream))
    where = ffi.new("rr_list_streams *", {"before": own, "after": handles, "after_count": len(after)})
    handle = ffi.new("rr_work **")
    check(lib.rr_plan_start_on(native.handle, *extents(given), *extents(out), where, timeout_ns(timeout_s), handle))
    shown = result or out or given
    work = StreamWork(comm, own_work(handle), (given, out, native), shown.given if shown else None, then)
    work._device = found.device
    work._streams = () if opaque else known
    comm._works.add(work)
    if captured:
        work.synchronize()  # descriptors are compared, and nothing has moved
    elif async_op:
        return work
    elif opaque:
        _wait_here(comm, found, work)
    else:
        found.behind.append(work)
    return shown.given if shown else None


def _wait_here(comm: Runner, found: attach.Attached, work: StreamWork) -> None:
    """The host waits for a call whose arrays' streams are not known."""
    copies_back = work._then is not None
    try:
        if not copies_back:
            work.order(int(found.device.stream))
        work.synchronize()
    except BaseException:
        lib.rr_comm_abort(comm._handle, b"interrupted")  # the caller gets its arrays back now
        raise
    if not copies_back:
        found.device.synchronize()


def _settle(comm: Runner, found: attach.Attached, all_works: bool) -> None:
    """Let go of the arrays of works that have ended; of too many in flight wait for the oldest."""
    comm._check_open()
    if all_works:
        comm._settle_finished()
    while (oldest := found.oldest()) is not None and oldest.done():
        found.forget(oldest)
        oldest._settle_if_well()
    if len(found.behind) >= BEHIND_MAX and oldest is not None:
        found.forget(oldest)
        oldest.synchronize()


def synchronize(comm: Runner, timeout_s: float | None) -> None:
    """See Communicator.synchronize."""
    found = comm._gpu
    if found is not None:
        found.behind.clear()
    for work in sorted(comm._works, key=lambda each: each.serial):
        work.synchronize(timeout_s)


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
