"""The random schedules of tests/schedules_random.py: what they reach, and that the proof is right about them."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedules_random import EXPECTED, WORLD_MAX, features_of, random_cut, random_schedule, schedules
from unit.schedule.test_machine import check_once

from rdmaring.schedule import Schedule
from rdmaring.schedule.collectives import COLLECTIVES
from rdmaring.schedule.verify import verify

DRAWS = 16  # of each collective, two of each world
LEAST = 1  # times that a feature is seen among all of them


@settings(max_examples=60, deadline=None)
@given(schedules(), st.integers(0, 1 << 32))
def test_what_is_proven_gives_right_numbers_in_any_order(schedule: Schedule, seed: int) -> None:
    """By a machine that shares no code with the proof: slots, reads in place and direct landings, slice by slice."""
    check_once(schedule, seed)


@pytest.mark.long
def test_many_proven_schedules_give_right_numbers_in_any_order() -> None:
    for seed in range(1500):
        for collective in COLLECTIVES:
            schedule = random_schedule(random.Random(seed), collective, 1 + seed % WORLD_MAX)
            for order in range(3):
                check_once(schedule, order)


def test_every_feature_is_reached() -> None:
    seen: Counter[str] = Counter()
    shapes = set()
    for collective in COLLECTIVES:
        for seed in range(DRAWS):
            schedule = random_schedule(random.Random(seed), collective, 1 + seed % WORLD_MAX)
            verify(schedule)
            seen.update(features_of(schedule))
            shapes.add(schedule.identity)
    rare = {feature: seen[feature] for feature in EXPECTED if seen[feature] < LEAST}
    assert not rare, f"of {DRAWS} draws of each collective: {rare}"
    assert len(shapes) > 0.9 * DRAWS * len(COLLECTIVES), "the draws are too much alike"


def test_a_seed_gives_the_same_schedule() -> None:
    for collective in COLLECTIVES:
        first, again = (random_schedule(random.Random(5), collective, 4) for _ in range(2))
        assert first == again
        assert [first.rows(rank) for rank in range(4)] == [again.rows(rank) for rank in range(4)]


def test_blocks_stay_with_giver_and_taker_if_asked() -> None:
    for seed in range(DRAWS):
        for collective in ("all_to_all", "gather", "scatter"):
            schedule = random_schedule(random.Random(seed), collective, 2 + seed % 5, relays=False, edits=0)
            assert "forwarded by a third rank" not in features_of(schedule)


def test_cuts_are_even_uneven_empty_and_in_rounds() -> None:
    seen = set()
    for seed in range(DRAWS):
        schedule = random_schedule(random.Random(seed), "all_gather", 4)
        cut = random_cut(random.Random(seed), schedule, 50)
        assert len(cut.offsets) == schedule.chunk_count + 1
        seen |= {"rounds"} if cut.rounds > 1 else set()
        seen |= {"even"} if len(set(cut.sizes)) == 1 else {"uneven"}
        seen |= {"empty"} if 0 in cut.sizes else set()
    assert seen == {"rounds", "even", "uneven", "empty"}
