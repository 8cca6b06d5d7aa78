"""Algorithms of the caller's own: a function that emits rows, or a schedule, made ready to run.

Nothing runs before it is proven for all ranks, and a function is asked and proven once for each collective, world
and root. All ranks must pass the same one: the rows' hash is part of what ranks compare before they begin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from rdmaring.schedule.channels import schedule_in_channels
from rdmaring.schedule.check import fields_fault
from rdmaring.schedule.collectives import Collective, collective_named
from rdmaring.schedule.custom import from_rows
from rdmaring.schedule.encode import NAME_MAX, decode_file, encode_file
from rdmaring.schedule.progress import HaltError
from rdmaring.schedule.rows import NUMBER_MAX, WINDOW_MIN, Row, Schedule, ScheduleError
from rdmaring.schedule.verify import verify

Emit = Callable[..., Sequence[Row]]

WINDOW = 4  # tried first, then twice as many rows, and so on
KEPT = 64  # functions and schedules that are known to be right


@dataclass(frozen=True, eq=False)
class Own:
    """A function that emits rows, with what else can be said of it; made by :func:`own`."""

    emit: Emit
    name: str
    window: int | None = None

    def __call__(self, *place: Any) -> Sequence[Row]:
        return self.emit(*place)


Algorithm = str | Schedule | Own | Emit  # what a collective takes as ``algorithm=``


def own(*, name: str | None = None, window: int | None = None) -> Callable[[Emit], Own]:
    """Decorate a function that emits rows; only needed to say more of it than the function does itself.

    The function is called as ``emit(rank, world)``, for broadcast and reduce as ``emit(rank, world, root)``, and
    returns the rows of that rank. ``after`` of the rows is found for you; the vector has as many chunks as rows name.

    name: at most 23 bytes; default: the function's. window: rows open at once; default: the least of 4, 8, 16, ...
        with which the schedule comes to its end.
    """
    if window is not None and not WINDOW_MIN <= window <= NUMBER_MAX:
        raise ScheduleError(f"window must be {WINDOW_MIN} or more, at most {NUMBER_MAX}, not {window}")
    if name is not None and not 1 <= len(name.encode()) <= NAME_MAX:
        raise ScheduleError(f"name must have 1..{NAME_MAX} bytes, not {len(name.encode())}: {name!r}")
    return lambda emit: Own(emit, name or _name_of(emit), window)


def proven(
    algorithm: Schedule | Own | Emit, collective: str, world: int, root: int | None, channels: int = 1
) -> Schedule:
    """The schedule that ``algorithm`` stands for, verified for all ranks; known ones are not verified again.

    channels: cut the vector into so many parts, each with its own instance of the rows. 1: the rows as they are.

    Raises:
        ScheduleError: it is wrong (rank, row and chunk are named), or made for another collective, world or root.
    """
    if not isinstance(algorithm, Schedule):
        emitted = _emitted(algorithm, collective, world, root)
        return emitted if channels == 1 else _cut_once(emitted, channels)
    wanted, made = (collective, world, root), (algorithm.collective, algorithm.world, algorithm.root)
    if wanted != made:
        raise ScheduleError(
            f"algorithm is a schedule for {_place(*made)}; this call is {_place(*wanted)}, and takes one made for that"
        )
    _check_once(algorithm)
    return algorithm if channels == 1 else _cut_once(algorithm, channels)


def save(schedule: Schedule, path: str | Path) -> None:
    """Write the versioned file that :func:`load` and ``rr_schedule_load()`` read.

    Raises:
        ScheduleError: the algorithm's name is longer than 23 bytes. OSError: it cannot be written.
    """
    Path(path).write_bytes(encode_file(schedule))


def load(path: str | Path) -> Schedule:
    """The schedule in a file. It is verified when a collective is called with it.

    Raises:
        ScheduleError: damaged, or of another version. OSError: it cannot be read.
    """
    try:
        return decode_file(Path(path).read_bytes())
    except ScheduleError as error:
        raise ScheduleError(f"{path}: {error}") from None


_known: dict[int, Schedule] = {}  # by id, and kept: a schedule is only known as long as it is that one


def _check_once(schedule: Schedule) -> None:
    if _known.get(id(schedule)) is schedule:
        return
    verify(schedule)
    if len(_known) >= KEPT:
        _known.pop(next(iter(_known)))
    _known[id(schedule)] = schedule


_cut: dict[tuple[int, int], tuple[Schedule, Schedule]] = {}  # by id and channels: the schedule, and it in channels


def _cut_once(schedule: Schedule, channels: int) -> Schedule:
    """``schedule`` in so many channels, proven too."""
    known = _cut.get((id(schedule), channels))
    if known is not None and known[0] is schedule:
        return known[1]
    cut = schedule_in_channels(schedule, channels)
    verify(cut)
    if len(_cut) >= KEPT:
        _cut.pop(next(iter(_cut)))
    _cut[id(schedule), channels] = schedule, cut
    return cut


@lru_cache(maxsize=KEPT)
def _emitted(algorithm: Own | Emit, collective: str, world: int, root: int | None) -> Schedule:
    """Ask for all ranks' rows and prove them."""
    described = algorithm if isinstance(algorithm, Own) else Own(algorithm, _name_of(algorithm))
    found = collective_named(collective)
    tables = [_rows_of(described, found, rank, world, root) for rank in range(world)]
    chunk_count = max((row.chunk_end for rows in tables for row in rows), default=1)
    longest = max(map(len, tables))
    window = described.window or WINDOW
    while True:
        schedule = from_rows(found.name, described.name, tables, chunk_count=chunk_count, root=root, window=window)
        try:
            verify(schedule)
        except HaltError:
            if described.window is not None or window >= longest:
                raise
            window *= 2
        else:
            return schedule


def _rows_of(algorithm: Own, collective: Collective, rank: int, world: int, root: int | None) -> list[Row]:
    emitted = algorithm(rank, world, root) if collective.rooted else algorithm(rank, world)
    if not isinstance(emitted, Sequence) or not all(isinstance(row, Row) for row in emitted):
        raise ScheduleError(f"{algorithm.name} must return a list of Row, not {type(emitted).__name__}", rank=rank)
    for index, row in enumerate(emitted):
        fault = fields_fault(row)
        if fault:
            raise ScheduleError(fault, rank=rank, row=index)
    return list(emitted)


def _name_of(emit: Emit) -> str:
    name = getattr(emit, "__name__", type(emit).__name__)
    return name.encode()[:NAME_MAX].decode(errors="ignore")


def _place(collective: str, world: int, root: int | None) -> str:
    return f"{collective} of {world} ranks" + ("" if root is None else f" with root {root}")
