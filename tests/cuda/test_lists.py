"""Lists on streams between processes, on the simulated driver: IPC memory, flags, kernels, events, capture."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from cuda_sim.child import child_environment, command

WORLD = str(Path(__file__).with_name("list_world.py"))
TIMEOUT_S = 60


def start(function: str, folder: Path, case: dict[str, Any], **settings: Any) -> list[str]:
    """Run all ranks to their end; what each printed."""
    ranks = [
        subprocess.Popen(
            command(WORLD, function, str(folder), str(rank), json.dumps(case)),
            env=child_environment(**{"seed": 100 * settings.get("seed", 1) + rank, **_without_seed(settings)}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(case["world"])
    ]
    end = time.monotonic() + TIMEOUT_S
    try:
        while time.monotonic() < end and any(rank.poll() is None for rank in ranks):
            if any(rank.poll() for rank in ranks):
                break  # the others wait for it
            time.sleep(0.02)
    finally:
        for rank in ranks:
            rank.kill()
    outputs = [rank.communicate()[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * len(ranks), "\n".join(outputs)
    return outputs


def _without_seed(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name != "seed"}


CASES = [
    {"collective": "all_gather", "algorithm": "ring", "world": 3, "count": 3 * 5 * 512 + 7, "slots": 2},
    {"collective": "all_gather", "algorithm": "direct", "world": 2, "count": 9000, "slots": 1, "copied_flags": 1},
    {"collective": "all_reduce", "algorithm": "ring", "world": 3, "count": 3 * 5 * 512 + 7, "slots": 2},
    {"collective": "reduce", "algorithm": "binomial", "world": 4, "count": 3000, "slots": 1, "root": 1},
    {"collective": "broadcast", "algorithm": "tree", "world": 4, "count": 6001, "slots": 3, "root": 2, "devices": 2},
]


@pytest.mark.parametrize("one_queue", [False, True])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['collective']}-{case['algorithm']}")
def test_what_every_rank_gets(case: dict[str, Any], one_queue: bool, tmp_path: Path) -> None:
    start("run", tmp_path, case, devices=case.get("devices", 1), one_queue=one_queue)


@pytest.mark.parametrize("case", CASES[1:3], ids=lambda case: f"{case['collective']}-{case['algorithm']}")
def test_a_captured_list_is_replayed(case: dict[str, Any], tmp_path: Path) -> None:
    start("replay", tmp_path, case)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_many_delays(seed: int, tmp_path: Path) -> None:
    case = CASES[seed % len(CASES)]
    start("run", tmp_path, case, devices=case.get("devices", 1), seed=seed, delay_us=2000)


ALONE = {"collective": "all_gather", "algorithm": "ring", "world": 2, "count": 2 * 5 * 512, "slots": 2}


@pytest.mark.parametrize(("one_queue", "host_flags"), [(False, 0), (False, 1), (True, 1)])
def test_an_abort_drains_what_nobody_answers(one_queue: bool, host_flags: int, tmp_path: Path) -> None:
    outputs = start("leave_alone", tmp_path, {**ALONE, "host_flags": host_flags}, one_queue=one_queue)
    assert "drained in" in outputs[0]


def test_an_abort_that_can_release_nothing_says_so(tmp_path: Path) -> None:
    outputs = start("give_up", tmp_path, ALONE, one_queue=True)
    assert 0.3 <= float(outputs[0].split()[-2]) < 10


@pytest.mark.parametrize("copied_flags", [0, 1])
def test_flags_in_host_memory(copied_flags: int, tmp_path: Path) -> None:
    start("run", tmp_path, {**CASES[2], "host_flags": 1, "copied_flags": copied_flags}, one_queue=bool(copied_flags))
