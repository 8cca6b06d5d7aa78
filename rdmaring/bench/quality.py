"""How good the choice is: every algorithm of a call timed in turn, the chosen one twice. Collective."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from rdmaring.bench.interleaved import Interleaved
from rdmaring.choice import candidates_of
from rdmaring.communicator import Communicator

WITHIN = 0.05  # of the best is as good as the best, or what A against A differs by if that is more


@dataclass(frozen=True)
class Cell:
    """One call. times_s: median of each candidate; spread: of the chosen one against itself, as |ratio - 1|.

    predicted_s: by the model alone. wrong: candidates whose numbers were.
    """

    collective: str
    nbytes: int
    chosen: str
    times_s: dict[str, float]
    spread: float
    predicted_s: dict[str, float]
    wrong: tuple[str, ...]

    @property
    def best(self) -> str:
        return min(self.times_s, key=lambda name: self.times_s[name])

    @property
    def ratio(self) -> float:
        """Chosen against best; infinite if the chosen one was wrong."""
        return self.times_s.get(self.chosen, float("inf")) / self.times_s[self.best]

    @property
    def good(self) -> bool:
        return self.ratio <= 1 + max(WITHIN, self.spread)

    @property
    def error(self) -> float:
        """|predicted / measured - 1| of the chosen one."""
        return abs(self.predicted_s[self.chosen] / self.times_s.get(self.chosen, float("inf")) - 1)


@dataclass(frozen=True)
class Summary:
    """good: share of cells. error: median of the chosen ones'; error_all: of all candidates'."""

    cells: int
    good: float
    error: float
    error_all: float
    wrong: int


def measure(
    comm: Communicator,
    collectives: Iterable[str],
    sizes: Iterable[int],
    budget_s: float,
    on_cell: Callable[[Cell], None] | None = None,
) -> list[Cell]:
    """Of every collective and size. budget_s: about how long; each cell has its share, but five rounds."""
    wanted = [(collective, nbytes) for collective in collectives for nbytes in sizes]
    timer = Interleaved(comm, max(nbytes for _, nbytes in wanted))
    cells = []
    for collective, nbytes in wanted:
        chosen = comm._chooser.choose(collective, nbytes).algorithm
        others = [name for name in candidates_of(collective, comm._nodes) if name != chosen]
        first, *rest, again = timer.times(collective, nbytes, [chosen, *others, chosen], budget_s / len(wanted))
        times_s = {each.algorithm: each.median_s for each in (first, *rest) if not each.wrong}
        spread = 0.0 if first.wrong else abs(again.median_s / first.median_s - 1)
        if not first.wrong:  # both series are of the chosen one: it is no luckier than the others, which have one
            times_s[chosen] = float(np.median(first.samples_s + again.samples_s))
        asked = [comm._chooser.candidate(collective, name, nbytes) for name in (chosen, *others)]
        predicted_s = {each.algorithm: each.predicted_s for each in asked}
        wrong = tuple(each.algorithm for each in (first, *rest) if each.wrong)
        cells.append(Cell(collective, nbytes, chosen, times_s, spread, predicted_s, wrong))
        if on_cell is not None:
            on_cell(cells[-1])
    return cells


def summary(cells: Iterable[Cell]) -> Summary:
    """Over all cells."""
    known = list(cells)
    every = [
        abs(each.predicted_s[name] / seconds - 1) for each in known for name, seconds in each.times_s.items()
    ]
    return Summary(
        cells=len(known),
        good=sum(each.good for each in known) / len(known),
        error=float(np.median([each.error for each in known])),
        error_all=float(np.median(every)),
        wrong=sum(len(each.wrong) for each in known),
    )
