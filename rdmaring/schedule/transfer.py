"""One rank sends its vector to one other; the rest of the world has nothing to do."""

from __future__ import annotations

from fractions import Fraction

from rdmaring.schedule.rows import WINDOW_MIN, Buffer, Op, Receive, Row, Schedule, ScheduleError, Send, identity_of


def transfer(world: int, source: int, target: int) -> Schedule:
    """The vector in ``source``'s INPUT goes to ``target``'s OUTPUT; a part of a broadcast in place, and called
    as one.

    Raises:
        ScheduleError: source and target are not two ranks of the world.
    """
    if source == target or not (0 <= source < world and 0 <= target < world):
        raise ScheduleError(f"a transfer needs two ranks of 0..{world - 1}, not {source} and {target}")

    def rows(rank: int) -> tuple[Row, ...]:
        if rank == source:
            return (Row(0, Buffer.INPUT, 0, 1, Op.NONE, sends=(Send(target, Buffer.OUTPUT),)),)
        if rank == target:
            return (Row(0, Buffer.OUTPUT, 0, 1, Op.COPY, receives=(Receive(source, Buffer.INPUT),)),)
        return ()

    return Schedule(
        collective="broadcast",
        algorithm="transfer",
        world=world,
        root=source,
        chunk_count=1,
        step_count=1,
        window=WINDOW_MIN,
        scratch_cells=0,
        identity=identity_of(f"transfer/1/{world}/{source}/{target}"),
        make_rows=rows,
        make_sent=lambda rank: Fraction(rank == source),
    )
