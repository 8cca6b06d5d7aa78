"""torch's Futures of works in flight, completed by threads of ours; see docs/decisions/0007-torch.md."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import Protocol

IDLE_S = 5.0  # a thread with nothing to do ends after that
STEP_S = 0.00005
STEP_MAX_S = 0.001


class Watched(Protocol):
    """What the leader polls."""

    def poll(self) -> bool:
        """Whether it has ended; never waits."""

    def complete(self) -> None:
        """Tell those who wait for it; may run callbacks that wait for other works."""


class Leader:
    """Threads of which one polls. It appoints the next before it completes what has ended."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._watched: deque[Watched] = deque()
        self._idle = 0
        self._leads = False

    def watch(self, work: Watched) -> None:
        """Have ``work.complete()`` called once ``work.poll()`` is true."""
        with self._news:
            self._watched.append(work)
            self._appoint()

    def _appoint(self) -> None:
        if self._leads or not self._watched:
            return
        if self._idle:
            self._news.notify()
        else:
            threading.Thread(target=self._run, name="rdmaring-futures", daemon=True).start()

    def _run(self) -> None:
        while self._take_lead():
            ended = self._first_to_end()
            with self._news:
                self._leads = False
                self._appoint()
            if ended is not None:
                ended.complete()

    def _take_lead(self) -> bool:
        with self._news:
            deadline = time.monotonic() + IDLE_S
            while self._leads or not self._watched:
                self._idle += 1
                self._news.wait(max(0.0, deadline - time.monotonic()))
                self._idle -= 1
                if (self._leads or not self._watched) and time.monotonic() >= deadline:
                    return False
            self._leads = True
            return True

    def _first_to_end(self) -> Watched | None:
        step_s = STEP_S
        while True:
            for _ in range(len(self._watched)):
                work = self._watched.popleft()
                if work.poll():
                    return work
                self._watched.append(work)
            if not self._watched:
                return None
            time.sleep(step_s)
            step_s = min(STEP_MAX_S, step_s * 1.05)


_leader = Leader()


def watch(work: Watched) -> None:
    """See :meth:`Leader.watch`; of this process."""
    _leader.watch(work)


def _after_fork() -> None:
    """The child has none of the threads."""
    global _leader
    _leader = Leader()


os.register_at_fork(after_in_child=_after_fork)
