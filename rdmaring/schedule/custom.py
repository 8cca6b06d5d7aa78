"""Schedules of the user's own rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rdmaring.schedule.collectives import collective_named
from rdmaring.schedule.deps import with_after
from rdmaring.schedule.encode import encode_rank
from rdmaring.schedule.rows import WINDOW_MIN, Row, Schedule, identity_of, sent_by_rows


def from_rows(
    collective: str,
    algorithm: str,
    tables: Sequence[Sequence[Row]],
    *,
    chunk_count: int,
    root: int | None = None,
    window: int = WINDOW_MIN,
) -> Schedule:
    """A schedule of the rows in ``tables``, one table a rank. It is not verified: ``verify`` does that.

    Dependencies are found here; ``after`` of the given rows is ignored. The identity is a hash of all
    rows, so it is the same wherever the same rows are given.

    Raises:
        ScheduleError: there is no such collective.
    """
    own = tuple(with_after(rows) for rows in tables)
    every_row = [row for rows in own for row in rows]
    schedule = Schedule(
        collective=collective_named(collective).name,
        algorithm=algorithm,
        world=len(own),
        root=root,
        chunk_count=chunk_count,
        step_count=max((row.step + 1 for row in every_row if row.receives), default=0),
        window=window,
        scratch_cells=1 + max((cell for row in every_row for cell in row.cells), default=-1),
        identity=0,
        make_rows=lambda rank: own[rank],
        make_sent=lambda rank: sent_by_rows(own[rank], chunk_count),
    )
    encoded = b"".join(encode_rank(schedule, rank) for rank in range(schedule.world))
    return replace(schedule, identity=identity_of(encoded), _cache={})
