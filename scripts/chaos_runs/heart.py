"""Whether this process was let run: a machine that stood still proves nothing about a run."""

from __future__ import annotations

import threading
import time

BEAT_S = 0.1
STILL_S = 1.5  # a loaded machine lets a thread that sleeps run sooner


class Heart:
    """A thread that beats, and notes when it has not."""

    def __init__(self) -> None:
        self._pauses: list[tuple[float, float]] = []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heart", daemon=True)

    def __enter__(self) -> Heart:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _beat(self) -> None:
        last = time.monotonic()
        while not self._ends.wait(BEAT_S):
            now = time.monotonic()
            if now - last > STILL_S:
                self._pauses.append((last, now))
            last = now

    def stood_still_s(self, begin: float, end: float) -> float:
        """Of this time (``time.monotonic()``), in all."""
        return sum(max(0.0, min(end, until) - max(begin, since)) for since, until in list(self._pauses))
