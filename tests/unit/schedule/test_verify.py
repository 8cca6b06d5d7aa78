"""What verify accepts, what it rejects, and that each of its checks is the one that does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from unit.schedule.cases import NAMES, reordered, schedules, title, with_rows

from rdmaring.schedule import (
    ORDERED,
    Buffer,
    Flag,
    Op,
    Receive,
    Row,
    Schedule,
    ScheduleError,
    Send,
    dataflow,
    generate,
    hazards,
    links,
)
from rdmaring.schedule import verify as verify_module
from rdmaring.schedule.custom import from_rows
from rdmaring.schedule.verify import verify


@pytest.mark.parametrize("name", NAMES, ids="-".join)
def test_every_schedule_holds_up_to_seventeen_ranks(name: tuple[str, str]) -> None:
    for schedule in schedules(range(1, 18), [name]):
        proof = verify(schedule)
        assert proof.sent == tuple(schedule.sent(rank) for rank in range(schedule.world)), title(schedule)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMES, ids="-".join)
def test_every_schedule_holds_up_to_thirty_three_ranks(name: tuple[str, str]) -> None:
    for schedule in schedules(range(18, 34), [name]):
        verify(schedule)


@pytest.mark.parametrize("name", [name for name in NAMES if name[1] in ORDERED], ids="-".join)
def test_every_ring_holds_in_any_order(name: tuple[str, str]) -> None:
    for order, schedule in reordered(range(1, 10), [name]):
        proof = verify(schedule)
        assert proof.sent == tuple(schedule.sent(rank) for rank in range(schedule.world)), f"{order}: {title(schedule)}"


@pytest.mark.parametrize("in_place", [True, False])
def test_one_mode_can_be_verified_alone(in_place: bool) -> None:
    for schedule in schedules([5]):
        assert verify(schedule, in_place=in_place).row_count > 0


def test_proof_tells_order_and_the_busiest_link() -> None:
    ring = verify(generate("all_reduce", "ring", 3))
    assert ring.orders == ("((1 + 2) + 0)", "((2 + 0) + 1)", "((0 + 1) + 2)")
    assert ring.busiest_link == Fraction(4, 3)
    assert ring.transfer_count == 3 * 4
    direct = verify(generate("all_reduce", "direct", 3))
    assert direct.orders == ("(0 + 1 + 2)",) * 3
    assert direct.busiest_link == Fraction(2, 3)
    assert verify(generate("all_reduce", "naive", 4)).orders == ("(((0 + 1) + 2) + 3)",)
    assert verify(generate("reduce", "ring", 3, 1)).orders == ("((2 + 0) + 1)",)
    assert verify(generate("all_gather", "ring", 3)).orders == ("0", "1", "2")


def test_proof_of_a_ring_in_another_order_tells_that_order() -> None:
    ring = verify(generate("all_reduce", "ring", 4, order=(0, 3, 1, 2)))
    # chunk c is summed from the rank after c, around the ring 0 -> 3 -> 1 -> 2 -> 0, to c itself
    assert ring.orders == (
        "(((3 + 1) + 2) + 0)",
        "(((2 + 0) + 3) + 1)",
        "(((0 + 3) + 1) + 2)",
        "(((1 + 2) + 0) + 3)",
    )
    assert verify(generate("reduce", "ring", 3, 1, order=(2, 1, 0))).orders == ("((0 + 2) + 1)",)


# ---- schedules that are wrong in one way each ----


def _changed(schedule: Schedule, rank: int, index: int, **fields: Any) -> Schedule:
    rows = list(schedule.rows(rank))
    rows[index] = replace(rows[index], **fields)
    return with_rows(schedule, rank, rows)


def _one_shot_from_the_input() -> Schedule:
    """In place, everyone waits for the others to have read what it must overwrite."""

    def rows(rank: int) -> list[Row]:
        other = 1 - rank
        send = Row(0, Buffer.INPUT, 0, 1, Op.NONE, sends=(Send(other, None),))
        reduce = Row(
            0,
            Buffer.OUTPUT,
            0,
            1,
            Op.REDUCE,
            operand=Buffer.INPUT,
            operand_at=rank,
            receives=(Receive(other, Buffer.INPUT),),
            flags=Flag.FIRST | Flag.LAST,
        )
        return [send, reduce]

    return from_rows("all_reduce", "bad", [rows(0), rows(1)], chunk_count=1)


def _one_cell() -> Schedule:
    """Each rank's cell can be used again only when the next rank has used its own again."""
    good = generate("reduce_scatter", "ring", 5)
    tables = [[replace(row, cell=0) for row in good.rows(rank)] for rank in range(5)]
    return from_rows("reduce_scatter", "bad", tables, chunk_count=5, window=5)


def _early_landing() -> Schedule:
    """The root may overwrite rank 1's output while rank 2 has not yet read it there."""

    def relay(step: int) -> Row:
        sends = (Send(2, Buffer.OUTPUT),) if step == 0 else ()
        return Row(step, Buffer.OUTPUT, 0, 1, Op.COPY, receives=(Receive(0, Buffer.OUTPUT),), sends=sends)

    copy = Row(0, Buffer.OUTPUT, 0, 1, Op.COPY, operand=Buffer.INPUT, flags=Flag.FIRST)
    again = Row(1, Buffer.OUTPUT, 0, 1, Op.NONE, sends=(Send(1, Buffer.OUTPUT),))
    leaf = Row(1, Buffer.OUTPUT, 0, 1, Op.COPY, receives=(Receive(1, Buffer.OUTPUT),))
    root = [replace(copy, sends=(Send(1, Buffer.OUTPUT),)), again]
    return from_rows("broadcast", "bad", [root, [relay(0), relay(1)], [leaf]], chunk_count=1, root=0)


def _added_twice() -> Schedule:
    """Rank 1 sends its input two times and rank 0 adds both."""
    send = Row(0, Buffer.INPUT, 0, 1, Op.NONE, sends=(Send(0, None),))
    receive = (Receive(1, Buffer.INPUT),)
    first = Row(0, Buffer.OUTPUT, 0, 1, Op.REDUCE, operand=Buffer.INPUT, receives=receive, flags=Flag.FIRST)
    second = Row(0, Buffer.OUTPUT, 0, 1, Op.REDUCE, operand=Buffer.OUTPUT, receives=receive, flags=Flag.LAST)
    return from_rows("reduce", "bad", [[first, second], [send, send]], chunk_count=1, root=0)


def _reads_too_soon() -> Schedule:
    """Rank 0 sends an output that it has not made."""
    send = Row(0, Buffer.OUTPUT, 0, 1, Op.NONE, sends=(Send(1, Buffer.OUTPUT),))
    copy = Row(0, Buffer.OUTPUT, 0, 1, Op.COPY, operand=Buffer.INPUT, flags=Flag.FIRST)
    receive = Row(0, Buffer.OUTPUT, 0, 1, Op.COPY, receives=(Receive(0, Buffer.OUTPUT),))
    return from_rows("broadcast", "bad", [[send, copy], [receive]], chunk_count=1, root=0)


def _reads_while_it_is_written() -> Schedule:
    """Rank 0 receives into scratch and copies from there, without waiting."""
    root = Row(0, Buffer.OUTPUT, 0, 1, Op.COPY, operand=Buffer.INPUT, flags=Flag.FIRST, sends=(Send(0, None),))
    store = Row(0, Buffer.SCRATCH, 0, 1, Op.COPY, receives=(Receive(1, Buffer.OUTPUT),))
    load = Row(0, Buffer.OUTPUT, 0, 1, Op.COPY, operand=Buffer.SCRATCH)
    good = from_rows("broadcast", "bad", [[store, load], [root]], chunk_count=1, root=1)
    return _changed(good, 0, 1, after=())


def _scatter_into_the_output() -> Schedule:
    """Partial sums in chunks of the output that a rank does not have."""
    good = generate("all_reduce", "ring", 4)
    tables = [[replace(row, flags=row.flags & ~Flag.TRANSIT) for row in good.rows(r)[:4]] for r in range(4)]
    for rows in tables:
        rows[3] = replace(rows[3], sends=())
    return from_rows("reduce_scatter", "bad", tables, chunk_count=4, window=3)


def _without_last() -> Schedule:
    good = generate("all_reduce", "direct1", 3)
    return _changed(good, 1, 1, flags=Flag.FIRST)


def _last_twice() -> Schedule:
    """The gathering row applies the post-operation again."""
    return _changed(generate("all_reduce", "direct", 2), 1, 2, flags=Flag.LAST)


def _shifted_in_a_cell() -> Schedule:
    """Chunks 1..2 are put where chunk 1 was the second half of what a cell held."""
    send = Row(0, Buffer.INPUT, 0, 2, Op.NONE, sends=(Send(0, None),))
    keep = Row(0, Buffer.SCRATCH, 0, 2, Op.COPY, receives=(Receive(1, Buffer.INPUT),))
    add = Row(0, Buffer.OUTPUT, 0, 2, Op.REDUCE, operand=Buffer.SCRATCH, receives=(Receive(2, Buffer.INPUT),))
    other = Row(1, Buffer.SCRATCH, 1, 2, Op.COPY, operand=Buffer.INPUT, flags=Flag.FIRST)
    return from_rows("reduce", "bad", [[keep, add, other], [send], [send]], chunk_count=2, root=0)


def _other_order() -> Schedule:
    return _changed(generate("all_reduce", "direct1", 3), 2, 1, operand_at=0)


def _stores_nothing_at_last() -> Schedule:
    return _changed(generate("all_reduce", "ring", 3), 1, 2, flags=Flag.FIRST | Flag.LAST | Flag.TRANSIT)


def _reads_a_skipped_store() -> Schedule:
    good = generate("all_reduce", "naive", 3)
    row = good.rows(0)[1]
    return _changed(good, 0, 1, flags=row.flags | Flag.TRANSIT, sends=(Send(1, Buffer.OUTPUT),))


BAD: dict[str, tuple[Callable[[], Schedule], str]] = {
    "one-shot from the input": (_one_shot_from_the_input, "rank 0 row 1 chunk 0: waits in a circle"),
    "one cell": (_one_cell, "waits for ever to receive"),
    "small window": (
        lambda: replace(generate("all_reduce", "direct", 5), window=2),
        "waits for ever to send .* for credit of rank",
    ),
    "early landing": (_early_landing, "rank 1 row 1 chunk 0: rank 0 may write here before row 0"),
    "added twice": (_added_twice, "rank 0 row 1 chunk 0: adds the contribution of rank 1 twice"),
    "reads too soon": (_reads_too_soon, "rank 0 row 0 chunk 0: reads OUTPUT before anything is there"),
    "no such chunk": (_scatter_into_the_output, "rank 0 row 1 chunk 2: uses a chunk of OUTPUT that"),
    "LAST missing": (_without_last, "rank 1 chunk 0: passes 0 rows marked LAST, not 1"),
    "LAST twice": (_last_twice, "rank 1 chunk 0: passes 2 rows marked LAST, not 1"),
    "shifted in a cell": (_shifted_in_a_cell, "rank 0 row 2 chunk 1: shares a cell with row 1"),
    "other order": (_other_order, r"chunk 0: is combined in different orders: \(0 \+ 1 \+ 2\) on rank 0"),
    "TRANSIT result": (_stores_nothing_at_last, "rank 1 row 2 chunk 1: is TRANSIT, but leaves the result"),
    "read after TRANSIT": (_reads_a_skipped_store, "need not store"),
    "write race": (
        lambda: _changed(generate("all_reduce", "ring", 4), 2, 4, after=()),
        "rank 2 row 4 chunk 1: writes OUTPUT chunk 1, whose bytes may not yet be released .* row 0",
    ),
    "read race": (
        _reads_while_it_is_written,
        "rank 0 row 1 chunk 0: reads SCRATCH cell 0 without being after its writer, row 0",
    ),
    "wrong source": (
        lambda: _changed(generate("all_gather", "ring", 3), 0, 1, receives=(Receive(2, Buffer.INPUT),)),
        "rank 0 row 1 chunk 2: expects bytes from INPUT, but row 0 of rank 2 sends OUTPUT",
    ),
    "lands nowhere": (
        lambda: _changed(generate("all_gather", "ring", 3), 0, 0, sends=(Send(1, None),)),
        "rank 1 row 1 chunk 0: row 0 of rank 0 takes them to land in no buffer, but they land in OUTPUT",
    ),
    "lands in a reduction": (
        lambda: _changed(generate("all_reduce", "ring", 3), 0, 0, sends=(Send(1, Buffer.OUTPUT),)),
        "takes them to land in OUTPUT, but they land in no buffer",
    ),
    "too early a step": (
        lambda: _changed(generate("broadcast", "ring", 4, 0), 2, 0, step=2),
        "receives in step 2 what row 0 of rank 1 sends in step 1",
    ),
    "steps": (
        lambda: replace(generate("all_reduce", "ring", 4), step_count=7),
        "declares 7 steps, but takes 6",
    ),
    "bytes": (
        lambda: replace(generate("all_reduce", "ring", 4), make_sent=lambda _: Fraction(1)),
        "rank 0: declares to send 1 of the vector, but sends 3/2",
    ),
    "cells": (lambda: replace(generate("all_reduce", "ring", 4), scratch_cells=1), "declares 1 cells"),
    "window": (lambda: replace(generate("all_reduce", "ring", 4), window=1), "window must be 2 or more"),
    "root": (lambda: replace(generate("broadcast", "ring", 4, 0), root=4), "root 4 of broadcast"),
    "chunks": (lambda: replace(generate("all_gather", "ring", 4), chunk_count=5), "cannot have 5 chunks"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_schedules_are_rejected_by_name(name: str) -> None:
    make, message = BAD[name]
    with pytest.raises(ScheduleError, match=message):
        verify(make())


def test_errors_carry_the_place() -> None:
    with pytest.raises(ScheduleError) as caught:
        verify(_added_twice())
    assert (caught.value.rank, caught.value.row, caught.value.chunk) == (0, 1, 0)
    assert isinstance(caught.value, ValueError)


# Each check of verify, the place of its function, and a schedule that only this check rejects.
CANARIES = [
    (hazards, "_check_write", "write race"),
    (hazards, "_check_read", "read race"),
    (hazards, "_check_existence", "no such chunk"),
    (links, "_check_pair", "wrong source"),
    (links, "_check_pair", "lands nowhere"),
    (dataflow, "_check_landings", "early landing"),
    (dataflow, "_check_result", "LAST twice"),
    (dataflow, "_check_result", "LAST missing"),
    (verify_module, "check_progress", "one cell"),
    (verify_module, "check_progress", "small window"),
    (verify_module, "_check_declared", "steps"),
    (verify_module, "_check_declared", "bytes"),
    (verify_module, "_check_declared", "cells"),
]


@pytest.mark.parametrize(("module", "check", "name"), CANARIES, ids=[f"{c}-{n}" for _, c, n in CANARIES])
def test_canary_without_its_check_a_bad_schedule_passes(
    monkeypatch: pytest.MonkeyPatch, module: Any, check: str, name: str
) -> None:
    """So the check is what rejects it: it can fail, and nothing else would have noticed."""
    schedule = BAD[name][0]()
    with pytest.raises(ScheduleError):
        verify(schedule)
    monkeypatch.setattr(module, check, lambda *_, **__: None)
    verify(schedule)


def test_out_of_place_needs_no_scratch_for_one_shot() -> None:
    """What is a deadlock in place is right out of place, where nobody overwrites the input."""
    schedule = _one_shot_from_the_input()
    free = with_rows(schedule, 0, [replace(row, after=()) for row in schedule.rows(0)])
    free = with_rows(free, 1, [replace(row, after=()) for row in schedule.rows(1)])
    verify(free, in_place=False)
    with pytest.raises(ScheduleError, match="may not yet be released"):
        verify(free, in_place=True)
