"""Fitting: constants come back from times that the model itself made, and noise does not carry them off."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rdmaring.choice import Chooser, candidates_of
from rdmaring.schedule.cluster import Costs, LevelCost
from rdmaring.tuning.constants import KINDS, Constants, Table, built_in
from rdmaring.tuning.fit import fit, nonnegative_least_squares

SIZES = [8 << step for step in range(0, 24, 2)]


@pytest.mark.parametrize("seed", range(20))
def test_least_squares_are_the_least_and_not_negative(seed: int) -> None:
    random = np.random.default_rng(seed)
    a = random.normal(size=(12, 5))
    b = random.normal(size=12)
    x = nonnegative_least_squares(a, b)
    assert (x >= 0).all()
    # The conditions of Karush, Kuhn and Tucker, which only the minimum meets.
    slope = a.T @ (a @ x - b)
    assert (slope > -1e-9).all()
    assert np.allclose(slope * x, 0, atol=1e-9)


def test_least_squares_find_what_made_the_numbers() -> None:
    a = np.random.default_rng(5).uniform(size=(30, 6))
    x = np.array([0.0, 1.0, 2.0, 0.0, 0.5, 3.0])
    assert np.allclose(nonnegative_least_squares(a, a @ x), x, atol=1e-9)


def table(constants: Constants, nodes: list[int], noise: float, seed: int = 1) -> Table:
    random = np.random.default_rng(seed)
    chooser = Chooser(nodes, constants)
    times = {
        (collective, name): tuple(
            (nbytes, chooser.candidate(collective, name, nbytes).predicted_s * float(np.exp(random.normal(0, noise))))
            for nbytes in SIZES
        )
        for collective in ("all_reduce", "broadcast")
        for name in candidates_of(collective, nodes)
    }
    sizes = tuple(nodes.count(node) for node in sorted(set(nodes)))
    return Table(sizes, times)


def errors(constants: Constants, measured: Table, nodes: list[int]) -> float:
    chooser = Chooser(nodes, constants)
    found = [
        abs(chooser.candidate(collective, name, nbytes).predicted_s / seconds - 1)
        for (collective, name), series in measured.times.items()
        for nbytes, seconds in series
    ]
    return float(np.median(found))


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("nodes", [[0, 0], [0] * 8, [0, 1, 2, 3], [0, 0, 1, 1]], ids=str)
def test_predictions_follow_what_was_measured(nodes: list[int], noise: float) -> None:
    start = built_in("tcp" if max(nodes) else "shm", 2)
    near, far = LevelCost(4e-6, 0.3e-9, 0.1e-9), LevelCost(900e-6, 8e-9, 0.5e-9)
    truth = Costs(near, far, 0.2e-9, row_s=2e-6, slice_s=1e-6, processors_per_node=2)
    real = replace(start, **dict.fromkeys(KINDS, truth))
    measured = table(real, nodes, noise)
    before = errors(start, measured, nodes)
    after = errors(fit(start, [measured]), measured, nodes)
    assert before > 0.3, "the test needs constants that are wrong at first"
    assert after < 0.05 + noise, (before, after)


def test_what_nothing_tells_of_stays() -> None:
    start = built_in("tcp", 2)
    fitted = fit(start, [table(start, [0, 0], 0.05)])
    assert fitted.rows.far == start.rows.far
    assert fitted.rows_crowded == start.rows_crowded
    assert fitted.mailbox_crowded == start.mailbox_crowded
    assert fit(start, []) == start
