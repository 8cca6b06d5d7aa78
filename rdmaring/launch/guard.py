"""A small process that outlives a launcher killed by SIGKILL, to end what its ranks started.

The ranks themselves die with the launcher (PR_SET_PDEATHSIG); their own children would not.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable


class Guard:
    """Fork it before the launcher has threads; tell it of each rank that ended."""

    def __init__(self, groups: Iterable[int]) -> None:
        receiver, self._sender = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                _watch(receiver, set(groups))
            finally:
                os._exit(0)
        os.close(receiver)

    def ended(self, group: int) -> None:
        """This group is no more; its id may become another's."""
        with contextlib.suppress(BrokenPipeError):  # someone killed the guard
            os.write(self._sender, b"%d\n" % group)

    def close(self) -> None:
        """All groups have ended: let the guard go."""
        os.close(self._sender)
        os.waitpid(self._pid, 0)


def _watch(receiver: int, groups: set[int]) -> None:
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN)
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor != receiver:
            with contextlib.suppress(OSError):  # the one that listed the folder is closed already
                os.close(descriptor)
    heard = b""
    while data := os.read(receiver, 4096):
        *lines, heard = (heard + data).split(b"\n")
        groups -= {int(line) for line in lines}
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
