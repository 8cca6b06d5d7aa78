"""Random schedules of every collective, each of them proven: what a caller of ``algorithm=`` may come with.

A schedule is drawn as a flow of values (random_flow). For each interval of chunks the contributions are merged at
random ranks, in random groups and orders, until one is left (or several ranks finish it alike), and the result is
spread along a random tree, on its way through ranks that only forward it. Rows send what they made at once or leave
that to a later row; values lie in the input, the output or in cells of scratch that are used again. Then all rows are
put in a random order that the flow and the links allow (first in, first out), and the steps are solved (random_rows).
Last come edits of single rows, kept if ``verify`` accepts them. All that leaves here has been accepted by ``verify``.

    random_schedule(random.Random(7), "all_reduce", 4)    the same for the same seed
    schedules()                                           a strategy of hypothesis
    features_of(schedule)                                 what there is in it, by name
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise

from hypothesis import strategies as st
from random_flow import INPUT, OUTPUT, SCRATCH, Draft, Flow, Habits
from random_rows import EDITS, give_cells, placed, proven_of

from rdmaring.schedule import Flag, Op, Row, Schedule, ScheduleError
from rdmaring.schedule.collectives import COLLECTIVES, Collective
from rdmaring.schedule.links import match

WORLD_MAX = 8
CHUNKS_MAX = 6  # of the vector, where a schedule may have any number
PARTS_MAX = 3  # chunks a rank, where each is a rank's
TRIES = 60  # flows drawn until one is accepted
ORDERS = 6  # of a flow's rows
EDITS_MAX = 6
EDITED_MAX = 150  # rows: a proof of more takes too long for one that may be refused


def random_schedule(
    rng: random.Random,
    collective: str,
    world: int,
    *,
    root: int | None = None,
    relays: bool = True,
    edits: int | None = None,
) -> Schedule:
    """A schedule that ``verify`` has accepted, by ``rng`` alone.

    root: of a rooted collective; None: drawn. relays: may a block pass through a rank that neither gives nor takes it?
    edits: how many edits of single rows are tried; None: drawn.
    """
    found = COLLECTIVES[collective]
    if found.rooted and root is None:
        root = rng.randrange(world)
    for number in range(TRIES):
        drafts, chunk_count = _drafts(rng, found, world, root, plain=number > TRIES // 2, relays=relays)
        if drafts is None:
            continue
        try:
            schedule = proven_of(drafts, collective, chunk_count, root, rng.choice((2, 2, 4, 16)))
        except ScheduleError:
            continue
        if sum(map(len, drafts)) <= EDITED_MAX:
            return _edited(rng, schedule, drafts, rng.randint(0, EDITS_MAX) if edits is None else edits)
        return schedule
    raise AssertionError(f"none of {TRIES} schedules drawn for {collective} of {world} ranks is right")


def schedules(
    collectives: Sequence[str] = tuple(COLLECTIVES),
    worlds: Sequence[int] = tuple(range(1, WORLD_MAX + 1)),
    *,
    relays: bool = True,
) -> st.SearchStrategy[Schedule]:
    """Random proven schedules of any of ``collectives`` and ``worlds``; it shrinks to small worlds and few edits."""

    def made(collective: str, world: int, edits: int, seed: int) -> Schedule:
        return random_schedule(random.Random(seed), collective, world, relays=relays, edits=edits)

    seeds = st.integers(0, (1 << 32) - 1)
    return st.builds(made, st.sampled_from(collectives), st.sampled_from(worlds), st.integers(0, EDITS_MAX), seeds)


@dataclass(frozen=True)
class Cut:
    """Where the vector is cut, as a plan gives it to the engine."""

    offsets: tuple[int, ...]  # of the chunks, and the end
    rounds: int  # each chunk goes in so many parts, one after another

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(end - begin for begin, end in pairwise(self.offsets))


def random_cut(rng: random.Random, schedule: Schedule, most: int) -> Cut:
    """Chunks of up to ``most`` elements: even, uneven, some empty, of one element, or all empty; and rounds."""
    size, empty = rng.randint(0, most), rng.choice((0, 0, 0.3, 0.8))
    even = rng.random() < 0.3
    sizes = [
        size if even else rng.choice((1, rng.randint(0, most), rng.randint(0, most)))
        for _ in range(schedule.chunk_count)
    ]
    sizes = [0 if rng.random() < empty else each for each in sizes]
    return Cut((0, *accumulate(sizes)), rng.choice((1, 1, 2, 3)) if goes_in_rounds(schedule) else 1)


def goes_in_rounds(schedule: Schedule) -> bool:
    """Rounds cut chunks, and a row of several chunks lies in its cell as a whole."""
    rows = [row for rank in range(schedule.world) for row in schedule.rows(rank)]
    return not schedule.scratch_cells or all(row.chunk_end - row.chunk_begin == 1 for row in rows)


def _drafts(
    rng: random.Random, collective: Collective, world: int, root: int | None, *, plain: bool, relays: bool
) -> tuple[list[list[Draft]] | None, int]:
    habits = Habits.drawn(rng, plain=plain)
    if not relays:
        habits.relay = 0
    parts = rng.randint(1, PARTS_MAX)
    if collective.per_pair_chunks:
        chunk_count = world * world
    else:
        chunk_count = world * parts if collective.per_rank_chunks else rng.randint(1, CHUNKS_MAX)
    flow = Flow(rng, habits, _with_parts(collective, parts), world, chunk_count, root)
    rows = flow.draw()
    for row in rows:
        only_sent = row.buffer is SCRATCH and row.sends and not any(row in other.reads for other in rows)
        if row.op is not Op.NONE and only_sent and rng.random() < habits.transit:
            row.flags |= Flag.TRANSIT
    for number in range(ORDERS):
        drafts = placed(rng, rows, world, max(habits.hurry, number / (ORDERS - 1)))
        if drafts is not None:
            give_cells(rng, drafts, habits.reuse)
            return drafts, chunk_count
    return None, chunk_count


def _with_parts(collective: Collective, parts: int) -> Collective:
    return replace(collective, parts=parts) if collective.per_rank_chunks else collective


def _edited(rng: random.Random, schedule: Schedule, drafts: list[list[Draft]], edits: int) -> Schedule:
    for _ in range(edits):
        changed = copy.deepcopy(drafts)
        if not rng.choice(EDITS)(rng, changed):
            continue
        try:
            schedule = proven_of(changed, schedule.collective, schedule.chunk_count, schedule.root, schedule.window)
        except ScheduleError:
            continue
        drafts = changed
    return schedule


# ---- what there is in a schedule ----


def features_of(schedule: Schedule) -> frozenset[str]:
    """Names of what it does; EXPECTED says which of them any hundred draws must show."""
    tables = [schedule.rows(rank) for rank in range(schedule.world)]
    found = {f"world {schedule.world}"}
    if schedule.root:
        found.add("another root than 0")
    if any(row.channel for rows in tables for row in rows):
        found.add("two channels")
    if COLLECTIVES[schedule.collective].per_rank_chunks and schedule.chunk_count > schedule.world:
        found.add("several chunks a rank")
    if schedule.scratch_cells and goes_in_rounds(schedule):
        found.add("scratch in rounds")
    if schedule.window >= 8:
        found.add("a wide window")
    for rank, rows in enumerate(tables):
        for row in rows:
            found |= _of_row(schedule, rank, row)
        found |= _of_rank(rows)
    finished = Counter(
        chunk
        for rows in tables
        for row in rows
        if row.op is Op.REDUCE and Flag.LAST in row.flags
        for chunk in range(row.chunk_begin, row.chunk_end)
    )
    if any(times > 1 for times in finished.values()):
        found.add("finished by several ranks")
    return frozenset(found | _of_links(tables))


def _of_row(schedule: Schedule, rank: int, row: Row) -> set[str]:
    received = bool(row.receives)
    held = _held(schedule, rank)
    said = {
        "a row of several chunks": row.chunk_end - row.chunk_begin > 1,
        "sent from input": bool(row.sends) and row.buffer is INPUT,
        "sent from output": bool(row.sends) and row.buffer is OUTPUT,
        "sent from scratch": bool(row.sends) and row.buffer is SCRATCH,
        "own input sent out of scratch": bool(row.sends)
        and row.buffer is SCRATCH
        and row.operand is INPUT
        and not received,
        "forwarded through scratch": bool(row.sends) and row.buffer is SCRATCH and row.op is Op.COPY and received,
        "forwarded by a third rank": bool(row.sends) and received and row.op is Op.COPY and row.chunk_begin not in held,
        "received, reduced, stored and sent": bool(row.sends) and row.op is Op.REDUCE and Flag.TRANSIT not in row.flags,
        "reduced in transit": row.op is Op.REDUCE and Flag.TRANSIT in row.flags,
        "several receives": len(row.receives) > 1,
        "several sends": len(row.sends) > 1,
        "nothing of its own in a sum": row.op is Op.REDUCE and row.operand is None,
        "added to what lies in scratch": row.op is Op.REDUCE and row.operand is SCRATCH,
        "added to what lies in output": row.op is Op.REDUCE and row.operand is OUTPUT,
        "own operand in the middle": row.operand is not None and 0 < row.operand_at < len(row.receives),
        "landed in output": any(send.lands is OUTPUT for send in row.sends),
        "post-operation of what landed": Flag.LAST in row.flags and row.op is Op.COPY and received,
        "post-operation of a local copy": Flag.LAST in row.flags and row.op is Op.COPY and row.operand is SCRATCH,
        "scratch copied to output": row.op is Op.COPY and row.operand is SCRATCH and row.buffer is OUTPUT,
    }
    return {name for name, so in said.items() if so}


def _held(schedule: Schedule, rank: int) -> set[int]:
    """The chunks of which the rank has input or output."""
    parts = schedule.chunk_count // schedule.world
    collective = _with_parts(COLLECTIVES[schedule.collective], parts)
    place = schedule.chunk_count, schedule.root
    return {*collective.input_chunks(rank, *place), *collective.output_chunks(rank, *place)}


def _of_rank(rows: Sequence[Row]) -> set[str]:
    found = set()
    writers = Counter(row.cell for row in rows if row.buffer is SCRATCH and row.op is not Op.NONE)
    if any(times > 1 for times in writers.values()):
        found.add("a cell used again")
    read = {row.operand_cell for row in rows if row.operand is SCRATCH}
    read |= {row.cell for row in rows if row.buffer is SCRATCH and row.sends}
    if set(writers) - read:
        found.add("received for nothing")
    sent = [(row.buffer, row.cell, row.chunk_begin, row.chunk_end) for row in rows if row.sends]
    if len(set(sent)) < len(sent):
        found.add("sent by several rows")
    return found


def _of_links(tables: Sequence[Sequence[Row]]) -> set[str]:
    """On one link, what can be read in place (the input) between what cannot: slots, none, slots."""
    found = set()
    for pairs in match(tables).transfers.values():
        buffers = [tables[sender.rank][sender.row].buffer for sender, _ in pairs]
        runs = [buffer for buffer, _ in groupby(buffer is INPUT for buffer in buffers)]
        if len(runs) >= 3:
            found.add("input between other sends of a link")
    return found


EXPECTED = frozenset(
    {
        *(f"world {world}" for world in range(1, WORLD_MAX + 1)),
        "another root than 0",
        "two channels",
        "several chunks a rank",
        "scratch in rounds",
        "a wide window",
        "a row of several chunks",
        "sent from input",
        "sent from output",
        "sent from scratch",
        "own input sent out of scratch",
        "forwarded through scratch",
        "forwarded by a third rank",
        "received, reduced, stored and sent",
        "reduced in transit",
        "several receives",
        "several sends",
        "nothing of its own in a sum",
        "added to what lies in scratch",
        "added to what lies in output",
        "own operand in the middle",
        "landed in output",
        "post-operation of what landed",
        "post-operation of a local copy",
        "scratch copied to output",
        "received for nothing",
        "a cell used again",
        "sent by several rows",
        "input between other sends of a link",
        "finished by several ranks",
    }
)
