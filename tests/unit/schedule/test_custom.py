"""Schedules of the user's own rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from unit.schedule.cases import schedules, title

from rdmaring.schedule import Schedule, ScheduleError, generate
from rdmaring.schedule.custom import from_rows
from rdmaring.schedule.verify import verify


def again(schedule: Schedule, algorithm: str = "mine") -> Schedule:
    """The same rows as if a user had given them, without dependencies."""
    tables = [[replace(row, after=()) for row in schedule.rows(rank)] for rank in range(schedule.world)]
    return from_rows(
        schedule.collective,
        algorithm,
        tables,
        chunk_count=schedule.chunk_count,
        root=schedule.root,
        window=schedule.window,
    )


def test_given_rows_make_the_same_schedule() -> None:
    for schedule in schedules([1, 2, 5]):
        own = again(schedule)
        verify(own)
        assert own.step_count == schedule.step_count and own.scratch_cells == schedule.scratch_cells
        for rank in range(schedule.world):
            assert own.rows(rank) == schedule.rows(rank), title(schedule)
            assert own.sent(rank) == schedule.sent(rank)


def test_the_identity_is_of_all_rows() -> None:
    ring = generate("all_reduce", "ring", 4)
    own = again(ring)
    assert own.identity == again(ring, "another name").identity
    assert own.identity != ring.identity
    tables = [list(ring.rows(rank)) for rank in range(4)]
    tables[3][2] = replace(tables[3][2], operand_at=0)
    assert from_rows("all_reduce", "mine", tables, chunk_count=4, window=3).identity != own.identity


def test_an_unknown_collective() -> None:
    with pytest.raises(ScheduleError, match="collective must be one of"):
        from_rows("gossip", "mine", [[]], chunk_count=1)
