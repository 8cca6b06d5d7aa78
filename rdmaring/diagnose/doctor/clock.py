"""Whether the kernel holds its clock to be synchronized."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass

STA_UNSYNC = 0x0040
TIME_ERROR = 5


class _Timex(ctypes.Structure):
    """struct timex of <sys/timex.h>."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        *((name, ctypes.c_long) for name in ("offset", "freq", "maxerror", "esterror")),
        ("status", ctypes.c_int),
        *((name, ctypes.c_long) for name in ("constant", "precision", "tolerance", "seconds", "microseconds")),
        *((name, ctypes.c_long) for name in ("tick", "ppsfreq", "jitter")),
        ("shift", ctypes.c_int),
        *((name, ctypes.c_long) for name in ("stabil", "jitcnt", "calcnt", "errcnt", "stbcnt")),
        ("tai", ctypes.c_int),
        ("reserved", ctypes.c_int * 11),
    )


@dataclass(frozen=True, slots=True)
class ClockStatus:
    """What adjtimex(2) says. max_error_us: bound of the error that the kernel claims."""

    synchronized: bool
    status: int
    max_error_us: int


def clock_status() -> ClockStatus:
    """Read it; nothing is set. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    timex = _Timex()
    state = libc.adjtimex(ctypes.byref(timex))
    if state < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return ClockStatus(state != TIME_ERROR and not timex.status & STA_UNSYNC, timex.status, timex.maxerror)
