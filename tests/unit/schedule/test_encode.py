"""The bytes of schedules: their layout field by field, and what is refused."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace

import pytest
from unit.schedule.cases import schedules, title

from rdmaring.schedule import ScheduleError, generate
from rdmaring.schedule.encode import decode_file, decode_rank, encode_file, encode_rank
from rdmaring.schedule.verify import verify


def words(data: bytes, offset: int, count: int) -> list[int]:
    return list(struct.unpack_from(f"<{count}i", data, offset))


def test_rank_table_of_a_ring_byte_by_byte() -> None:
    """Rank 1 of a ring of two: a send, a reduction, a landing."""
    schedule = generate("all_reduce", "ring", 2)
    data = encode_rank(schedule, 1)
    assert data[:4] == b"RRS1"
    # version, collective, world, rank, chunks, steps, rows, receives, sends, afters, cells
    assert words(data, 4, 11) == [2, 0, 2, 1, 2, 2, 3, 2, 2, 1, 0]
    assert struct.unpack_from("<Q2I", data, 48) == (schedule.identity, 3, 0xFFFFFFFF)
    # step buffer chunks cell op operand cell at flags receives sends afters
    assert words(data, 64, 16) == [0, 0, 0, 1, 0, 0, -1, 0, 0, 0, 0, 0, 0, 1, 0, 0]
    assert words(data, 128, 16) == [0, 1, 1, 2, 0, 2, 0, 0, 1, 3, 0, 1, 1, 2, 0, 0]
    assert words(data, 192, 16) == [1, 1, 0, 1, 0, 1, -1, 0, 0, 0, 1, 2, 2, 2, 0, 1]
    assert words(data, 256, 4) == [0, 0, 0, 1]  # receives: from rank 0 its INPUT, then its OUTPUT
    assert words(data, 272, 4) == [0, -1, 0, 1]  # sends: to rank 0 to be reduced, then to land in OUTPUT
    assert words(data, 288, 2) == [0, 1]  # after row 0 is released
    assert len(data) == 296


def test_file_layout() -> None:
    schedule = generate("broadcast", "direct", 3, 2)
    data = encode_file(schedule)
    assert data[:4] == b"RRSF"
    assert struct.unpack_from("<3I", data, 4) == (2, 3, len("direct"))
    assert data[16:40] == b"direct" + bytes(18)
    offsets = struct.unpack_from("<4Q", data, 40)
    assert offsets[0] == 40 + 4 * 8 and offsets[-1] == len(data) - 4
    for rank in range(3):
        assert data[offsets[rank] : offsets[rank + 1]] == encode_rank(schedule, rank)
    assert struct.unpack_from("<I", data, len(data) - 4) == (zlib.crc32(data[:-4]),)
    assert words(data, offsets[1] + 60, 1) == [2]  # the root


def test_every_schedule_comes_back() -> None:
    for schedule in schedules([1, 2, 3, 6, 9]):
        back = decode_file(encode_file(schedule))
        assert back == schedule, title(schedule)
        for rank in range(schedule.world):
            assert back.rows(rank) == schedule.rows(rank)
            assert back.sent(rank) == schedule.sent(rank)
        verify(back)


def test_a_name_too_long_for_the_file() -> None:
    schedule = replace(generate("all_reduce", "ring", 2), algorithm="x" * 24)
    with pytest.raises(ScheduleError, match=r"1..23 bytes, not 24"):
        encode_file(schedule)


# ---- damage; offsets are those of the first test ----


def patched(data: bytes, offset: int, value: int, form: str = "<i") -> bytes:
    return data[:offset] + struct.pack(form, value) + data[offset + struct.calcsize(form) :]


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (0, 1, "not a rank table"),
        (4, 3, "not a rank table of version 2"),
        (8, 5, "collective code 5 is unknown"),
        (12, 0, "rank 1 of a world of 0"),
        (12, 1 << 24, "of a world of"),
        (16, 2, "rank 2 of a world of 2"),
        (20, 0, "0 chunks"),
        (24, -1, "steps"),
        (28, 4, "do not hold 4 rows"),
        (28, -1, "bytes do not hold"),
        (32, 1 << 30, "bytes do not hold"),
        (44, -1, "cells"),
        (56, 1, "window 1"),
        (60, 0, "root 0x0 of all_reduce"),
        (64, 9, "step 9 of 2"),
        (68, 3, "buffer code 3 is unknown"),
        (68, -1, "buffer code -1 is unknown"),
        (72, -1, "chunks -1"),
        (76, 3, r"0..3 must be a part of 0..2"),
        (80, 1, "cell must be 0 outside of scratch"),
        (84, 3, "op code 3 is unknown"),
        (88, 3, "buffer code 3 is unknown"),
        (100, 32, "flags 0x20 are unknown"),
        (100, -1, "flags 0xffff are unknown"),
        (104, 1, "interval 1..0 after 0"),
        (108, -1, "interval 0..-1 after 0"),
        (116, 3, "interval 0..3 after 0, of 2"),
        (192 + 44, 1, "1 entries belong to no row"),
        (256, 1, "receives from rank 1"),
        (256, 2, "receives from rank 2"),
        (260, 7, "buffer code 7 is unknown"),
        (272, -5, "sends to rank -5"),
        (276, 0, "lands in an input"),
        (276, -2, "buffer code -2 is unknown"),
        (288, 2, "after must name earlier rows"),
        (292, 2, "kind code 2 is unknown"),
    ],
)
def test_a_damaged_table_is_refused(offset: int, value: int, message: str) -> None:
    data = encode_rank(generate("all_reduce", "ring", 2), 1)
    decode_rank(data)
    with pytest.raises(ScheduleError, match=message):
        decode_rank(patched(data, offset, value))


def with_crc(data: bytes) -> bytes:
    return data[:-4] + struct.pack("<I", zlib.crc32(data[:-4]))


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (0, 1, "not a schedule file"),
        (4, 3, "not a schedule file of version 2"),
        (8, 0, "do not hold the tables of 0 ranks"),
        (8, 1 << 30, "do not hold the tables"),
        (8, 1, "offsets do not cut"),
        (12, 0, "algorithm's name is not 0 bytes"),
        (12, 24, "algorithm's name is not 24 bytes"),
        (12, 3, "algorithm's name is not 3 bytes"),
        (16, -1, "not UTF-8"),
        (40, 0, "offsets do not cut"),
        (48, 1 << 20, "offsets do not cut"),
        (48, 64, "at least 64 bytes|bytes do not hold"),
    ],
)
def test_a_damaged_file_is_refused(offset: int, value: int, message: str) -> None:
    data = encode_file(generate("all_reduce", "ring", 2))
    decode_file(data)
    with pytest.raises(ScheduleError, match=message):
        decode_file(with_crc(patched(data, offset, value)))


def test_a_flipped_bit_or_a_lost_byte_is_noticed() -> None:
    data = encode_file(generate("reduce", "ring", 3, 1))
    for place in range(0, len(data), 7):
        with pytest.raises(ScheduleError):
            decode_file(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        with pytest.raises(ScheduleError):
            decode_file(data[:place])


def joined(tables: list[bytes]) -> bytes:
    offset = 40 + 8 * (len(tables) + 1)
    parts = [struct.pack("<4s3I24s", b"RRSF", 2, len(tables), 4, b"ring")]
    for table in [*tables, b""]:
        parts.append(struct.pack("<Q", offset))
        offset += len(table)
    return with_crc(b"".join((*parts, *tables)) + bytes(4))


def test_tables_must_belong_together() -> None:
    ring, direct = generate("all_reduce", "ring", 2), generate("all_reduce", "direct", 2)
    decode_file(joined([encode_rank(ring, 0), encode_rank(ring, 1)]))
    with pytest.raises(ScheduleError, match="not in the order of ranks"):
        decode_file(joined([encode_rank(ring, 1), encode_rank(ring, 0)]))
    with pytest.raises(ScheduleError, match="rank 1: belongs to another schedule"):
        decode_file(joined([encode_rank(ring, 0), encode_rank(direct, 1)]))
    with pytest.raises(ScheduleError, match="for 1 ranks, its tables for 2"):
        decode_file(joined([encode_rank(ring, 0)]))
