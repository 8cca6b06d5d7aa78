"""How good the choice is: every algorithm of a call timed in turn, the chosen one twice. Collective."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from rdmaring.bench.interleaved import Interleaved, Timed
from rdmaring.bench.tune import PASSES
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
    """Of every collective and size, in PASSES. budget_s: about how long; each has its share, but five rounds a pass.

    on_cell: told of each, in the last pass.
    """
    wanted = [(collective, nbytes) for collective in collectives for nbytes in sizes]
    timer = Interleaved(comm, max(nbytes for _, nbytes in wanted))
    asked = {each: _asked(comm, *each) for each in wanted}
    passes: dict[tuple[str, int], list[list[Timed]]] = {each: [] for each in wanted}
    for number in range(PASSES):
        for each in wanted:
            names = [candidate.algorithm for candidate in asked[each]]
            passes[each].append(timer.times(*each, [*names, names[0]], budget_s / len(wanted) / PASSES))
            if on_cell is not None and number == PASSES - 1:
                on_cell(judge(*each, passes[each], asked[each]))
    return [judge(*each, passes[each], asked[each]) for each in wanted]


def _asked(comm: Communicator, collective: str, nbytes: int) -> list[Candidate]:
    """The chosen one, then the others."""
    chosen = comm._chooser.choose(collective, nbytes).algorithm
    others = [name for name in candidates_of(collective, comm._nodes) if name != chosen]
    return [comm._chooser.candidate(collective, name, nbytes) for name in (chosen, *others)]


def judge(collective: str, nbytes: int, passes: Sequence[Sequence[Timed]], asked: Sequence[Candidate]) -> Cell:
    """passes: of each, times of the chosen one, of the others, and of the chosen one again. asked: of all, before.

    A time is the mean over passes of medians.
    """
    series = list(zip(*passes, strict=True))  # of each candidate, its pass by pass
    first, again = series[0], series[-1]
    right = [each for each in series[:-1] if not any(timed.wrong for timed in each)]
    wrong = tuple(each[0].algorithm for each in series[:-1] if each not in right)
    times_s = {each[0].algorithm: _mean_s(each) for each in right}
    best, ratio, spread = first[0].algorithm, float("inf"), 0.0
    if right:
        best = min(right, key=lambda each: _mean_s(each, 0))[0].algorithm
    if first in right:  # both series are of the chosen one: it is no luckier than the others, which have one
        spread = abs(_mean_s(again) / _mean_s(first) - 1)
        times_s[first[0].algorithm] = (_mean_s(first) + _mean_s(again)) / 2
        ratio = _mean_s(first, 1) / _mean_s(next(each for each in right if each[0].algorithm == best), 1)
    predicted_s = {each.algorithm: each.predicted_s for each in asked}
    return Cell(
        collective, nbytes, first[0].algorithm, best, ratio, times_s, spread, predicted_s, asked[0].seconds, wrong
    )


def _mean_s(series: Sequence[Timed], half: int | None = None) -> float:
    """half: of every second pair of rounds; within a pair the order of the candidates is turned about."""
    medians = []
    for timed in series:
        kept = [each for turn, each in enumerate(timed.samples_s) if half is None or turn // 2 % 2 == half]
        medians.append(np.median(kept))
    return float(np.mean(medians))


def summary(cells: Iterable[Cell]) -> Summary:
    """Over all cells."""
    known = list(cells)
    every = [abs(each.predicted_s[name] / seconds - 1) for each in known for name, seconds in each.times_s.items()]
    return Summary(
        cells=len(known),
        good=sum(each.good for each in known) / len(known),
        error=float(np.median([each.error for each in known])),
        error_expected=float(np.median([each.error_expected for each in known])),
        error_all=float(np.median(every)),
        wrong=sum(len(each.wrong) for each in known),
    )
