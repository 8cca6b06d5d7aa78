"""A rank that is in the operation, runs, and takes nothing: a signal's handler holds its thread, outside the library.

Of a rank whose node has another one, that one tells it. Of a rank that is alone on its node nobody can see whether it
runs, and its kernel answers alike: it is told as stopped ("silent while its node answers"; docs/WHY.md).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from verdicts import HELD, agreed, run


@pytest.mark.parametrize("where", ["shm", "mixed"])
def test_a_rank_that_is_held_inside_the_call(where: str, tmp_path: Path) -> None:
    """Over two nodes (mixed) ranks 2 and 3 know it from rank 0, which shares rank 1's node."""
    ran = run(4, HELD, tmp_path, where)
    found = agreed(ran, (0, 2, 3), "no_credit", 1)
    # A rank of another node does not know of what kind the operation is that its neighbour tells of.
    assert re.search(r"is in op 3( \(all_reduce\))?, runs, and takes nothing; rank \d waits for it in", found["text"])
    assert found["op"] == 3 and found["collective"] == "all_reduce" and found["peer"] in (0, 2, 3), found


@pytest.mark.long
def test_a_rank_that_is_held_where_nobody_of_its_node_can_look(tmp_path: Path) -> None:
    found = agreed(run(3, HELD, tmp_path, "tcp"), (0, 2), "stopped", 1)
    assert "silent while its node answers (no rank there can look)" in found["text"], found
