"""Time several algorithms on one call, in turn, so that other load on the machine meets all of them alike.

Every function here is collective; what it gives is the same on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rdmaring.bench.cases import EQUAL_PARTS, IN_PLACE, IN_PLACE_ONLY, OUT_OF_PLACE, Case
from rdmaring.bench.measure import batch_s, largest, sum_of
from rdmaring.bench.operands import bind, make_operands
from rdmaring.communicator import Communicator
from rdmaring.schedule.collectives import COLLECTIVES

SAMPLE_S = 1e-3  # of a batch of calls
ROUNDS_MIN, ROUNDS_MAX = 5, 41
CALLS_MAX = 1000
DTYPE = np.dtype(np.float32)


@dataclass(frozen=True)
class Timed:
    """One algorithm. samples_s: of each round, seconds of a call on the slowest rank. wrong: elements, on all ranks."""

    algorithm: str
    samples_s: tuple[float, ...]
    wrong: int

    @property
    def median_s(self) -> float:
        return float(np.median(self.samples_s))


class Interleaved:
    """Measures on one communicator, in memory of its own."""

    def __init__(
        self, comm: Communicator, nbytes_max: int, *, registered: bool = False, dtype: np.dtype[Any] = DTYPE
    ) -> None:
        self._comm = comm
        self._dtype = dtype
        make: Callable[[int, Any], Any] = comm.empty if registered else np.empty
        self._buffers = [make(max(nbytes_max, dtype.itemsize * comm.size), np.uint8) for _ in range(2)]

    def times(self, collective: str, nbytes: int, algorithms: Sequence[str], budget_s: float) -> list[Timed]:
        """In the order of ``algorithms``; one that is named twice is timed twice. Wrong ones have no samples."""
        cases = {name: self._case(collective, nbytes, name) for name in dict.fromkeys(algorithms)}
        calls = {name: self._bound(case) for name, case in cases.items()}
        wrong = {name: self._wrong(case) for name, case in cases.items()}
        right = [at for at, name in enumerate(algorithms) if not wrong[name]]
        for name, case in cases.items():
            if not wrong[name]:
                self._operands(case).set_neutral(0)
        count = {name: self._calls(calls[name]) for name in cases if not wrong[name]}
        round_s = sum(count[algorithms[at]][1] for at in right)
        rounds = max(ROUNDS_MIN, min(ROUNDS_MAX, int(budget_s / max(round_s, 1e-6)))) | 1
        samples: list[list[float]] = [[] for _ in algorithms]
        for turn in range(rounds):
            order = right if turn % 2 == 0 else right[::-1]
            for at in order:
                samples[at].append(batch_s(self._comm, calls[algorithms[at]], count[algorithms[at]][0]))
        return [
            Timed(name, tuple(largest(self._comm, samples[at])) if not wrong[name] else (), wrong[name])
            for at, name in enumerate(algorithms)
        ]

    def _case(self, collective: str, nbytes: int, algorithm: str) -> Case:
        facts = COLLECTIVES[collective]
        parts = self._comm.size if collective in EQUAL_PARTS else 1
        count = max(1, nbytes // self._dtype.itemsize // parts) * parts
        places = (IN_PLACE,) if collective in IN_PLACE_ONLY or facts.reduces else (OUT_OF_PLACE,)
        op, root = "sum" if facts.reduces else None, 0 if facts.rooted else None
        return Case(collective, algorithm, self._dtype, op, root, count, places)

    def _operands(self, case: Case) -> Any:
        in_place = case.places == (IN_PLACE,)
        return make_operands(case, self._comm.rank, self._comm.size, self._buffers, in_place=in_place)

    def _bound(self, case: Case) -> Callable[[], Any]:
        return bind(self._comm, case, self._operands(case), plan=False)

    def _wrong(self, case: Case) -> int:
        """Elements that one call on exact data gets wrong."""
        operands = self._operands(case)
        operands.set_crafted()
        bind(self._comm, case, operands, plan=False)()
        return sum_of(self._comm, operands.count_wrong())

    def _calls(self, call: Callable[[], Any]) -> tuple[int, float]:
        """How many calls make a sample, and what such a sample takes; the same on all ranks."""
        call()
        call_s = min(largest(self._comm, [batch_s(self._comm, call, 1) for _ in range(3)]))
        calls = max(1, min(CALLS_MAX, round(SAMPLE_S / max(call_s, 1e-7))))
        return calls, calls * call_s
