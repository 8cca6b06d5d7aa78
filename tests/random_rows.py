"""From drafts to a schedule that ``verify`` accepts: order, cells, steps; and edits of rows. See schedules_random."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from random_flow import INPUT, OUTPUT, SCRATCH, Draft

from rdmaring.schedule import Buffer, Flag, Kind, Op, Receive, Row, Schedule, ScheduleError, Send
from rdmaring.schedule.custom import from_rows
from rdmaring.schedule.deps import with_after
from rdmaring.schedule.progress import HaltError
from rdmaring.schedule.verify import verify


def placed(rng: random.Random, rows: Sequence[Draft], world: int, hurry: float) -> list[list[Draft]] | None:
    """The rows of each rank in a random order that the flow allows, and first in, first out on each link.

    hurry: how often the row goes first that was drawn first.
    None: this draw came to a halt, as two rows each wait for what the other must take first.
    """
    age = {row: number for number, row in enumerate(rows)}
    before: dict[Draft, list[Draft]] = {row: [*row.receives, *row.reads] for row in rows}
    users: dict[int, list[Draft]] = defaultdict(list)
    for row in rows:
        for earlier in users[row.rank]:
            if _in_conflict(earlier, row):
                before[row].append(earlier)
        users[row.rank].append(row)
    left = {row: len(set(needs)) for row, needs in before.items()}
    followers: dict[Draft, list[Draft]] = defaultdict(list)
    for row, needs in before.items():
        for need in set(needs):
            followers[need].append(row)
    links: dict[tuple[int, int], list[Draft]] = defaultdict(list)  # who receives next
    tables: list[list[Draft]] = [[] for _ in range(world)]
    ready = [row for row in rows if not left[row]]
    while ready:
        takers = [row for row in ready if all(links[sender.rank, row.rank][0] is row for sender in row.receives)]
        if not takers:
            return None
        row = min(takers, key=lambda taker: age[taker]) if rng.random() < hurry else rng.choice(takers)
        ready.remove(row)
        tables[row.rank].append(row)
        for sender in row.receives:
            links[sender.rank, row.rank].pop(0)
        for target in row.sends:
            links[row.rank, target.rank].append(target)
        for follower in followers[row]:
            left[follower] -= 1
            if not left[follower]:
                ready.append(follower)
    return tables


def _in_conflict(earlier: Draft, later: Draft) -> bool:
    """Do both touch the same chunk of the vector, in place, and one of them writes it?"""
    if not earlier.overlaps(later):
        return False
    touched = [
        (row.buffer is not SCRATCH or row.operand in (INPUT, OUTPUT), row.buffer is OUTPUT and row.op is not Op.NONE)
        for row in (earlier, later)
    ]
    return all(touch for touch, _ in touched) and any(write for _, write in touched)


def give_cells(rng: random.Random, tables: Sequence[Sequence[Draft]], reuse: float) -> None:
    """Each value in scratch gets a cell, a new one or that of a value which nobody reads any more."""
    for rows in tables:
        readers: dict[Draft, int] = defaultdict(int)
        for row in rows:
            for maker in row.reads:
                readers[maker] += 1
        held: list[list[Draft]] = []  # by cell, all that were ever there
        for row in rows:
            for maker in row.reads:
                readers[maker] -= 1
                if maker.buffer is SCRATCH:
                    if row.op is Op.NONE:
                        row.cell = maker.cell
                    else:
                        row.operand_cell = maker.cell
            if row.buffer is not SCRATCH or row.op is Op.NONE:
                continue
            free = [
                cell
                for cell, makers in enumerate(held)
                if not readers[makers[-1]] and not any(row.overlaps(m) and row.begin != m.begin for m in makers)
            ]
            if free and rng.random() < reuse:
                row.cell = rng.choice(free)
            else:
                row.cell = len(held)
                held.append([])
            held[row.cell].append(row)


def tables_of(drafts: Sequence[Sequence[Draft]]) -> list[list[Row]]:
    """As rows, with the steps that they must have.

    Raises:
        ScheduleError: no steps fit.
    """
    node = {id(draft): (rank, index) for rank, rows in enumerate(drafts) for index, draft in enumerate(rows)}
    tables = [[_row(draft) for draft in rows] for rows in drafts]
    after = [with_after(rows) for rows in tables]
    steps = [[0] * len(rows) for rows in tables]
    limit = sum(map(len, tables)) + 2
    for _ in range(limit):
        moved = False
        for rank, rows in enumerate(drafts):
            for index, draft in enumerate(rows):
                least = steps[rank][index]
                for other, kind in after[rank][index].after:
                    sent_on = kind is Kind.RELEASED or not draft.receives
                    least = max(least, steps[rank][other] + (sent_on and bool(rows[other].receives)))
                for sender in draft.receives:
                    at, place = node[id(sender)]
                    least = max(least, steps[at][place] + bool(sender.receives))
                for target in draft.sends:  # and what is sent travels in the step of who receives it
                    at, place = node[id(target)]
                    least = max(least, steps[at][place] - bool(draft.receives))
                moved |= least != steps[rank][index]
                steps[rank][index] = least
        if not moved:
            return [
                [replace(row, step=step) for row, step in zip(rows, own, strict=True)]
                for rows, own in zip(tables, steps, strict=True)
            ]
        if max((max(own, default=0) for own in steps), default=0) > limit:
            break
    raise ScheduleError("no steps fit these rows")


def _row(draft: Draft) -> Row:
    row = Row(
        0,
        draft.buffer,
        draft.begin,
        draft.end,
        draft.op,
        cell=draft.cell if draft.buffer is SCRATCH else 0,
        operand=draft.operand,
        operand_cell=draft.operand_cell if draft.operand is SCRATCH else 0,
        operand_at=draft.operand_at,
        receives=tuple(Receive(sender.rank, sender.buffer) for sender in draft.receives),
        flags=draft.flags,
        channel=draft.channel,
    )
    return replace(row, sends=tuple(Send(target.rank, _lands(target)) for target in draft.sends))


def _lands(target: Draft) -> Buffer | None:
    return OUTPUT if target.op is Op.COPY and target.receives and target.buffer is OUTPUT else None


def proven_of(
    drafts: Sequence[Sequence[Draft]], collective: str, chunk_count: int, root: int | None, window: int
) -> Schedule:
    """The schedule of these rows, accepted by ``verify`` with the least window of ``window``, twice that, and so on.

    Raises:
        ScheduleError: it is not accepted.
    """
    tables = tables_of(drafts)
    longest = max(map(len, tables))
    while True:
        schedule = from_rows(collective, "random", tables, chunk_count=chunk_count, root=root, window=window)
        try:
            verify(schedule)
        except HaltError:
            if window >= longest:
                raise
            window *= 2
        else:
            return schedule


# ---- edits: one change anywhere; whether the schedule is still right is for verify to say ----

Tables = list[list[Draft]]
Edit = Callable[[random.Random, Tables], bool]


def _somewhere(rng: random.Random, tables: Tables, holds: Callable[[Draft], bool]) -> tuple[int, int] | None:
    found = [(r, i) for r, rows in enumerate(tables) for i, row in enumerate(rows) if holds(row)]
    return rng.choice(found) if found else None


def _move(rng: random.Random, tables: Tables) -> bool:
    """A row to another place of its table."""
    place = _somewhere(rng, tables, lambda row: True)
    if place is None:
        return False
    rows = tables[place[0]]
    rows.insert(rng.randrange(len(rows)), rows.pop(place[1]))
    return True


def _fuse(rng: random.Random, tables: Tables) -> bool:
    """What a row only sends is sent by the row that made it."""
    place = _somewhere(rng, tables, lambda row: row.op is Op.NONE and len(row.reads) == 1)
    if place is None:
        return False
    row = tables[place[0]].pop(place[1])
    maker = row.reads[0]
    for target in row.sends:
        target.receives[target.receives.index(row)] = maker
        maker.sends.append(target)
    return True


def _part(rng: random.Random, tables: Tables) -> bool:
    """A send gets a row of its own."""
    place = _somewhere(rng, tables, lambda row: len(row.sends) > (row.op is Op.NONE))
    if place is None:
        return False
    rank, index = place
    row = tables[rank][index]
    target = row.sends.pop(rng.randrange(len(row.sends)))
    single = Draft(rank, row.buffer, row.begin, row.end, Op.NONE, cell=row.cell, channel=row.channel, sends=[target])
    single.reads = list(row.reads) if row.op is Op.NONE else [row]
    target.receives[target.receives.index(row)] = single
    row.flags &= ~Flag.TRANSIT
    tables[rank].insert(rng.randint(index + 1, len(tables[rank])), single)
    return True


def _transit(rng: random.Random, tables: Tables) -> bool:
    place = _somewhere(rng, tables, lambda row: row.op is not Op.NONE and bool(row.sends))
    if place is None:
        return False
    tables[place[0]][place[1]].flags ^= Flag.TRANSIT
    return True


def _turn(rng: random.Random, tables: Tables) -> bool:
    """The sources of a row in another order."""
    place = _somewhere(rng, tables, lambda row: row.op is Op.REDUCE)
    if place is None:
        return False
    row = tables[place[0]][place[1]]
    rng.shuffle(row.receives)
    row.operand_at = rng.randint(0, len(row.receives)) if row.operand is not None else 0
    return True


def _again(rng: random.Random, tables: Tables) -> bool:
    """What has been received is sent once more and received once more at the same place."""
    place = _somewhere(rng, tables, lambda row: row.op is Op.COPY and len(row.receives) == 1 and row.buffer is SCRATCH)
    if place is None:
        return False
    rank, index = place
    row = tables[rank][index]
    giver = row.receives[0]
    reads = list(giver.reads) if giver.op is Op.NONE else [giver]
    sender = Draft(giver.rank, giver.buffer, row.begin, row.end, Op.NONE, reads=reads, cell=giver.cell)
    copied = Draft(rank, row.buffer, row.begin, row.end, Op.COPY, receives=[sender], flags=row.flags, cell=row.cell)
    copied.channel = sender.channel = row.channel
    sender.sends = [copied]
    begin = tables[giver.rank].index(giver)
    tables[giver.rank].insert(rng.randint(begin + 1, len(tables[giver.rank])), sender)
    tables[rank].insert(rng.randint(index + 1, len(tables[rank])), copied)
    return True


def _stray(rng: random.Random, tables: Tables) -> bool:
    """An input, or what a row made, goes to a cell of another rank, and nobody reads it there."""
    place = _somewhere(rng, tables, lambda row: row.operand is INPUT or row.op is Op.NONE)
    if place is None or len(tables) == 1:
        return False
    rank, index = place
    row = tables[rank][index]
    target = rng.choice([r for r in range(len(tables)) if r != rank])
    cell = 1 + max((other.cell for other in tables[target] if other.buffer is SCRATCH), default=-1)
    buffer = row.buffer if row.op is Op.NONE else INPUT
    sender = Draft(rank, buffer, row.begin, row.end, Op.NONE, cell=row.cell, channel=row.channel)
    sender.reads = list(row.reads) if row.op is Op.NONE else []
    taker = Draft(target, SCRATCH, row.begin, row.end, Op.COPY, cell=cell, channel=row.channel, receives=[sender])
    sender.sends = [taker]
    tables[rank].insert(index, sender)
    tables[target].insert(rng.randint(0, len(tables[target])), taker)
    return True


def _cell(rng: random.Random, tables: Tables) -> bool:
    """A value to another cell of its rank."""
    place = _somewhere(rng, tables, lambda row: row.buffer is SCRATCH and row.op is not Op.NONE)
    if place is None:
        return False
    rank, index = place
    row, rows = tables[rank][index], tables[rank]
    row.cell = rng.randrange(2 + max(other.cell for other in rows if other.buffer is SCRATCH))
    for other in rows:
        if row in other.reads:
            if other.op is Op.NONE:
                other.cell = row.cell
            else:
                other.operand_cell = row.cell
    used = sorted(
        {r.cell for r in rows if r.buffer is SCRATCH} | {r.operand_cell for r in rows if r.operand is SCRATCH}
    )
    for other in rows:
        other.cell = used.index(other.cell) if other.buffer is SCRATCH else 0
        other.operand_cell = used.index(other.operand_cell) if other.operand is SCRATCH else 0
    return True


EDITS: tuple[Edit, ...] = (_move, _move, _fuse, _part, _transit, _turn, _again, _stray, _cell)
