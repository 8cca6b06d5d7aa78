"""A probe when the world is made: latency and rate of one edge of each level, and of adding. Then all ranks have them.

One pair of ranks a level is measured, one pair after the other, while the others wait. Rank 0 puts the constants
together and broadcasts them, so that every rank has the same bits.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rdmaring._native import check, ffi, lib
from rdmaring.buffers import CODE_BY_NAME, REDOP_CODE, as_vector, dtype_code
from rdmaring.communicator import Communicator
from rdmaring.plan import NativePlan, Plan, Shape
from rdmaring.schedule.cluster import Costs, LevelCost
from rdmaring.schedule.transfer import transfer
from rdmaring.tuning.constants import KINDS, Constants

BUDGET_S = 0.1  # for all that is measured: with what is told round, less than 200 ms
SMALL_BYTES = 8
LARGE_BYTES = (64 << 10, 1 << 20)  # whose difference is the rate; the larger only if time is left
FIRST = 3  # round trips before it is decided how many more
ROUNDS_MAX = 25
ADDED_BYTES = 256 << 10
LEVELS = ("near", "far")
SIMD_LEVELS = ("scalar", "x86-64-v3", "x86-64-v4")  # native/src/reduce.h

Pair = tuple[int, int]


def pairs_of(nodes: Sequence[int]) -> dict[str, Pair]:
    """By level, two ranks to measure between: of the largest node; the first ranks of the first two nodes."""
    members: dict[int, list[int]] = {}
    for rank, node in enumerate(nodes):
        members.setdefault(node, []).append(rank)
    found = {}
    largest = max(Counter(nodes).items(), key=lambda each: (each[1], -each[0]))[0]
    if len(members[largest]) > 1:
        found["near"] = (members[largest][0], members[largest][1])
    if len(members) > 1:
        first, second = sorted(members)[:2]
        found["far"] = (members[first][0], members[second][0])
    return found


def probed(comm: Communicator) -> Constants:
    """Constants as measured now, the same bits on every rank. Collective; at most about 200 ms on a quiet machine."""
    pairs = pairs_of(comm._nodes)
    found = np.full(2 * len(LEVELS) + 1, np.nan)
    for level, pair in pairs.items():
        at = 2 * LEVELS.index(level)
        found[at : at + 2] = _Edge(comm, pair, BUDGET_S / len(pairs)).measured()
        if pair[0] != 0:  # rank 0 puts all together
            _plan(comm, (pair[0], 0), found[at : at + 2])()
    if comm.rank == 0:
        found[-1] = _adding_s_per_byte()
    comm.broadcast(found)
    levels = {level: found[2 * at : 2 * at + 2].tolist() for at, level in enumerate(LEVELS) if level in pairs}
    return with_measured(comm._chooser.constants, levels, float(found[-1]))


def with_measured(constants: Constants, levels: dict[str, Sequence[float]], gamma: float) -> Constants:
    """levels: seconds one way of a small message, and seconds per byte, NaN where other load hid it.

    The rest stays as it was built in.
    """

    def of(costs: Costs) -> Costs:
        changed: dict[str, Any] = {"reduce_s_per_byte": gamma} if gamma > 0 else {}
        for level, (small_s, s_per_byte) in levels.items():
            # A message one way is a row at each end, and a slice sent and received.
            latency_s = max(0.0, small_s - 2 * (costs.row_s + costs.slice_s))
            was: LevelCost = getattr(costs, level)
            if not s_per_byte > 0:
                s_per_byte = was.s_per_byte
            share = was.cpu_s_per_byte / was.s_per_byte if was.s_per_byte else 0.0
            changed[level] = LevelCost(latency_s, s_per_byte, min(1.0, share) * s_per_byte)
        return replace(costs, **changed)

    def of_mailbox(costs: Costs) -> Costs:
        if "far" not in levels:
            return costs  # nothing that was measured says how a node's mailboxes are
        small_s, s_per_byte = levels["far"]
        latency_s = max(0.0, small_s - 2 * costs.row_s)
        return replace(costs, far=LevelCost(latency_s, s_per_byte if s_per_byte > 0 else costs.far.s_per_byte))

    found: dict[str, Any] = {
        kind: (of_mailbox if kind.startswith("mailbox") else of)(getattr(constants, kind)) for kind in KINDS
    }
    return replace(constants, **found, source="of a probe")


class _Edge:
    """Between two ranks. All ranks make the same operations; the others have nothing to do in them."""

    def __init__(self, comm: Communicator, pair: Pair, budget_s: float) -> None:
        self._comm = comm
        self._pair = pair
        self._begin = time.perf_counter()
        self._budget_s = budget_s
        self._word = comm.empty(SMALL_BYTES, np.uint8)
        self._back = _plan(comm, (pair[1], pair[0]), self._word)

    def measured(self) -> tuple[float, float]:
        """Seconds one way of a small message, and seconds per byte; on the first rank of the pair."""
        less, more = LARGE_BYTES
        small_s = self._round_trip_s(self._word, 0.4, 0.0) / 2
        less_s = self._round_trip_s(self._comm.empty(less, np.uint8), 0.6, 0.0) - small_s
        # On a slow link the larger message would take longer than there is time for.
        more_s = self._round_trip_s(self._comm.empty(more, np.uint8), 1.0, less_s * more / less * FIRST) - small_s
        s_per_byte = (more_s - less_s) / (more - less)
        if not more_s > less_s:  # the larger was left out, or other load on the machine met the smaller
            s_per_byte = more_s / more if more_s > 0 else less_s / less
        return small_s, s_per_byte if s_per_byte > 0 else float("nan")

    def _round_trip_s(self, data: Any, share: float, expected_s: float) -> float:
        """The least of a message there and a small one back, until ``share`` of the time is used; 0: no time."""
        there = _plan(self._comm, self._pair, data)
        times_s: list[float] = []
        left_s = self._begin + self._budget_s * share - time.perf_counter()
        count = self._told(FIRST if expected_s <= left_s else 0)
        while count:
            for _ in range(count):
                begin = time.perf_counter()
                there()
                self._back()
                times_s.append(time.perf_counter() - begin)
            left_s = self._begin + self._budget_s * share - time.perf_counter()
            more = int(left_s / max(times_s[-1], 1e-7)) if len(times_s) == FIRST else 0
            count = self._told(min(ROUNDS_MAX, max(0, more)))
        return min(times_s, default=0.0)  # other load on the machine makes it longer, never shorter

    def _told(self, count: int) -> int:
        """What the pair's first rank says."""
        said = np.array([count], np.int64)
        self._comm.broadcast(said, root=self._pair[0])
        return int(said[0])


def _plan(comm: Communicator, pair: Pair, array: Any) -> Plan:
    vector = as_vector(array, "array", writable=True)
    code = dtype_code(array.dtype, "array")
    shape = Shape("broadcast", array.size, code, array.itemsize, root=pair[0], algorithm="transfer")
    return Plan(comm, NativePlan(comm, shape, transfer(comm.size, *pair)), vector, vector)


def _adding_s_per_byte() -> float:
    """Seconds per byte of one addition of float32, the better of some."""
    count, float32, add = ADDED_BYTES // 4, CODE_BY_NAME["float32"], REDOP_CODE["sum"]
    total, term = np.zeros(count, np.float32), np.ones(count, np.float32)
    sources = ffi.new("void *[]", [ffi.from_buffer(total), ffi.from_buffer(term)])
    level = SIMD_LEVELS.index(ffi.string(lib.rr_simd_name()).decode())
    times_s = []
    for _ in range(10):
        begin = time.perf_counter()
        check(lib.rr_reduce_apply(float32, add, sources[0], sources, 2, count, 1.0, level))
        times_s.append(time.perf_counter() - begin)
    return min(times_s) / ADDED_BYTES
