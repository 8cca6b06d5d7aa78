"""The public object: a group of ranks and the collectives among them."""

from __future__ import annotations

import logging
import operator
import os
import threading
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rdmaring import group, memory
from rdmaring._native import AGAIN, OK, check, error_here, ffi, lib, raise_interrupt
from rdmaring.buffers import BYTES, Vector, as_vector, check_overlap
from rdmaring.chunks import even
from rdmaring.chunks import given as given_offsets
from rdmaring.errors import ArgumentError, ArgumentTypeError, ClosedError
from rdmaring.plan import COLLECTIVE_CODE, NativePlan, Plan, Shape, check_reduction, choice_of
from rdmaring.schedule import algorithms_of
from rdmaring.settings import Settings
from rdmaring.topology import Link, link_of
from rdmaring.work import RunStats, Work, run_stats

log = logging.getLogger("rdmaring")
if TYPE_CHECKING:
    from rdmaring.diagnose.trace import Tracing

PLANS_MAX = 512  # cached; the oldest goes first
SMALL_BYTES = 1024  # of arrays that are remembered: what is checked once need not be checked again
SMALL_MAX = 64

# The fast path of all_reduce: names looked up once.
from_buffer = ffi.from_buffer
run_here = lib.rr_plan_run_here
ndarray = np.ndarray


class _Small(NamedTuple):
    """A small array that was all-reduced before. Holding it keeps its id its own; the exported buffer, its memory."""

    array: np.ndarray[Any, Any]
    dtype: Any
    plan: Any
    pointer: Any


class Communicator:
    """Ranks that call collectives together, in the same order.

    Made by :func:`rdmaring.init`, :meth:`split` and :meth:`dup`. A context manager: leaving it closes it. One
    thread at a time may use it, except :meth:`abort`, which any thread may call. Arrays are the caller's; they are
    kept alive while an operation needs them. Arguments that do not fit raise ``ArgumentError`` (a ``ValueError``)
    or ``ArgumentTypeError`` (a ``TypeError``) and change nothing; an operation that fails raises a
    ``CommunicatorError``, and the communicator is lost.

    Every collective takes ``timeout_s`` (seconds; default: the communicator's) and ``async_op`` (True: return a
    :class:`rdmaring.Work` at once). Arrays: numpy, or what shares its memory by DLPack or the buffer protocol;
    C-contiguous; or a list of these, which counts as one vector.
    """

    def __init__(self, handle: Any, rank: int, size: int, name: str, settings: Settings, keep: Any = None) -> None:
        self._handle = handle
        self.rank = rank
        self.size = size
        self.name = name
        self._settings = settings
        self._keep = keep  # the rendezvous, which ends with us
        self._nodes: tuple[int, ...] = tuple(lib.rr_comm_node(handle, each) for each in range(size))
        self._order: tuple[int, ...] | None = None  # in which rings visit the ranks; None: 0, 1, ..., N - 1
        self._plans: dict[Shape, NativePlan] = {}
        self._fast: dict[tuple[int, Any, str, str | None], Any] = {}
        self._small: dict[int, _Small] = {}
        self._works: set[Work] = set()
        self._ending = threading.RLock()  # abort() of another thread beside close()
        self._program_trace: Any = None  # of RDMARING_TRACE

    # ---- the collectives ----

    def all_reduce(
        self,
        x: Any,
        out: Any = None,
        op: str = "sum",
        scale: float | None = None,
        algorithm: str | None = None,
        order: str | None = None,
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Any:
        """Combine every rank's ``x`` elementwise; every rank gets the result, with the same bits.

        x: any shape; equal dtype and element count on all ranks. Overwritten by the result unless ``out`` is given.
        out: array of x's dtype and count; x is then left alone.
        op: "sum", "prod", "min", "max", "avg" (sum divided by the world size; floating dtypes).
        scale: the result is multiplied by it (in float32 for small floats; floating dtypes).
        algorithm: force one ("ring", "direct", "direct1", "naive"); default: the library's choice.
        order: "rank" adds in rank order, so that bits do not depend on the vector's size.

        Pass all but x by name. Returns ``out`` or ``x``, or a Work.
        """
        # Nothing is keyword-only here: filling their defaults would cost a tenth of a call on 8 bytes.
        if out is None and scale is None and order is None and timeout_s is None and not async_op:
            if op == "sum" and algorithm is None:
                known = self._small.get(id(x))
                if known is not None and known.dtype is x.dtype and x.flags.writeable:
                    status = run_here(known.plan, known.pointer)
                    if status:
                        self._finish(status)
                    return x
            if type(x) is ndarray:
                plan = self._fast.get((x.size, x.dtype, op, algorithm))
                if plan is not None:
                    return self._in_place(plan, x, op, algorithm)
        given, result = self._in_out(x, out)
        factor = check_reduction(op, scale, given.code)
        native = self._native(
            "all_reduce", given, given.count, op=op, scale=factor, algorithm=self._ordered(algorithm, order)
        )
        if factor == 1.0 and order is None and len(given.pieces) == 1:
            # ml_dtypes' arrays have no buffer protocol: they take the long way
            if given.dtype.kind in "fiu":
                self._fast[(given.count, given.dtype, op, algorithm)] = native.handle
        return self._run(native, given, result, async_op, timeout_s)

    def reduce_scatter(
        self,
        x: Any,
        out: Any = None,
        op: str = "sum",
        *,
        counts: Sequence[int] | None = None,
        scale: float | None = None,
        algorithm: str | None = None,
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Any:
        """Combine every rank's ``x`` elementwise; rank r gets part r of the result.

        x: the whole vector, equal count on all ranks; left alone unless ``out`` is its own part of it.
        out: this rank's part; default: a new array. It may be the slice of x that it belongs to.
        counts: elements of each rank's part, equal on all ranks; default: as ``numpy.array_split`` cuts.

        Returns ``out``, or a Work.
        """
        given = as_vector(x, "x", writable=False)
        offsets = even(given.count, self.size) if counts is None else given_offsets(counts, self.size, given.count)
        begin, end = offsets[self.rank], offsets[self.rank + 1]
        if out is None:
            out = np.empty(end - begin, given.dtype)
        result = self._part(out, "out", end - begin, given, writable=True)
        self._own_part_or_apart(result, given, begin)
        factor = check_reduction(op, scale, given.code)
        native = self._native(
            "reduce_scatter", given, given.count, op=op, scale=factor, algorithm=algorithm, offsets=offsets
        )
        return self._run(native, given, result, async_op, timeout_s)

    def all_gather(
        self,
        x: Any,
        out: Any = None,
        *,
        counts: Sequence[int] | None = None,
        algorithm: str | None = None,
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Any:
        """Every rank gets all ranks' parts, in rank order.

        x: this rank's part. It may be the slice of ``out`` that it belongs to.
        out: the whole vector; default: a new array.
        counts: elements of each rank's part, equal on all ranks. Default: as ``numpy.array_split`` cuts ``out``;
            without ``out`` every part has as many elements as x.

        Returns ``out``, or a Work.
        """
        part = as_vector(x, "x", writable=False)
        if counts is not None:
            offsets = given_offsets(counts, self.size, None)
        else:
            total = part.count * self.size if out is None else as_vector(out, "out", writable=True).count
            offsets = even(total, self.size)
        mine = offsets[self.rank + 1] - offsets[self.rank]
        if part.count != mine:
            raise ArgumentError(f"x has {part.count} elements; rank {self.rank}'s part has {mine}", hint="pass counts=")
        if out is None:
            out = np.empty(offsets[-1], part.dtype)
        result = self._part(out, "out", offsets[-1], part, writable=True)
        self._own_part_or_apart(part, result, offsets[self.rank])
        native = self._native("all_gather", part, offsets[-1], algorithm=algorithm, offsets=offsets)
        return self._run(native, part, result, async_op, timeout_s)

    def broadcast(
        self,
        x: Any,
        root: int = 0,
        *,
        algorithm: str | None = None,
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Any:
        """Every rank's ``x`` becomes the root's. Returns ``x``, or a Work."""
        root = self._check_root(root)
        vector = as_vector(x, "x", writable=self.rank != root)
        native = self._native("broadcast", vector, vector.count, root=root, algorithm=algorithm)
        return self._run(native, vector, vector, async_op, timeout_s)

    def reduce(
        self,
        x: Any,
        root: int = 0,
        out: Any = None,
        op: str = "sum",
        *,
        scale: float | None = None,
        algorithm: str | None = None,
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Any:
        """Combine every rank's ``x`` elementwise; the root gets the result in ``out``, or in x without it.

        On the other ranks x is left alone and ``out`` is not looked at. Returns ``out`` or ``x``, or a Work.
        """
        root = self._check_root(root)
        if self.rank == root:
            given, result = self._in_out(x, out)
        else:
            given = as_vector(x, "x", writable=False)
            result = given
        factor = check_reduction(op, scale, given.code)
        native = self._native("reduce", given, given.count, op=op, scale=factor, root=root, algorithm=algorithm)
        return self._run(native, given, result if self.rank == root else None, async_op, timeout_s, returns=result)

    def barrier(self, *, async_op: bool = False, timeout_s: float | None = None) -> Work | None:
        """Return when every rank has called it."""
        nothing = as_vector(np.empty(0, np.uint8), "x", writable=True)
        native = self._native("barrier", nothing, 0)
        work = self._run(native, nothing, nothing, async_op, timeout_s)
        return work if async_op else None

    # ---- persistent plans ----

    def plan_all_reduce(
        self, x: Any, out: Any = None, op: str = "sum", *, scale: float | None = None, algorithm: str | None = None
    ) -> Plan:
        """An all-reduce on fixed arrays, to be called again and again. Local; arguments as all_reduce's."""
        given, result = self._in_out(x, out)
        factor = check_reduction(op, scale, given.code)
        shape = self._shape("all_reduce", given, given.count, op=op, scale=factor, algorithm=algorithm)
        if len(given.pieces) != 1 or len(result.pieces) != 1:
            raise ArgumentError("x is a list; a plan takes one array", hint="use all_reduce, or one array from empty()")
        return self._plan(shape, given, result)

    def plan_broadcast(self, x: Any, root: int = 0, *, algorithm: str | None = None) -> Plan:
        """A broadcast on a fixed array. Local; arguments as broadcast's."""
        root = self._check_root(root)
        vector = as_vector(x, "x", writable=self.rank != root)
        return self._plan(
            self._shape("broadcast", vector, vector.count, root=root, algorithm=algorithm), vector, vector
        )

    # ---- memory ----

    def empty(self, shape: Any, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
        """A new zeroed array in registered memory, which the peers read and write in place: no copies.

        Local. The memory lives as long as an array on it; huge pages where the kernel gives them.
        """
        self._check_open()
        return memory.empty(shape, dtype)

    def register(self, x: Any) -> Any:
        """Register ordinary memory for RDMA. Between ranks of one node it counts as ordinary; returns ``x``."""
        self._check_open()
        as_vector(x, "x", writable=True)
        return x

    # ---- groups ----

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Collective. Ranks of equal ``color`` form a communicator, ordered by (key, rank); None stays outside."""
        self._check_open()
        return group.split(self, color, key)

    def dup(self) -> Communicator:
        """Collective. Another communicator of the same ranks, with an operation order of its own."""
        self._check_open()
        other = group.split(self, 0, self.rank)
        assert other is not None
        return other

    # ---- facts ----

    @property
    def node(self) -> int:
        """The number of this rank's node: nodes count from 0, in order of their first ranks."""
        return self._nodes[self.rank]

    @property
    def node_count(self) -> int:
        """On how many nodes the ranks are."""
        return max(self._nodes) + 1

    @property
    def links(self) -> list[Link]:
        """One record a peer: transport, how ordinary memory travels, and why not better."""
        self._check_open()
        return [link_of(self._handle, self.rank, peer) for peer in range(self.size) if peer != self.rank]

    @property
    def last(self) -> RunStats:
        """Steps and bytes of the last operation that ended on this rank."""
        self._check_open()
        record = ffi.new("rr_run_stats *")
        check(lib.rr_comm_last_stats(self._handle, record))
        return run_stats(record)

    @property
    def last_links(self) -> dict[int, tuple[int, int]]:
        """Of the last operation that used links: peer -> (bytes sent, bytes received)."""
        self._check_open()
        record = ffi.new("rr_link_stats *")
        found = {}
        for peer in range(self.size):
            if peer != self.rank:
                check(lib.rr_comm_last_link_stats(self._handle, peer, record))
                found[peer] = (record.sent_bytes, record.received_bytes)
        return found

    def explain(self, nbytes: int, collective: str = "all_reduce", dtype: Any = np.float32) -> str:
        """What would serve a vector of ``nbytes`` per rank, and why."""
        if collective not in COLLECTIVE_CODE:
            raise ArgumentError(f"collective is {collective!r}; accepted are {', '.join(COLLECTIVE_CODE)}")
        wanted = np.dtype(dtype)
        root = 0 if collective in ("broadcast", "reduce") else None
        shape = Shape(collective, nbytes // wanted.itemsize, 0, wanted.itemsize, root=root)
        choice = choice_of(shape, self.size, self.node_count)
        return f"{collective} of {nbytes} bytes among {self.size} ranks: {choice.algorithm} ({choice.reason})"

    def trace(self, path: str | os.PathLike[str] | None = None, *, record_count: int = 1 << 17) -> Tracing:
        """A context manager that notes what every rank does with each slice, and when. Collective, at both ends.

        path: where rank 0 then writes the trace of all ranks, for ui.perfetto.dev (packed where it ends in .gz); None:
            nowhere. record_count: kept on each rank (48 bytes each); of more, the oldest are lost, and counted.

        ``with comm.trace("t.json") as tracing:`` gives :class:`rdmaring.diagnose.trace.Tracing`; after it
        ``tracing.summary()`` has the figures on rank 0. See docs/TRACE.md.
        """
        self._check_open()
        # Diagnosis stands above the communicator: it is loaded only where it is asked for.
        found: Tracing = import_module("rdmaring.diagnose.trace").Tracing(self, path, record_count)
        return found

    # ---- the end ----

    def abort(self, reason: str = "abort() was called") -> None:
        """End all operations of this communicator, here and on the ranks inside one. Local, from any thread."""
        with self._ending:
            self._check_open()
            check(lib.rr_comm_abort(self._handle, reason.encode()))

    def close(self) -> None:
        """Leave. Operations in flight are aborted. May be called again."""
        if self._program_trace is not None:
            self._program_trace.finish(alone=any(not work.done() for work in self._works))
        with self._ending:
            self._close()

    def _close(self) -> None:
        if self._handle is None:
            return
        handle, self._handle = self._handle, None
        self._fast.clear()
        self._small.clear()
        if any(not work.done() for work in self._works):
            lib.rr_comm_abort(handle, b"closed with work in flight")
        for work in list(self._works):
            work._lose()
        self._plans.clear()
        _log_strangers(handle, self.rank)
        lib.rr_comm_close(handle)
        if self._keep is not None:
            self._keep.close()
        raise_interrupt()  # that came while a Python class closed its edges

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, *exception: object) -> None:
        if exception[0] is not None and self._program_trace is not None:
            self._program_trace.finish(alone=True)
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()

    def __repr__(self) -> str:
        state = "closed" if self._handle is None else "open"
        return f"<rdmaring.Communicator {self.name!r} rank {self.rank} of {self.size}, {state}>"

    # ---- inside ----

    def _check_open(self) -> None:
        if self._handle is None:
            raise ClosedError(f"communicator {self.name!r} of rank {self.rank} is closed", rank=self.rank)

    def _check_root(self, given: Any) -> int:
        try:
            root = operator.index(given)
        except TypeError:
            raise ArgumentTypeError(f"root is {given!r}; accepted are integers") from None
        if not 0 <= root < self.size:
            raise ArgumentError(f"root is {root}; accepted are ranks 0..{self.size - 1}")
        return root

    def _ordered(self, algorithm: str | None, order: str | None) -> str | None:
        if order is None:
            return algorithm
        if order != "rank":
            raise ArgumentError(f"order is {order!r}; accepted are None and 'rank'")
        if algorithm not in (None, "direct", "direct1"):
            raise ArgumentError(f"order='rank' with algorithm={algorithm!r}; accepted are 'direct' and 'direct1'")
        return algorithm or "direct"

    def _in_out(self, x: Any, out: Any) -> tuple[Vector, Vector]:
        if out is None or out is x:
            vector = as_vector(x, "x", writable=True)
            return vector, vector
        given = as_vector(x, "x", writable=False)
        result = self._part(out, "out", given.count, given, writable=True)
        check_overlap(given, result, same_allowed=True)
        return given, result

    def _part(self, array: Any, name: str, count: int, like: Vector, *, writable: bool) -> Vector:
        vector = as_vector(array, name, writable=writable)
        if vector.dtype != like.dtype:
            raise ArgumentError(f"{name} has dtype {vector.dtype}, x has {like.dtype}; accepted is one dtype")
        if vector.count != count:
            raise ArgumentError(f"{name} has {vector.count} elements; accepted are {count}")
        return vector

    def _own_part_or_apart(self, part: Vector, whole: Vector, begin: int) -> None:
        if len(part.pieces) == len(whole.pieces) == 1:
            own = whole.range[0][0] + begin * whole.dtype.itemsize
            if part.range[0][0] == own or not part.count:
                return
        check_overlap(part, whole, same_allowed=False)

    def _shape(self, collective: str, like: Vector, count: int, **more: Any) -> Shape:
        self._check_open()
        offsets = more.pop("offsets", None)
        wished = self._settings.algorithm
        if more.get("algorithm") is None and wished is not None and wished in algorithms_of(collective):
            more["algorithm"] = wished
        return Shape(
            collective,
            count,
            like.code,
            like.dtype.itemsize,
            offsets=None if offsets is None else tuple(offsets),
            **more,
        )

    def _native(self, collective: str, like: Vector, count: int, **more: Any) -> NativePlan:
        shape = self._shape(collective, like, count, **more)
        native = self._plans.get(shape)
        if native is None:
            if len(self._plans) >= PLANS_MAX and not self._works:
                self._fast.clear()
                self._small.clear()
                self._plans.pop(next(iter(self._plans)))
            native = self._plans[shape] = NativePlan(self, shape)
        return native

    def _plan(self, shape: Shape, given: Vector, out: Vector) -> Plan:
        return Plan(self, NativePlan(self, shape), given, out)

    def _run(
        self,
        native: NativePlan,
        given: Vector | None,
        out: Vector | None,
        async_op: bool,
        timeout_s: float | None,
        *,
        returns: Vector | None = None,
    ) -> Any:
        result = returns or out or given
        several = any(vector is not None and len(vector.pieces) != 1 for vector in (given, out))
        if async_op:
            return self._start(native, given, out, timeout_s, result)
        if several:
            return self._start(native, given, out, timeout_s, result).wait()
        status = native.run(
            native.handle,
            given.pointer if given else ffi.NULL,
            out.pointer if out else ffi.NULL,
            _timeout_ns(timeout_s),
        )
        if status:
            self._finish(status)
        return result.given if result else None

    def _start(
        self,
        native: NativePlan,
        given: Vector | None,
        out: Vector | None,
        timeout_s: float | None,
        result: Vector | None = None,
    ) -> Work:
        self._check_open()
        for finished in [work for work in self._works if work.done()]:
            if lib.rr_work_wait(finished._handle, 0) == OK:
                finished._settle()
        handle = ffi.new("rr_work **")
        inputs, outputs = _extents(given), _extents(out)
        check(
            lib.rr_plan_start(native.handle, inputs, len(inputs), outputs, len(outputs), _timeout_ns(timeout_s), handle)
        )
        shown = result or out or given
        work = Work(self, handle[0], (given, out, native), shown.given if shown else None)
        self._works.add(work)
        return work

    def _in_place(self, plan: Any, x: np.ndarray[Any, Any], op: str, algorithm: str | None) -> np.ndarray[Any, Any]:
        try:
            pointer = from_buffer(BYTES, x, True)
        except (ValueError, BufferError):
            as_vector(x, "x", writable=True)  # says what is wrong
            raise
        if x.nbytes <= SMALL_BYTES and op == "sum" and algorithm is None:
            if len(self._small) >= SMALL_MAX:
                self._small.clear()
            self._small[id(x)] = _Small(x, x.dtype, plan, pointer)
        status = run_here(plan, pointer)
        if status:
            self._finish(status)
        return x

    def _finish(self, status: int) -> None:
        """Go on with a blocking call that is not done, looking at signals in between."""
        if self._handle is None:
            self._check_open()
        try:
            while status == AGAIN:
                status = lib.rr_comm_resume(self._handle)
        except BaseException:
            # Ctrl-C: peers and links may still use the caller's arrays, which it gets back now.
            lib.rr_comm_abort(self._handle, b"interrupted")
            raise
        if status < 0:
            raise error_here()


def _log_strangers(handle: Any, rank: int) -> None:
    last = ffi.new("char[200]")
    count = lib.rr_comm_strangers(handle, last, 200)
    if count:
        text = ffi.string(last).decode("utf-8", "replace")
        log.warning("rank %d turned %d connection(s) away that proved nothing; the last: %s", rank, count, text)


def _extents(vector: Vector | None) -> Any:
    if vector is None:
        return ffi.new("rr_extent[]", 0)
    extents = ffi.new("rr_extent[]", len(vector.pieces))
    for extent, (pointer, size) in zip(extents, vector.pieces, strict=True):
        extent.address = pointer
        extent.bytes = size
    return extents


def _timeout_ns(timeout_s: float | None) -> int:
    if timeout_s is None:
        return 0
    if not timeout_s > 0:
        raise ArgumentError(f"timeout_s is {timeout_s!r}; accepted are seconds > 0, or None")
    return max(1, int(timeout_s * 1e9))
