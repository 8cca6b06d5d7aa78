"""Closed forms against the simulator, wherever they claim to hold; and where they do not claim it."""

from __future__ import annotations

import os
import random

import pytest

from rdmaring.schedule import ALGORITHMS
from rdmaring.schedule import cost_range as ranges
from rdmaring.schedule.cluster import Costs, LevelCost
from rdmaring.schedule.cost_range import AGREEMENT, RULES, beyond
from rdmaring.schedule.simulate_agreement import CLUSTERS, compared
from rdmaring.schedule.simulate_presets import PRESETS

MIB = 1 << 20
NODE = Costs(LevelCost(1e-6, 1e-10), LevelCost(1e-5, 3e-10), 5e-11, 1e-7, 1e-7)
FEW = [(2, 2), (3, 1), (8, 8), (8, 4), (12, 1), (16, 2)]
WORLDS = (2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17, 24, 31, 32, 33, 48, 64)


@pytest.mark.parametrize(("collective", "algorithm"), sorted(RULES))
def test_forms_say_what_the_simulator_says(collective: str, algorithm: str) -> None:
    cells = list(compared(collective, algorithm, FEW, (8, 65536, 16 * MIB), held_only=True))
    assert cells
    for cell in cells:
        assert abs(cell.deviation) <= AGREEMENT, cell


@pytest.mark.long
@pytest.mark.parametrize(("collective", "algorithm"), sorted(RULES))
def test_forms_say_what_the_simulator_says_everywhere(collective: str, algorithm: str) -> None:
    """2 to 64 ranks, 1 to 8 or all of them a node, 8 B to 1 GiB: cells by a seed that RDMARING_TEST_SEED replays."""
    seed = os.environ.get("RDMARING_TEST_SEED") or str(random.randrange(1 << 30))
    print(f"RDMARING_TEST_SEED={seed}")
    draw = random.Random(f"{seed}/{collective}/{algorithm}")
    count = 0
    for _ in range(300):
        world, nbytes, cluster = draw.choice(WORLDS), 8 << draw.randrange(28), draw.choice(list(CLUSTERS))
        shape = world, min(world, draw.choice((1, 2, 4, 8, 64)))
        for cell in compared(collective, algorithm, [shape], [nbytes], [cluster], held_only=True):
            count += 1
            assert abs(cell.deviation) <= AGREEMENT, cell
    assert count > 10


def test_why_a_form_is_an_estimate() -> None:
    many, one = 64 * MIB, 8
    assert beyond("all_reduce", "ring", many, [8], NODE) is None
    assert beyond("barrier", "ring", one, [8], NODE) is None
    assert beyond("all_reduce", "ring", one, [8, 7], NODE) == ranges.UNEVEN
    assert beyond("all_reduce", "direct", one, [4, 4], NODE) == ranges.SEVERAL
    assert beyond("all_reduce", "halving", one, [6], NODE) == ranges.OTHER_WORLDS
    assert beyond("all_reduce", "halving", many, [8], NODE) == ranges.SLICED
    assert beyond("all_reduce", "ring", many, [8], PRESETS["cpu"].costs) == ranges.SLOW_PROCESSOR
    assert beyond("all_reduce", "ring", one, [8], Costs(NODE.near, NODE.far, 0, 0, 0, 1, 2)) == ranges.SHARED
    assert beyond("all_reduce", "ring", one, [8], NODE, channels=2) == ranges.CHANNELS
    assert beyond("all_reduce", "biring", one, [8], NODE) == ranges.ALWAYS
    assert beyond("all_reduce", "biring", one, [1], NODE) is None
    assert beyond("gather", "direct", one, [1] * 4, CLUSTERS["oversubscribed"]) == ranges.NARROW


def test_rules_are_of_algorithms_that_exist() -> None:
    assert set(RULES) <= set(ALGORITHMS)
