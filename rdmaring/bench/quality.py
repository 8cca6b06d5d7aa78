"""How good the choice is: every algorithm of a call timed in turn, the chosen one twice. Collective."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from rdmaring.bench.interleaved import Interleaved, Timed
from rdmaring.choice import Candidate, candidates_of
from rdmaring.communicator import Communicator

WITHIN = 0.05  # of the best is as good as the best, or what A against A differs by if that is more


@dataclass(frozen=True)
class Cell:
    """One call. times_s: median of each candidate; spread: of the chosen one against itself, as |ratio - 1|.

    best: the quickest in one half of the rounds. ratio: chosen against best in the other half, which had no part in
    naming the best: the least of many noisy medians is too low. Infinite if the chosen one was wrong.
    predicted_s: by the model alone. expected_s: what the chosen one was chosen by, a measured time if the tuning file
    has one. wrong: candidates whose numbers were.
    """

    collective: str
    nbytes: int
    chosen: str
    best: str
    ratio: float
    times_s: dict[str, float]
    spread: float
    predicted_s: dict[str, float]
    expected_s: float
    wrong: tuple[str, ...]

    @property
    def good(self) -> bool:
        return self.ratio <= 1 + max(WITHIN, self.spread)

    @property
    def error(self) -> float:
        """|predicted / measured - 1| of the chosen one."""
        return self._off(self.predicted_s[self.chosen])

    @property
    def error_expected(self) -> float:
        """|expected / measured - 1| of the chosen one."""
        return self._off(self.expected_s)

    def _off(self, seconds: float) -> float:
        return abs(seconds / self.times_s.get(self.chosen, float("inf")) - 1)


@dataclass(frozen=True)
class Summary:
    """good: share of cells. error, error_expected: medians of the chosen ones'; error_all: of all candidates'."""

    cells: int
    good: float
    error: float
    error_expected: float
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
        series = timer.times(collective, nbytes, [chosen, *others, chosen], budget_s / len(wanted))
        asked = [comm._chooser.candidate(collective, name, nbytes) for name in (chosen, *others)]
        cells.append(judge(collective, nbytes, series, asked))
        if on_cell is not None:
            on_cell(cells[-1])
    return cells


def judge(collective: str, nbytes: int, series: Sequence[Timed], asked: Sequence[Candidate]) -> Cell:
    """series: of the chosen one, of the others, and of the chosen one again. asked: what was known of them before."""
    first, *rest, again = series
    right = [each for each in (first, *rest) if not each.wrong]
    times_s = {each.algorithm: each.median_s for each in right}
    best, ratio, spread = first.algorithm, float("inf"), 0.0
    if not first.wrong:  # both series are of the chosen one: it is no luckier than the others, which have one
        spread = abs(again.median_s / first.median_s - 1)
        times_s[first.algorithm] = float(np.median(first.samples_s + again.samples_s))
    if right:
        best = min(right, key=lambda each: _half_s(each, 0)).algorithm
    if not first.wrong:
        ratio = _half_s(first, 1) / _half_s(next(each for each in right if each.algorithm == best), 1)
    wrong = tuple(each.algorithm for each in (first, *rest) if each.wrong)
    predicted_s = {each.algorithm: each.predicted_s for each in asked}
    return Cell(
        collective, nbytes, first.algorithm, best, ratio, times_s, spread, predicted_s, asked[0].seconds, wrong
    )


def _half_s(timed: Timed, half: int) -> float:
    """The median of every second pair of rounds: within a pair the order of the candidates is turned about."""
    return float(np.median([sample for turn, sample in enumerate(timed.samples_s) if turn // 2 % 2 == half]))


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
        error_expected=float(np.median([each.error_expected for each in known])),
        error_all=float(np.median(every)),
        wrong=sum(len(each.wrong) for each in known),
    )
