"""Signals to the launcher, in a form that one poll() can wait for together with its pipes."""

from __future__ import annotations

import contextlib
import os
import signal
from types import FrameType


class Signals:
    """While entered, SIGINT, SIGTERM, SIGHUP and SIGCHLD only make ``receiver`` readable. Main thread."""

    def __enter__(self) -> Signals:
        self._pending: list[signal.Signals] = []
        self.receiver, self._sender = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before_fd = signal.set_wakeup_fd(self._sender, warn_on_full_buffer=False)
        wanted = [signal.SIGCHLD, signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup stays in force
            wanted.append(signal.SIGHUP)
        self._before = {number: signal.signal(number, self._on_signal) for number in wanted}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._before_fd)
        os.close(self.receiver)
        os.close(self._sender)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self._pending.append(signal.Signals(number))

    def take(self) -> list[signal.Signals]:
        """Signals to the launcher since the last call, SIGCHLD apart."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.receiver, 4096):
                pass
        taken, self._pending = self._pending, []
        return taken
