"""Calls of one thread beside close(), abort(), the collector and fork() of another; handlers of signals; copies."""

from __future__ import annotations

from pathlib import Path

import pytest
from worlds import run_world

HERE = Path(__file__).parent
ACTIONS = ("close", "abort", "collected", "fork")


def beside(world: int, action: str, seed: int, tmp_path: Path, *, some: int = 0, env: dict[str, str] | None = None) -> None:
    program = (HERE / "beside_calls.py").read_text().replace("from __future__ import annotations\n", "")
    args = (action, str(seed), str(some))
    ran = run_world(world, program, tmp_path, env=env, timeout_s=120, args=args)
    assert ran.code == 0, ran.output
    for rank in range(world):
        assert ran.of(rank, "cases") == some or (not some and ran.of(rank, "cases") > 30), ran.output


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("action", ACTIONS)
def test_every_method_beside_another_thread(action: str, world: int, tmp_path: Path) -> None:
    beside(world, action, 1, tmp_path)
