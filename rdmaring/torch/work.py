"""torch's Work: one collective or message in flight, or ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch._C import _distributed_c10d as c10d

from rdmaring._native import AGAIN, error_here, lib
from rdmaring.errors import OperationTimeoutError
from rdmaring.torch import futures
from rdmaring.torch.errors import as_torch_error

if TYPE_CHECKING:
    from rdmaring.torch.group import Group

DEFAULT = timedelta(0)
WAIT_NS = 50_000_000  # native waits return this often, so that Ctrl-C is answered


def _give(error: Exception | None, result: Any) -> Any:
    if error is not None:
        raise error
    return result


class BaseWork(c10d.Work):  # type: ignore[misc]
    """What works have in common: results, and a Future made when asked for."""

    def __init__(self, result: list[torch.Tensor]) -> None:
        super().__init__()
        self._result = result
        self._error: Exception | None = None
        self._ended = True
        self._source = -1
        self._own: Any = None  # the Future that we complete
        self._future: Any = None  # its child, which is given out
        self._lock = threading.Lock()

    def poll(self) -> bool:
        """Whether it has ended; never waits."""
        return self._ended

    def is_completed(self) -> bool:
        return self.poll()

    def is_success(self) -> bool:
        return self.poll() and self._error is None

    def exception(self) -> Exception | None:
        return self._error

    def wait(self, timeout: timedelta = DEFAULT) -> bool:
        """Return when it has ended.

        timeout: of this wait alone; 0: the group's.

        Raises:
            RingError: what ended it.
        """
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        return self._result

    def source_rank(self) -> int:
        return self._source

    _source_rank = source_rank

    def get_future(self) -> Any:
        """A torch.futures.Future of the list of tensors."""
        with self._lock:
            if self._future is not None:
                return self._future
            self._own = torch.futures.Future()
            self._future = self._own.then(lambda _: _give(self._error, self._result))
        if self.poll():
            self.complete()
        else:
            futures.watch(self)
        return self._future

    def complete(self) -> None:
        """Complete the Future: callbacks run here, in this thread."""
        self._own.set_result(None)


class Step:
    """One native operation of a work: ``then`` is called once it has ended well."""

    __slots__ = ("handle", "keep", "then")

    def __init__(self, handle: Any, keep: Any, then: Callable[[], None] | None = None) -> None:
        self.handle = handle
        self.keep = keep
        self.then = then


class RingWork(BaseWork):
    """Native operations in flight, which end in turn."""

    def __init__(self, group: Group, steps: Sequence[Step], result: list[torch.Tensor], timeout_s: float) -> None:
        super().__init__(result)
        self._group = group
        self._steps = list(steps)
        self._timeout_s = timeout_s
        self._ended = not steps
        if steps:
            group.pending.add(self)

    def poll(self) -> bool:
        while not self._ended:
            step = self._turn()
            if step is None:
                break
            status = lib.rr_work_wait(step.handle, 0)
            if status == AGAIN:
                return False
            self._end_step(step, status)
        return self._ended

    def _turn(self) -> Step | None:
        try:
            return self._steps[0]
        except IndexError:  # another thread has just ended it
            return None

    def _end_step(self, step: Step, status: int) -> None:
        """Of the thread that saw it; only the first to come does anything."""
        error = as_torch_error(error_here()) if status < 0 else None
        with self._lock:
            if self._ended or not self._steps or self._steps[0] is not step:
                return
            if error is None and step.then is not None:
                try:
                    step.then()
                except Exception as raised:  # of a copy or a reduction here: it is the work's
                    error = raised
            self._steps.pop(0)
            if error is not None:
                self._error = error
                self._steps.clear()
            if not self._steps:
                self._ended = True
                self._group.pending.discard(self)

    def wait(self, timeout: timedelta = DEFAULT) -> bool:
        limit_s = timeout.total_seconds() if timeout else 0.0
        deadline = time.monotonic() + limit_s if limit_s > 0 else None
        while not self._ended:
            step = self._turn()
            if step is None:
                break
            left_ns = WAIT_NS
            if deadline is not None:
                left_ns = max(0, min(WAIT_NS, int((deadline - time.monotonic()) * 1e9)))
            status = self._group.drive(step.handle, left_ns)
            if status != AGAIN:
                self._end_step(step, status)
            elif deadline is not None and time.monotonic() >= deadline:
                raise as_torch_error(
                    OperationTimeoutError(
                        f"the operation is not done after {limit_s} s of this wait; it goes on",
                        hint="wait again: what ends it is the group's timeout",
                        rank=self._group.rank,
                    )
                )
        return super().wait()
