"""How the ranks' clocks differ, found over the communicator itself.

Every rank notes its clock before and after a barrier. Nobody leaves a barrier before all have entered it, so what
rank b's clock said at entry came before what rank a's said at exit: each round bounds the difference of two clocks
from both sides, and the tightest bounds over some rounds are kept. Nothing is assumed of how long a message takes in
which direction; half the distance of the bounds (half of the quickest round trip) is the error, and is told.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rdmaring.diagnose.trace.records import Array

ROUNDS = 24  # barriers: a few dozen round trips find a quick one


@dataclass(frozen=True)
class Alignment:
    """What to add to this rank's clock to have rank 0's, at one moment.

    at_ns: that moment, on this rank's clock. error_ns: how far offset_ns may be off.
    """

    at_ns: int
    offset_ns: int
    error_ns: int


def clock_name() -> int:
    """Equal on ranks that read the same clock: one kernel, one time namespace."""
    try:
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text()
        namespace = os.readlink("/proc/self/ns/time")
    except FileNotFoundError:  # a kernel without time namespaces has one clock; without /proc, nothing is known
        namespace = ""
        try:
            kernel = Path("/proc/sys/kernel/random/boot_id").read_text()
        except FileNotFoundError:
            kernel = secrets.token_hex(16)
    digest = hashlib.sha256(f"{kernel}\n{namespace}".encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def bounds(mine: Array, reference: Array) -> tuple[int, int]:
    """Least and largest value of (reference's clock - mine).

    mine, reference: int64 of shape (rounds, 2): what each clock said before and after each barrier.
    """
    least = int((reference[:, 0] - mine[:, 1]).max())
    most = int((reference[:, 1] - mine[:, 0]).min())
    return least, most


def align(
    comm: Any, clock: Callable[[], int] = time.monotonic_ns, name: int | None = None, rounds: int = ROUNDS
) -> Alignment:
    """This rank's clock against rank 0's. Collective.

    clock: nanoseconds; name: equal on ranks whose clock is the same one; then offset and error are 0.
    """
    stamps = np.zeros((rounds, 2), np.int64)
    comm.barrier()
    for each in stamps:
        each[0] = clock()
        comm.barrier()
        each[1] = clock()
    table = comm.all_gather(stamps.reshape(-1)).reshape(comm.size, rounds, 2)
    names = comm.all_gather(np.array([clock_name() if name is None else name], np.int64))
    at_ns = int(stamps[-1, 1])
    if names[comm.rank] == names[0]:
        return Alignment(at_ns, 0, 0)
    least, most = bounds(table[comm.rank], table[0])
    return Alignment(at_ns, (least + most) // 2, (most - least + 1) // 2)


def to_reference(times_ns: Array, begin: Alignment, end: Alignment) -> Array:
    """Times of this rank's clock as rank 0's: between two alignments clocks are taken to drift evenly."""
    times = times_ns.astype(np.int64)
    span_ns = end.at_ns - begin.at_ns
    if span_ns <= 0 or begin.offset_ns == end.offset_ns:
        return times + end.offset_ns
    drift = (times - begin.at_ns).astype(np.float64) * ((end.offset_ns - begin.offset_ns) / span_ns)
    return times + begin.offset_ns + np.rint(drift).astype(np.int64)
