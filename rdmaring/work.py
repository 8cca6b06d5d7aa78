"""Handles of collectives in flight."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rdmaring._native import AGAIN, OK, check, error_here, ffi, lib
from rdmaring.errors import ArgumentError, MismatchError, OperationTimeoutError, RdmaringError
from rdmaring.single import Single

if TYPE_CHECKING:
    from rdmaring.running import Runner

GPU_RECORD_BYTES = 1021  # what each rank tells of its GPU, once: no program gathers just that
HOST_AND_DEVICE = (
    f"host and device memory in one operation: an all_gather of {GPU_RECORD_BYTES} bytes a rank is what a rank does "
    "first that is given an array in GPU memory; pass such arrays on all ranks, or init(device='cuda') on all"
)
_serials = itertools.count()
SIGNALS_NS = 50_000_000  # native waits return this often, so that Ctrl-C is answered


@dataclass(frozen=True)
class RunStats:
    """What one finished operation did on this rank; bytes are payload, headers apart.

    elapsed_s is 0.0 for a tiny message that was answered at once: reading a clock would cost more.
    """

    op: int
    steps: int
    sent_bytes: int
    received_bytes: int
    elapsed_s: float


def run_stats(record: Any) -> RunStats:
    return RunStats(record.op, record.steps, record.sent_bytes, record.received_bytes, record.elapsed_ns / 1e9)


def told(error: RdmaringError, world: int) -> RdmaringError:
    """A mismatch of which one side is the set-up of GPU memory (rdmaring.cuda.attach) gets a hint that says so."""
    if not isinstance(error, MismatchError) or f"all_gather of {world * GPU_RECORD_BYTES} uint8" not in error.cause:
        return error
    return MismatchError(
        error.cause,
        hint=HOST_AND_DEVICE,
        rank=error.rank,
        peer=error.peer,
        transport=error.transport,
        collective=error.collective,
        op=error.op,
        row=error.row,
        verdict=error.verdict,
    )


def own_work(made: Any) -> Any:
    """An ``rr_work`` out of where C put it; freed when nobody looks at it any more."""
    return ffi.gc(made[0], lib.rr_work_free)


class Work(Single):
    """One collective in flight. The communicator keeps its arrays alive until it is done."""

    _instead = "hand the Work itself on, or what its wait() returned"

    def __init__(
        self, comm: Runner, handle: Any, keep: Any, result: Any, then: Callable[[], None] | None = None
    ) -> None:
        """then: is called once it has ended well, before the result is given out."""
        self._comm = comm
        self._handle = handle  # None once it has ended and is settled: by this thread, or by one that closes
        self._keep = keep
        self._result = result
        self._then = then
        self._stats: RunStats | None = None
        self._links: dict[int, tuple[int, int]] = {}
        self._error: RdmaringError | None = None  # of a work that outlived its communicator
        self.serial = next(_serials)  # works of this process, in call order

    def done(self) -> bool:
        """Whether it has ended, well or badly; does not wait."""
        handle = self._handle
        if handle is None:
            return True
        status = lib.rr_work_wait(handle, 0)
        if status == OK and self._then is not None:
            self._settle()
        return bool(status != AGAIN)

    def wait(self, timeout_s: float | None = None) -> Any:
        """Wait for the end and return the output array.

        timeout_s: of this wait alone: on expiry ``OperationTimeoutError`` is raised, and the operation goes on.

        Raises:
            OperationTimeoutError: this wait's time is over, or the operation's own.
            RdmaringError: what ended the operation.
        """
        handle = self._handle
        if handle is None:
            return self._ended()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_ns = SIGNALS_NS
            if deadline is not None:
                left_ns = max(0, min(left_ns, int((deadline - time.monotonic()) * 1e9)))
            status = lib.rr_work_wait(handle, left_ns)
            if status < 0:
                raise told(error_here(), self._comm.size)
            if status != AGAIN:
                break
            if deadline is not None and time.monotonic() >= deadline:
                raise OperationTimeoutError(
                    f"the operation is not done after {timeout_s} s of this wait; it goes on",
                    hint="wait again, or see who is late with `rdmaring why`",
                    rank=self._comm.rank,
                )
        self._settle()
        return self._ended()

    def _ended(self) -> Any:
        """Its result, or what ended it."""
        if self._error is not None:
            raise self._error
        return self._result

    def synchronize(self, timeout_s: float | None = None) -> Any:
        """As ``wait``; where that orders streams of a GPU, this waits on the host, as ``timeout_s`` says."""
        return self.wait(timeout_s)

    @property
    def stats(self) -> RunStats | None:
        """Of the finished operation; None before."""
        handle = self._handle
        if self._stats is None and handle is not None:
            self._read_stats(handle)
        return self._stats

    @property
    def links(self) -> dict[int, tuple[int, int]]:
        """Of the finished operation: peer -> (bytes sent, bytes received). Empty before."""
        handle = self._handle
        if not self._links and handle is not None:
            self._read_stats(handle)
        return self._links

    def _read_stats(self, handle: Any) -> None:
        record = ffi.new("rr_run_stats *")
        if lib.rr_work_stats(handle, record) == AGAIN:
            return
        self._stats = run_stats(record)
        link = ffi.new("rr_link_stats *")
        for peer in range(self._comm.size):
            if peer != self._comm.rank:
                check(lib.rr_work_link_stats(handle, peer, link))
                self._links[peer] = (link.sent_bytes, link.received_bytes)

    def _settle_if_well(self) -> None:
        """Let go of its arrays if it has ended well."""
        handle = self._handle
        if handle is not None and self.done() and lib.rr_work_wait(handle, 0) == OK:
            self._settle()

    def _settle(self) -> None:
        """Give the native handle back; only of a work that is done."""
        with self._comm._settling:
            handle = self._handle
            if handle is None:
                return
            self._read_stats(handle)
            self._handle = None
            self._comm._works.discard(self)
            then, self._then = self._then, None
            if then is not None:
                then()
            self._keep = None

    def _lose(self) -> None:
        """The communicator closes: keep how it ended, give the native handle back."""
        with self._comm._settling:
            handle = self._handle
            if handle is None:
                return
            if lib.rr_work_wait(handle, 0) < 0:
                self._error = error_here()
                self._then = None
            self._settle()

    def __repr__(self) -> str:
        return f"<rdmaring.Work {'done' if self.done() else 'in flight'}>"


def timeout_ns(timeout_s: float | None) -> int:
    if timeout_s is None:
        return 0
    if not timeout_s > 0:
        raise ArgumentError(f"timeout_s is {timeout_s!r}; accepted are seconds > 0, or None")
    return max(1, int(timeout_s * 1e9))
