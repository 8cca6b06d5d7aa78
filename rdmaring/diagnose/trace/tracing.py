"""Tracing of a live communicator: on, off, and all ranks' records brought to rank 0."""

from __future__ import annotations

import atexit
import json
import logging
import os
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np

from rdmaring._native import check, ffi, lib
from rdmaring.diagnose.trace import perfetto
from rdmaring.diagnose.trace.clocks import Alignment, align, to_reference
from rdmaring.diagnose.trace.overlap import Summary, summarize
from rdmaring.diagnose.trace.records import DTYPE, Array, RankTrace, Trace
from rdmaring.errors import ArgumentError, RdmaringError
from rdmaring.single import Single

logger = logging.getLogger("rdmaring")

RECORD_COUNT = 1 << 17  # a rank's; 6 MiB
NOTE_BYTES = 512  # what a rank tells of itself
READ_COUNT = 1 << 14
END_S = 10.0  # a program that ends waits so long for the other ranks, then writes what it has
UNKNOWN = Alignment(0, 0, 0)


def start(comm: Any, record_count: int = RECORD_COUNT) -> None:
    """This rank notes what it does from now on. Local."""
    if not 1 <= record_count <= 1 << 28:
        raise ArgumentError(f"record_count is {record_count!r}; accepted are 1 to {1 << 28}")
    comm._check_open()
    check(lib.rr_trace_start(comm._handle, record_count))


def stop(comm: Any) -> tuple[Array, int]:
    """No more. This rank's records on its own clock, and how many were lost. Local."""
    comm._check_open()
    check(lib.rr_trace_stop(comm._handle))
    return read(comm)


def read(comm: Any) -> tuple[Array, int]:
    """Take this rank's records; tracing goes on where it is on. Local."""
    count, lost = ffi.new("uint64_t *"), ffi.new("uint64_t *")
    parts = []
    while True:
        part = np.empty(READ_COUNT, DTYPE)
        room = ffi.cast("rr_trace_record *", part.ctypes.data)
        check(lib.rr_trace_read(comm._handle, room, READ_COUNT, count, lost))
        parts.append(part[: count[0]])
        if count[0] < READ_COUNT:
            return np.concatenate(parts), int(lost[0])


def _aligned(records: Array, begin: Alignment, end: Alignment) -> Array:
    records = records.copy()
    for name in ("begin_ns", "end_ns"):
        records[name] = to_reference(records[name], begin, end)
    return records


def _own(comm: Any, records: Array, lost: int, begin: Alignment, end: Alignment) -> RankTrace:
    return RankTrace(
        comm.rank,
        _aligned(records, begin, end),
        socket.gethostname(),
        os.getpid(),
        end.offset_ns,
        max(begin.error_ns, end.error_ns),
        lost,
    )


def collect(comm: Any, mine: RankTrace, timeout_s: float | None = None) -> Trace | None:
    """Bring all ranks' records to rank 0; None on the others. Collective.

    Memory: on rank 0 all records, elsewhere those of one rank.
    """
    note = {
        "host": mine.host[:64],
        "pid": mine.pid,
        "count": len(mine.records),
        "offset_ns": mine.offset_ns,
        "clock_error_ns": mine.clock_error_ns,
        "lost": mine.lost,
    }
    part = np.zeros(NOTE_BYTES, np.uint8)
    text = json.dumps(note).encode()
    part[: len(text)] = np.frombuffer(text, np.uint8)
    rows = comm.all_gather(part, timeout_s=timeout_s).reshape(comm.size, NOTE_BYTES)
    notes = [json.loads(row.tobytes().rstrip(b"\0")) for row in rows]
    found = []
    for rank, told in enumerate(notes):
        records = mine.records if rank == comm.rank else np.empty(told.pop("count"), DTYPE)
        told.pop("count", None)
        if len(records):
            comm.broadcast(records.view(np.uint8), root=rank, timeout_s=timeout_s)
        if comm.rank == 0:
            found.append(RankTrace(rank, records, **told))
    return Trace(comm.size, tuple(found)) if comm.rank == 0 else None


def own_path(path: Path, rank: int) -> Path:
    """Where a rank writes its own records when they cannot be brought together."""
    return path.with_name(f"{path.name}.rank{rank}")


class Tracing(Single):
    """What ``comm.trace()`` returns: a context manager, entered and left by all ranks together.

    Left without an exception it brings all records to rank 0, which writes ``path`` if there is one; ``trace`` is
    then the Trace there, and None elsewhere. Left by an exception every rank writes ``path``.rankN, its own records
    on its own clock.
    """

    _instead = "read its .trace or its summary(), which may be copied"

    def __init__(self, comm: Any, path: str | os.PathLike[str] | None, record_count: int = RECORD_COUNT) -> None:
        self.path = None if path is None else Path(path)
        self.trace: Trace | None = None
        self._comm = comm
        self._record_count = record_count
        self._begin = UNKNOWN
        if self.path is not None and not self.path.absolute().parent.is_dir():
            raise ArgumentError(f"path is {str(path)!r}: there is no such folder")

    def __enter__(self) -> Tracing:
        self._begin = align(self._comm)
        start(self._comm, self._record_count)
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self._comm._closed:  # closed inside: nothing is left to read
            return
        records, lost = stop(self._comm)
        if kind is not None:
            self._write_own(records, lost)
            return
        try:
            mine = _own(self._comm, records, lost, self._begin, align(self._comm))
            self.trace = collect(self._comm, mine)
        except RdmaringError:
            self._write_own(records, lost)
            raise
        if self.trace is not None and self.path is not None:
            perfetto.write(self.trace, self.path)

    def summary(self) -> Summary | None:
        """The figures, on rank 0 after the end; None elsewhere."""
        return None if self.trace is None else summarize(self.trace)

    def _write_own(self, records: Array, lost: int) -> None:
        if self.path is not None:
            own = _own(self._comm, records, lost, UNKNOWN, UNKNOWN)
            perfetto.write(Trace(self._comm.size, (own,), aligned=False), own_path(self.path, self._comm.rank))


class WholeProgram:
    """RDMARING_TRACE: from init() until the communicator closes, or the program ends.

    ``finish`` raises nothing: a trace is no reason for a program to fail at its end.
    """

    def __init__(self, comm: Any, path: str) -> None:
        self._comm = comm
        self._path = Path(path)
        self._done = False
        start(comm)
        atexit.register(self._at_exit)

    def finish(self, *, alone: bool) -> None:
        """Write the trace. alone: this rank's only; else all ranks' by rank 0, as long as they come within 10 s."""
        if self._done or self._comm._closed:
            return
        self._done = True
        atexit.unregister(self._at_exit)
        comm, records, lost = self._comm, np.empty(0, DTYPE), 0
        try:
            records, lost = stop(comm)
            if alone:
                self._write_own(records, lost)
                return
            comm.barrier(timeout_s=END_S)
            end = align(comm)
            trace = collect(comm, _own(comm, records, lost, end, end), END_S)
            if trace is not None:
                perfetto.write(trace, self._path)
        except (RdmaringError, OSError) as error:
            logger.warning("RDMARING_TRACE: the ranks' records were not brought together: %s", error)
            self._write_own(records, lost)

    def _at_exit(self) -> None:
        # An exception that ended the program: the other ranks may still be at work.
        self.finish(alone=getattr(sys, "last_value", None) is not None)

    def _write_own(self, records: Array, lost: int) -> None:
        path = own_path(self._path, self._comm.rank)
        try:
            own = _own(self._comm, records, lost, UNKNOWN, UNKNOWN)
            perfetto.write(Trace(self._comm.size, (own,), aligned=False), path)
        except OSError as error:
            logger.warning("RDMARING_TRACE: %s cannot be written: %s", path, error)
