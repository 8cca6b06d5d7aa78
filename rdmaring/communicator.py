"""The public object: a group of ranks, its memory, facts and end. What it runs is in ``collectives``."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from rdmaring import group, memory
from rdmaring._native import check, ffi, lib, raise_interrupt
from rdmaring.buffers import as_vector, dtype_code
from rdmaring.choice import Candidate, Explanation
from rdmaring.collectives import Collectives
from rdmaring.errors import ArgumentError, RdmaringError
from rdmaring.messages import Messages
from rdmaring.plan import COLLECTIVE_CODE, ROOTED, Shape, choice_of
from rdmaring.schedule import algorithms_of
from rdmaring.settings import Settings
from rdmaring.topology import Link, link_of
from rdmaring.tuning.fingerprint import Facts
from rdmaring.work import RunStats, run_stats

log = logging.getLogger("rdmaring")
MEASURE_S = 0.3  # of explain(measure=True), for all candidates together
if TYPE_CHECKING:
    from rdmaring.cuda.attach import Attached
    from rdmaring.diagnose.trace import Tracing
    from rdmaring.recover import Recovery
    from rdmaring.shrink import Stand


class Communicator(Collectives, Messages):
    """Ranks that call collectives together, in the same order.

    Made by :func:`rdmaring.init`, :meth:`split` and :meth:`dup`. A context manager: leaving it closes it. One
    thread at a time may use it, except :meth:`abort` and :meth:`close`, which any thread may call, and a signal's
    handler: a call that one of them ends raises ``AbortedError``, a later one ``ClosedError``. Arrays are the
    caller's; they are kept alive while an operation needs them. Arguments that do not fit raise ``ArgumentError`` (a
    ``ValueError``) or ``ArgumentTypeError`` (a ``TypeError``) and change nothing; an operation that fails raises a
    ``CommunicatorError``, and the communicator is lost.

    What every collective takes that has an argument of this name:

    timeout_s: seconds; default: the communicator's. async_op: True: return a :class:`rdmaring.Work` at once.
    algorithm: force one by its name (docs/ALGORITHMS.md lists them), or pass your own: a function that emits rows, or
        a Schedule (rdmaring.schedule); it is proven before it runs. Default: the library's choice.
    channels: parts of the vector that travel side by side, 1 to 16, equal on all ranks. Default: init()'s.
    counts: elements of each rank's part, equal on all ranks; in all_to_all of each pair's.
    wire: "float32" keeps partial sums of float16 and bfloat16 (sum, avg) in float32 on the ring: one rounding in all,
        at most 1.5 times the bytes.
    stream: with arrays in GPU memory: a stream of torch, cupy, numba or cuda-python, or its handle, behind whose work
        the operation runs; needed where the array's own protocol does not tell of it. See docs/CUDA.md.

    Arrays: numpy, or what shares its memory by DLPack or the buffer protocol; or in
    GPU memory, of torch, cupy, JAX and others (docs/CUDA.md); C-contiguous; or a list of these, which counts as one
    vector.
    """

    def __init__(self, handle: Any, rank: int, size: int, name: str, settings: Settings, keep: Any = None) -> None:
        super().__init__(handle, rank, size, name, settings)
        self._keep = keep  # the rendezvous, which ends with us
        self._stand: Stand | None = None  # how its ranks find each other after a failure; None of one split off
        self.recovered: Recovery | None = None  # where it came from shrink(): out of what
        self._facts: Facts | None = None  # of the world: hosts, transports, devices
        self._program_trace: Any = None  # of RDMARING_TRACE
        self._log_notes()

    # ---- memory ----

    @overload
    def empty(self, shape: Any, dtype: Any = ..., device: None = ...) -> np.ndarray[Any, Any]: ...
    @overload
    def empty(self, shape: Any, dtype: Any = ..., *, device: Any) -> Any: ...
    def empty(self, shape: Any, dtype: Any = np.float32, device: Any = None) -> Any:
        """A new zeroed array in registered memory, which the peers read and write in place: no copies.

        device: "cuda", "cuda:1", a number: an array in that GPU's memory instead, a
            :class:`rdmaring.cuda.array.DeviceArray`, which torch, cupy, JAX and numba take without a copy. "cuda" is
            the GPU of this communicator's arrays, else RDMARING_DEVICE, else this rank's number on its node.

        Local. The memory lives as long as an array on it; huge pages where the kernel gives them.
        """
        self._check_open()
        if device is None or device == "cpu":
            return memory.empty(shape, dtype)
        return memory.empty_on_gpu(shape, dtype, self._ordinal(device))

    def _ordinal(self, given: Any) -> int:
        """The number of the GPU that ``device=`` names."""
        from rdmaring.cuda.context import ordinal_of

        attached = self._gpu
        wished = attached.device.ordinal if attached is not None else self._settings.device
        near = [rank for rank in range(self.size) if self._nodes[rank] == self.node]
        return ordinal_of(given, near.index(self.rank), wished)

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

    def shrink(self, timeout_s: float | None = None) -> Communicator:
        """The survivors' communicator, after an error of this one: their ranks count from 0 in the old order.

        Collective among those that live; nobody needs to know who died. Of init()'s communicator, or one that
        shrink() returned. This one is ended by it, here and on ranks that are still inside an operation, and closed
        once the other is made; what was split off it is lost, too: split again.

        timeout_s: seconds, about, for all of it; default: 60, or this communicator's if that is less. Ranks that live
            but have not called it are waited for through half of that. Those that have ended are not waited for.

        The result's ``recovered`` tells the old ranks, those lost, and the last operation that all had finished.

        Raises:
            NoQuorumError: fewer than a majority of the ranks came, and not all others are proven dead. Only a process
                on a node with a survivor is ever proven dead. May be called again.
            LeftOutError: the others went on without this rank, which came too late.
            SetupError: the survivors agreed, but did not come together in time. May be called again.
            UnsupportedError: this communicator was split off another.
        """
        from rdmaring.shrink import shrink

        return shrink(self, timeout_s)

    # ---- facts ----

    @property
    def node(self) -> int:
        """The number of this rank's node: nodes count from 0, in order of their first ranks."""
        return self._nodes[self.rank]

    @property
    def links(self) -> list[Link]:
        """One record a peer: transport, how ordinary memory and GPU memory travel, and why not better."""
        self._check_open()
        self._log_notes()
        found = [link_of(self._handle, self.rank, peer) for peer in range(self.size) if peer != self.rank]
        attached = self._gpu
        if attached is None:
            return [replace(link, gpu="", gpu_reason="") for link in found]
        return [self._gpu_link(link, attached) for link in found]

    def _gpu_link(self, link: Link, gpu: Attached) -> Link:
        """How vectors in GPU memory go over it."""
        if link.transport == "verbs" and not gpu.carries:  # the NIC's own answer
            return link
        way, reason = gpu.link(self.rank, link.peer, near=link.peer_node == self.node)
        return replace(link, gpu=way, gpu_reason=reason)

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

    def explain(
        self, nbytes: int, collective: str = "all_reduce", dtype: Any = np.float32, measure: bool = False
    ) -> Explanation:
        """What would serve a vector of ``nbytes``, why, and what the others would take.

        nbytes: of the whole vector. Local. Returns text to print, with fields: ``choice``, ``candidates`` (each with
        its predicted and, from a tuning file, measured seconds), ``constants``.

        measure: time the candidates now, in turn, on ordinary memory (two vectors of ``nbytes`` on each rank); about
            0.3 s, more for large vectors. A collective call then: all ranks make it alike. ``measured_s`` is the
            median of the slowest rank's times, the same on every rank; the choice stays as it is.

        Raises ``RdmaringError`` if a candidate that is timed gives wrong elements.
        """
        if collective not in COLLECTIVE_CODE:
            raise ArgumentError(f"collective is {collective!r}; accepted are {', '.join(COLLECTIVE_CODE)}")
        wanted = np.dtype(dtype)
        root = 0 if collective in ROOTED else None
        if not 0 <= nbytes < 1 << 60:
            raise ArgumentError(f"nbytes is {nbytes}; accepted are 0 to 2^60 - 1")
        forced = self._settings.algorithm
        if forced not in algorithms_of("all_reduce" if collective == "barrier" else collective):
            forced = None
        shape = Shape(collective, nbytes // wanted.itemsize, 0, wanted.itemsize, root=root, algorithm=forced)
        choice = choice_of(shape, self._chooser)
        found = self._chooser.candidates(collective, nbytes)
        if measure:
            found = self._timed(found, collective, nbytes, wanted)
        attached = self._gpu
        on_gpu = "" if attached is None else attached.runner
        return Explanation(collective, nbytes, self._chooser, choice, found, measure, on_gpu)

    def _timed(self, candidates: list[Candidate], collective: str, nbytes: int, dtype: Any) -> list[Candidate]:
        """The candidates with what each takes now. Collective."""
        self._check_open()
        if collective == "barrier":
            raise ArgumentError("collective is 'barrier' with measure=True; accepted are those that move data")
        dtype_code(dtype, "dtype")
        # Measuring stands above the communicator: it is loaded only where it is asked for.
        timer = import_module("rdmaring.bench.interleaved").Interleaved(self, nbytes, dtype=dtype)
        timed = timer.times(collective, nbytes, [each.algorithm for each in candidates], MEASURE_S)
        for each in timed:
            if each.wrong:
                raise RdmaringError(
                    f"{each.algorithm} of {collective} gave {each.wrong} wrong elements on {nbytes} bytes",
                    hint=f"see where by `rdmaring bench --collective {collective} --algorithm {each.algorithm}`",
                    rank=self.rank,
                    collective=collective,
                )
        return [replace(each, measured_s=now.median_s) for each, now in zip(candidates, timed, strict=True)]

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
        self._check_open()
        check(lib.rr_comm_abort(self._handle, reason.encode()))

    def synchronize(self, timeout_s: float | None = None) -> None:
        """Wait on the host until all operations called so far have ended here, in GPU memory, too.

        timeout_s: of the wait for each: on expiry ``OperationTimeoutError`` is raised, and the operations go on.

        Raises what ended one of them.
        """
        from rdmaring import gpu  # whoever has none does not pay for it

        self._check_open()
        gpu.synchronize(self, timeout_s)

    def close(self) -> None:
        """Leave. Works in flight are aborted; calls whose result a stream of a GPU awaits are waited for, as ever.

        From any thread, and again: a call of another thread that is inside is aborted. Raises what ended a call that
        was waited for, once the communicator is closed.
        """
        attached = self._gpu
        try:
            while not self._closed and attached is not None and (work := attached.oldest()) is not None:
                attached.forget(work)
                work.synchronize()
        finally:
            self._leave()

    def _leave(self) -> None:
        """What has not ended is aborted."""
        if self._program_trace is not None:
            self._program_trace.finish(alone=any(not work.done() for work in list(self._works)))
        with self._ending:
            self._close()

    def _close(self) -> None:
        if self._closed:
            return
        self._log_notes()
        self._closed = True
        self._forget_calls()
        self._lists.clear()
        if any(not work.done() for work in list(self._works)):
            lib.rr_comm_abort(self._handle, b"closed with work in flight")
        for work in list(self._works):
            work._lose()
        self._plans.clear()
        lib.rr_comm_close(self._handle)  # ends another thread's call, too
        _log_strangers(self._handle, self.rank)
        if self._gpu is not None:
            self._gpu.close()  # behind the communicator, which used its memory
        if self._keep is not None:
            self._keep.close()
        if self._stand is not None:
            self._stand.survivors.release()
        raise_interrupt()  # that came while a Python class closed its edges

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, *exception: object) -> None:
        if exception[0] is not None and self._program_trace is not None:
            self._program_trace.finish(alone=True)
        if exception[0] is not None:
            self._leave()
        else:
            self.close()

    def __del__(self) -> None:
        # At the interpreter's end the module may have lost its names already: the kernel closes what is open.
        if not getattr(self, "_closed", True) and globals().get("_log_strangers") is not None:
            self._leave()

    def __repr__(self) -> str:
        state = "of a parent process" if self._forked else "closed" if self._closed else "open"
        return f"<rdmaring.Communicator {self.name!r} rank {self.rank} of {self.size}, {state}>"


def _log_strangers(handle: Any, rank: int) -> None:
    last = ffi.new("char[200]")
    count = lib.rr_comm_strangers(handle, last, 200)
    if count:
        text = ffi.string(last).decode("utf-8", "replace")
        log.warning("rank %d turned %d connection(s) away that proved nothing; the last: %s", rank, count, text)
