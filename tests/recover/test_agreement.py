"""The survivors' agreement under every interleaving that seeds reach: no two outcomes, and a live majority ends."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
from recover.simulated import run

from rdmaring.recover.agreement import (
    Accept,
    Accepted,
    Agreement,
    Decided,
    Here,
    Outcome,
    Prepare,
    Promise,
    Record,
    Refused,
)

# RDMARING_ is for the library's own variables.
SEED = int(os.environ.get("AGREEMENT_SEED", "1"))
RUNS = int(os.environ.get("AGREEMENT_RUNS", "800"))


def first_violation(agreement: Any, runs: int) -> tuple[int, list[str]] | None:
    for seed in range(SEED, SEED + runs):
        found = run(seed, agreement)
        if found:
            return seed, found
    return None


def test_no_two_outcomes_and_a_live_majority_ends() -> None:
    found = first_violation(Agreement, RUNS)
    assert found is None, f"seed {found[0]}: {found[1]}" if found else ""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_no_two_outcomes_in_many_runs() -> None:
    found = first_violation(Agreement, 40 * RUNS)
    assert found is None, f"seed {found[0]}: {found[1]}" if found else ""


def test_what_was_said_before_a_death_does_not_acknowledge_it() -> None:
    own = agreement(0, 5, patience_s=10.0)
    own.receive(1, Here(7, 2001, heard=True), 0.0)
    own.take()
    own.bury(4, Record(), 0.1)
    own.receive(1, Here(7, 2001, heard=True), 0.1)  # was on its way
    told = [message for rank, message in own.take() if rank == 1 and isinstance(message, Here)]
    assert [rank for rank, _ in told[-1].dead] == [4]
    assert run(26821) == []  # two survivors waited for each other for ever


class Forgetful(Agreement):
    """Takes what a dead rank had accepted for nothing."""

    def bury(self, rank: int, record: Record, now: float) -> None:
        super().bury(rank, Record(), now)


class Credulous(Agreement):
    """Takes silence for death."""

    def _is_enough(self, survivors: tuple[int, ...]) -> bool:
        return True


class Headstrong(Agreement):
    """Proposes its own outcome whatever others may have decided."""

    def _choose(self) -> None:
        self._promises = {rank: replace(each, outcome=None) for rank, each in self._promises.items()}
        super()._choose()


@pytest.mark.parametrize("mutant", [Forgetful, Credulous, pytest.param(Headstrong, marks=pytest.mark.long)])
def test_the_simulator_finds_what_is_wrong(mutant: type[Agreement]) -> None:
    assert first_violation(mutant, 10 * RUNS) is not None


# ---- one step at a time ----


def agreement(rank: int, size: int, record: Record | None = None, patience_s: float = 10.0) -> Agreement:
    return Agreement(rank, tuple(range(size)), record or Record(), 7, 1000 + rank, 0.0, patience_s)


def test_alone_in_the_world_decides_at_once() -> None:
    own = agreement(0, 1)
    own.tick(0.0)
    assert own.outcome == Outcome((0,), 7, 1000)


def test_the_living_decide_without_waiting_when_the_dead_are_proven() -> None:
    own = agreement(1, 3)
    own.bury(0, Record(), 0.0)
    assert own.outcome is None  # rank 2 has not been heard of
    own.bury(2, Record(), 0.0)
    assert own.outcome == Outcome((1,), 7, 1001)


def test_a_majority_waits_for_a_busy_rank_as_long_as_it_has_patience() -> None:
    own = agreement(1, 3)
    own.receive(2, Here(6, 1002, True), 0.0)
    own.tick(9.0)
    assert not [m for _, m in own.take() if isinstance(m, Prepare)]
    own.tick(10.0)  # but it is not the lowest that may come: there is nobody lower here
    assert [m for _, m in own.take() if isinstance(m, Prepare)]


def test_a_missed_rank_is_not_waited_for() -> None:
    own = agreement(1, 3)
    own.receive(2, Here(6, 1002, True), 0.0)
    own.miss(0, 0.1)
    sent = own.take()
    (ballot,) = {m.ballot for _, m in sent if isinstance(m, Prepare)}
    own.receive(2, Promise(ballot, Record(promised=ballot)), 0.2)
    (proposed,) = {m for _, m in own.take() if isinstance(m, Accept)}
    assert proposed.outcome == Outcome((1, 2), 6, 1001)  # rank 2 had finished op 6 only
    own.receive(2, Accepted(ballot), 0.3)
    assert own.outcome == proposed.outcome
    assert (0, Decided(proposed.outcome)) in own.take()  # it may live


def test_what_a_dead_rank_accepted_is_taken_over() -> None:
    own = agreement(2, 3)
    old = Outcome((0, 1), 5, 1000)
    own.bury(0, Record((1, 0), (1, 0), old), 0.0)
    own.bury(1, Record((1, 0), (1, 0), old), 0.0)
    assert own.outcome == old  # rank 2 is told that it was left out


def test_what_a_dead_rank_had_promised_above_is_minded() -> None:
    own = agreement(2, 3)
    own.bury(0, Record(promised=(9, 0)), 0.0)
    own.bury(1, Record(), 0.0)
    own.tick(1.0)
    own.tick(5.0)
    assert own.outcome == Outcome((2,), 7, 1002)
    assert own.record.promised > (9, 0)


def test_a_promise_is_kept_over_a_second_call() -> None:
    own = agreement(1, 3)
    own.receive(2, Prepare((4, 2)), 0.0)
    again = agreement(1, 3, own.record)
    again.receive(0, Prepare((3, 0)), 1.0)
    assert (0, Refused((3, 0), (4, 2))) in again.take()
    again.receive(0, Accept((3, 0), Outcome((0, 1), 7, 1000)), 1.0)
    assert again.record.outcome is None


def test_whoever_asks_later_is_told() -> None:
    own = agreement(0, 2)
    own.bury(1, Record(), 0.0)
    assert own.outcome is not None
    own.take()
    own.receive(1, Here(3, 1001, False), 1.0)
    assert own.take() == [(1, Decided(own.outcome))]
