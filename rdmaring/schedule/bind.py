"""What a schedule needs beside its proof before it is bound to counts; all ranks find the same.

The proof holds for any cut of the vector in chunks, but for one that all ranks know. What a single rank cannot bind all
ranks must refuse, before anything runs: else the others would wait for it.
"""

from __future__ import annotations

from rdmaring.schedule.rows import SOURCES_MAX, Schedule, ScheduleError


def check_bound(schedule: Schedule, *, paired: bool, known: bool = False) -> None:
    """Raise ScheduleError, naming algorithm, rank, row and chunk, unless every rank can bind its rows.

    paired: all_to_all with counts: of chunk s * N + d only ranks s and d know the length.
    known: a built-in one: at most its root has rows unlike the others', and no rank handles what others exchange.
    """
    if known and (schedule.world <= SOURCES_MAX or schedule.root is None):
        return
    for rank in range(schedule.world) if not known else (schedule.root or 0,):
        for index, row in enumerate(schedule.rows(rank)):
            place = {"rank": rank, "row": index, "chunk": row.chunk_begin}
            if len(row.receives) >= SOURCES_MAX:
                raise ScheduleError(
                    f"algorithm {schedule.algorithm!r} receives from {len(row.receives)} ranks in one row; accepted "
                    f"are at most {SOURCES_MAX - 1}: receive in several rows",
                    **place,
                )
            if not paired:
                continue
            for chunk in range(row.chunk_begin, row.chunk_end):
                give, get = divmod(chunk, schedule.world)
                if rank not in (give, get):
                    raise ScheduleError(
                        f"algorithm {schedule.algorithm!r} has this rank handle what rank {give} sends to rank {get}: "
                        "with counts= only these two know how much that is. Send it directly, or make equal parts and "
                        "leave counts= out",
                        **place | {"chunk": chunk},
                    )
            if row.chunk_end - row.chunk_begin > 1 and (row.receives or row.sends):
                raise ScheduleError(
                    f"algorithm {schedule.algorithm!r} sends the parts of several pairs of ranks in one row; with "
                    "counts= each pair compares its own: use a row for each",
                    **place,
                )
