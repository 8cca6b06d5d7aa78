"""Which CPU each rank is bound to, and whether binding would do good."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection

LOOK_S = 0.05
OURS = 0.5  # of a CPU's time idle, at least, while none of our ranks runs yet: it is ours to divide

Idle = dict[int, float]  # seconds that each CPU has been idle


def idle_s(path: str = "/proc/stat") -> Idle:
    """proc(5): cpuN user nice system idle iowait ..., in ticks."""
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    with open(path, encoding="ascii") as lines:
        fields = [line.split() for line in lines if line.startswith("cpu")]
    return {int(each[0][3:]): (int(each[4]) + int(each[5])) * tick_s for each in fields if each[0] != "cpu"}


def in_use(cpus: Collection[int], look_s: float = LOOK_S, read: Callable[[], Idle] = idle_s) -> bool:
    """Whether something else keeps one of these CPUs busy: looked at for ``look_s``."""
    try:
        before, begin_s = read(), time.monotonic()
        time.sleep(look_s)
        after, passed_s = read(), time.monotonic() - begin_s
    except OSError:
        return False  # a system that does not tell
    return any(after[cpu] - before[cpu] < OURS * passed_s for cpu in cpus if cpu in before and cpu in after)


def rank_cpus(ranks: int, pin: bool | None, looks: Callable[[Collection[int]], bool] = in_use) -> list[int | None]:
    """The CPU to bind each rank to, or None.

    Of more ranks than CPUs neighbours share one: what goes from one to the next stays in its caches.

    pin: None: where there are more ranks than CPUs, if nothing else uses these. Ranks that share a CPU then hand it to
    each other; but beside a busy neighbour those bound to its CPU wait out its turns, a millisecond and more each,
    while ranks that may move go where there is room.
    """
    cpus = sorted(os.sched_getaffinity(0))
    if pin is None:
        pin = ranks > len(cpus) and not looks(cpus)
    if not pin:
        return [None] * ranks
    return [cpus[rank * len(cpus) // max(ranks, len(cpus))] for rank in range(ranks)]
