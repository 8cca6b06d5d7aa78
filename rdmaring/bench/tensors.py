"""Many arrays: a call for each, against one call for the list of them. Every function here is collective."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rdmaring._version import __version__
from rdmaring.bench.accuracy import drawn, error_ulp, expected, rounds
from rdmaring.bench.cases import AUTO, Case, Cases, Request
from rdmaring.bench.data import Array, combined, contribution, count_wrong, fill
from rdmaring.bench.measure import batch_s, calls_of, host, largest, links, sum_of
from rdmaring.bench.records import Host
from rdmaring.communicator import Communicator

# How the arrays are handed over: a call for each; a list that was given before; a list of them not seen before; a
# persistent plan of the list; one array of as many elements.
WAYS = ("one_by_one", "list", "new_list", "plan", "one_array")


@dataclass(frozen=True, slots=True)
class TensorLine:
    """One row. case: of one array. times_us: by way, all arrays together: the median of the slowest rank's samples.

    algorithm: what served the list. wrong: elements on all ranks, over all ways; error_ulp: of the list. None: not
    checked.
    """

    case: Case
    tensors: int
    algorithm: str
    times_us: dict[str, float]
    wrong: int | None
    error_ulp: float | None

    @property
    def faster(self) -> float:
        """How many times the list is faster than a call for each array."""
        return self.times_us["one_by_one"] / self.times_us["list"]


@dataclass(frozen=True, slots=True)
class TensorReport:
    """All of one run."""

    world: int
    request: Request
    host: Host
    links: tuple[str, ...]
    lines: tuple[TensorLine, ...]

    @property
    def wrong(self) -> int:
        return sum(line.wrong or 0 for line in self.lines)


class Tensors:
    """``request.tensors`` arrays of one case, on one communicator."""

    def __init__(self, comm: Communicator, request: Request, case: Case) -> None:
        assert request.tensors is not None and case.op is not None
        self._comm, self._case, self._op = comm, case, case.op
        self._make: Callable[[int, Any], Array] = comm.empty if request.registered else np.empty
        self._whole = self._make(request.tensors * case.count, case.dtype)
        if request.registered:  # cut out of one piece of memory: each of its own would be a page at least
            self._each = np.split(self._make(self._whole.size, case.dtype), request.tensors)
        else:
            self._each = [np.empty(case.count, case.dtype) for _ in range(request.tensors)]
        self._more: dict[str, Any] = {} if case.algorithm is None else {"algorithm": case.algorithm}
        if case.op != "sum":
            self._more["op"] = case.op
        self._plan = comm.plan_all_reduce(self._each, **self._more)

    @property
    def algorithm(self) -> str:
        return str(self._plan.algorithm)

    def calls(self) -> dict[str, Callable[[], Any]]:
        """By way, as a user would write it."""
        all_reduce, each, whole, more = self._comm.all_reduce, self._each, self._whole, self._more
        return {
            "one_by_one": lambda: [all_reduce(tensor, **more) for tensor in each],
            "list": lambda: all_reduce(each, **more),
            "new_list": lambda: all_reduce(list(each), **more),
            "plan": self._plan,
            "one_array": lambda: all_reduce(whole, **more),
        }

    def set_all(self, pattern: Array | int) -> None:
        """The arrays, one after the other, and the whole one: a pattern, or one value."""
        if isinstance(pattern, int):
            self._whole[:] = pattern
        else:
            fill(self._whole, pattern, 0)
        for at, tensor in enumerate(self._each):
            tensor[:] = self._whole[at * tensor.size : (at + 1) * tensor.size]

    def count_wrong(self, way: str) -> int:
        """Elements on all ranks that one call on exact data gets wrong."""
        comm, dtype = self._comm, self._case.dtype
        self.set_all(contribution(self._op, dtype, comm.rank, comm.size))
        self.calls()[way]()
        return sum_of(comm, count_wrong(self._result(way), combined(self._op, dtype, comm.size), 0))

    def error_ulp(self) -> float:
        """Of a call of the list."""
        comm, dtype, right = self._comm, self._case.dtype, combined
        if rounds(self._op, dtype):
            self.set_all(drawn(self._op, dtype, comm.rank, comm.size))
            right = expected
        else:
            self.set_all(contribution(self._op, dtype, comm.rank, comm.size))
        self.calls()["list"]()
        return largest(comm, [error_ulp(self._result("list"), right(self._op, dtype, comm.size), 0)])[0]

    def _result(self, way: str) -> Array:
        return self._whole if way == "one_array" else np.concatenate(self._each)


def measure(
    comm: Communicator, request: Request, cases: Cases, on_line: Callable[[TensorLine], None] | None = None
) -> TensorReport:
    """All cases; the ways of each in turn, so that other load on the machine meets all alike."""
    assert request.tensors is not None
    lines = []
    for case in cases.served:
        tensors = Tensors(comm, request, case)
        wrong = sum(tensors.count_wrong(way) for way in WAYS) if request.check else None
        error = tensors.error_ulp() if request.check else None
        tensors.set_all(case.neutral)
        times_us = _times_us(comm, request, tensors.calls())
        lines.append(TensorLine(case, request.tensors, tensors.algorithm, times_us, wrong, error))
        if on_line is not None:
            on_line(lines[-1])
    return TensorReport(comm.size, request, host(), links(comm), tuple(lines))


def _times_us(comm: Communicator, request: Request, calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    counts = {}
    for way, call in calls.items():
        for _ in range(request.warmup):
            call()
        counts[way] = request.batch or calls_of(comm, call)
    samples_s: dict[str, list[float]] = {way: [] for way in calls}
    for _ in range(request.samples):
        for way, call in calls.items():
            samples_s[way].append(batch_s(comm, call, counts[way]))
    return {way: float(np.median(largest(comm, samples_s[way]))) * 1e6 for way in calls}


def tensor_dict(report: TensorReport) -> dict[str, Any]:
    """The report for JSON. Times in us, sizes in bytes."""
    return {
        "rdmaring": __version__,
        "world": report.world,
        "request": asdict(report.request),
        "host": asdict(report.host),
        "links": list(report.links),
        "wrong": report.wrong if report.request.check else None,
        "rows": [
            {
                "collective": line.case.collective,
                "size_bytes": line.case.nbytes,
                "count": line.case.count,
                "tensors": line.tensors,
                "dtype": line.case.dtype.name,
                "op": line.case.op,
                "asked_algorithm": line.case.algorithm or AUTO,
                "algorithm": line.algorithm,
                **{f"{way}_us": line.times_us[way] for way in WAYS},
                "list_faster": line.faster,
                "wrong": line.wrong,
                "error_ulp": line.error_ulp,
            }
            for line in report.lines
        ],
    }
