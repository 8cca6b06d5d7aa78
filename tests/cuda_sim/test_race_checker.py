"""The race checker finds nothing in a ring that is right, and each bug that is planted in it, every time."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from cuda_sim import race_checker, race_ring
from cuda_sim.child import child_environment, command

HANG_S = 90


def ring(folder: Path, size: int, bug: str, seed: int, one_queue: bool = False) -> race_checker.History:
    """The history of one run."""
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
    return race_checker.read(log)


@pytest.mark.parametrize(("size", "one_queue"), [(2, False), (3, False), (3, True)])
def test_a_ring_that_is_right_has_no_race(tmp_path: Path, size: int, one_queue: bool) -> None:
    history = ring(tmp_path, size, "", 1, one_queue)
    assert history.races() == [] and history.standstill() == []


@pytest.mark.parametrize("bug", race_ring.BUGS)
def test_a_planted_bug_is_found(tmp_path: Path, bug: str) -> None:
    races = ring(tmp_path, 2, bug, 2).races()
    assert races
    for race in races:
        assert "neither comes before the other" in str(race)


@pytest.mark.parametrize("one_queue", [False, True])
def test_a_reversed_order_stands_still_in_one_queue(tmp_path: Path, one_queue: bool) -> None:
    """Every wait has its signal, and no access is without an order: only a single queue shows it, every time."""
    history = ring(tmp_path, 2, race_ring.REVERSED, 3, one_queue)
    assert history.races() == []
    assert sorted(path.name for path in tmp_path.glob("still.*")) == (["still.0", "still.1"] if one_queue else [])
    if not one_queue:  # where it stood still, what would have gone on is not in the log
        circle = history.standstill()
        assert any(name.startswith("memop") for name in circle), circle


SEEDS, LONG_S = 50, 1800


@pytest.mark.long
@pytest.mark.timeout(LONG_S + 60)
@pytest.mark.parametrize("bug", ["", *race_ring.BUGS, race_ring.REVERSED])
def test_whatever_the_delays(tmp_path: Path, bug: str) -> None:
    """Each bug in each run: what has no order, or the circle of a reversed order; without one, nothing."""
    line = command(race_ring.__file__, "many", str(tmp_path), "2" if bug else "3", bug, "10", str(SEEDS))
    done = subprocess.run(line, env=child_environment(delay_us=300), capture_output=True, text=True, timeout=LONG_S)
    assert done.returncode == 0, done.stderr
    for seed in range(10, 10 + SEEDS):
        history = race_checker.read(tmp_path / str(seed) / "log")
        assert bool(history.races()) == (bug in race_ring.BUGS), f"seed {seed}"
        assert bool(history.standstill()) == (bug == race_ring.REVERSED), f"seed {seed}"
