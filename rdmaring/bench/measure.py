"""Run the cases: check results, time calls, count what moved. Every function here is collective."""

from __future__ import annotations

import gc
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from rdmaring._native import ffi, lib
from rdmaring._version import __version__
from rdmaring.bench import data
from rdmaring.bench.accuracy import drawn, error_ulp, expected, rounds
from rdmaring.bench.cases import IN_PLACE, OUT_OF_PLACE, Case, Cases, Request
from rdmaring.bench.operands import Operands, bind, make_operands
from rdmaring.bench.records import Cell, Host, Line, Report, Traffic, make_cell
from rdmaring.buffers import dtype_code
from rdmaring.communicator import Communicator
from rdmaring.plan import Shape, choice_of
from rdmaring.tuning.fingerprint import cpu_name

SAMPLE_S = 1e-3  # of an automatic batch: beside it, clocks and the spread of the barrier are small
PILOT_S = 2e-4  # from this on a batch tells what a call takes
PILOT_TRIES = 3  # of which the quickest counts: one may have met other load on the machine
CALLS_MAX = 100_000

Progress = Callable[[Case, str], None]


class Bench:
    """Measures on one communicator, with one pair of buffers for all cases."""

    def __init__(self, comm: Communicator, request: Request, cases: Cases) -> None:
        self._comm = comm
        self._request = request
        self._cases = cases
        nbytes = max((case.nbytes for case in cases.served), default=1)
        twice = any(OUT_OF_PLACE in case.places for case in cases.served)
        self._buffers = [self._memory(nbytes) for _ in range(1 + twice)]

    def run(self, on_line: Callable[[Line], None] | None = None, on_cell: Progress | None = None) -> Report:
        """Measure all cases. on_cell: called before each placement of each case; on_line: after each case."""
        lines = []
        for case in self._cases.served:
            lines.append(self._line(case, on_cell))
            if on_line is not None:
                on_line(lines[-1])
        return Report(
            version=__version__,
            world=self._comm.size,
            request=self._request,
            host=host(),
            links=links(self._comm),
            skipped=self._cases.skipped,
            lines=tuple(lines),
        )

    def _memory(self, nbytes: int) -> data.Array:
        return self._comm.empty(nbytes, np.uint8) if self._request.registered else np.empty(nbytes, np.uint8)

    def _line(self, case: Case, on_cell: Progress | None) -> Line:
        comm = self._comm
        choice = choice_of(
            Shape(
                case.collective,
                case.count,
                dtype_code(case.dtype, "dtype"),
                case.dtype.itemsize,
                root=case.root,
                algorithm=case.algorithm,
            ),
            comm._chooser,
        )
        cells: dict[str, Cell] = {}
        traffic = None
        for place in case.places:
            if on_cell is not None:
                on_cell(case, place)
            cells[place], counted = self._cell(case, place, choice.mailbox)
            traffic = counted if traffic is None else traffic
        assert traffic is not None
        return Line(case, comm.size, choice.algorithm, choice.mailbox, cells, traffic)

    def _cell(self, case: Case, place: str, mailbox: bool) -> tuple[Cell, Traffic]:
        comm, request = self._comm, self._request
        operands = make_operands(case, comm.rank, comm.size, self._buffers, in_place=place == IN_PLACE)
        call = bind(comm, case, operands, plan=request.plan)
        operands.set_crafted()
        call()
        traffic = gather_traffic(comm, moved(comm, case, mailbox))
        wrong = sum_of(comm, operands.count_wrong())
        operands.set_neutral(case.neutral)
        for _ in range(request.warmup):
            call()
        calls = request.batch or calls_of(comm, call)
        samples_s = largest(comm, [batch_s(comm, call, calls) for _ in range(request.samples)])
        if request.check:
            operands.set_crafted()
            call()
            wrong += sum_of(comm, operands.count_wrong())
        checked = (wrong, self._error_ulp(case, operands, call)) if request.check else (None, None)
        return make_cell(case, comm.size, samples_s, calls, *checked), traffic

    def _error_ulp(self, case: Case, operands: Operands, call: Callable[[], Any]) -> float:
        """Of any rank's result: of a call on data that round, else of the exact result that the last call left."""
        comm, right = self._comm, operands.right
        if case.op is not None and rounds(case.op, case.dtype):
            replace(operands, contributed=drawn(case.op, case.dtype, comm.rank, comm.size)).set_crafted()
            call()
            wanted = expected(case.op, case.dtype, comm.size)
            right = tuple((begin, end, wanted) for begin, end, _ in right)
        mine = [error_ulp(operands.result[begin:end], pattern, begin) for begin, end, pattern in right]
        return largest(comm, [max(mine, default=0.0)])[0]


def calls_of(comm: Communicator, call: Callable[[], Any]) -> int:
    """How many calls make a sample; all ranks find the same."""
    calls = 1
    while True:
        tries_s = [batch_s(comm, call, calls) for _ in range(PILOT_TRIES)]
        call_s = min(largest(comm, tries_s))
        if call_s * calls >= PILOT_S or calls >= CALLS_MAX:
            return max(1, min(CALLS_MAX, round(SAMPLE_S / call_s)))
        calls *= 4


def batch_s(comm: Communicator, call: Callable[[], Any], calls: int) -> float:
    """Mean seconds of a call on this rank; the ranks begin together."""
    repeat = range(calls)
    with _without_collector():
        comm.barrier()
        begin = time.perf_counter()
        for _ in repeat:
            call()
        return (time.perf_counter() - begin) / calls


@contextmanager
def _without_collector() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def largest(comm: Communicator, mine: list[float]) -> list[float]:
    """Each figure on the rank where it is largest: of times, the slowest rank's."""
    figures = np.array(mine, np.float64)
    comm.all_reduce(figures, op="max")
    return [float(each) for each in figures]


def sum_of(comm: Communicator, mine: int) -> int:
    """Added up over all ranks."""
    found = np.zeros(comm.size, np.int64)
    comm.all_gather(np.array([mine], np.int64), out=found)
    return int(found.sum())


def moved(comm: Communicator, case: Case, mailbox: bool) -> data.Array:
    """What the last call moved, counted here: steps, bytes sent and received, bytes to each rank."""
    last = comm.last
    mine = np.zeros(3 + comm.size, np.int64)
    mine[:3] = last.steps, last.sent_bytes, last.received_bytes
    if mailbox:  # has no links: every rank's message is read by all others
        mine[3:] = case.nbytes
        mine[3 + comm.rank] = 0
    else:
        for peer, (sent, _) in comm.last_links.items():
            mine[3 + peer] = sent
    return mine


def gather_traffic(comm: Communicator, mine: data.Array) -> Traffic:
    """All ranks' ``moved``."""
    table = np.zeros((comm.size, mine.size), np.int64)
    comm.all_gather(mine, out=table)
    return Traffic(
        steps=int(table[:, 0].max()),
        sent=tuple(table[:, 1].tolist()),
        received=tuple(table[:, 2].tolist()),
        links=tuple(tuple(row) for row in table[:, 3:].tolist()),
    )


def host() -> Host:
    """This machine."""
    return Host(
        cpu=cpu_name(),
        cpus=os.cpu_count() or 1,
        simd=str(ffi.string(lib.rr_simd_name()).decode()),
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
    )


def links(comm: Communicator) -> tuple[str, ...]:
    """The kinds of links of this rank."""
    kinds = dict.fromkeys(
        f"{link.transport}, ordinary memory by {link.ordinary}" + (f" ({link.reason})" if link.reason else "")
        for link in comm.links
    )
    return tuple(kinds)
