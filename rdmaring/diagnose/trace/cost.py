"""What tracing costs: calls with and without it, in turn, in one job."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from rdmaring.diagnose.trace import tracing

RECORD_COUNT = 1 << 12  # enough for a batch; a ring of default size would be cleared before each
CALLS = 8  # of a batch


@dataclass(frozen=True)
class Cost:
    """Of one size. off_us, on_us: median over the rounds of a batch's quickest call, timed on the slowest rank.

    The quickest of a batch's calls: on a machine with other work most calls are disturbed, and equally with tracing
    off and on. ratio: median of on / off of the rounds, whose two batches run one right after the other; low, high:
    its 95 % confidence interval, by order statistics.
    """

    nbytes: int
    rounds: int
    calls: int
    off_us: float
    on_us: float
    ratio: float
    low: float
    high: float


def median_interval(values: list[float]) -> tuple[float, float, float]:
    """Median, and the order statistics that hold it in 95 of 100 cases."""
    ordered = sorted(values)
    count = len(ordered)
    reach = 0.98 * count**0.5  # 1.96 standard deviations of a binomial with p = 1/2
    low = max(0, int(np.floor(count / 2 - reach)) - 1)
    high = min(count - 1, int(np.ceil(count / 2 + reach)))
    return float(np.median(ordered)), ordered[low], ordered[high]


def _times_s(comm: Any, x: Any, calls: int, algorithm: str | None) -> list[float]:
    """Of each call on this rank; the ranks begin each together."""
    found = []
    for _ in range(calls):
        comm.barrier()
        begin = time.perf_counter()
        comm.all_reduce(x, algorithm=algorithm)
        found.append(time.perf_counter() - begin)
    return found


def measure(
    comm: Any,
    nbytes: int,
    rounds: int,
    *,
    calls: int = CALLS,
    algorithm: str | None = None,
    registered: bool = False,
    same: bool = False,
) -> Cost:
    """Time all_reduce of ``nbytes`` of float32 with tracing off and on, in turn. Collective; equal on all ranks.

    Each round has a batch of either kind; which comes first alternates. same: both are off, which tells how well the
    machine can be measured.
    """
    x = comm.empty(nbytes // 4) if registered else np.zeros(nbytes // 4, np.float32)
    times = np.zeros((rounds, 2, calls))
    _times_s(comm, x, 3, algorithm)
    for number in range(rounds):
        for on in (False, True) if number % 2 == 0 else (True, False):
            traced = on and not same
            if traced:
                tracing.start(comm, RECORD_COUNT)
            _times_s(comm, x, 1, algorithm)  # the caches as the others find them
            times[number, int(on)] = _times_s(comm, x, calls, algorithm)
            if traced:
                tracing.stop(comm)
    comm.all_reduce(times, op="max")
    best = times.min(axis=2)
    ratio, low, high = median_interval((best[:, 1] / best[:, 0]).tolist())
    off_s, on_s = np.median(best, axis=0).tolist()
    return Cost(nbytes, rounds, calls, off_s * 1e6, on_s * 1e6, ratio, low, high)
