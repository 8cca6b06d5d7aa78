"""scripts/kill_stress for some seconds: kills, shrinks, a job that begins again, and right sums throughout."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "kill_stress"


def stress(minutes: float, *options: str) -> None:
    line = [sys.executable, str(SCRIPT), "--json", "--minutes", f"{minutes:g}", *options]
    done = subprocess.run(line, capture_output=True, text=True, timeout=minutes * 60 + 110, check=False)
    told = json.loads(done.stdout)
    assert done.returncode == 0, (told, done.stderr)
    assert told["kills"] >= 1 and told["steps"] > 0, told
    assert told["wrong"] == told["hung"] == told["unexpected"] == [], told


def test_some_seconds() -> None:
    stress(0.15, "--ranks", "3", "--seed", "1", "--kill-every-s", "0.3")


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("nodes", ["1", "2"])
def test_five_minutes(nodes: str) -> None:
    stress(5, "--ranks", "4", "--seed", "2", "--nodes", nodes)
