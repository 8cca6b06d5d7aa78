"""One communicator as torch's group uses it: from several threads, with works that outlive their starters."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

import rdmaring
from rdmaring._native import AGAIN, check, error_here, ffi, lib
from rdmaring.buffers import Vector, extents
from rdmaring.errors import RdmaringError
from rdmaring.plan import NativePlan
from rdmaring.single import Single
from rdmaring.torch.errors import as_torch_error
from rdmaring.torch.work import BaseWork, RingWork, Step
from rdmaring.work import told

OTHERS_S = 0.0002  # a blocking call lets a thread that starts something pass, between two drives
END_S = 2.0  # for works to see an abort


class Group(Single):
    """Owns a Communicator, and says who calls it when. Errors are torch's."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        self.rank = rank
        self.size = size
        self.store = store
        self.timeout_s = timeout.total_seconds()
        self.pending: set[BaseWork] = set()
        self.sequence = 0
        self.barriers = 0
        self._make_locks()
        self._starting: list[None] = []  # a list: its appends are atomic
        try:
            self.comm = rdmaring.init(rank, size, store=store, timeout_s=self.timeout_s)
        except RdmaringError as error:
            raise as_torch_error(error) from error
        _groups.add(self)

    def _make_locks(self) -> None:
        """Anew in a child of fork(), where a thread that held one is missing: calls there end in ForkedError."""
        self._start = threading.RLock()  # plans, and starts
        self._call = threading.RLock()  # a blocking call

    # ---- operations ----

    def plan(self, collective: str, like: Vector, count: int, **more: Any) -> NativePlan:
        """See ``Runner._native``."""
        with self._start:
            return self.comm._native(collective, like, count, **more)

    def start(
        self,
        native: NativePlan,
        given: Vector | None,
        out: Vector | None,
        timeout_s: float | None,
        then: Callable[[], None] | None = None,
    ) -> Step:
        """Begin it; the engine's progress thread goes on."""
        self._starting.append(None)
        try:
            with self._start:
                self.comm._check_open()
                self.sequence += 1
                handle = ffi.new("rr_work **")
                check(
                    lib.rr_plan_start(native.handle, *extents(given), *extents(out), self.limit_ns(timeout_s), handle)
                )
        finally:
            self._starting.pop()
        return Step(ffi.gc(handle[0], lib.rr_work_free), (native, given, out), then)

    def call(self, native: NativePlan, given: Vector | None, out: Vector | None, timeout_s: float | None) -> None:
        """Run it to its end, on this thread."""
        with self._call:
            self.comm._check_open()
            self.sequence += 1
            status = lib.rr_plan_run_lists(native.handle, *extents(given), *extents(out), self.limit_ns(timeout_s))
            if status:
                self.finish(status)

    def finish(self, status: int) -> None:
        """Go on with a blocking call that is not done."""
        try:
            while status == AGAIN:
                if self._starting:
                    time.sleep(OTHERS_S)
                status = lib.rr_comm_resume(self.comm._handle)
        except BaseException:
            # Ctrl-C: peers may still use the caller's tensors, which it gets back now.
            lib.rr_comm_abort(self.comm._handle, b"interrupted")
            raise
        if status < 0:
            raise told(error_here(), self.size)

    def message(self, start: Any, vector: Vector, peer: int, timeout_s: float | None) -> Step:
        """Begin ``rr_send_start`` or ``rr_recv_start``."""
        self._starting.append(None)
        try:
            with self._start:
                self.comm._check_open()
                handle = ffi.new("rr_work **")
                limit_ns = self.limit_ns(timeout_s)
                check(start(self.comm._handle, peer, vector.pointer, vector.count, vector.code, limit_ns, True, handle))
        finally:
            self._starting.pop()
        return Step(ffi.gc(handle[0], lib.rr_work_free), vector)

    def drive(self, handle: Any, wait_ns: int) -> int:
        """Wait for a work, making progress on this thread."""
        if self._starting:
            time.sleep(OTHERS_S)
        return int(lib.rr_work_wait(handle, wait_ns))

    def work(self, steps: list[Step], result: list[torch.Tensor], timeout_s: float | None) -> RingWork:
        return RingWork(self, steps, result, self.timeout_s if timeout_s is None else timeout_s)

    def limit_ns(self, timeout_s: float | None) -> int:
        return int((self.timeout_s if timeout_s is None else timeout_s) * 1e9)

    # ---- the end ----

    def abort(self, reason: str) -> None:
        """End what is in flight, here and on the ranks inside it."""
        if not self.comm._closed:
            self.comm.abort(reason)

    def close(self) -> None:
        """Leave. Works in flight are aborted."""
        if self.comm._closed:
            return
        if any(not work.poll() for work in list(self.pending)):
            lib.rr_comm_abort(self.comm._handle, b"closed with work in flight")
            deadline = time.monotonic() + END_S
            while any(not work.poll() for work in list(self.pending)) and time.monotonic() < deadline:
                time.sleep(OTHERS_S)
        with self._start, self._call:
            self.comm.close()


_groups: weakref.WeakSet[Group] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for group in list(_groups):
        group._make_locks()


os.register_at_fork(after_in_child=_after_fork_in_child)
