"""The figures of a trace: how far transfers and reductions overlap, who waits for whom, which edge is slow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rdmaring.diagnose.trace.records import (
    CMA,
    COPY,
    CREDIT,
    DRAIN,
    KINDS,
    LEFT,
    OPEN,
    OPERATION,
    RECEIVE,
    REDUCE,
    SEND,
    Array,
    RankTrace,
    Trace,
    common,
    length,
    merged,
    stretches,
    without,
)

WAITS = (OPEN, RECEIVE, CREDIT, DRAIN)


@dataclass(frozen=True)
class RankTimes:
    """Where one rank's time went; seconds. Stretches of one kind that overlap count once.

    operation_s: inside operations. transfer_s: slices were under way, from this rank or to it. reduce_s: passes over
    memory that add. copy_s: passes that only copy, and copies by the kernel (CMA). overlap_s: both a transfer and a
    reduction. exposed_s: waiting with nothing to reduce or copy; of it, open_s for a late rank, receive_s for data,
    credit_s for room in a link, drain_s for peers to finish reading. waited_for_s: how long the other ranks' exposed
    waits were for this one.
    """

    rank: int
    operations: int
    operation_s: float
    transfer_s: float
    reduce_s: float
    copy_s: float
    overlap_s: float
    exposed_s: float
    open_s: float
    receive_s: float
    credit_s: float
    drain_s: float
    waited_for_s: float


@dataclass(frozen=True)
class Edge:
    """One direction of an edge. transfer_s: slices were under way on it (overlapping ones count once).

    gb_s: bytes / transfer_s, in 10^9 bytes a second. receive_s: the destination waited for its data, nothing else to
    do; credit_s: the source waited for room, nothing else to do.
    """

    source: int
    destination: int
    slices: int
    bytes: int
    transfer_s: float
    gb_s: float
    receive_s: float
    credit_s: float


@dataclass(frozen=True)
class Summary:
    """All of it.

    transfer_overlap: share of the transfer time in which the same rank reduces, over all ranks; reduce_overlap: share
    of the reduce time in which the same rank has a transfer under way. None where there is no such time.
    slowest_rank: the one for which others waited longest, its own waits taken off; None in a world of one or where
    nobody waited. slowest_edge: the lowest gb_s.
    """

    world: int
    aligned: bool
    clock_error_ns: int
    records: int
    lost: int
    transfer_overlap: float | None
    reduce_overlap: float | None
    exposed_share: float | None
    slowest_rank: int | None
    slowest_edge: tuple[int, int] | None
    ranks: tuple[RankTimes, ...]
    edges: tuple[Edge, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def _by_cma(records: Array) -> Array:
    """Which records are receives in which the kernel copies: then the rank is busy, and does not wait."""
    found: Array = (records["kind"] == RECEIVE) & (records["detail"] == CMA) & (records["flags"] & LEFT == 0)
    return found


def waits(rank: RankTrace) -> Array:
    """Records in which the rank waited. A receive from a stream is one: its bytes come while it is asked for."""
    records = rank.of(*WAITS)
    found: Array = records[~_by_cma(records)]
    return found


def busy(rank: RankTrace) -> Array:
    """When the rank reduced or copied, by itself or through the kernel; merged."""
    return merged(stretches(rank.records[np.isin(rank.records["kind"], (REDUCE, COPY)) | _by_cma(rank.records)]))


def exposed(rank: RankTrace) -> list[tuple[int, int, int, int]]:
    """(begin_ns, end_ns, kind, peer): when the rank had nothing to do, and what it waited for.

    Disjoint and ascending. Where several waits run at once, the one that began first is named.
    """
    passes = busy(rank)
    records = waits(rank)
    records = records[np.argsort(records["begin_ns"], kind="stable")]
    found: list[tuple[int, int, int, int]] = []
    reached = -(1 << 62)
    for record in records:
        begin, end = max(int(record["begin_ns"]), reached), int(record["end_ns"])
        if end <= begin:
            continue
        reached = end
        near = passes[np.searchsorted(passes[:, 1], begin, "right") : np.searchsorted(passes[:, 0], end, "left")]
        for free in without(np.array([[begin, end]], np.int64), near):
            found.append((int(free[0]), int(free[1]), int(record["kind"]), int(record["peer"])))
    return found


Exposed = Sequence[tuple[int, int, int, int]]


def _total_s(found: Exposed, kind: int | None = None, peer: int | None = None) -> float:
    return sum(end - begin for begin, end, its, who in found if kind in (None, its) and peer in (None, who)) / 1e9


def _transfers(trace: Trace, rank: int) -> Array:
    """When slices were under way from this rank or to it."""
    spans = [np.zeros((0, 2), np.int64)]
    for each in trace.ranks:
        sends = each.of(SEND)
        spans.append(stretches(sends if each.rank == rank else sends[sends["peer"] == rank]))
    return merged(np.concatenate(spans))


def _rank_times(trace: Trace, rank: RankTrace, idle: dict[int, Exposed]) -> RankTimes:
    transfer = _transfers(trace, rank.rank)
    reduce = merged(stretches(rank.of(REDUCE)))
    mine = idle[rank.rank]
    by_kind = {f"{KINDS[kind]}_s": _total_s(mine, kind) for kind in WAITS}
    operations = rank.of(OPERATION)
    return RankTimes(
        rank=rank.rank,
        operations=len(operations),
        operation_s=length(merged(stretches(operations))) / 1e9,
        transfer_s=length(transfer) / 1e9,
        reduce_s=length(reduce) / 1e9,
        copy_s=length(without(busy(rank), reduce)) / 1e9,
        overlap_s=length(common(transfer, reduce)) / 1e9,
        exposed_s=_total_s(mine),
        waited_for_s=sum(_total_s(found, peer=rank.rank) for other, found in idle.items() if other != rank.rank),
        **by_kind,
    )


def _edges(trace: Trace, idle: dict[int, Exposed]) -> tuple[Edge, ...]:
    edges = []
    for each in trace.ranks:
        sends = each.of(SEND)
        for peer in np.unique(sends["peer"]).tolist():
            own = sends[sends["peer"] == peer]
            busy_ns = length(merged(stretches(own)))
            moved = int(own["bytes"].sum())
            edges.append(
                Edge(
                    source=each.rank,
                    destination=peer,
                    slices=len(own),
                    bytes=moved,
                    transfer_s=busy_ns / 1e9,
                    gb_s=moved / busy_ns if busy_ns else 0.0,
                    receive_s=_total_s(idle.get(peer, []), RECEIVE, each.rank),
                    credit_s=_total_s(idle[each.rank], CREDIT, peer),
                )
            )
    return tuple(edges)


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def summarize(trace: Trace) -> Summary:
    """The figures of a trace; pure."""
    idle: dict[int, Exposed] = {each.rank: exposed(each) for each in trace.ranks}
    ranks = tuple(_rank_times(trace, each, idle) for each in trace.ranks)
    both_s = sum(each.overlap_s for each in ranks)
    edges = _edges(trace, idle)
    blamed = max(ranks, key=lambda each: each.waited_for_s - each.exposed_s, default=None)
    timed = [edge for edge in edges if edge.transfer_s > 0 and edge.bytes]
    slow = min(timed, key=lambda edge: edge.gb_s, default=None)
    return Summary(
        world=trace.world,
        aligned=trace.aligned,
        clock_error_ns=trace.clock_error_ns,
        records=sum(len(each.records) for each in trace.ranks),
        lost=trace.lost,
        transfer_overlap=_share(both_s, sum(each.transfer_s for each in ranks)),
        reduce_overlap=_share(both_s, sum(each.reduce_s for each in ranks)),
        exposed_share=_share(sum(each.exposed_s for each in ranks), sum(each.operation_s for each in ranks)),
        slowest_rank=blamed.rank if blamed is not None and blamed.waited_for_s > 0 else None,
        slowest_edge=None if slow is None else (slow.source, slow.destination),
        ranks=ranks,
        edges=edges,
    )
