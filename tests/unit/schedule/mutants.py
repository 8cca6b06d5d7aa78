"""Schedules with one fault each, in one row of one rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from rdmaring.schedule import After, Flag, Op, Row, Schedule


class Mutant(NamedTuple):
    kind: str
    what: str
    rows: tuple[Row, ...]
    equivalent: bool = False  # proven to do what the original does


def mutants_of_row(schedule: Schedule, rank: int, index: int) -> Iterator[Mutant]:
    """Every fault of every kind at that row."""
    rows = schedule.rows(rank)
    yield Mutant("drop row", f"row {index}", _renumbered(rows, [*range(index), *range(index + 1, len(rows))]))
    twice = [*range(index + 1), index, *range(index + 1, len(rows))]
    yield Mutant("duplicate row", f"row {index}", _renumbered(rows, twice))
    if index + 1 < len(rows):
        yield _swapped(rows, index)
    for kind, what, row in _changed_rows(schedule, rank, rows[index]):
        yield Mutant(kind, f"row {index} {what}", (*rows[:index], row, *rows[index + 1 :]))


def _renumbered(rows: Sequence[Row], order: Sequence[int]) -> tuple[Row, ...]:
    """The rows in that order, ``after`` naming the same rows as before (the first, of doubled ones)."""
    place = {old: new for new, old in reversed(list(enumerate(order)))}

    def moved(row: Row) -> Row:
        return replace(row, after=tuple(sorted(After(place[old], kind) for old, kind in row.after if old in place)))

    return tuple(moved(rows[old]) for old in order)


def _swapped(rows: Sequence[Row], index: int) -> Mutant:
    """Two adjacent rows change places.

    That changes nothing if the second does not wait for the first and no link sees them in another
    order: a link carries the k-th send of its source to the k-th receive of its target, so the same
    bytes meet the same rows; all other order is that of ``after``, which still names the same rows.
    """
    first, second = rows[index], rows[index + 1]
    one_link = {send.peer for send in first.sends} & {send.peer for send in second.sends}
    one_link |= {receive.peer for receive in first.receives} & {receive.peer for receive in second.receives}
    dependent = index in [after.row for after in second.after]
    order = [*range(index), index + 1, index, *range(index + 2, len(rows))]
    what = f"rows {index} and {index + 1}"
    return Mutant("wrong order", what, _renumbered(rows, order), not one_link and not dependent)


def _changed_rows(schedule: Schedule, rank: int, row: Row) -> Iterator[tuple[str, str, Row]]:
    for chunk in range(schedule.chunk_count + 1):  # one too many, so that a single chunk has a wrong one
        if chunk != row.chunk_begin:
            end = chunk + row.chunk_end - row.chunk_begin
            yield "wrong chunk", f"chunk {chunk}", replace(row, chunk_begin=chunk, chunk_end=end)
    for kind, field in (("send", "sends"), ("receive", "receives")):
        edges = getattr(row, field)
        for place, edge in enumerate(edges):
            without: dict[str, Any] = {field: (*edges[:place], *edges[place + 1 :])}
            yield f"drop {kind}", f"peer {edge.peer}", replace(row, **without)
            for peer in range(schedule.world):
                if peer != edge.peer:
                    other: dict[str, Any] = {field: (*edges[:place], edge._replace(peer=peer), *edges[place + 1 :])}
                    yield "wrong peer", f"{kind} peer {edge.peer} becomes {peer}", replace(row, **other)
    if row.op is not Op.NONE:
        op = Op.COPY if row.op is Op.REDUCE else Op.REDUCE
        yield "swapped action", f"{row.op.name} becomes {op.name}", replace(row, op=op)
    if row.op is Op.REDUCE:
        yield "swapped action", "overwrites instead of reducing", _without_operand(row)
    for place, after in enumerate(row.after):
        fewer = (*row.after[:place], *row.after[place + 1 :])
        yield "dropped dependency", f"after row {after.row}", replace(row, after=fewer)


def _without_operand(row: Row) -> Row:
    op = Op.COPY if len(row.receives) == 1 else Op.REDUCE
    return replace(row, op=op, operand=None, operand_at=0, flags=row.flags & ~Flag.FIRST)
