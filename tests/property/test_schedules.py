"""Schedules under hypothesis: encoding of any rows, any bytes, and dependencies of any rows."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.schedule.machine import Machine, Vector

from rdmaring.schedule import (
    ALGORITHMS,
    ORDERED,
    After,
    Buffer,
    Flag,
    Kind,
    Op,
    Receive,
    Row,
    Schedule,
    ScheduleError,
    Send,
    algorithms_of,
    generate,
)
from rdmaring.schedule.collectives import COLLECTIVES
from rdmaring.schedule.custom import from_rows
from rdmaring.schedule.deps import with_after
from rdmaring.schedule.encode import decode_file, decode_rank, encode_file, encode_rank
from rdmaring.schedule.verify import verify

WORLD, CHUNKS, CELLS, STEPS = 5, 6, 3, 9
BUFFERS = st.sampled_from(Buffer)


@st.composite
def rows_of(draw: st.DrawFn, rank: int) -> list[Row]:
    """Well-formed rows of one rank; they need not make sense together."""
    others = [peer for peer in range(WORLD) if peer != rank]
    peers = st.lists(st.sampled_from(others), unique=True, max_size=3)
    rows: list[Row] = []
    for _ in range(draw(st.integers(0, 7))):
        begin = draw(st.integers(0, CHUNKS - 1))
        sends = [Send(peer, draw(st.sampled_from((None, Buffer.OUTPUT, Buffer.SCRATCH)))) for peer in draw(peers)]
        receives = [Receive(peer, draw(BUFFERS)) for peer in draw(peers)]
        operand = draw(st.none() | BUFFERS)
        sources = len(receives) + (operand is not None)
        if not sources and not sends:
            sends = [Send(others[0], None)]
        op = Op.NONE if not sources else Op.COPY if sources == 1 else Op.REDUCE
        buffer = draw(BUFFERS if op is Op.NONE else st.sampled_from((Buffer.OUTPUT, Buffer.SCRATCH)))
        flags = Flag.FIRST if operand is Buffer.INPUT else Flag(0)
        if op is not Op.NONE:
            flags |= draw(st.sampled_from((Flag(0), Flag.LAST)))
            flags |= draw(st.sampled_from((Flag(0), Flag.TRANSIT))) if sends else Flag(0)
        rows.append(
            Row(
                draw(st.integers(0, STEPS - 1)),
                buffer,
                begin,
                draw(st.integers(begin + 1, CHUNKS)),
                op,
                cell=draw(st.integers(0, CELLS - 1)) if buffer is Buffer.SCRATCH else 0,
                operand=operand,
                operand_cell=draw(st.integers(0, CELLS - 1)) if operand is Buffer.SCRATCH else 0,
                operand_at=draw(st.integers(0, len(receives))) if operand is not None else 0,
                receives=tuple(receives),
                sends=tuple(sends),
                flags=flags,
            )
        )
    return rows


@st.composite
def any_schedule(draw: st.DrawFn) -> Schedule:
    collective = draw(st.sampled_from(sorted(COLLECTIVES)))
    root = draw(st.integers(0, WORLD - 1)) if COLLECTIVES[collective].rooted else None
    tables = [draw(rows_of(rank)) for rank in range(WORLD)]
    name = draw(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=5))
    schedule = from_rows(collective, name, tables, chunk_count=CHUNKS, root=root)
    return replace(schedule, step_count=STEPS, scratch_cells=CELLS, window=draw(st.integers(2, 99)), _cache={})


@settings(max_examples=40, deadline=None)
@given(any_schedule())
def test_any_rows_come_back_from_their_bytes(schedule: Schedule) -> None:
    back = decode_file(encode_file(schedule))
    assert back == schedule
    for rank in range(WORLD):
        assert back.rows(rank) == schedule.rows(rank)
        assert decode_rank(encode_rank(schedule, rank)).rows == schedule.rows(rank)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300), st.sampled_from((b"", b"RRS1\1\0\0\0", b"RRSF\1\0\0\0")))
def test_garbage_is_refused_and_nothing_else_happens(data: bytes, begin: bytes) -> None:
    for decode in (decode_rank, decode_file):
        for whole in (begin + data, begin + data + struct.pack("<I", zlib.crc32(begin + data))):
            try:
                decode(whole)
            except ScheduleError:
                continue
            raise AssertionError("garbage was taken for a schedule")


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(sorted(ALGORITHMS)),
    st.integers(2, 4),
    st.data(),
)
def test_a_damaged_word_is_refused_or_well_formed(name: tuple[str, str], world: int, data: st.DataObject) -> None:
    """Any word of a file replaced, the CRC made good: an error of ours, or rows within their bounds."""
    root = 0 if COLLECTIVES[name[0]].rooted else None
    order = data.draw(st.permutations(range(world))) if name[1] in ORDERED else None
    whole = encode_file(generate(*name, world, root, order))
    place = 4 * data.draw(st.integers(0, len(whole) // 4 - 2))
    word = data.draw(st.integers(0, 40) | st.integers(0, (1 << 32) - 1))
    body = whole[:place] + struct.pack("<I", word) + whole[place + 4 : -4]
    try:
        back = decode_file(body + struct.pack("<I", zlib.crc32(body)))
        for rank in range(back.world):
            for index, row in enumerate(back.rows(rank)):
                assert 0 <= row.chunk_begin < row.chunk_end <= back.chunk_count
                peers = [send.peer for send in row.sends] + [receive.peer for receive in row.receives]
                assert all(0 <= peer < back.world for peer in peers)
                assert all(0 <= after.row < index for after in row.after)
        verify(back)
    except ScheduleError:
        pass


def touches(row: Row) -> tuple[set[object], set[object], set[object]]:
    """Where a row reads its operand, writes, and sends from; in place, so INPUT is OUTPUT."""

    def places(buffer: Buffer | None, cell: int) -> set[object]:
        if buffer is None:
            return set()
        if buffer is Buffer.SCRATCH:
            return {("cell", cell)}
        return {("chunk", chunk) for chunk in range(row.chunk_begin, row.chunk_end)}

    dst = places(row.buffer, row.cell)
    none = row.op is Op.NONE
    return places(row.operand, row.operand_cell), set() if none else dst, dst if row.sends else set()


def path_exists(rows: Sequence[Row], place: object, begin: int, end: int, *, released: bool) -> bool:
    """Does ``end`` come after ``begin`` along rows that touch ``place``, the first step by a release?"""
    for after in rows[end].after:
        if after.row == begin and (not released or after.kind is Kind.RELEASED):
            return True
        via = set().union(*touches(rows[after.row]))
        if after.row > begin and place in via and path_exists(rows, place, begin, after.row, released=released):
            return True
    return False


@settings(max_examples=120, deadline=None)
@given(rows_of(0))
def test_dependencies_order_every_conflict(given_rows: list[Row]) -> None:
    rows = with_after(given_rows)
    for end, row in enumerate(rows):
        reads, writes, sends = touches(row)
        assert all(after.row < end for after in row.after)
        for begin, earlier in enumerate(rows[:end]):
            read, written, sent = touches(earlier)
            for place in (reads | sends) & written:
                assert path_exists(rows, place, begin, end, released=False)
            for place in writes & (read | written):
                assert path_exists(rows, place, begin, end, released=False)
            for place in writes & sent:
                assert path_exists(rows, place, begin, end, released=True)


@settings(max_examples=120, deadline=None)
@given(rows_of(0))
def test_dependencies_are_only_between_rows_that_conflict(given_rows: list[Row]) -> None:
    rows = with_after(given_rows)
    for row in rows:
        reads, writes, sends = touches(row)
        for after in row.after:
            read, written, sent = touches(rows[after.row])
            if after.kind is Kind.RELEASED:
                assert writes & sent
            else:
                assert (reads | sends) & written or writes & (read | written)
    assert [replace(row, after=()) for row in rows] == given_rows
    assert After(0, Kind.DONE) < After(0, Kind.RELEASED)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(algorithms_of("all_reduce")),
    st.integers(1, 9),
    st.integers(0, 50),
    st.integers(1, 9),
    st.booleans(),
    st.booleans(),
    st.integers(0, 1 << 32),
)
def test_all_reduce_of_any_count_is_the_sum(
    algorithm: str, world: int, count: int, slice_elements: int, in_place: bool, shuffled: bool, seed: int
) -> None:
    order = random.Random(seed).sample(range(world), world) if shuffled and algorithm in ORDERED else None
    schedule = generate("all_reduce", algorithm, world, order=order)
    chunks = schedule.chunk_count
    offsets = [count * chunk // chunks for chunk in range(chunks + 1)]
    numbers = np.random.default_rng(seed)
    inputs: list[Vector] = [numbers.integers(-99, 99, count, dtype=np.int64) for _ in range(world)]
    machine = Machine(schedule, inputs, offsets, in_place=in_place, slice_elements=slice_elements, seed=seed)
    for output in machine.run():
        np.testing.assert_array_equal(output, 3 * np.sum(inputs, axis=0))
