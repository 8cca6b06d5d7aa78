"""Measure every candidate of every collective and size, and find the constants that say the same. Collective."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rdmaring.bench.interleaved import Interleaved
from rdmaring.choice import Chooser, candidates_of
from rdmaring.communicator import Communicator
from rdmaring.tuning.constants import Constants, Table, Times
from rdmaring.tuning.fit import fit

# Those with more than one algorithm: all_to_all has `direct` alone.
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "gather", "scatter")

# A machine has states that last for seconds (which cores share a cache, where the host has them; docs/decisions/0002),
# in which other algorithms are the quickest: a cell is met in several.
PASSES = 3

Advance = Callable[[str, int, int], None]  # what is being measured, how many cells are done, of how many


@dataclass(frozen=True)
class Refused:
    """A candidate that gave ``wrong`` elements which are not the exact result; it is in no table."""

    collective: str
    algorithm: str
    nbytes: int
    wrong: int


@dataclass(frozen=True)
class Measured:
    """Of one run, the same on every rank."""

    table: Table
    refused: tuple[Refused, ...]


def measure(
    comm: Communicator,
    collectives: Sequence[str],
    sizes: Sequence[int],
    budget_s: float,
    advance: Advance | None = None,
) -> Measured:
    """All candidates of each cell in turn, in PASSES over all cells; the mean of each one's medians.

    sizes: bytes of the whole vector, float32. budget_s: about how long; each has its share, but five rounds a pass.
    """
    cells = [(collective, nbytes) for collective in collectives for nbytes in sorted(sizes)] * PASSES
    timer = Interleaved(comm, max(sizes))
    times: dict[tuple[str, str], dict[int, list[float]]] = {}
    refused: list[Refused] = []
    for done, (collective, nbytes) in enumerate(cells):
        if advance is not None:
            advance(f"{collective} of {nbytes} bytes", done, len(cells))
        bad = {each.algorithm for each in refused if each.collective == collective}
        names = [name for name in candidates_of(collective, comm._nodes) if name not in bad]
        for found in timer.times(collective, nbytes, names, budget_s / len(cells)):
            if found.wrong:
                refused.append(Refused(collective, found.algorithm, nbytes, found.wrong))
                times.pop((collective, found.algorithm), None)
            else:
                series = times.setdefault((collective, found.algorithm), {})
                series.setdefault(nbytes, []).append(found.median_s)
    sizes_of_nodes = tuple(count for _, count in sorted(Counter(comm._nodes).items()))
    kept: dict[tuple[str, str], Times] = {
        key: tuple((nbytes, float(np.mean(medians_s))) for nbytes, medians_s in sorted(series.items()))
        for key, series in times.items()
    }
    return Measured(Table(sizes_of_nodes, kept), tuple(refused))


def with_tables(constants: Constants, tables: Sequence[Table]) -> Constants:
    """Constants fitted to all tables, which go with them."""
    return replace(fit(constants, tables), tables=tuple(tables), source="measured now")


def errors(constants: Constants, table: Table, nodes: Sequence[int]) -> dict[str, float]:
    """By collective, the median over cells and algorithms of |predicted / measured - 1|."""
    chooser = Chooser(nodes, constants)
    found: dict[str, list[float]] = {}
    for collective, algorithm, nbytes, seconds in rows_of(table):
        predicted_s = chooser.candidate(collective, algorithm, nbytes).predicted_s
        found.setdefault(collective, []).append(abs(predicted_s / seconds - 1))
    return {collective: float(np.median(each)) for collective, each in found.items()}


def rows_of(table: Table) -> Iterator[tuple[str, str, int, float]]:
    """collective, algorithm, bytes, seconds."""
    for (collective, algorithm), series in table.times.items():
        for nbytes, seconds in series:
            yield collective, algorithm, nbytes, seconds


def best_of(table: Table, collective: str) -> list[tuple[int, str, float]]:
    """By size: the quickest algorithm and its seconds."""
    quickest: dict[int, tuple[str, float]] = {}
    for served, algorithm, nbytes, seconds in rows_of(table):
        if served == collective and (nbytes not in quickest or seconds < quickest[nbytes][1]):
            quickest[nbytes] = (algorithm, seconds)
    return [(nbytes, *quickest[nbytes]) for nbytes in sorted(quickest)]
