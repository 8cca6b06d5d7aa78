"""What is asked of a schedule beside its proof before it is bound, and the chunk table that it is bound to."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import own_algorithms as own
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdmaring.choice import SCRATCH_CELL_BYTES
from rdmaring.plan import Shape, _offsets, _rounds
from rdmaring.schedule import Buffer, Flag, Op, Receive, Row, ScheduleError, Send, generate
from rdmaring.schedule.bind import check_bound
from rdmaring.schedule.own_rows import proven
from rdmaring.schedule.rows import CELLS_MAX, SOURCES_MAX
from rdmaring.schedule.verify import verify

I, O, S = Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH  # noqa: E741


# ---- counts by pair ----


def by_way_of_the_last(rank: int, world: int) -> list[Row]:
    """What rank 0 has for rank 1 goes by way of the last; all else directly."""
    last = world - 1
    rows = [own.keep(rank * world + rank)]
    for d in own.others(rank, world):
        to, lands = (last, None) if (rank, d) == (0, 1) else (d, O)
        rows.append(own.give(rank * world + d, to, lands))
    if rank == last:
        rows.append(own.pass_on(0, 1, 0, 0, I, 1, O))
    for s in own.others(rank, world):
        way = (s, rank) == (0, 1)
        rows.append(own.take(s * world + rank, last if way else s, S if way else I, step=int(way)))
    return rows


def test_a_forwarder_is_named_and_may_forward_equal_parts() -> None:
    for world in (3, 4):
        found = proven(by_way_of_the_last, "all_to_all", world, None)
        check_bound(found, paired=False)
        text = f"rank {world - 1} row {world} chunk 1: algorithm 'by_way_of_the_last' has this rank handle what rank 0"
        with pytest.raises(ScheduleError, match=text) as refused:
            check_bound(found, paired=True)
        assert (refused.value.rank, refused.value.row, refused.value.chunk) == (world - 1, world, 1)


@pytest.mark.parametrize("algorithm", [own.all_to_all_direct, own.all_to_all_copies, own.all_to_all_landing])
def test_what_only_the_two_ends_handle_binds(algorithm: Any) -> None:
    for world in (1, 2, 3, 5):
        check_bound(proven(algorithm, "all_to_all", world, None), paired=True)


def test_the_parts_of_two_pairs_are_not_one_row() -> None:
    """Of two ranks chunks 1 and 2 lie side by side, and both ends know both."""

    def swap(rank: int, world: int) -> list[Row]:
        mine = own.give_copy(1, 2, 0, lands=None) if not rank else own.give_copy(2, 3, 0, lands=None)
        return [own.keep(3 * rank), replace(mine, chunk_begin=1, chunk_end=3, sends=(Send(1 - rank, None),))]

    tables = [swap(rank, 2) for rank in range(2)]
    direct = generate("all_to_all", "direct", 2)
    schedule = replace(direct, algorithm="swap", make_rows=lambda rank: tuple(tables[rank]))
    with pytest.raises(ScheduleError, match="rank 0 row 1 chunk 1: algorithm 'swap' sends the parts of several pairs"):
        check_bound(schedule, paired=True)
    check_bound(schedule, paired=False)


# ---- what one row adds ----


def test_more_vectors_than_a_pass_adds_are_refused_by_all() -> None:
    def to_the_root(rank: int, world: int, root: int) -> list[Row]:
        return list(generate("reduce", "direct", world, root).rows(rank))

    check_bound(proven(to_the_root, "reduce", SOURCES_MAX, 2), paired=False)
    over = proven(to_the_root, "reduce", SOURCES_MAX + 1, 2)
    with pytest.raises(ScheduleError, match="rank 2 row 0 chunk 0: algorithm 'to_the_root' receives from 64 ranks"):
        check_bound(over, paired=False)
    with pytest.raises(ScheduleError, match="rank 3 row 0 chunk 0: algorithm 'direct' receives from 64 ranks"):
        check_bound(generate("reduce", "direct", SOURCES_MAX + 1, 3), paired=False, known=True)
    check_bound(generate("reduce", "ring", SOURCES_MAX + 1, 3), paired=False, known=True)


def test_limits_are_those_of_the_engine() -> None:
    source = Path(__file__).parents[3] / "native" / "src"
    assert f"#define RR_COMBINE_SOURCES_MAX {SOURCES_MAX}u" in (source / "reduce.h").read_text()
    assert f"#define RR_TABLE_MAX (1u << {CELLS_MAX.bit_length() - 1})" in (source / "rows.h").read_text()


# ---- the chunk table ----


def shape(collective: str, counts: list[int], **more: Any) -> Shape:
    offsets = (0, *np.cumsum(counts).tolist())
    return Shape(collective, offsets[-1], 0, more.pop("element_bytes", 8), offsets=offsets, **more)


@given(
    collective=st.sampled_from(["gather", "scatter", "all_gather", "reduce_scatter"]),
    counts=st.lists(st.integers(0, 300), min_size=1, max_size=6),
    parts=st.integers(1, 7),
    element_bytes=st.sampled_from([1, 2, 4, 8]),
)
@settings(max_examples=300, deadline=None)
def test_a_ranks_chunks_are_cut_out_of_its_count(
    collective: str, counts: list[int], parts: int, element_bytes: int
) -> None:
    world = len(counts)
    rooted = collective in ("gather", "scatter")
    schedule = generate(collective, "direct", world, 0 if rooted else None)
    several = replace(schedule, chunk_count=world * parts)
    table = _offsets(shape(collective, counts, element_bytes=element_bytes), several, 1)
    assert len(table) == world * parts + 1
    assert all(before <= after for before, after in pairwise(table))
    assert [table[rank * parts] for rank in range(world + 1)] == [0, *np.cumsum(counts)]


def test_rounds_are_what_all_ranks_know() -> None:
    large = SCRATCH_CELL_BYTES // 8 * 3 + 1
    copies = proven(own.all_to_all_copies, "all_to_all", 2, None)
    mine, theirs = shape("all_to_all", [0, large, 5, 0], paired=True), shape("all_to_all", [0, 3, 5, 0], paired=True)
    assert [_rounds(each, copies, each.offsets or (), built_in=False) for each in (mine, theirs)] == [1, 1]
    chain = proven(own.gather_chain, "gather", 3, 0)
    counts = shape("gather", [1, 2 * large, 0])
    assert _rounds(counts, chain, _offsets(counts, chain, 1), built_in=False) == 4
    whole = proven(own.gather_copies, "gather", 3, 0)  # a row of several chunks lies in its cell as a whole
    assert _rounds(counts, whole, _offsets(counts, whole, 1), built_in=False) == 1


# ---- fields ----

HUGE = 1 << 40


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"buffer": 1}, "rank 0 row 0: buffer must be a Buffer, not 1"),
        ({"operand": 0}, "operand must be a Buffer, not 0"),
        ({"op": 1}, "op must be a Op, not 1"),
        ({"flags": 1}, "flags must be a Flag, not 1"),
        ({"flags": Flag(1 << 17)}, "flags 0x20000 are unknown"),
        ({"step": 0.0}, "step must be an integer of 32 bits, not 0.0"),
        ({"step": HUGE}, "step must be an integer of 32 bits"),
        ({"chunk_end": HUGE}, "chunk_end must be an integer of 32 bits"),
        ({"chunk_end": "1"}, "chunk_end must be an integer of 32 bits, not '1'"),
        ({"chunk_begin": -HUGE}, "chunk_begin must be an integer of 32 bits"),
        ({"cell": HUGE}, "cell must be an integer of 32 bits"),
        ({"operand_cell": -HUGE}, "operand_cell must be an integer of 32 bits"),
        ({"operand_at": HUGE}, "operand_at must be an integer of 32 bits"),
        ({"channel": HUGE}, "channel must be an integer of 32 bits"),
        ({"sends": [Send(1, O)]}, "sends must be a tuple"),
        ({"sends": ((1, O),)}, "an entry of sends must be a Send"),
        ({"sends": (Send(HUGE, O),)}, "the peer of a send must be an integer of 32 bits"),
        ({"sends": (Send(1, 1),)}, "lands of a send must be a Buffer, not 1"),
        ({"receives": (Receive(HUGE, I),)}, "the peer of a receive must be an integer"),
        ({"receives": (Receive(1, 0),)}, "the source of a receive must be a Buffer, not 0"),
        ({"buffer": S, "cell": CELLS_MAX}, "cells of scratch"),
        ({"buffer": S, "cell": -1}, "cell -1"),
        ({"chunk_end": 1 << 30}, "all_gather cannot have 1073741824 chunks"),
        ({"channel": 16}, "channel must be in 0..15"),
        ({"channel": -1}, "channel must be in 0..15"),
    ],
    ids=str,
)
def test_what_is_no_row_is_refused_by_name(changed: dict[str, Any], message: str) -> None:
    def damaged(rank: int, world: int) -> list[Row]:
        rows = own.all_gather_direct(rank, world)
        return [replace(rows[0], **changed), *rows[1:]]

    with pytest.raises(ScheduleError, match=message):
        proven(damaged, "all_gather", 2, None)


def test_a_schedule_object_is_looked_at_as_closely() -> None:
    right = proven(own.all_gather_direct, "all_gather", 2, None)
    rows = {rank: right.rows(rank) for rank in range(2)}
    rows[1] = (replace(rows[1][0], op=int(Op.COPY)), *rows[1][1:])
    with pytest.raises(ScheduleError, match="rank 1 row 0 chunk 2: op must be a Op, not 1"):
        verify(replace(right, make_rows=rows.__getitem__, _cache={}))
    huge = 1 << 31
    for wrong in ({"window": huge}, {"scratch_cells": CELLS_MAX + 1}, {"scratch_cells": -1}, {"step_count": huge}):
        with pytest.raises(ScheduleError, match="at most"):
            verify(replace(right, **wrong))
