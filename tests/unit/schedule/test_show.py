"""Schedules for readers, and for programs that read JSON."""

from __future__ import annotations

import json

from unit.schedule.cases import schedules

from rdmaring.schedule import generate
from rdmaring.schedule.show import as_dict, render

RING = """\
all_reduce by ring, 3 ranks
chunks 3, steps 4, window 3, scratch cells 0, identity IDENTITY

rank 1: 5 rows, sends 4/3 (1.333) of the vector
row  step  dst             made of             sent to     flags          after
0    0     INPUT chunk 0   itself              ->2
1    0     OUTPUT chunk 2  <-0 INPUT + INPUT   ->2         first transit
2    1     OUTPUT chunk 1  <-0 OUTPUT + INPUT  ->2 OUTPUT  first last
3    2     OUTPUT chunk 0  <-0 OUTPUT          ->2 OUTPUT                 0r
4    3     OUTPUT chunk 2  <-0 OUTPUT                                     1r
"""


def test_a_ring_as_text() -> None:
    schedule = generate("all_reduce", "ring", 3)
    text = render(schedule, [1])
    head, _, legend = text.rpartition("\n\n")
    assert head + "\n" == RING.replace("IDENTITY", f"{schedule.identity:016x}")
    assert legend.startswith("made of")
    assert "rank 0:" not in text


def test_scratch_and_roots_are_shown() -> None:
    text = render(generate("reduce", "ring", 4, 2))
    assert text.startswith("reduce by ring, 4 ranks, root 2\n")
    assert "SCRATCH cell 0 chunk 0" in text and "<-1 SCRATCH + INPUT" in text


def test_columns_line_up() -> None:
    for schedule in schedules([1, 4]):
        for block in render(schedule).split("\n\n")[1:-1]:
            _, headings, *rows = block.splitlines()
            column = headings.index("dst")
            assert all(row[column - 1] == " " and row[column] != " " for row in rows)
            assert len(rows) >= 1


def test_every_row_is_in_the_dict_and_it_is_json() -> None:
    for schedule in schedules([1, 5]):
        shown = json.loads(json.dumps(as_dict(schedule)))
        assert [len(rank["rows"]) for rank in shown["ranks"]] == [
            len(schedule.rows(rank)) for rank in range(schedule.world)
        ]
        assert shown["identity"] == f"{schedule.identity:016x}"


def test_a_row_as_plain_data() -> None:
    shown = as_dict(generate("all_reduce", "ring", 3), [1])
    assert shown["ranks"][0]["rank"] == 1 and shown["ranks"][0]["sent"] == "4/3"
    assert shown["ranks"][0]["rows"][3] == {
        "row": 3,
        "step": 2,
        "buffer": "output",
        "chunks": [0, 1],
        "cell": 0,
        "op": "copy",
        "operand": None,
        "operand_cell": 0,
        "operand_at": 0,
        "receives": [{"peer": 0, "source": "output"}],
        "sends": [{"peer": 2, "lands": "output"}],
        "channel": 0,
        "flags": [],
        "after": [{"row": 0, "kind": "released"}],
    }
