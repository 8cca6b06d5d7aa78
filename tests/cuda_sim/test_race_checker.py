"""The race checker finds nothing in a ring that is right, and each bug that is planted in it, every time."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from cuda_sim import race_checker, race_ring
from cuda_sim.child import child_environment, command

HANG_S = 90


def ring(folder: Path, size: int, bug: str, seed: int, one_queue: bool = False) -> list[race_checker.Race]:
    """Races in the log of one run."""
    log = folder / "log"
    folder.mkdir(exist_ok=True)
    processes = []
    for rank in range(size):
        environment = child_environment(seed=seed * 100 + rank, delay_us=300, race_log=log, one_queue=one_queue)
        line = command(race_ring.__file__, "main", str(folder), str(rank), str(size), bug)
        processes.append(subprocess.Popen(line, env=environment, stderr=subprocess.PIPE, text=True))
    try:
        for process in processes:
            _, errors = process.communicate(timeout=HANG_S)
            assert process.returncode == 0, errors
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return race_checker.check(log)


@pytest.mark.parametrize(("size", "one_queue"), [(2, False), (3, False), (3, True)])
def test_a_ring_that_is_right_has_no_race(tmp_path: Path, size: int, one_queue: bool) -> None:
    assert ring(tmp_path, size, "", 1, one_queue) == []


@pytest.mark.parametrize("bug", race_ring.BUGS)
def test_a_planted_bug_is_found(tmp_path: Path, bug: str) -> None:
    races = ring(tmp_path, 2, bug, 2)
    assert races
    for race in races:
        assert "neither comes before the other" in str(race)


@pytest.mark.parametrize("one_queue", [False, True])
def test_a_reversed_order_stands_still_in_one_queue(tmp_path: Path, one_queue: bool) -> None:
    """Every wait has its signal, and no access is without an order: only a single queue shows it, every time."""
    assert ring(tmp_path, 2, race_ring.REVERSED, 3, one_queue) == []
    assert sorted(path.name for path in tmp_path.glob("still.*")) == (["still.0", "still.1"] if one_queue else [])


@pytest.mark.long
@pytest.mark.parametrize("bug", ["", *race_ring.BUGS])
def test_whatever_the_delays(tmp_path: Path, bug: str) -> None:
    for seed in range(10):
        assert bool(ring(tmp_path / str(seed), 2 if bug else 3, bug, seed + 10)) == bool(bug), f"seed {seed}"
