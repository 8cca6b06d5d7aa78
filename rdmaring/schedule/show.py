"""Schedules as text and as plain data for JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

from rdmaring.schedule.rows import Buffer, Flag, Kind, Op, Row, Schedule

_HEADINGS = ("row", "step", "dst", "made of", "sent to", "flags", "after")

_LEGEND = """\
made of   the sources in the order in which they are combined; <-p INPUT: what rank p sends from its INPUT
sent to   ->p: to rank p; ->p OUTPUT: lands in rank p's OUTPUT as it is
flags     first: the operand is the user's input; last: scale and avg apply here;
          transit: read by nothing but its own sends; wide: dst and its sends are float32, of a 16-bit
          vector; takes wide: its receives are; channel: which of the links to each peer, if
          not 0
after     rows that must be done; r: whose sends must be released, too"""


def render(schedule: Schedule, ranks: Iterable[int] | None = None) -> str:
    """The schedule as a table a rank, for reading.

    ranks: which; None: all.
    """
    chosen = list(range(schedule.world) if ranks is None else ranks)
    blocks = [_summary(schedule)]
    blocks += ["\n".join((_rank_line(schedule, rank), _table(schedule.rows(rank)))) for rank in chosen]
    blocks.append(_LEGEND)
    return "\n\n".join(blocks) + "\n"


def as_dict(schedule: Schedule, ranks: Iterable[int] | None = None) -> dict[str, Any]:
    """The schedule as dicts, lists, strings and numbers; fractions as strings such as "3/2".

    ranks: whose rows; None: all.
    """
    chosen = list(range(schedule.world) if ranks is None else ranks)
    return {
        "collective": schedule.collective,
        "algorithm": schedule.algorithm,
        "world": schedule.world,
        "root": schedule.root,
        "chunk_count": schedule.chunk_count,
        "step_count": schedule.step_count,
        "window": schedule.window,
        "scratch_cells": schedule.scratch_cells,
        "identity": f"{schedule.identity:016x}",
        "ranks": [
            {
                "rank": rank,
                "sent": str(schedule.sent(rank)),
                "rows": [_row_dict(index, row) for index, row in enumerate(schedule.rows(rank))],
            }
            for rank in chosen
        ],
    }


def _row_dict(index: int, row: Row) -> dict[str, Any]:
    return {
        "row": index,
        "step": row.step,
        "buffer": row.buffer.name.lower(),
        "chunks": [row.chunk_begin, row.chunk_end],
        "cell": row.cell,
        "op": row.op.name.lower(),
        "operand": None if row.operand is None else row.operand.name.lower(),
        "operand_cell": row.operand_cell,
        "operand_at": row.operand_at,
        "receives": [{"peer": peer, "source": source.name.lower()} for peer, source in row.receives],
        "sends": [{"peer": peer, "lands": None if lands is None else lands.name.lower()} for peer, lands in row.sends],
        "flags": _flag_names(row),
        "channel": row.channel,
        "after": [{"row": earlier, "kind": kind.name.lower()} for earlier, kind in row.after],
    }


def _summary(schedule: Schedule) -> str:
    root = "" if schedule.root is None else f", root {schedule.root}"
    return (
        f"{schedule.collective} by {schedule.algorithm}, {schedule.world} ranks{root}\n"
        f"chunks {schedule.chunk_count}, steps {schedule.step_count}, window {schedule.window}, "
        f"scratch cells {schedule.scratch_cells}, identity {schedule.identity:016x}"
    )


def _rank_line(schedule: Schedule, rank: int) -> str:
    sent = schedule.sent(rank)
    return f"rank {rank}: {len(schedule.rows(rank))} rows, sends {_fraction(sent)} of the vector"


def _fraction(value: Fraction) -> str:
    return str(value) if value.denominator == 1 else f"{value} ({float(value):.3f})"


def _table(rows: Sequence[Row]) -> str:
    lines = [_HEADINGS, *(_cells(index, row) for index, row in enumerate(rows))]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADINGS))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _cells(index: int, row: Row) -> tuple[str, ...]:
    chunks = str(row.chunk_begin) if row.chunk_end == row.chunk_begin + 1 else f"{row.chunk_begin}..{row.chunk_end - 1}"
    return (
        str(index),
        str(row.step),
        f"{_place(row.buffer, row.cell)} chunk {chunks}",
        _sources(row),
        " ".join(f"->{send.peer}" + (f" {send.lands.name}" if send.lands is not None else "") for send in row.sends),
        " ".join([*_flag_names(row), *([f"channel {row.channel}"] if row.channel else [])]),
        " ".join(f"{after.row}{'r' if after.kind is Kind.RELEASED else ''}" for after in row.after),
    )


def _sources(row: Row) -> str:
    if row.op is Op.NONE:
        return "itself"
    sources = [f"<-{receive.peer} {receive.source.name}" for receive in row.receives]
    if row.operand is not None:
        sources.insert(row.operand_at, _place(row.operand, row.operand_cell))
    return " + ".join(sources)


def _place(buffer: Buffer, cell: int) -> str:
    return f"{buffer.name} cell {cell}" if buffer is Buffer.SCRATCH else buffer.name


def _flag_names(row: Row) -> list[str]:
    return [flag.name.lower().replace("_", " ") for flag in Flag if flag in row.flags and flag.name]
