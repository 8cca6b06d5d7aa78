"""Traces as data: stretches of time, clocks, figures by formula, Perfetto's JSON."""

from __future__ import annotations

import gzip
import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rdmaring._native import ffi
from rdmaring.diagnose.trace import RankTrace, Trace, read, summarize, write
from rdmaring.diagnose.trace.clocks import Alignment, bounds, to_reference
from rdmaring.diagnose.trace.cost import median_interval
from rdmaring.diagnose.trace.overlap import exposed
from rdmaring.diagnose.trace.perfetto import document
from rdmaring.diagnose.trace.records import (
    COPY,
    CREDIT,
    DTYPE,
    KINDS,
    OPEN,
    OPERATION,
    RECEIVE,
    REDUCE,
    SEND,
    common,
    length,
    merged,
    stretches,
    without,
)
from rdmaring.errors import ArgumentError

SEED = random.SystemRandom().randrange(1 << 32)


def record(kind: int, begin: int, end: int, peer: int = -1, **more: int) -> Any:
    made = np.zeros(1, DTYPE)[0]
    for name, value in {"kind": kind, "begin_ns": begin, "end_ns": end, "peer": peer, "row": -1, **more}.items():
        made[name] = value
    return made


def rank_trace(rank: int, *records: Any, **more: Any) -> RankTrace:
    return RankTrace(rank, np.array(list(records), DTYPE), **more)


def test_records_are_those_of_the_header() -> None:
    assert ffi.sizeof("rr_trace_record") == DTYPE.itemsize == 48
    assert DTYPE.names is not None and DTYPE.fields is not None
    for name in DTYPE.names:
        assert ffi.offsetof("rr_trace_record", name) == DTYPE.fields[name][1], name
    for code, name in enumerate(KINDS):
        assert ffi.typeof("rr_trace_kind").relements[f"RR_TRACE_{name.upper()}"] == code


def test_stretches_of_time_against_points() -> None:
    """Every nanosecond of a short time line by itself, as numpy counts it."""
    print(f"seed {SEED}")
    dice = random.Random(SEED)

    def drawn() -> tuple[Any, Any]:
        spans = [(b, b + dice.randrange(12)) for b in (dice.randrange(100) for _ in range(dice.randrange(8)))]
        points = np.zeros(120, bool)
        for begin, end in spans:
            points[begin:end] = True
        return merged(np.array(spans, np.int64).reshape(-1, 2)), points

    for _ in range(300):
        (first, in_first), (second, in_second) = drawn(), drawn()
        assert length(first) == in_first.sum()
        assert length(common(first, second)) == (in_first & in_second).sum()
        assert length(without(first, second)) == (in_first & ~in_second).sum()
        assert (first[1:, 0] > first[:-1, 1]).all()


def test_bounds_hold_the_true_difference() -> None:
    """Nobody leaves before all have entered: whatever each message takes, the truth lies in the bounds."""
    print(f"seed {SEED}")
    dice = random.Random(SEED)
    for _ in range(200):
        difference = dice.randrange(-(10**12), 10**12)  # reference - mine
        enter = np.array([[k * 10**6 + dice.randrange(10**4) for k in range(8)] for _ in range(2)])
        leave = enter.max(axis=0) + np.array([[dice.randrange(1, 10**4) for _ in range(8)] for _ in range(2)])
        reference = np.stack([enter[0], leave[0]], axis=1)
        mine = np.stack([enter[1], leave[1]], axis=1) - difference
        least, most = bounds(mine, reference)
        assert least <= difference <= most
        assert most - least <= min((leave - enter.min(axis=0)).sum(axis=0))


def test_clocks_drift_evenly_between_two_alignments() -> None:
    begin, end = Alignment(1000, 500, 3), Alignment(2000, 700, 4)
    times = np.array([1000, 1500, 2000, 2500], np.uint64)
    np.testing.assert_array_equal(to_reference(times, begin, end), [1500, 2100, 2700, 3300])
    far = np.array([10**18], np.uint64)  # no float in between rounds the nanoseconds away
    there = Alignment(10**18, -(10**17) + 1, 0)
    assert to_reference(far, there, there)[0] == 9 * 10**17 + 1


def two_ranks() -> Trace:
    """Rank 0 sends from 0 to 100 and reduces from 40 to 60; rank 1 reduces from 80 to 120 and waited from 0 to 90."""
    first = rank_trace(
        0,
        record(REDUCE, 40, 60, bytes=8),
        record(SEND, 0, 100, 1, bytes=400, op=1, order=0, slice=0),
        record(OPERATION, 0, 130, bytes=400),
    )
    second = rank_trace(
        1,
        record(OPEN, 0, 10, 0),
        record(RECEIVE, 20, 90, 0, bytes=400, op=1, order=0, slice=0),
        record(REDUCE, 80, 120),
        record(COPY, 115, 125),
        record(CREDIT, 95, 130, 0),
        record(OPERATION, 0, 130, bytes=400),
    )
    return Trace(2, (first, second))


def test_figures_by_formula() -> None:
    found = summarize(two_ranks())
    ns = 1e-9
    zero, one = found.ranks
    # rank 0: transfer 0..100, reduce 40..60; rank 1: transfer 0..100 (to it), reduce 80..120
    assert (zero.transfer_s, zero.reduce_s, zero.overlap_s) == pytest.approx((100 * ns, 20 * ns, 20 * ns))
    assert (one.transfer_s, one.reduce_s, one.overlap_s) == pytest.approx((100 * ns, 40 * ns, 20 * ns))
    assert found.transfer_overlap == pytest.approx(40 / 200)
    assert found.reduce_overlap == pytest.approx(40 / 60)
    # rank 1: late 0..10, data 20..80 (from 80 it reduces), credit 125..130 (reduce to 120, copy to 125)
    assert (one.open_s, one.receive_s, one.credit_s) == pytest.approx((10 * ns, 60 * ns, 5 * ns))
    assert one.exposed_s == pytest.approx(75 * ns)
    assert zero.waited_for_s == pytest.approx(75 * ns) and zero.exposed_s == 0
    assert found.exposed_share == pytest.approx(75 / 260)
    assert one.copy_s == pytest.approx(5 * ns), "what also reduces is counted there"
    (edge,) = found.edges
    assert (edge.source, edge.destination, edge.slices, edge.bytes) == (0, 1, 1, 400)
    assert edge.gb_s == pytest.approx(400 / 100) and edge.receive_s == pytest.approx(60 * ns)
    assert (found.slowest_rank, found.slowest_edge) == (0, (0, 1))


def test_a_copy_by_the_kernel_is_no_wait() -> None:
    rank = rank_trace(1, record(RECEIVE, 0, 50, 0, detail=3), record(RECEIVE, 60, 90, 0, detail=4))
    assert exposed(rank) == [(60, 90, RECEIVE, 0)]


def test_nothing_is_no_figure() -> None:
    found = summarize(Trace(1, (rank_trace(0),)))
    assert (found.transfer_overlap, found.reduce_overlap, found.slowest_rank, found.slowest_edge) == (None,) * 4


def test_perfetto_json(tmp_path: Path) -> None:
    made = document(two_ranks())
    events = made["traceEvents"]
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {"rank 0", "rank 1"}
    slices = [event for event in events if event["ph"] == "X"]
    for event in slices:
        assert event["dur"] >= 0 and event["ts"] >= 0 and (event["pid"], event["tid"]) in threads
        assert isinstance(event["name"], str) and event["cat"]
    for key in threads:  # what Perfetto needs: nothing overlaps on a thread
        spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in slices if (e["pid"], e["tid"]) == key)
        assert all(after[0] >= before[1] for before, after in itertools.pairwise(spans)), threads[key]
    (start,), (finish,) = ([e for e in events if e["ph"] == phase] for phase in "sf")
    assert start["id"] == finish["id"] and start["ts"] <= finish["ts"]
    assert threads[start["pid"], start["tid"]] == "send to 1"
    assert threads[finish["pid"], finish["tid"]] == "receive from 0"
    assert "exposed wait" in threads.values()
    for name in ("t.json", "t.json.gz"):
        write(two_ranks(), tmp_path / name)
        back = read(tmp_path / name)
        assert summarize(back) == summarize(two_ranks())
        for mine, theirs in zip(two_ranks().ranks, back.ranks, strict=True):
            order = np.argsort(mine.records["end_ns"], kind="stable")
            assert {r.tobytes() for r in mine.records[order]} == {r.tobytes() for r in theirs.records}
    assert json.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes())) == json.loads(json.dumps(made))


def test_overlapping_sends_get_threads_of_their_own() -> None:
    sends = [record(SEND, 10 * i, 10 * i + 25, 1, slice=i) for i in range(6)]
    events = document(Trace(2, (rank_trace(0, *sends),)))["traceEvents"]
    threads = [e for e in events if e["name"] == "thread_name" and e["args"]["name"] == "send to 1"]
    assert len(threads) == 3  # as many as are under way at once


def test_own_files_of_ranks_are_read_together(tmp_path: Path) -> None:
    trace = two_ranks()
    for rank in trace.ranks:
        write(Trace(2, (rank,), aligned=False), tmp_path / f"t.json.rank{rank.rank}")
    back = read(tmp_path / "t.json.rank1", tmp_path / "t.json.rank0")
    assert [each.rank for each in back.ranks] == [0, 1] and not back.aligned
    assert stretches(back.ranks[1].of(OPEN)).tolist() == [[0, 10]]
    with pytest.raises(ArgumentError, match="same rank"):
        read(tmp_path / "t.json.rank1", tmp_path / "t.json.rank1")
    (tmp_path / "other.json").write_text('{"traceEvents": []}')
    with pytest.raises(ArgumentError, match="not a trace"):
        read(tmp_path / "other.json")


def test_interval_of_a_median() -> None:
    values = [float(i) for i in range(101)]
    random.Random(1).shuffle(values)
    middle, low, high = median_interval(values)
    # 95 %: 1.96 * sqrt(101) / 2 = 9.8 ranks to either side
    assert middle == 50 and 39 <= low <= 41 and 59 <= high <= 61
