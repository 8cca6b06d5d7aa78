"""Traces as Chrome's and Perfetto's JSON: written, and read back.

A process is a rank. Its threads: operations; passes over memory (reduce, copy); exposed waits, with what was waited
for; waits for late ranks and readers; and for each peer the link to it, waits for its credit, and the link from it.
A thread's events never overlap: what would gets a further thread of the same name. Arrows go from a slice's send to
its receive.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from rdmaring._version import __version__
from rdmaring.diagnose.trace.overlap import exposed
from rdmaring.diagnose.trace.records import (
    CHANNEL_SHIFT,
    COPY,
    CREDIT,
    DRAIN,
    DTYPE,
    KINDS,
    LEFT,
    MODES,
    OPEN,
    OPERATION,
    RECEIVE,
    REDUCE,
    SEND,
    RankTrace,
    Trace,
)
from rdmaring.errors import ArgumentError
from rdmaring.plan import COLLECTIVE_CODE

Event = dict[str, Any]
FORMAT = "rdmaring trace 1"
EXPOSED = "exposed"  # events that are derived from others
# Of a file that is read: whoever claims more wrote no trace.
FILE_BYTES_MAX = 1 << 28  # unpacked
WORLD_MAX = 1 << 20
TEXT_MAX = 256
READ_BYTES = 1 << 20
TIME_NS_MAX = 1 << 62
COLLECTIVE_NAME = {code: name for name, code in COLLECTIVE_CODE.items()}


def size_text(nbytes: int) -> str:
    """As 16 MiB, or 1000 B where it is no round number."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes >= 1 << shift and nbytes % (1 << shift) == 0:
            return f"{nbytes >> shift} {unit}"
    return f"{nbytes} B"


def _name(record: Any) -> str:
    kind, peer = int(record["kind"]), int(record["peer"])
    size = size_text(int(record["bytes"]))
    if kind == OPERATION:
        return f"{COLLECTIVE_NAME.get(int(record['detail']), '?')} {size}"
    if kind == OPEN:
        return f"rank {peer} is late"
    if kind == DRAIN:
        return f"rank {peer} still reads"
    if kind == CREDIT:
        return f"no credit to {peer}"
    if kind in (SEND, RECEIVE):
        return f"{KINDS[kind]} {size}"
    return f"{KINDS[kind]} {size}" + (f" into slot to {peer}" if peer >= 0 else "")


def _thread(record: Any) -> tuple[int, int, str]:
    """(group, peer, name): threads are sorted by group and peer."""
    kind, peer = int(record["kind"]), int(record["peer"])
    if kind == OPERATION:
        return 0, 0, "operations"
    if kind in (REDUCE, COPY):
        return 1, 0, "reduce, copy"
    if kind in (OPEN, DRAIN):
        return 3, 0, "late ranks, readers"
    if kind == SEND:
        return 4 + 3 * peer, peer, f"send to {peer}"
    if kind == CREDIT:
        return 5 + 3 * peer, peer, f"credit to {peer}"
    return 6 + 3 * peer, peer, f"receive from {peer}"


WAIT_THREAD = (2, 0, "exposed wait")


def _lanes(spans: list[tuple[int, int, Any]]) -> list[list[tuple[int, int, Any]]]:
    """Spread (begin, end, event) over lanes in which nothing overlaps."""
    lanes: list[list[tuple[int, int, Any]]] = []
    for span in sorted(spans, key=lambda each: (each[0], each[1])):
        for lane in lanes:
            if lane[-1][1] <= span[0]:
                lane.append(span)
                break
        else:
            lanes.append([span])
    return lanes


def _arguments(record: Any) -> dict[str, int | str]:
    kind = int(record["kind"])
    found: dict[str, int | str] = {
        name: int(record[name]) for name in ("bytes", "op", "row", "order", "slice", "peer", "detail", "flags")
    }
    if kind in (SEND, RECEIVE):
        found["channel"] = int(record["flags"]) >> CHANNEL_SHIFT
        found["mode"] = MODES[int(record["detail"])] if int(record["detail"]) < len(MODES) else "?"
    if int(record["flags"]) & LEFT:
        found["note"] = "not ended when the rank left the operation"
    return found


class _Writer:
    """Collects the events of a trace."""

    def __init__(self, trace: Trace) -> None:
        self.events: list[Event] = []
        self._begin_ns = trace.begin_ns
        self._sends: dict[tuple[int, ...], Event] = {}
        self._receives: dict[tuple[int, ...], Event] = {}

    def us(self, ns: int) -> float:
        return (ns - self._begin_ns) / 1000

    def rank(self, rank: RankTrace) -> None:
        where = f" on {rank.host}, pid {rank.pid}" if rank.host else ""
        self._meta(rank.rank, 0, "process_name", {"name": f"rank {rank.rank}{where}"})
        self._meta(rank.rank, 0, "process_sort_index", {"sort_index": rank.rank})
        threads: dict[tuple[int, int, str], list[tuple[int, int, Any]]] = {}
        for record in rank.records:
            span = (int(record["begin_ns"]), int(record["end_ns"]), record)
            threads.setdefault(_thread(record), []).append(span)
        threads[WAIT_THREAD] = [(begin, end, f"wait: {KINDS[kind]} {peer}") for begin, end, kind, peer in exposed(rank)]
        number = 0
        for thread in sorted(threads):
            for lane in _lanes(threads[thread]):
                number += 1
                self._meta(rank.rank, number, "thread_name", {"name": thread[2]})
                self._meta(rank.rank, number, "thread_sort_index", {"sort_index": number})
                for begin, end, what in lane:
                    self._event(rank.rank, number, begin, end, what)

    def arrows(self) -> None:
        """From each send to its receive."""
        for number, (key, send) in enumerate(sorted(self._sends.items())):
            receive = self._receives.get(key)
            if receive is None:
                continue
            end = receive["ts"] + receive["dur"]
            at = min(max(send["ts"], receive["ts"]), end)
            common: Event = {"name": "slice", "cat": "slice", "id": number}
            self.events.append({**common, "ph": "s", "pid": send["pid"], "tid": send["tid"], "ts": send["ts"]})
            self.events.append({**common, "ph": "f", "bp": "e", "pid": receive["pid"], "tid": receive["tid"], "ts": at})

    def _meta(self, pid: int, tid: int, name: str, args: dict[str, Any]) -> None:
        self.events.append({"ph": "M", "pid": pid, "tid": tid, "name": name, "args": args})

    def _event(self, pid: int, tid: int, begin: int, end: int, what: Any) -> None:
        event: Event = {"ph": "X", "pid": pid, "tid": tid, "ts": self.us(begin), "dur": (end - begin) / 1000}
        self.events.append(event)
        if isinstance(what, str):
            event |= {"name": what, "cat": EXPOSED}
            return
        kind = int(what["kind"])
        event |= {"name": _name(what), "cat": KINDS[kind], "args": _arguments(what)}
        key = (int(what["op"]), int(what["flags"]) >> CHANNEL_SHIFT, int(what["order"]), int(what["slice"]))
        if kind == SEND:
            self._sends[(pid, int(what["peer"]), *key)] = event
        elif kind == RECEIVE:
            self._receives[(int(what["peer"]), pid, *key)] = event


def document(trace: Trace) -> dict[str, Any]:
    """The JSON object that chrome://tracing and ui.perfetto.dev open."""
    writer = _Writer(trace)
    for rank in trace.ranks:
        writer.rank(rank)
    writer.arrows()
    about = {
        "format": FORMAT,
        "version": __version__,
        "world": trace.world,
        "aligned": trace.aligned,
        "begin_ns": trace.begin_ns,
        "ranks": [
            {
                "rank": each.rank,
                "host": each.host,
                "pid": each.pid,
                "offset_ns": each.offset_ns,
                "clock_error_ns": each.clock_error_ns,
                "lost": each.lost,
            }
            for each in trace.ranks
        ],
    }
    return {"displayTimeUnit": "ns", "otherData": about, "traceEvents": writer.events}


def write(trace: Trace, path: Path) -> None:
    """Save a trace; gzip-packed if the name ends in .gz, which Perfetto opens too."""
    text = json.dumps(document(trace), separators=(",", ":"), allow_nan=False)
    data = text.encode()
    path.write_bytes(gzip.compress(data, 6) if path.suffix == ".gz" else data)


def _records(events: Iterable[Event], begin_ns: int, world: int) -> Any:
    rows = []
    for event in events:
        args = event["args"]
        begin = begin_ns + round(event["ts"] * 1000)
        end = begin + round(event["dur"] * 1000)
        if not 0 <= begin <= end <= TIME_NS_MAX:
            raise ValueError(f"a slice lasts from {begin} to {end} ns")
        _number(args, "peer", -1, world - 1)
        names = ("bytes", "op", "row", "order", "slice", "peer")
        kind = KINDS.index(event["cat"])
        rows.append((begin, end, *(args[name] for name in names), kind, args["detail"], args["flags"]))
    records = np.array(rows, DTYPE)
    return records[np.argsort(records["end_ns"], kind="stable")]


def _number(given: dict[str, Any], name: str, least: int, most: int) -> int:
    value = given[name]
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} is no integer from {least} to {most}")
    return value


def _text(given: dict[str, Any], name: str) -> str:
    value = given[name]
    if not isinstance(value, str) or len(value) > TEXT_MAX:
        raise ValueError(f"{name} is no text of up to {TEXT_MAX} characters")
    return value


def _plain(path: Path) -> bytes:
    """A file's bytes, unpacked; of a packed one no more than is allowed is made."""
    data = bytearray()
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        with gzip.GzipFile(fileobj=file) if packed else contextlib.nullcontext(file) as plain:
            while piece := plain.read(READ_BYTES):
                data += piece
                if len(data) > FILE_BYTES_MAX:
                    raise ValueError(f"it has more than {FILE_BYTES_MAX} bytes")
    return bytes(data)


def _loaded(path: Path) -> tuple[int, bool, list[RankTrace]]:
    """World, whether clocks were compared, ranks. Raises many kinds of errors."""
    loaded = json.loads(_plain(path))
    about, events = loaded["otherData"], loaded["traceEvents"]
    if about["format"] != FORMAT:
        raise ValueError(f"its format is {about['format']!r:.40}")
    world = _number(about, "world", 1, WORLD_MAX)
    begin_ns = _number(about, "begin_ns", 0, TIME_NS_MAX)
    slices = [event for event in events if event["ph"] == "X" and event["cat"] != EXPOSED]
    by_rank: dict[int, list[Event]] = {}
    for event in slices:
        by_rank.setdefault(_number(event, "pid", 0, world - 1), []).append(event)
    ranks = []
    for told in about["ranks"]:
        rank = _number(told, "rank", 0, world - 1)
        ranks.append(
            RankTrace(
                rank=rank,
                records=_records(by_rank.get(rank, []), begin_ns, world),
                host=_text(told, "host"),
                pid=_number(told, "pid", 0, 1 << 31),
                offset_ns=_number(told, "offset_ns", -TIME_NS_MAX, TIME_NS_MAX),
                clock_error_ns=_number(told, "clock_error_ns", 0, TIME_NS_MAX),
                lost=_number(told, "lost", 0, TIME_NS_MAX),
            )
        )
    return world, about["aligned"] is True, ranks


def read(*paths: Path) -> Trace:
    """Traces that ``write`` saved: one, or those that ranks of one job wrote each by itself.

    Raises:
        ArgumentError: a file is no such trace, or two hold the same rank.
        OSError: a file cannot be read.
    """
    ranks: list[RankTrace] = []
    world, aligned = 0, len(paths) == 1
    for path in paths:
        try:
            world, is_aligned, found = _loaded(path)
        except (
            LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, EOFError, zlib.error,
            gzip.BadGzipFile,
        ) as error:  # fmt: skip
            raise ArgumentError(f"{path}: not a trace that rdmaring wrote ({str(error)[:200]!r})") from error
        ranks += found
        aligned = aligned and is_aligned
    ranks.sort(key=lambda each: each.rank)
    if len({each.rank for each in ranks}) != len(ranks):
        raise ArgumentError(f"{', '.join(map(str, paths))}: two of the files hold the same rank")
    return Trace(world, tuple(ranks), aligned)
