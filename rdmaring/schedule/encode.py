"""Schedules as bytes: what the C engine decodes, and what is kept in files.

Little-endian, no padding, all arrays of 4-byte integers::

    rank table   64-byte header | rows, 64 bytes each | receives, sends, afters, 8 bytes each
    file         40-byte header | world + 1 offsets, 8 bytes each | rank tables | CRC-32 of all before

A row names its receives, sends and afters as intervals of the arrays behind the rows; those of
successive rows follow each other without gaps. -1 stands for "none". A row's flags hold its channel above bit 16.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

from rdmaring.schedule.check import check_row
from rdmaring.schedule.collectives import COLLECTIVE_BY_CODE, COLLECTIVES
from rdmaring.schedule.rows import (
    CHUNKS_MAX,
    WINDOW_MIN,
    WORLD_MAX,
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
    sent_by_rows,
)

TABLE_MAGIC = 0x31535252  # "RRS1"
FILE_MAGIC = 0x46535252  # "RRSF"
VERSION = 2
CHANNEL_SHIFT = 16  # of a row's flags: above it stands the channel
NO_ROOT = 0xFFFFFFFF
NAME_MAX = 23  # bytes; with its terminator a C char[24]

_TABLE = struct.Struct("<12IQ2I")
_ROW = struct.Struct("<16i")
_PAIR = struct.Struct("<2i")
_FILE = struct.Struct("<4I24s")
_OFFSET = struct.Struct("<Q")
_CRC = struct.Struct("<I")
assert _TABLE.size == 64 and _ROW.size == 64 and _PAIR.size == 8 and _FILE.size == 40


@dataclass(frozen=True, slots=True)
class RankTable:
    """One decoded rank table."""

    collective: str
    world: int
    rank: int
    root: int | None
    chunk_count: int
    step_count: int
    window: int
    scratch_cells: int
    identity: int
    rows: tuple[Row, ...]

    @property
    def shared(self) -> tuple[object, ...]:
        """What the tables of all ranks of one schedule have in common."""
        return (
            self.collective,
            self.world,
            self.root,
            self.chunk_count,
            self.step_count,
            self.window,
            self.scratch_cells,
            self.identity,
        )


def encode_rank(schedule: Schedule, rank: int) -> bytes:
    """The table of one rank."""
    rows = schedule.rows(rank)
    lines: list[bytes] = []
    receives: list[bytes] = []
    sends: list[bytes] = []
    afters: list[bytes] = []
    for row in rows:
        begins = len(receives), len(sends), len(afters)
        receives += (_PAIR.pack(receive.peer, receive.source) for receive in row.receives)
        sends += (_PAIR.pack(send.peer, _or_none(send.lands)) for send in row.sends)
        afters += (_PAIR.pack(after.row, after.kind) for after in row.after)
        lines.append(
            _ROW.pack(
                row.step,
                row.buffer,
                row.chunk_begin,
                row.chunk_end,
                row.cell,
                row.op,
                _or_none(row.operand),
                row.operand_cell,
                row.operand_at,
                row.flags | row.channel << CHANNEL_SHIFT,
                begins[0],
                len(receives),
                begins[1],
                len(sends),
                begins[2],
                len(afters),
            )
        )
    header = _TABLE.pack(
        TABLE_MAGIC,
        VERSION,
        COLLECTIVES[schedule.collective].code,
        schedule.world,
        rank,
        schedule.chunk_count,
        schedule.step_count,
        len(lines),
        len(receives),
        len(sends),
        len(afters),
        schedule.scratch_cells,
        schedule.identity,
        schedule.window,
        NO_ROOT if schedule.root is None else schedule.root,
    )
    return b"".join((header, *lines, *receives, *sends, *afters))


def encode_file(schedule: Schedule) -> bytes:
    """All ranks' tables as one file.

    Raises:
        ScheduleError: the algorithm's name is longer than 23 bytes.
    """
    name = schedule.algorithm.encode()
    if not 1 <= len(name) <= NAME_MAX:
        raise ScheduleError(f"algorithm's name must have 1..{NAME_MAX} bytes, not {len(name)}: {schedule.algorithm!r}")
    tables = [encode_rank(schedule, rank) for rank in range(schedule.world)]
    offset = _FILE.size + _OFFSET.size * (schedule.world + 1)
    parts = [_FILE.pack(FILE_MAGIC, VERSION, schedule.world, len(name), name)]
    for size in (*map(len, tables), 0):
        parts.append(_OFFSET.pack(offset))
        offset += size
    body = b"".join((*parts, *tables))
    return body + _CRC.pack(zlib.crc32(body))


def decode_rank(data: bytes) -> RankTable:
    """The table in ``data``, all of it, every field checked.

    Raises:
        ScheduleError: the bytes are not such a table.
    """
    if len(data) < _TABLE.size:
        raise ScheduleError(f"a rank table has at least {_TABLE.size} bytes, not {len(data)}")
    (
        magic,
        version,
        code,
        world,
        rank,
        chunk_count,
        step_count,
        row_count,
        *counts,
        cells,
        identity,
        window,
        root,
    ) = _TABLE.unpack_from(data)
    if magic != TABLE_MAGIC or version != VERSION:
        raise ScheduleError(f"not a rank table of version {VERSION}: magic {magic:#x}, version {version}")
    if len(data) != _TABLE.size + _ROW.size * row_count + _PAIR.size * sum(counts):
        raise ScheduleError(f"{len(data)} bytes do not hold {row_count} rows and {sum(counts)} pairs")
    if code not in COLLECTIVE_BY_CODE:
        raise ScheduleError(f"collective code {code} is unknown")
    collective = COLLECTIVE_BY_CODE[code]
    if not 1 <= world <= WORLD_MAX or rank >= world:
        raise ScheduleError(f"rank {rank} of a world of {world}")
    if root >= world if collective.rooted else root != NO_ROOT:
        raise ScheduleError(f"root {root:#x} of {collective.name} in a world of {world}")
    if not 1 <= chunk_count <= CHUNKS_MAX or window < WINDOW_MIN or max(step_count, cells, window) >= 1 << 31:
        raise ScheduleError(f"{chunk_count} chunks, {step_count} steps, {cells} cells, window {window}")
    lines = [_ROW.unpack_from(data, _TABLE.size + _ROW.size * index) for index in range(row_count)]
    arrays = _pair_arrays(data, _TABLE.size + _ROW.size * row_count, counts)
    _check_intervals(lines, counts, rank)
    rows: list[Row] = []
    for line in lines:
        row = _row(line, arrays, rank, len(rows))
        check_row(row, rows, rank=rank, world=world, chunk_count=chunk_count, step_count=step_count, cells=cells)
        rows.append(row)
    return RankTable(
        collective=collective.name,
        world=world,
        rank=rank,
        root=root if collective.rooted else None,
        chunk_count=chunk_count,
        step_count=step_count,
        window=window,
        scratch_cells=cells,
        identity=identity,
        rows=tuple(rows),
    )


def decode_file(data: bytes) -> Schedule:
    """The schedule in the bytes of a file.

    Raises:
        ScheduleError: the bytes are damaged, of another version, or the tables do not belong together.
    """
    if len(data) < _FILE.size + _CRC.size:
        raise ScheduleError(f"a schedule file has at least {_FILE.size + _CRC.size} bytes, not {len(data)}")
    magic, version, world, name_bytes, padded = _FILE.unpack_from(data)
    if magic != FILE_MAGIC or version != VERSION:
        raise ScheduleError(f"not a schedule file of version {VERSION}: magic {magic:#x}, version {version}")
    if _CRC.unpack_from(data, len(data) - _CRC.size)[0] != zlib.crc32(data[: -_CRC.size]):
        raise ScheduleError("the file's CRC does not fit its bytes: damaged or cut off")
    tables = [decode_rank(table) for table in _split_file(data, world)]
    if [table.rank for table in tables] != list(range(world)):
        raise ScheduleError("the tables are not in the order of ranks")
    for table in tables:
        if table.shared != tables[0].shared:
            raise ScheduleError("belongs to another schedule than rank 0's", rank=table.rank)
    if tables[0].world != world:
        raise ScheduleError(f"the file is for {world} ranks, its tables for {tables[0].world}")
    return Schedule(
        collective=tables[0].collective,
        algorithm=_algorithm(padded, name_bytes),
        world=world,
        root=tables[0].root,
        chunk_count=tables[0].chunk_count,
        step_count=tables[0].step_count,
        window=tables[0].window,
        scratch_cells=tables[0].scratch_cells,
        identity=tables[0].identity,
        make_rows=lambda rank: tables[rank].rows,
        make_sent=lambda rank: sent_by_rows(tables[rank].rows, tables[rank].chunk_count),
    )


def _or_none(buffer: Buffer | None) -> int:
    return -1 if buffer is None else buffer


def _pair_arrays(data: bytes, offset: int, counts: Sequence[int]) -> list[list[tuple[int, int]]]:
    """The arrays of receives, sends and afters, which fill the rest of the table."""
    arrays: list[list[tuple[int, int]]] = []
    for count in counts:
        end = offset + _PAIR.size * count
        arrays.append(list(_PAIR.iter_unpack(data[offset:end])))
        offset = end
    return arrays


def _check_intervals(lines: Sequence[tuple[int, ...]], counts: Sequence[int], rank: int) -> None:
    """Each row's intervals begin where the one before ended, and the last ends the arrays."""
    for place, count in enumerate(counts):
        end = 0
        for index, line in enumerate(lines):
            begin, next_end = line[10 + 2 * place], line[11 + 2 * place]
            if begin != end or not begin <= next_end <= count:
                raise ScheduleError(f"interval {begin}..{next_end} after {end}, of {count}", rank=rank, row=index)
            end = next_end
        if end != count:
            raise ScheduleError(f"{count - end} entries belong to no row", rank=rank)


_Code = TypeVar("_Code", bound=IntEnum)


def _code(kind: type[_Code], value: int, rank: int, index: int) -> _Code:
    try:
        return kind(value)
    except ValueError:
        raise ScheduleError(f"{kind.__name__.lower()} code {value} is unknown", rank=rank, row=index) from None


def _row(line: tuple[int, ...], arrays: list[list[tuple[int, int]]], rank: int, index: int) -> Row:
    step, buffer, chunk_begin, chunk_end, cell, op, operand, operand_cell, operand_at, flags, *bounds = line
    receives, sends, afters = (
        array[begin:end] for array, begin, end in zip(arrays, bounds[0::2], bounds[1::2], strict=True)
    )
    channel, flags = flags >> CHANNEL_SHIFT, flags & ((1 << CHANNEL_SHIFT) - 1)
    if flags & ~sum(Flag):
        raise ScheduleError(f"flags {flags:#x} are unknown", rank=rank, row=index)

    def buffer_of(value: int) -> Buffer:
        return _code(Buffer, value, rank, index)

    return Row(
        step=step,
        buffer=buffer_of(buffer),
        chunk_begin=chunk_begin,
        chunk_end=chunk_end,
        op=_code(Op, op, rank, index),
        cell=cell,
        operand=None if operand == -1 else buffer_of(operand),
        operand_cell=operand_cell,
        operand_at=operand_at,
        receives=tuple(Receive(peer, buffer_of(source)) for peer, source in receives),
        sends=tuple(Send(peer, None if lands == -1 else buffer_of(lands)) for peer, lands in sends),
        flags=Flag(flags),
        after=tuple(After(row, _code(Kind, kind, rank, index)) for row, kind in afters),
        channel=channel,
    )


def _split_file(data: bytes, world: int) -> Iterator[bytes]:
    begin = _FILE.size + _OFFSET.size * (world + 1)
    end_of_tables = len(data) - _CRC.size
    if not 1 <= world <= WORLD_MAX or begin > end_of_tables:
        raise ScheduleError(f"{len(data)} bytes do not hold the tables of {world} ranks")
    offsets = [_OFFSET.unpack_from(data, _FILE.size + _OFFSET.size * rank)[0] for rank in range(world + 1)]
    if offsets[0] != begin or offsets[-1] != end_of_tables or offsets != sorted(offsets):
        raise ScheduleError("the file's offsets do not cut its tables apart")
    for rank in range(world):
        yield data[offsets[rank] : offsets[rank + 1]]


def _algorithm(padded: bytes, name_bytes: int) -> str:
    if not 1 <= name_bytes <= NAME_MAX or any(padded[name_bytes:]) or 0 in padded[:name_bytes]:
        raise ScheduleError(f"the algorithm's name is not {name_bytes} bytes padded with zeros: {padded!r}")
    try:
        return padded[:name_bytes].decode()
    except UnicodeDecodeError:
        raise ScheduleError(f"the algorithm's name is not UTF-8: {padded!r}") from None
