"""A schedule with one fault must be rejected, whatever the fault and wherever it is."""

from __future__ import annotations

import random

import pytest
from unit.schedule.cases import NAMES, schedules, title, with_rows
from unit.schedule.mutants import Mutant, mutants_of_row

from rdmaring.schedule import Schedule, ScheduleError
from rdmaring.schedule.collectives import collective_named
from rdmaring.schedule.links import match
from rdmaring.schedule.verify import check_table, verify

KINDS = {
    "drop row",
    "drop send",
    "drop receive",
    "duplicate row",
    "wrong chunk",
    "wrong peer",
    "swapped action",
    "wrong order",
    "dropped dependency",
}


def rejection(schedule: Schedule, rank: int) -> str | None:
    """Why verify rejects a schedule whose fault is in the rows of ``rank``; None if it does not.

    Two of verify's own checks go first, for the faulty rank alone: whatever they reject verify rejects,
    too, as it asks the same of all ranks. They only save the time to look at the others.
    """
    try:
        check_table(schedule, collective_named(schedule.collective), rank)
        match([schedule.rows(other) for other in range(schedule.world)], only_rank=rank)
        verify(schedule)
    except ScheduleError as error:
        return str(error)
    return None


def check_mutant(schedule: Schedule, rank: int, mutant: Mutant) -> None:
    """Rejected; or, where it is proven to be the same schedule (mutants.py), accepted: tried at rank 0."""
    if mutant.equivalent and rank > 0:
        return
    reason = rejection(with_rows(schedule, rank, mutant.rows), rank)
    where = f"{title(schedule)}, rank {rank}: {mutant.kind}, {mutant.what}"
    if mutant.equivalent:
        assert reason is None, f"{where}: the same schedule is rejected: {reason}"
    else:
        assert reason is not None, f"{where}: accepted"


# Up to which world every fault of every row is tried: 9, less where that takes minutes. Above it faults are sampled.
EXHAUSTIVE = dict.fromkeys(NAMES, 9) | {("all_reduce", "biring"): 6, ("all_reduce", "halving"): 6}
EXHAUSTIVE["all_to_all", "direct"] = 5


def check_every_mutant(name: tuple[str, str], worlds: range) -> set[str]:
    """The kinds of fault that occurred."""
    seen = set()
    for schedule in schedules(worlds, [name]):
        for rank in range(schedule.world):
            for index in range(len(schedule.rows(rank))):
                for mutant in mutants_of_row(schedule, rank, index):
                    check_mutant(schedule, rank, mutant)
                    seen.add(mutant.kind)
    return seen


@pytest.mark.parametrize("name", NAMES, ids="-".join)
def test_every_single_fault_is_rejected_in_small_worlds(name: tuple[str, str]) -> None:
    seen = check_every_mutant(name, range(1, EXHAUSTIVE[name] + 1))
    assert seen >= {"drop row", "duplicate row", "drop send", "drop receive", "wrong chunk", "wrong peer"}


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [name for name in NAMES if EXHAUSTIVE[name] < 9], ids="-".join)
def test_every_single_fault_is_rejected_up_to_nine_ranks(name: tuple[str, str]) -> None:
    depends = any(row.after for schedule in schedules([9], [name]) for row in schedule.rows(0))
    wanted = KINDS if depends else KINDS - {"dropped dependency"}  # who sends only what it was given waits for nothing
    assert check_every_mutant(name, range(EXHAUSTIVE[name] + 1, 10)) == wanted


def test_every_kind_of_fault_occurs() -> None:
    seen = {
        mutant.kind
        for schedule in schedules([4])
        for rank in range(schedule.world)
        for index in range(len(schedule.rows(rank)))
        for mutant in mutants_of_row(schedule, rank, index)
        if not mutant.equivalent
    }
    assert seen == KINDS


@pytest.mark.parametrize("world", range(7, 18))
def test_sampled_faults_are_rejected_above_small_worlds(world: int) -> None:
    seed = 1000 + world
    print(f"seed {seed}")
    choose = random.Random(seed)
    for schedule in schedules([world], [name for name in NAMES if EXHAUSTIVE[name] < world]):
        for _ in range(6):
            rank = choose.randrange(world)
            index = choose.randrange(len(schedule.rows(rank)))
            mutants = list(mutants_of_row(schedule, rank, index))
            kind = choose.choice(sorted({mutant.kind for mutant in mutants}))
            check_mutant(schedule, rank, choose.choice([mutant for mutant in mutants if mutant.kind == kind]))
