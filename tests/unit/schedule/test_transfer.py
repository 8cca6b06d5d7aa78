"""A transfer between two ranks."""

from __future__ import annotations

from fractions import Fraction

import pytest

from rdmaring.schedule import ScheduleError
from rdmaring.schedule.encode import decode_rank, encode_rank
from rdmaring.schedule.links import match
from rdmaring.schedule.transfer import transfer
from rdmaring.schedule.verify import verify


@pytest.mark.parametrize(("source", "target"), [(0, 1), (1, 0)])
def test_between_two_it_is_a_broadcast(source: int, target: int) -> None:
    proof = verify(transfer(2, source, target), in_place=True)
    assert proof.sent == tuple(Fraction(rank == source) for rank in range(2))


@pytest.mark.parametrize("world", [2, 3, 7])
def test_two_ranks_have_a_row_and_the_others_none(world: int) -> None:
    identities = set()
    for source in range(world):
        for target in set(range(world)) - {source}:
            schedule = transfer(world, source, target)
            tables = [schedule.rows(rank) for rank in range(world)]
            assert [len(rows) for rows in tables] == [int(rank in (source, target)) for rank in range(world)]
            assert list(match(tables).transfers) == [(source, target)]
            assert decode_rank(encode_rank(schedule, target)).rows == schedule.rows(target)
            identities.add(schedule.identity)
    assert len(identities) == world * (world - 1)


@pytest.mark.parametrize(("source", "target"), [(1, 1), (-1, 0), (0, 3)])
def test_it_needs_two_ranks(source: int, target: int) -> None:
    with pytest.raises(ScheduleError, match=f"a transfer needs two ranks of 0..2, not {source} and {target}"):
        transfer(3, source, target)
