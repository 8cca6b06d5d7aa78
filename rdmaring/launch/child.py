"""One rank as a child process: how it starts, and how its whole process group ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

PR_SET_PDEATHSIG = 1

# Looked up before any fork: between fork() and exec() only what is already loaded is used.
_libc = ctypes.CDLL(None, use_errno=True)


class Child:
    """A started rank. It leads a process group of its own.

    Ranks stay in the launcher's session: Linux schedules each session as a group of its own (autogroup), and between
    groups a yield hands nothing over. Ranks that share a processor would then wait for the end of each other's time
    slices: measured, milliseconds an operation instead of microseconds. Only a rank that holds a terminal leads a
    session, too: in the background of the launcher's, reading it would stop the rank.
    """

    def __init__(
        self,
        rank: int,
        command: Sequence[str],
        env: Mapping[str, str],
        cpu: int | None,
        stdin: int | None,
        direct: bool = False,  # it writes to the launcher's own output and error
    ) -> None:
        launcher = os.getpid()
        output = None if direct else subprocess.PIPE
        terminal = any(map(os.isatty, _inherited(stdin, direct)))

        def before_exec() -> None:
            _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != launcher:  # it died before the line above
                os._exit(1)
            if not terminal:
                os.setpgid(0, 0)
                # Who opens /dev/tty itself is refused and not stopped.
                signal.signal(signal.SIGTTIN, signal.SIG_IGN)
                signal.signal(signal.SIGTTOU, signal.SIG_IGN)
            if cpu is not None:
                os.sched_setaffinity(0, {cpu})

        self.rank = rank
        self.sent: signal.Signals | None = None  # what the launcher last sent to it
        self.status: int | None = None  # exit status, or minus the signal that killed it
        self.ended_at: float | None = None
        self._process = subprocess.Popen(
            command,
            env=dict(env),
            stdin=stdin,
            stdout=output,
            stderr=output,
            bufsize=0,
            start_new_session=terminal,
            preexec_fn=before_exec,
        )
        self.stdout = None if self._process.stdout is None else self._process.stdout.fileno()
        self.stderr = None if self._process.stderr is None else self._process.stderr.fileno()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def failed(self) -> bool:
        return self.status is not None and self.status != 0

    def send(self, number: signal.Signals) -> None:
        """To the whole group. Its id stays ours until look() reaps the leader."""
        if self.status is None:
            self.sent = number
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def look(self) -> bool:
        """Whether it has ended since the last look. What remains of its group is killed then."""
        if self.status is not None:
            return False
        if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return False
        # Before the leader is reaped: later the group's id may be another's.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.status = self._process.wait()
        self.ended_at = time.monotonic()
        return True

    def close_pipes(self) -> None:
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


def _inherited(stdin: int | None, direct: bool) -> list[int]:
    """Standard descriptors that the rank has in common with the launcher."""
    return [*([0] if stdin is None else []), *([1, 2] if direct else [])]


def exit_code(status: int) -> int:
    """The exit code that stands for a child's status: 128 + signal where one killed it."""
    return status if status >= 0 else 128 - status


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"  # a real-time signal has no name
