"""The links that ship under the seeded scheduler: schedules, machines, kinds of memory and sizes; all bits drawn.

CI runs some hundred cases of each. One that fails is run again by matrix.py, which says how; over verbs the substitute
libibverbs has a seed of its own, and a thread of its own, whose interleavings differ from run to run.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from shipping import draw, machine, matrix

COUNTS = {"sim": 100, "shm": 400, "stream": 100, "verbs": 100}
BLOCK = 100  # of a process


def passed(transport: str, first: int, count: int, folder: Path) -> None:
    machine.library()
    process = matrix.start(transport, first, count, folder=folder)
    said = process.communicate()[0]
    assert process.returncode == 0, matrix.tail(said)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("transport", "first"), [(name, first) for name in sorted(COUNTS) for first in range(0, COUNTS[name], BLOCK)]
)
def test_right_on_any_machine(transport: str, first: int, tmp_path: Path) -> None:
    passed(transport, first, BLOCK, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("transport", sorted(COUNTS))
def test_thousands_of_machines(transport: str, tmp_path: Path) -> None:
    passed(transport, 10_000, 30 * COUNTS[transport], tmp_path)


def test_cases_are_of_every_kind() -> None:
    """What the matrix is there for comes up in those cases that CI runs."""
    cases = [draw.case("shm", seed) for seed in range(300)]
    seen = Counter(case.schedule.collective for case in cases)
    assert set(seen) == {
        "all_reduce",
        "reduce_scatter",
        "all_gather",
        "broadcast",
        "reduce",
        "all_to_all",
        "gather",
        "scatter",
    }
    assert {case.sim["registered"] for case in cases} == {0, 1, 2, 3, 4, 5}
    assert {case.sim["slot_count"] for case in cases} == {1, 2, 3, 8}
    for what, found in (
        ("a check", [case for case in cases if case.check]),
        ("a bit turned", [case for case in cases if "corrupt_transfer" in case.sim]),
        ("a death", [case for case in cases if "kill_rank" in case.sim]),
        ("several operations", [case for case in cases if case.sim["operations"] > 1]),
        ("rounds", [case for case in cases if case.round_count > 1]),
        ("in place", [case for case in cases if case.in_place]),
        ("several links an edge", [case for case in cases if case.sim["channels"] > 1]),
        ("serials that wrap", [case for case in cases if case.links["serial_start"] == (1 << 32) - 3]),
    ):
        assert len(found) > 3, what
