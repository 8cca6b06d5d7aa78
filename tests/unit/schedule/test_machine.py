"""Schedules on real numbers, in random order: the results are numpy's sums."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from unit.schedule.cases import NAMES, schedules, title, with_rows
from unit.schedule.machine import POST_FACTOR, Machine, Vector

from rdmaring.schedule import Schedule, generate
from rdmaring.schedule.collectives import COLLECTIVES


def expected(schedule: Schedule, inputs: list[Vector], rank: int, offsets: list[int]) -> list[tuple[int, Vector]]:
    """What the collective must leave on ``rank``: pieces of the vector, each with its offset."""
    total = np.sum(inputs, axis=0) * POST_FACTOR
    own = slice(offsets[rank], offsets[rank + 1]) if len(offsets) > rank + 1 else slice(0, 0)
    if schedule.collective == "all_reduce":
        return [(0, total)]
    if schedule.collective == "reduce_scatter":
        return [(own.start, total[own])]
    if schedule.collective == "reduce":
        return [(0, total)] if rank == schedule.root else []
    if schedule.collective == "all_to_all":
        found = []
        for s in range(schedule.world):
            chunk = s * schedule.world + rank
            found.append((offsets[chunk], inputs[s][offsets[chunk] : offsets[chunk + 1]]))
        return found
    if schedule.collective == "scatter":
        assert schedule.root is not None
        return [(own.start, inputs[schedule.root][own])]
    if schedule.collective == "gather" and rank != schedule.root:
        return []
    if schedule.collective == "broadcast":
        assert schedule.root is not None
        return [(0, inputs[schedule.root])]
    return [(offsets[r], inputs[r][offsets[r] : offsets[r + 1]]) for r in range(schedule.world)]


def check_once(schedule: Schedule, seed: int) -> None:
    choose = random.Random(seed)
    count = choose.choice((0, 1, schedule.world, *(choose.randrange(2, 40) for _ in range(5))))
    cuts = sorted(choose.randint(0, count) for _ in range(schedule.chunk_count - 1))
    offsets = [0, *cuts, count]
    numbers = np.random.default_rng(seed)
    inputs = [numbers.integers(-1000, 1000, count, dtype=np.int64) for _ in range(schedule.world)]
    per_rank = COLLECTIVES[schedule.collective].per_rank_chunks
    bounds = offsets[:: schedule.chunk_count // schedule.world] if per_rank else offsets
    in_place = choose.random() < 0.5
    machine = Machine(
        schedule,
        inputs,
        offsets,
        in_place=in_place,
        slice_elements=choose.choice((1, 2, 3, 40)),
        seed=seed,
    )
    outputs = machine.run()
    for rank in range(schedule.world):
        where = f"{title(schedule)} rank {rank} seed {seed}"
        for offset, values in expected(schedule, inputs, rank, bounds):
            np.testing.assert_array_equal(outputs[rank][offset : offset + len(values)], values, where)
        if not in_place or (schedule.collective == "reduce" and rank != schedule.root):
            np.testing.assert_array_equal(machine.inputs[rank], inputs[rank], f"{where}: input changed")


@pytest.mark.parametrize("name", NAMES, ids="-".join)
def test_results_are_those_of_numpy(name: tuple[str, str]) -> None:
    for schedule in schedules(range(1, 7), [name]):
        for seed in range(12):
            check_once(schedule, seed)


def test_a_dropped_dependency_shows_as_a_wrong_sum() -> None:
    """The machine can see a race: without its dependencies the ring reuses a cell too early."""
    schedule = generate("reduce_scatter", "ring", 5)
    assert any(row.after for row in schedule.rows(1))
    broken = with_rows(schedule, 1, [replace(row, after=()) for row in schedule.rows(1)])
    wrong = 0
    for seed in range(60):
        try:
            check_once(broken, seed)
        except AssertionError:
            wrong += 1
    assert wrong > 0
