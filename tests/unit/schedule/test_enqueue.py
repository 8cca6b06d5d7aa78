"""The order of slices on streams: proven for all built-in schedules; what is not right is found."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from unit.schedule.cases import PAIRS_WORLD_MAX, schedules, title, with_rows

from rdmaring.schedule import ALGORITHMS, SHAPED, After, Kind, Row, Schedule, ScheduleError, generate
from rdmaring.schedule.channels import CUT
from rdmaring.schedule.collectives import COLLECTIVES
from rdmaring.schedule.enqueue import Cut, Listed, enqueue_list, uneven_cuts
from rdmaring.schedule.enqueue_proof import check_lists, verify_enqueue

Lists = list[list[Listed]]


def lists_of(schedule: Schedule, cut: Cut) -> Lists:
    return [enqueue_list(schedule.rows(rank), cut) for rank in range(schedule.world)]


def tables_of(schedule: Schedule) -> list[Sequence[Row]]:
    return [schedule.rows(rank) for rank in range(schedule.world)]


@pytest.mark.parametrize("world", [1, 2, 3, 4, 5])
def test_built_in_schedules(world: int) -> None:
    for schedule in schedules([world]):
        try:
            verify_enqueue(schedule)
        except ScheduleError as error:
            pytest.fail(f"{title(schedule)}: {error}")


@pytest.mark.long
@pytest.mark.parametrize("world", range(6, 34))
def test_built_in_schedules_of_larger_worlds(world: int) -> None:
    for schedule in schedules([world]):
        verify_enqueue(schedule)


def test_some_of_larger_worlds() -> None:
    for world in (8, 13):
        for collective, algorithm in sorted(ALGORITHMS):
            if world > PAIRS_WORLD_MAX and COLLECTIVES[collective].per_pair_chunks:
                continue
            schedule = generate(collective, algorithm, world, world // 3 if COLLECTIVES[collective].rooted else None)
            cuts = list(uneven_cuts(schedule.chunk_count))
            verify_enqueue(schedule, [cuts[4]])


def test_a_row_without_bytes_does_not_part_those_of_its_link() -> None:
    schedule = generate("gather", "binomial", 25, 1)  # rank 21 sends four rows to rank 17; the third may be empty
    verify_enqueue(schedule)


@pytest.mark.parametrize("channels", [2, 3])
def test_channels_by_links_of_their_own_or_one(channels: int) -> None:
    for collective, algorithm in sorted(ALGORITHMS):
        if collective not in CUT:
            continue
        schedule = generate(collective, algorithm, 3, 0 if COLLECTIVES[collective].rooted else None, channels=channels)
        for links in (1, channels):
            verify_enqueue(schedule, channels=links)


def test_shapes_of_one_node() -> None:
    for algorithm in SHAPED:
        for world in (2, 5, 8):
            verify_enqueue(generate("all_reduce", algorithm, world, nodes=[7] * world))


@pytest.mark.parametrize("algorithm", SHAPED)
@pytest.mark.parametrize("shape", [(2, 1), (2, 2), (2, 4), (3, 1), (3, 2), (4, 1), (4, 2)], ids=str)
def test_shapes_of_equal_nodes(algorithm: str, shape: tuple[int, int]) -> None:
    count, per = shape
    nodes = [rank // per for rank in range(count * per)]
    for channels in (1, 2, 3):
        schedule = generate("all_reduce", algorithm, len(nodes), nodes=nodes, channels=channels)
        verify_enqueue(schedule, channels=channels)


def test_nodes_of_different_sizes_are_proven_each_time() -> None:
    """Some are right, and some are not: so rdmaring/cuda/attach.py asks."""
    verify_enqueue(generate("all_reduce", "hierarchical", 5, nodes=[0, 0, 0, 1, 1]))
    with pytest.raises(ScheduleError, match="waits for ever for rank 2"):
        verify_enqueue(generate("all_reduce", "hierarchical", 4, nodes=[0, 0, 1, 2]))


def test_a_list_has_every_slice_once() -> None:
    schedule = generate("all_reduce", "ring", 4)
    for cut in uneven_cuts(schedule.chunk_count):
        for rank, listed in enumerate(lists_of(schedule, cut)):
            found = [(item.row, item.slice, item.send) for item in listed]
            assert len(set(found)) == len(found)
            want = sum(cut.span(row, 0).slices * (1 + len(row.sends)) for row in schedule.rows(rank))
            assert len(found) == want


def without_waits(lists: Lists, dice: random.Random) -> Lists | None:
    """One wait of a send for its own pass is left out."""
    found = [
        (rank, at)
        for rank, listed in enumerate(lists)
        for at, item in enumerate(listed)
        if item.after and item.stream.copy
    ]
    if not found:
        return None
    rank, at = dice.choice(found)
    lists[rank][at] = replace(lists[rank][at], after=())
    return lists


def receives_first(lists: Lists, dice: random.Random) -> Lists | None:
    """On all ranks, a send that stands before a pass of another row changes places with it."""
    for listed in lists:
        for at in range(len(listed) - 1):
            first, second = listed[at], listed[at + 1]
            if first.send is not None and second.send is None and first.row != second.row:
                listed[at : at + 2] = [replace(second, after=()), replace(first, after=())]
    return lists


def swapped_slices(lists: Lists, dice: random.Random) -> Lists | None:
    """Two slices of one send change places at one end."""
    for rank in dice.sample(range(len(lists)), len(lists)):
        sends = [at for at, item in enumerate(lists[rank]) if item.send is not None]
        for one, other in pairwise(sends):
            first, second = lists[rank][one], lists[rank][other]
            if (first.row, first.send) == (second.row, second.send):
                lists[rank][one], lists[rank][other] = second, first
                return lists
    return None


@pytest.mark.parametrize(
    ("fault", "words"),
    [(without_waits, "without being after"), (receives_first, "for ever"), (swapped_slices, "receives")],
)
def test_faults_in_lists_are_found(fault: Callable[[Lists, random.Random], Lists | None], words: str) -> None:
    for seed in range(10):
        for world in (2, 3, 5):
            schedule = generate("all_reduce", "ring", world)
            cut = list(uneven_cuts(schedule.chunk_count))[2]
            check_lists(tables_of(schedule), lists_of(schedule, cut), cut)
            wrong = fault(lists_of(schedule, cut), random.Random(seed))
            assert wrong is not None
            with pytest.raises(ScheduleError, match=words):
                check_lists(tables_of(schedule), wrong, cut)


def test_a_dropped_dependency_is_found() -> None:
    """Mutants of rows: a pass that no longer comes after the send whose cell or chunk it overwrites.

    What is not found is ordered all the same, by what another pass before it on the stream has waited for.
    """
    found = tried = 0
    for collective, algorithm in (("all_reduce", "halving"), ("reduce", "tree"), ("all_reduce", "ring")):
        schedule = generate(collective, algorithm, 4, 0 if COLLECTIVES[collective].rooted else None)
        for rank in range(4):
            rows = schedule.rows(rank)
            for index, row in enumerate(rows):
                for after in row.after:
                    if after.kind is not Kind.RELEASED:
                        continue
                    less = replace(row, after=tuple(each for each in row.after if each != after))
                    mutant = with_rows(schedule, rank, [*rows[:index], less, *rows[index + 1 :]])
                    tried += 1
                    try:
                        verify_enqueue(mutant)
                    except ScheduleError:
                        found += 1
    assert (found, tried) == (17, 20)


def test_rows_that_wait_for_each_other_too_deeply_are_refused() -> None:
    """All in one step, the last slice of each before the first of the next: nothing says in which order to begin."""
    schedule = generate("all_reduce", "ring", 2)
    row = schedule.rows(0)[0]
    rows = [replace(row, sends=(), after=(After(index - 1, Kind.DONE),) if index else ()) for index in range(400)]
    chain = [replace(each, step=399 - index) for index, each in enumerate(rows)]
    with pytest.raises(ValueError, match="pulled forward"):
        enqueue_list(chain, Cut((0, 4, 8), 2))
