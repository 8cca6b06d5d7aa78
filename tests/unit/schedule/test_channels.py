"""A vector in several channels: proven for every algorithm, cut as stated, and told apart from one channel."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from rdmaring import chunks
from rdmaring._native import ffi, lib
from rdmaring.schedule import ALGORITHMS, Buffer, Flag, Op, Receive, Row, Schedule, ScheduleError, Send, generate
from rdmaring.schedule.channels import CUT, PER_RANK, in_channels, schedule_in_channels
from rdmaring.schedule.custom import from_rows
from rdmaring.schedule.encode import decode_rank, encode_rank
from rdmaring.schedule.rows import CHANNELS_MAX, Recipe
from rdmaring.schedule.verify import verify

SERVED = [(collective, algorithm) for collective, algorithm in ALGORITHMS if collective in CUT]
WORLDS = (1, 2, 3, 5)


def make(collective: str, algorithm: str, world: int, channels: int) -> Schedule:
    root = world - 1 if collective in ("broadcast", "reduce") else None
    return generate(collective, algorithm, world, root, channels=channels)


@pytest.mark.parametrize(("collective", "algorithm"), SERVED, ids=lambda name: str(name))
def test_every_algorithm_is_proven_in_channels(collective: str, algorithm: str) -> None:
    for world in WORLDS:
        alone = verify(make(collective, algorithm, world, 1))
        for channels in (2, 3, 4):
            proof = verify(make(collective, algorithm, world, channels))
            assert proof.sent == alone.sent and proof.busiest_link == alone.busiest_link, (world, channels)
            times = np.tile if collective not in PER_RANK else np.repeat
            assert proof.orders == tuple(times(np.array(alone.orders), channels)), (world, channels)


@pytest.mark.long
@pytest.mark.parametrize(("collective", "algorithm"), SERVED, ids=lambda name: str(name))
def test_every_algorithm_is_proven_in_channels_of_wider_worlds(collective: str, algorithm: str) -> None:
    for world in (4, 6, 7, 8, 9, 12, 16, 17):
        for channels in (2, 3, 4):
            verify(make(collective, algorithm, world, channels))


def test_rows_of_a_channel_stay_in_its_part() -> None:
    for collective, algorithm in SERVED:
        schedule = make(collective, algorithm, 4, 3)
        per_channel = schedule.chunk_count // 3
        for rank in range(4):
            for row in schedule.rows(rank):
                pieces = range(row.chunk_begin, row.chunk_end)
                owners = {piece % 3 if collective in PER_RANK else piece // per_channel for piece in pieces}
                assert owners == {row.channel}, (collective, algorithm, row)


def test_identities_tell_channels_apart() -> None:
    for collective, algorithm in SERVED:
        found = {make(collective, algorithm, 3, channels).identity for channels in (1, 2, 3, 4)}
        assert len(found) == 4
        root = 2 if collective in ("broadcast", "reduce") else None
        assert make(collective, algorithm, 3, 1).identity == generate(collective, algorithm, 3, root).identity


def test_both_ends_must_name_one_channel() -> None:
    good = make("all_reduce", "ring", 3, 2)

    def moved(rank: int) -> tuple[Row, ...]:
        rows = list(good.rows(rank))
        return (*rows[:5], replace(rows[5], channel=0), *rows[6:]) if rank == 1 else tuple(rows)

    with pytest.raises(ScheduleError, match=r"receives in channel [01] what row \d+ of rank \d sends in channel [01]"):
        verify(replace(good, make_rows=moved, _cache={}))


@pytest.mark.parametrize("channels", [0, -1, CHANNELS_MAX + 1, True, 2.0])
def test_a_number_of_channels_out_of_range_is_named(channels: int) -> None:
    with pytest.raises(ScheduleError, match=f"channels must be in 1..{CHANNELS_MAX}, not {channels}"):
        generate("all_reduce", "ring", 3, channels=channels)


def test_the_encoded_channel_comes_back_and_is_bounded() -> None:
    schedule = make("all_gather", "ring", 3, CHANNELS_MAX)
    for rank in range(3):
        data = encode_rank(schedule, rank)
        assert decode_rank(data).rows == schedule.rows(rank)
        out = ffi.new("rr_schedule **")
        assert lib.rr_schedule_decode(data, len(data), rank, out) == 0
        lib.rr_schedule_free(out[0])
    rows = schedule.rows(0)
    beyond = replace(schedule, make_rows=lambda _: (replace(rows[0], channel=CHANNELS_MAX), *rows[1:]), _cache={})
    data = encode_rank(beyond, 0)
    with pytest.raises(ScheduleError, match=f"channel must be in 0..{CHANNELS_MAX - 1}, not {CHANNELS_MAX}"):
        decode_rank(data)
    assert lib.rr_schedule_decode(data, len(data), 0, ffi.new("rr_schedule **")) == lib.RR_ERR_SCHEDULE


def pair_rows(rank: int) -> list[Row]:
    """An all-gather of two ranks."""
    other = 1 - rank
    return [
        Row(0, Buffer.INPUT, rank, rank + 1, Op.NONE, sends=(Send(other, Buffer.OUTPUT),)),
        Row(0, Buffer.OUTPUT, other, other + 1, Op.COPY, receives=(Receive(other, Buffer.INPUT),)),
        Row(0, Buffer.OUTPUT, rank, rank + 1, Op.COPY, operand=Buffer.INPUT, flags=Flag.FIRST),
    ]


def test_rows_of_ones_own_are_cut_too() -> None:
    schedule = from_rows("all_gather", "pair", [pair_rows(0), pair_rows(1)], chunk_count=2)
    verify(schedule)
    cut = schedule_in_channels(schedule, 3)
    assert verify(cut).sent == (Fraction(1, 2), Fraction(1, 2))
    assert cut.chunk_count == 6 and cut.identity != schedule.identity
    assert schedule_in_channels(schedule, 1) is schedule
    with pytest.raises(ScheduleError, match="name channels already"):
        schedule_in_channels(cut, 2).rows(0)


def test_a_row_of_several_chunks_in_scratch_is_refused_where_chunks_belong_to_ranks() -> None:
    row = Row(0, Buffer.SCRATCH, 0, 2, Op.COPY, operand=Buffer.INPUT)
    recipe = in_channels(Recipe(2, 1, 2, 1, lambda _: [row], lambda _: Fraction(0)), 2, per_rank=True)
    with pytest.raises(ScheduleError, match="several chunks in a cell"):
        recipe.rows(0)


@pytest.mark.parametrize("count", [0, 1, 5, 64, 1000, 4097])
def test_chunk_tables_in_channels(count: int) -> None:
    for channels in (2, 3, 4):
        table = chunks.intervals(count, channels, 5, 4)
        assert len(table) == 5 * channels + 1 and table[0] == 0 and table[-1] == count and table == sorted(table)
        parts = chunks.even(count, 3)
        table = chunks.pieces(parts, channels, 4)
        assert table[::channels] == parts and table == sorted(table) and len(table) == 3 * channels + 1
