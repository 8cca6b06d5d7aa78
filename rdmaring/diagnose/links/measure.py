"""Rate and latency of every directed edge of a live communicator, with every byte checked.

Every function here is collective: all ranks make the same operations in the same order, and those that a transfer is
none of theirs return from it at once. Between pairs they wait for each other, so that a pair is alone on the machine
and the wires unless the caller wants pairs side by side.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rdmaring.buffers import Vector, as_vector, dtype_code
from rdmaring.communicator import Communicator
from rdmaring.diagnose.links.records import GB
from rdmaring.plan import NativePlan, Plan, Shape
from rdmaring.schedule.transfer import transfer

PILOT_BYTES = 256 << 10
MESSAGE_BYTES_MAX = 4 << 20
MESSAGES_MIN, MESSAGES_MAX = 3, 15
WORD_BYTES = 8  # of a latency message, and of what says that data has arrived
ROUND_TRIPS = 30
BUDGET_S = 10.0

Matrix = np.ndarray[Any, np.dtype[np.float64]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Pair = tuple[int, int]  # from, to
Advance = Callable[[str, int, int], None]  # what is being measured, how many are done, of how many


@dataclass(frozen=True)
class Dose:
    """How much goes over an edge at a time, and how often."""

    nbytes: int
    count: int


@dataclass
class Rates:
    """[from, to]; NaN where nothing was measured. wrong: bytes that did not arrive as they were sent."""

    gb_s: Matrix
    message_bytes: Matrix
    message_count: Matrix
    wrong: Matrix


def pairs_of(world: int) -> list[list[Pair]]:
    """All ordered pairs, in rounds of a tournament: in a round, no rank is in two pairs."""
    places = [*range(world), *([-1] if world % 2 else [])]
    rounds: list[list[Pair]] = []
    for _ in range(len(places) - 1):
        half = len(places) // 2
        meet = [(a, b) for a, b in zip(places[:half], reversed(places[half:]), strict=True) if -1 not in (a, b)]
        rounds += [meet, [(b, a) for a, b in meet]]
        places = [places[0], places[-1], *places[1:-1]]
    return rounds


class Measure:
    """Measures on one communicator, with one buffer."""

    def __init__(
        self,
        comm: Communicator,
        *,
        seed: int,
        parallel: bool = False,
        advance: Advance | None = None,
    ) -> None:
        self._comm = comm
        self._seed = seed
        self._parallel = parallel
        self._advance = advance or (lambda what, done, total: None)
        self._buffer = comm.empty(MESSAGE_BYTES_MAX, np.uint8)
        self._word = comm.empty(WORD_BYTES, np.uint8)
        self._answer_s: dict[int, float] = {}  # of each peer: the least time one way

    # ---- what is measured ----

    def pilot(self) -> tuple[Rates, Matrix]:
        """One small message over each edge, and round trips: rates to plan by, and latencies in us."""
        latencies = np.full((self._comm.size, self._comm.size), np.nan)
        for batch in self._progress(self._rounds(), "latencies"):
            for source, target in batch:
                if source < target:
                    found_s = self._round_trips_s(source, target)
                    if self._comm.rank == source:
                        latencies[source, target] = latencies[target, source] = found_s * 1e6 / 2
        rates = self._rates(lambda pair: Dose(PILOT_BYTES, 1), self._rounds(), "rough rates")
        return rates, self._gathered(latencies)

    def rates(self, rough: Rates, budget_s: float) -> Rates:
        """Messages of 1 to 4 MiB over every edge, less where that would take longer than the edge's share of time."""
        rounds = self._rounds()
        share_s = budget_s / max(1, len(rounds))
        return self._rates(lambda pair: dose(float(rough.gb_s[pair]), share_s), rounds, "rates")

    def again(self, pairs: Sequence[Pair], rough: Rates, budget_s: float) -> Rates:
        """Some edges once more, one at a time, each with its share of the time that all edges have."""
        share_s = budget_s / max(1, len(self._rounds()))
        alone = [[pair] for pair in pairs]
        return self._rates(lambda pair: dose(float(rough.gb_s[pair]), share_s), alone, "slow edges again")

    # ---- how ----

    def _rounds(self) -> list[list[Pair]]:
        rounds = pairs_of(self._comm.size)
        return rounds if self._parallel else [[pair] for batch in rounds for pair in batch]

    def _progress(self, rounds: Sequence[list[Pair]], what: str) -> Iterator[list[Pair]]:
        for done, batch in enumerate(rounds):
            self._comm.barrier()
            self._advance(what, done, len(rounds))
            yield batch
        self._comm.barrier()
        self._advance(what, len(rounds), len(rounds))

    def _rates(self, dose_of: Callable[[Pair], Dose], rounds: Sequence[list[Pair]], what: str) -> Rates:
        size = self._comm.size
        own = Rates(*(np.full((size, size), np.nan) for _ in range(4)))
        for batch in self._progress(rounds, what):
            for pair in batch:
                self._measure(pair, dose_of(pair), own)
        return Rates(*(self._gathered(each) for each in (own.gb_s, own.message_bytes, own.message_count, own.wrong)))

    def _measure(self, pair: Pair, sent: Dose, own: Rates) -> None:
        """Each message is answered when it is there; the answer's own time is taken off."""
        source, target = pair
        rank = self._comm.rank
        data = self._plan(pair, self._buffer[: sent.nbytes])
        answer = self._plan((target, source), self._word)
        expected = expected_bytes(self._seed, pair, sent.nbytes) if rank in pair else None
        if rank == source:
            self._buffer[: sent.nbytes] = expected
        times_s, wrong = [], 0
        for _ in range(sent.count + 1):
            if rank == target:
                self._buffer[: sent.nbytes] = ~expected  # type: ignore[operator]
            answer()  # the receiver is ready
            begin = time.perf_counter()
            data()
            answer()
            times_s.append(time.perf_counter() - begin)
            if rank == target:
                wrong += int(np.count_nonzero(self._buffer[: sent.nbytes] != expected))
        if rank == source:
            # The first message opens the way: connections grow their windows, pages are touched.
            median_s = float(np.median(times_s[1:]))
            own.gb_s[pair] = sent.nbytes / max(median_s - self._answer_s.get(target, 0.0), median_s / 2) / GB
            own.message_bytes[pair], own.message_count[pair] = sent.nbytes, sent.count
        if rank == target:
            own.wrong[pair] = wrong

    def _round_trips_s(self, source: int, target: int) -> float:
        there, back = self._plan((source, target), self._word), self._plan((target, source), self._word)
        times_s = []
        for _ in range(ROUND_TRIPS + 3):
            begin = time.perf_counter()
            there()
            back()
            times_s.append(time.perf_counter() - begin)
        for rank, peer in ((source, target), (target, source)):
            if self._comm.rank == rank:
                self._answer_s[peer] = min(times_s) / 2
        return float(np.median(times_s[3:]))

    def _plan(self, pair: Pair, array: Bytes) -> Plan:
        comm = self._comm
        vector: Vector = as_vector(array, "array", writable=True)
        code = dtype_code(array.dtype, "array")
        shape = Shape("broadcast", array.size, code, 1, root=pair[0], algorithm="transfer")
        return Plan(comm, NativePlan(comm, shape, transfer(comm.size, *pair)), vector, vector)

    def _gathered(self, mine: Matrix) -> Matrix:
        """Each entry from the rank that knows it; NaN if none does."""
        size = self._comm.size
        everyone = np.zeros((size, size, size))
        self._comm.all_gather(mine, out=everyone)
        known = ~np.isnan(everyone)
        return np.where(known.any(axis=0), np.where(known, everyone, 0.0).sum(axis=0), np.nan)


def dose(rough_gb_s: float, share_s: float) -> Dose:
    """Messages that fill an edge's share of the time; at least 3, none above 4 MiB, none below the pilot's."""
    fitting = int(rough_gb_s * GB * share_s / (MESSAGES_MIN + 1))
    nbytes = min(MESSAGE_BYTES_MAX, max(PILOT_BYTES, fitting))
    nbytes = 1 << nbytes.bit_length() - 1
    count = int(share_s / (nbytes / (rough_gb_s * GB))) - 1
    return Dose(nbytes, min(MESSAGES_MAX, max(MESSAGES_MIN, count)))


def expected_bytes(seed: int, pair: Pair, nbytes: int) -> Bytes:
    """What goes over an edge; any byte out of place shows."""
    return np.random.default_rng([seed, *pair]).integers(0, 256, nbytes, dtype=np.uint8)
