"""Records of a trace as they come from the engine, and the arithmetic of stretches of time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

# rr_trace_record of rdmaring.h, member by member.
DTYPE = np.dtype(
    [
        ("begin_ns", np.uint64),
        ("end_ns", np.uint64),
        ("bytes", np.uint64),
        ("op", np.uint32),
        ("row", np.int32),
        ("order", np.uint32),
        ("slice", np.uint32),
        ("peer", np.int32),
        ("kind", np.uint8),
        ("detail", np.uint8),
        ("flags", np.uint16),
    ]
)

OPERATION, OPEN, RECEIVE, REDUCE, COPY, SEND, CREDIT, DRAIN = range(8)
KINDS = ("operation", "open", "receive", "reduce", "copy", "send", "credit", "drain")
LEFT = 1  # flag: it had not ended when the rank left the operation
CHANNEL_SHIFT = 8  # of flags: above it stands the channel of the link
MODES = ("slot", "read in place", "written in place", "cma", "stream")
CMA = 3  # the mode in which a receive is a copy by the kernel


@dataclass(frozen=True)
class RankTrace:
    """One rank's records, on the clock of rank 0.

    records: of DTYPE, in the order in which they ended. clock_error_ns: how far its times may be off against rank
    0's. offset_ns: what was added to them when the trace ended. lost: records that did not fit.
    """

    rank: int
    records: Array
    host: str = ""
    pid: int = 0
    offset_ns: int = 0
    clock_error_ns: int = 0
    lost: int = 0

    def of(self, *kinds: int) -> Array:
        """The records of these kinds."""
        return self.records[np.isin(self.records["kind"], kinds)]


@dataclass(frozen=True)
class Trace:
    """All ranks' records on one time line. aligned: False where the clocks were not compared."""

    world: int
    ranks: tuple[RankTrace, ...]
    aligned: bool = True

    @property
    def begin_ns(self) -> int:
        """When the first record begins; 0 where there is none."""
        return min((int(each.records["begin_ns"].min()) for each in self.ranks if each.records.size), default=0)

    @property
    def clock_error_ns(self) -> int:
        """The largest of the ranks'; two ranks other than 0 may differ by twice as much."""
        return max((each.clock_error_ns for each in self.ranks), default=0)

    @property
    def lost(self) -> int:
        return sum(each.lost for each in self.ranks)


# ---- stretches of time: int64 arrays of shape (n, 2), begin and end; "merged": ascending and disjoint ----


def stretches(records: Array) -> Array:
    """Begin and end of each record."""
    return np.stack([records["begin_ns"].astype(np.int64), records["end_ns"].astype(np.int64)], axis=1)


def merged(spans: Array) -> Array:
    """Their union."""
    if not len(spans):
        return np.zeros((0, 2), np.int64)
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    ends = np.maximum.accumulate(spans[:, 1])
    first = np.concatenate([[True], spans[1:, 0] > ends[:-1]])
    last = np.concatenate([first[1:], [True]])
    return np.stack([spans[first, 0], ends[last]], axis=1)


def length(spans: Array) -> int:
    """Nanoseconds that merged stretches cover."""
    return int((spans[:, 1] - spans[:, 0]).sum())


def common(first: Array, second: Array) -> Array:
    """What two merged lists both cover, merged."""
    found = []
    i = j = 0
    while i < len(first) and j < len(second):
        begin, end = max(first[i, 0], second[j, 0]), min(first[i, 1], second[j, 1])
        if begin < end:
            found.append((begin, end))
        if first[i, 1] < second[j, 1]:
            i += 1
        else:
            j += 1
    return np.array(found, np.int64).reshape(-1, 2)


def without(spans: Array, taken: Array) -> Array:
    """What merged ``spans`` cover and merged ``taken`` does not, merged."""
    if not len(spans) or not len(taken):
        return spans
    low, high = min(spans[0, 0], taken[0, 0]) - 1, max(spans[-1, 1], taken[-1, 1]) + 1
    edges = np.concatenate([[low], taken.reshape(-1), [high]])
    return common(spans, edges.reshape(-1, 2))
