"""What is said of the two trees and of the exchanges, for worlds wider than those that are verified."""

from __future__ import annotations

from math import ceil, floor, log2

import pytest
from unit.schedule.formulas import two_trees

from rdmaring.schedule import Op, Row, Schedule, generate
from rdmaring.schedule.exchange import exchanges

WIDE = [2, 3, 4, 5, 31, 32, 33, 100, 1000, 1023, 1024, 1025]


def edges_of(schedule: Schedule, chunk: int, rank: int) -> tuple[set[int], set[int]]:
    """Whom the rank receives from before the sum is whole, and after, of one chunk."""
    rows = [row for row in schedule.rows(rank) if row.chunk_begin == chunk]
    up = {receive.peer for row in rows if row.op is Op.REDUCE for receive in row.receives}
    down = {receive.peer for row in rows if row.op is Op.COPY for receive in row.receives}
    return up, down


@pytest.mark.parametrize("world", WIDE)
def test_a_rank_is_inner_in_one_tree_at_most_and_the_trees_are_those_of_the_recursion(world: int) -> None:
    schedule = generate("all_reduce", "tree", world)
    parents = two_trees(world)
    for rank in range(world):
        children = []
        for tree in (0, 1):
            up, down = edges_of(schedule, tree, rank)
            assert down == ({parents[tree][rank]} - {None})
            assert all(parents[tree][child] == rank for child in up)
            children.append(len(up))
        assert max(children) <= 2 and min(children) == 0
        assert len(schedule.rows(rank)) <= 4


@pytest.mark.parametrize("world", WIDE)
def test_a_rank_of_a_tree_sends_two_vectors_at_most(world: int) -> None:
    assert max(generate("all_reduce", "tree", world).sent(rank) for rank in range(world)) <= 2
    assert max(generate("broadcast", "tree", world, 0).sent(rank) for rank in range(world)) <= 1


@pytest.mark.parametrize("world", WIDE)
@pytest.mark.parametrize("near_first", [False, True])
def test_exchanges_meet_and_leave_every_chunk_to_one_rank(world: int, near_first: bool) -> None:
    steps = {rank: exchanges(rank, world, near_first=near_first) for rank in range(world)}
    for rank, own in steps.items():
        assert len(own) == ceil(log2(world))
        for number, step in enumerate(own):
            assert steps[step.target][number].source == rank
            assert steps[step.target][number].incoming == step.outgoing
            assert len(step.outgoing) <= 3
        assert sum(part.end - part.begin for step in own for part in step.outgoing) == world - 1
    left = [steps[rank][-1].incoming[0] for rank in range(world)]
    assert sorted(part.begin for part in left) == list(range(world))
    if not near_first:
        assert [part.begin for part in left] == list(range(world))


def test_near_partners_first_where_that_is_possible() -> None:
    steps = exchanges(5, 16, near_first=True)
    assert [step.target for step in steps] == [4, 7, 1, 13]
    assert [sum(part.end - part.begin for part in step.outgoing) for step in steps] == [8, 4, 2, 1]
    assert [step.target for step in exchanges(5, 16)] == [13, 1, 7, 4]


@pytest.mark.parametrize("world", [2, 3, 8, 1000, 1 << 16])
def test_tables_of_one_rank_are_short(world: int) -> None:
    """A rank's rows depend on the logarithm of the world, where a row carries ranges of chunks."""

    def count(collective: str, algorithm: str, root: int | None = None) -> int:
        rows: tuple[Row, ...] = generate(collective, algorithm, world, root).rows(world // 3)
        return len(rows)

    assert count("all_reduce", "tree") <= 4
    assert count("broadcast", "tree", 0) == count("reduce", "tree", 0) == 2
    assert count("broadcast", "binomial", 0) == count("reduce", "binomial", 0) == 1
    assert count("all_gather", "doubling") <= 1 + 4 * ceil(log2(world))
    assert count("all_reduce", "halving") <= 8 * ceil(log2(world)) + 2


def test_a_double_tree_row_by_row() -> None:
    """Seven ranks: 3 is the root of the first tree; in the second, one place later, 2 is."""
    schedule = generate("all_reduce", "tree", 7)
    assert schedule.step_count == 2 * floor(log2(7))
    assert edges_of(schedule, 0, 3) == ({1, 5}, set())
    assert edges_of(schedule, 0, 1) == ({0, 2}, {3})
    assert edges_of(schedule, 1, 2) == ({0, 4}, set())
    assert edges_of(schedule, 1, 4) == ({3, 5}, {2})
    assert edges_of(schedule, 1, 0) == ({6, 1}, {2})
