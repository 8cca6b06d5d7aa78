"""The proof that a schedule is right, for all ranks at once.

What holds after ``verify`` returns, in place and out of place, for any cut of the vector in chunks and
of chunks in slices, and for any timing that the contract of execution allows:

- every rank ends with each contribution exactly once where the collective wants it, post-processed
  once, and combined in the same order on all ranks;
- nothing is read before it is there, no two writes race, no write races with a read;
- every send meets its receive, and both ends say the same of it, its channel too;
- it comes to its end with one credit a link, one link a peer for all channels, and the declared window
  (``progress`` tries cuts in 1, 2, 3 and 7 slices, an uneven one with empty chunks, and three rounds);
- steps and bytes are what the algorithm declares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from rdmaring.schedule.check import check_row
from rdmaring.schedule.collectives import Collective, collective_named
from rdmaring.schedule.dataflow import check_dataflow
from rdmaring.schedule.hazards import check_rank
from rdmaring.schedule.links import match
from rdmaring.schedule.progress import ROUNDS, SLICE_PATTERNS, check_progress, in_rounds
from rdmaring.schedule.rows import (
    CELLS_MAX,
    CHUNKS_MAX,
    NUMBER_MAX,
    WINDOW_MIN,
    After,
    Kind,
    Row,
    Schedule,
    ScheduleError,
    chunk_begins,
    sent_by_rows,
)


@dataclass(frozen=True, slots=True)
class Proof:
    """What verification found; fractions are of the vector in chunks by the schedule's weights."""

    row_count: int  # of all ranks
    transfer_count: int  # of all links
    sent: tuple[Fraction, ...]  # by each rank
    busiest_link: Fraction
    orders: tuple[str, ...]  # for each chunk, how its result is combined, such as ((1 + 2) + 0)


def verify(schedule: Schedule, *, in_place: bool | None = None) -> Proof:
    """Prove the schedule; see the module for what that means.

    in_place: prove it for calls in place (True), out of place (False), or both (None).

    Raises:
        ScheduleError: names rank, row and chunk, and what is wrong there.
    """
    collective = check_header(schedule)
    tables = [schedule.rows(rank) for rank in range(schedule.world)]
    for rank in range(schedule.world):
        check_table(schedule, collective, rank, in_place=in_place)
    matching = match(tables)
    _check_declared(schedule, tables)
    modes = (True, False) if in_place is None else (in_place,)
    orders, results = check_dataflow(tables, matching, collective, schedule.chunk_count, schedule.root, modes)
    for pattern in SLICE_PATTERNS:
        check_progress(tables, schedule.window, pattern)
    round_count, pattern = ROUNDS
    rounds = in_rounds(tables, round_count, schedule.chunk_count, schedule.scratch_cells)
    check_progress(rounds, schedule.window, pattern)
    begins = chunk_begins(schedule.chunk_count, schedule.weights)
    carried = [
        sum(
            (begins[tables[sender.rank][sender.row].chunk_end] - begins[tables[sender.rank][sender.row].chunk_begin])
            * tables[sender.rank][sender.row].width
            for sender, _ in pairs
        )
        for pairs in matching.transfers.values()
    ]
    return Proof(
        row_count=sum(map(len, tables)),
        transfer_count=sum(map(len, matching.transfers.values())),
        sent=tuple(sent_by_rows(rows, schedule.chunk_count, schedule.weights) for rows in tables),
        busiest_link=Fraction(max(carried, default=0), begins[-1]),
        orders=tuple(map(orders.text, results)),
    )


def check_header(schedule: Schedule) -> Collective:
    """What the schedule says of itself is possible; return its collective."""
    collective = collective_named(schedule.collective)
    world, root = schedule.world, schedule.root
    if collective.rooted != (root is not None) or (root is not None and not 0 <= root < world):
        raise ScheduleError(f"root {root} of {collective.name} in a world of {world}")
    if not 1 <= schedule.chunk_count <= CHUNKS_MAX or (
        schedule.chunk_count % world
        if collective.per_rank_chunks
        else collective.chunk_count(world) not in (None, schedule.chunk_count)
    ):
        raise ScheduleError(f"{collective.name} cannot have {schedule.chunk_count} chunks for {world} ranks")
    weights = schedule.weights
    if weights is not None and (len(weights) != schedule.chunk_count or min(weights) < 1):
        raise ScheduleError(f"{schedule.chunk_count} chunks need as many weights >= 1, not {weights}")
    if not WINDOW_MIN <= schedule.window <= NUMBER_MAX:
        raise ScheduleError(f"window must be {WINDOW_MIN} or more, at most {NUMBER_MAX}, not {schedule.window}")
    if not 0 <= schedule.scratch_cells <= CELLS_MAX or not 0 <= schedule.step_count <= NUMBER_MAX:
        raise ScheduleError(
            f"{schedule.scratch_cells} cells of scratch, {schedule.step_count} steps; accepted are at most {CELLS_MAX} "
            f"cells and {NUMBER_MAX} steps"
        )
    return replace(collective, parts=schedule.chunk_count // world) if collective.per_rank_chunks else collective


def check_table(schedule: Schedule, collective: Collective, rank: int, *, in_place: bool | None = None) -> None:
    """Everything that can be said of one rank's rows by themselves."""
    rows = schedule.rows(rank)
    for index, row in enumerate(rows):
        check_row(
            row,
            rows[:index],
            rank=rank,
            world=schedule.world,
            chunk_count=schedule.chunk_count,
            step_count=schedule.step_count,
            cells=schedule.scratch_cells,
        )
        for after in row.after:
            _check_step(row, rows[after.row], after, rank, index)
            _check_shared_cell(row, rows[after.row], after, rank, index)
    check_rank(rows, rank, collective, schedule.chunk_count, schedule.root, in_place=in_place is not False)


def _check_step(row: Row, earlier: Row, after: After, rank: int, index: int) -> None:
    """A row's step is not before that of what it waits for: else steps would be counted too few.

    What arrives in a step can be combined in it, but sent only in the next.
    """
    sent_on = after.kind is Kind.RELEASED or not row.receives
    earliest = earlier.send_step if sent_on else earlier.step
    if row.step < earliest:
        raise ScheduleError(
            f"is in step {row.step}, but waits for row {after.row}, which is not done before step {earliest}",
            rank=rank,
            row=index,
            chunk=row.chunk_begin,
        )


def _check_shared_cell(row: Row, earlier: Row, after: After, rank: int, index: int) -> None:
    """Rows that share bytes of the vector wait by these: their bytes in a cell must lie alike."""
    overlap = row.chunk_begin < earlier.chunk_end and earlier.chunk_begin < row.chunk_end
    if overlap and row.cells & earlier.cells and row.chunk_begin != earlier.chunk_begin:
        raise ScheduleError(
            f"shares a cell with row {after.row}, and chunks that lie elsewhere in it",
            rank=rank,
            row=index,
            chunk=row.chunk_begin,
        )


def _check_declared(schedule: Schedule, tables: Sequence[Sequence[Row]]) -> None:
    used = max((row.step + 1 for rows in tables for row in rows if row.receives), default=0)
    if used != schedule.step_count:
        raise ScheduleError(f"declares {schedule.step_count} steps, but takes {used}")
    for rank, rows in enumerate(tables):
        sent = sent_by_rows(rows, schedule.chunk_count, schedule.weights)
        if sent != schedule.sent(rank):
            raise ScheduleError(f"declares to send {schedule.sent(rank)} of the vector, but sends {sent}", rank=rank)
    cells = 1 + max((cell for rows in tables for row in rows for cell in row.cells), default=-1)
    if cells != schedule.scratch_cells:
        raise ScheduleError(f"declares {schedule.scratch_cells} cells of scratch, but uses {cells}")
