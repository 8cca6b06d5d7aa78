"""Rows that are not well formed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rdmaring.schedule import After, Buffer, Flag, Kind, Op, Receive, Row, ScheduleError, Send
from rdmaring.schedule.check import check_row

GOOD = Row(
    1,
    Buffer.OUTPUT,
    2,
    3,
    Op.REDUCE,
    operand=Buffer.INPUT,
    operand_at=1,
    receives=(Receive(0, Buffer.INPUT),),
    sends=(Send(2, None),),
    flags=Flag.FIRST,
    after=(After(0, Kind.RELEASED), After(1, Kind.DONE)),
)
SENDING = Row(0, Buffer.INPUT, 0, 1, Op.NONE, sends=(Send(2, None),))
LEAF = Row(0, Buffer.OUTPUT, 0, 1, Op.COPY, receives=(Receive(0, Buffer.INPUT),))


def check(row: Row) -> None:
    check_row(row, [SENDING, LEAF], rank=1, world=4, chunk_count=4, step_count=3, cells=2)


def test_a_good_row_passes() -> None:
    check(GOOD)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"chunk_begin": -1}, r"chunks -1..3 must be a part of 0..4"),
        ({"chunk_end": 2}, "not empty"),
        ({"chunk_end": 5}, r"chunks 2..5"),
        ({"step": 3}, "step 3 of 3"),
        ({"step": -1}, "step -1 of 3"),
        ({"cell": 1}, "cell must be 0 outside of scratch"),
        ({"buffer": Buffer.SCRATCH, "cell": 2}, "cell 2 of 2"),
        ({"buffer": Buffer.SCRATCH, "cell": -1}, "cell -1 of 2"),
        ({"operand": Buffer.SCRATCH, "operand_cell": 2, "flags": Flag(0)}, "operand cell 2 of 2"),
        ({"operand_cell": 1}, "operand cell must be 0 outside of scratch"),
        ({"buffer": Buffer.INPUT}, "writes the input"),
        ({"op": Op.COPY}, "COPY needs one source, has 2"),
        ({"receives": ()}, "REDUCE needs two or more sources, has 1"),
        ({"op": Op.NONE}, "has no operation, so no sources"),
        ({"op": Op.NONE, "receives": (), "operand": None, "flags": Flag.LAST}, "no flags"),
        (
            {"op": Op.NONE, "receives": (), "operand": None, "flags": Flag(0), "operand_at": 0, "sends": ()},
            "does nothing",
        ),
        ({"operand_at": 2}, "operand_at 2 with 1 receives"),
        ({"operand_at": -1}, "operand_at -1"),
        ({"op": Op.COPY, "operand": None, "flags": Flag(0)}, "operand_at 1 with 1 receives"),
        ({"flags": Flag(0)}, "FIRST must say"),
        ({"operand": Buffer.OUTPUT}, "FIRST must say"),
        ({"flags": Flag.FIRST | Flag.TRANSIT, "sends": ()}, "TRANSIT but sends nothing"),
        ({"sends": (Send(2, Buffer.INPUT),)}, "lands in an input"),
        ({"sends": (Send(1, None),)}, "sends to rank 1, in a world of 4"),
        ({"sends": (Send(4, None),)}, "sends to rank 4"),
        ({"sends": (Send(2, None), Send(2, None))}, "sends to a rank twice"),
        ({"receives": (Receive(-1, Buffer.INPUT),)}, "receives from rank -1"),
        ({"receives": (Receive(0, Buffer.INPUT),) * 2}, "receives from a rank twice"),
        ({"after": (After(2, Kind.DONE),)}, "after must name earlier rows"),
        ({"after": (After(-1, Kind.DONE),)}, "after must name earlier rows"),
        ({"after": (After(1, Kind.DONE), After(0, Kind.DONE))}, "ascending"),
        ({"after": (After(0, Kind.DONE), After(0, Kind.RELEASED))}, "each once"),
        ({"after": (After(1, Kind.RELEASED),)}, "row 1 to be released, which sends nothing"),
    ],
)
def test_each_fault_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ScheduleError, match=message) as caught:
        check(replace(GOOD, **fields))
    assert (caught.value.rank, caught.value.row) == (1, 2)
