"""Constants from measured times: least squares of relative errors, none below zero. numpy only, no I/O.

The closed forms are straight in the constants but for which of several things is the slowest, so each step solves a
linear problem around the last answer. Where the times say nothing of a constant it stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rdmaring.schedule.cluster import Costs, Shape
from rdmaring.tuning.constants import Constants, Table
from rdmaring.tuning.model import predicted_s

Floats = NDArray[np.float64]

STEPS = 12
PRIOR = 0.02  # weight of staying where it was, against one measured time's relative error
DIFFERENCE = 1e-3  # relative, for slopes
LEAST = {"s": 1e-8, "byte": 1e-12}  # what a constant is moved by to find its slope, where it is near zero


@dataclass(frozen=True)
class Sample:
    """One measured time."""

    collective: str
    algorithm: str
    nbytes: int
    shape: Shape
    seconds: float


def nonnegative_least_squares(a: Floats, b: Floats) -> Floats:
    """x >= 0 with the least ``|a x - b|``: the active set method of Lawson and Hanson (1974).

    a: (rows, columns); b: (rows,).
    """
    columns = a.shape[1]
    x = np.zeros(columns)
    free = np.zeros(columns, bool)
    slope = a.T @ (b - a @ x)
    tolerance = 1e-10 * max(1.0, float(np.abs(a).max(initial=0.0)) * float(np.abs(b).max(initial=0.0)))
    for _ in range(3 * columns):
        if free.all() or slope[~free].max() <= tolerance:
            break
        free[np.argmax(np.where(free, -np.inf, slope))] = True
        while True:
            trial = np.zeros(columns)
            trial[free] = np.linalg.lstsq(a[:, free], b, rcond=None)[0]
            if trial[free].min() > 0:
                break
            blocking = free & (trial <= 0)
            reach = float((x[blocking] / (x[blocking] - trial[blocking])).min())
            x = x + reach * (trial - x)
            free &= x > 1e-15
            x[~free] = 0.0
            if not free.any():
                break
        x = trial
        slope = a.T @ (b - a @ x)
    return x


def fit(constants: Constants, tables: Sequence[Table]) -> Constants:
    """``constants`` with those replaced that the tables' times tell of."""
    by_kind: dict[str, list[Sample]] = {}
    for table in tables:
        shape = Shape.of_sizes(table.sizes)
        for (collective, algorithm), times in table.times.items():
            for nbytes, seconds in times:
                kind = constants.kind(algorithm, nbytes, shape.ranks, shape.largest)
                by_kind.setdefault(kind, []).append(Sample(collective, algorithm, nbytes, shape, seconds))
    found: dict[str, Any] = {kind: fit_costs(getattr(constants, kind), own) for kind, own in by_kind.items()}
    return replace(constants, **found)


def fit_costs(costs: Costs, samples: Sequence[Sample]) -> Costs:
    """By relative errors: a microsecond counts at 8 bytes, not at 64 MiB."""
    levels = [level for level, used in (("near", _near(samples)), ("far", _far(samples))) if used]
    names = [f"{level}.{part}" for level in levels for part in ("latency_s", "s_per_byte", "cpu_s_per_byte")]
    names += ["reduce_s_per_byte", "row_s", "slice_s"]
    start = np.array([_get(costs, name) for name in names])
    least = np.array([LEAST["byte" if "byte" in name else "s"] for name in names])
    scale = np.maximum(start, least)
    target = np.array([each.seconds for each in samples])

    def predicted(x: Floats) -> Floats:
        trial = _with(costs, names, x)
        return np.array([predicted_s(s.collective, s.algorithm, s.nbytes, s.shape, trial) for s in samples])

    best, best_error = start, _error(predicted(start), target)
    x = start
    for _ in range(STEPS):
        x = _step(predicted, x, scale, start, target)
        error = _error(predicted(x), target)
        if error < best_error:
            best, best_error = x, error
    return _with(costs, names, best)


def _step(predicted: Callable[[Floats], Floats], x: Floats, scale: Floats, start: Floats, target: Floats) -> Floats:
    """Half way to the answer of the problem made straight at x: forms bend where another part becomes the slowest."""
    now = predicted(x)
    slopes = np.empty((len(target), len(x)))
    for at in range(len(x)):
        moved = x.copy()
        moved[at] += DIFFERENCE * scale[at]
        slopes[:, at] = (predicted(moved) - now) / DIFFERENCE  # by steps of one scale
    weights = 1.0 / target
    left = np.vstack([slopes * weights[:, None], PRIOR * np.eye(len(x))])
    right = np.concatenate([(target - now + slopes @ (x / scale)) * weights, PRIOR * start / scale])
    return 0.5 * x + 0.5 * scale * nonnegative_least_squares(left, right)


def _error(predicted: Floats, target: Floats) -> float:
    """The mean of |ln(predicted / measured)|: twice too much is as bad as half."""
    return float(np.abs(np.log(np.maximum(predicted, 1e-12) / target)).mean())


def _near(samples: Sequence[Sample]) -> bool:
    return any(each.shape.largest > 1 for each in samples)


def _far(samples: Sequence[Sample]) -> bool:
    return any(each.shape.nodes > 1 for each in samples)


def _get(costs: Costs, name: str) -> float:
    value: Any = costs
    for part in name.split("."):
        value = getattr(value, part)
    return float(value)


def _with(costs: Costs, names: Sequence[str], x: Floats) -> Costs:
    changed: dict[str, Any] = {}
    for name, value in zip(names, x, strict=True):
        level, _, part = name.partition(".")
        if part:
            changed[level] = replace(changed.get(level, getattr(costs, level)), **{part: float(value)})
        else:
            changed[name] = float(value)
    return replace(costs, **changed)
