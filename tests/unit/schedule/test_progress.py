"""Progress: what comes to its end, what does not, and that the order of events does not matter."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from unit.schedule.cases import schedules, title

from rdmaring.schedule import After, Kind, Row, Schedule, ScheduleError, generate
from rdmaring.schedule.progress import SLICE_PATTERNS, check_progress, in_rounds


def tables_of(schedule: Schedule) -> list[Sequence[Row]]:
    return [schedule.rows(rank) for rank in range(schedule.world)]


def test_the_order_of_events_does_not_matter() -> None:
    """Adversarial orders, drawn at random, reach the end just as the fixed one does."""
    for seed in range(6):
        print(f"seed {seed}")
        choose = random.Random(seed)
        for schedule in schedules([2, 3, 4, 6]):
            tables = tables_of(schedule)
            for pattern in SLICE_PATTERNS:
                fixed = check_progress(tables, schedule.window, pattern)
                chance = check_progress(tables, schedule.window, pattern, pick=choose.randrange)
                oldest = check_progress(tables, schedule.window, pattern, pick=lambda _: 0)
                assert fixed == chance == oldest, title(schedule)


def test_a_deadlock_is_one_in_every_order() -> None:
    bad = generate("all_reduce", "direct", 5)
    for seed in range(20):
        with pytest.raises(ScheduleError, match="waits for ever"):
            check_progress(tables_of(bad), 4, (3,), pick=random.Random(seed).randrange)


@pytest.mark.parametrize("pattern", SLICE_PATTERNS)
def test_every_slice_is_sent_once(pattern: tuple[int, ...]) -> None:
    """Slices of all sends, counted from the rows."""
    for schedule in schedules([4]):
        tables = tables_of(schedule)
        wanted = sum(
            pattern[chunk % len(pattern)] * len(row.sends)
            for rank in range(schedule.world)
            for row in schedule.rows(rank)
            for chunk in range(row.chunk_begin, row.chunk_end)
        )
        assert check_progress(tables, schedule.window, pattern) == wanted


def test_two_rows_are_enough_for_the_ring() -> None:
    """Its third row is for speed, not for progress."""
    for schedule in schedules(range(2, 10)):
        if schedule.algorithm == "ring":
            for pattern in SLICE_PATTERNS:
                check_progress(tables_of(schedule), 2, pattern)


@pytest.mark.parametrize("world", [3, 5, 9])
def test_direct_needs_a_window_as_large_as_the_world(world: int) -> None:
    tables = tables_of(generate("all_reduce", "direct", world))
    check_progress(tables, world, (2,))
    with pytest.raises(ScheduleError, match=f"window {world - 1}, 1 credit a link"):
        check_progress(tables, world - 1, (2,))


def test_enough_credit_hides_a_small_window() -> None:
    """Why proofs use one credit: with as many as there are slices even a bad window gets through."""
    tables = tables_of(generate("all_reduce", "direct", 5))
    with pytest.raises(ScheduleError):
        check_progress(tables, 2, (7,))
    check_progress(tables, 2, (7,), credits=7)


def test_an_unmet_receive_is_named() -> None:
    schedule = generate("all_gather", "ring", 3)
    tables = tables_of(schedule)
    tables[1] = [tables[1][0], replace(tables[1][1], sends=()), tables[1][2]]
    with pytest.raises(ScheduleError, match="rank 2 row 2 chunk 0: waits for ever to receive slice 0, for rank 1"):
        check_progress(tables, schedule.window, (1,))


@pytest.mark.parametrize("world", [2, 3, 4, 7])
def test_rounds_come_to_their_end(world: int) -> None:
    """Three rounds, whose cells alternate, send three times what one does."""
    for schedule in schedules([world]):
        tables = tables_of(schedule)
        rounds = in_rounds(tables, 3, schedule.chunk_count, schedule.scratch_cells)
        assert [len(rows) for rows in rounds] == [3 * len(rows) for rows in tables]
        once = check_progress(tables, schedule.window, (2,))
        assert check_progress(rounds, schedule.window, (2,)) == 3 * once, title(schedule)


def test_a_cell_is_used_again_two_rounds_later() -> None:
    """The first row of round 2 waits for what the same cell held in round 0, and for nothing of round 1."""
    tables = tables_of(generate("reduce", "ring", 4, 0))
    first, second, third = in_rounds(tables, 3, 1, 1)[2]
    assert (first.cell, second.cell, third.cell) == (0, 1, 0)
    assert (first.after, second.after, third.after) == ((), (), (After(0, Kind.RELEASED),))
