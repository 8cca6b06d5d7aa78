"""Handles of collectives in flight."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rdmaring._native import AGAIN, check, error_here, ffi, lib
from rdmaring.errors import OperationTimeoutError, RdmaringError

if TYPE_CHECKING:
    from rdmaring.running import Runner

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


class Work:
    """One collective in flight. The communicator keeps its arrays alive until it is done."""

    def __init__(self, comm: Runner, handle: Any, keep: Any, result: Any) -> None:
        self._comm = comm
        self._handle = handle
        self._keep = keep
        self._result = result
        self._stats: RunStats | None = None
        self._links: dict[int, tuple[int, int]] = {}
        self._error: RdmaringError | None = None  # of a work that outlived its communicator

    def done(self) -> bool:
        """Whether it has ended, well or badly; does not wait."""
        return self._handle is None or lib.rr_work_wait(self._handle, 0) != AGAIN

    def wait(self, timeout_s: float | None = None) -> Any:
        """Wait for the end and return the output array.

        timeout_s: of this wait alone: on expiry ``OperationTimeoutError`` is raised, and the operation goes on.

        Raises:
            OperationTimeoutError: this wait's time is over, or the operation's own.
            RdmaringError: what ended the operation.
        """
        if self._error is not None:
            raise self._error
        if self._handle is None:
            return self._result
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_ns = SIGNALS_NS
            if deadline is not None:
                left_ns = max(0, min(left_ns, int((deadline - time.monotonic()) * 1e9)))
            if check(lib.rr_work_wait(self._handle, left_ns)) != AGAIN:
                break
            if deadline is not None and time.monotonic() >= deadline:
                raise OperationTimeoutError(
                    f"the operation is not done after {timeout_s} s of this wait; it goes on", rank=self._comm.rank
                )
        self._settle()
        return self._result

    @property
    def stats(self) -> RunStats | None:
        """Of the finished operation; None before."""
        if self._stats is None and self._handle is not None:
            self._read_stats()
        return self._stats

    @property
    def links(self) -> dict[int, tuple[int, int]]:
        """Of the finished operation: peer -> (bytes sent, bytes received). Empty before."""
        if not self._links and self._handle is not None:
            self._read_stats()
        return self._links

    def _read_stats(self) -> None:
        record = ffi.new("rr_run_stats *")
        if lib.rr_work_stats(self._handle, record) == AGAIN:
            return
        self._stats = run_stats(record)
        link = ffi.new("rr_link_stats *")
        for peer in range(self._comm.size):
            if peer != self._comm.rank:
                check(lib.rr_work_link_stats(self._handle, peer, link))
                self._links[peer] = (link.sent_bytes, link.received_bytes)

    def _settle(self) -> None:
        """Give the native handle back; only of a work that is done."""
        if self._handle is None:
            return
        self._read_stats()
        lib.rr_work_free(self._handle)
        self._handle = None
        self._keep = None
        self._comm._works.discard(self)

    def _lose(self) -> None:
        """The communicator closes: keep how it ended, give the native handle back."""
        if self._handle is None:
            return
        if lib.rr_work_wait(self._handle, 0) < 0:
            self._error = error_here()
        self._settle()

    def __repr__(self) -> str:
        return f"<rdmaring.Work {'done' if self.done() else 'in flight'}>"
