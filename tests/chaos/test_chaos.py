"""A slice of scripts/chaos with fixed seeds, and what its judge would not let pass."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
# A loaded machine with two cores: the strict bounds are those of tests/fault, with one world at a time.
SLACK_S = "10"
PATIENCE = "2"
TRANSPORTS = ("--transport", "shm,tcp,sim,verbs")
NOT_IN_CI = "slow:tcp"  # needs a processor for each of four hosts


def chaos(*options: str, timeout_s: float = 110) -> tuple[int, Any, str]:
    """Exit code, document and what was said on standard error."""
    line = [sys.executable, str(SCRIPTS / "chaos"), "--json", "--slack-s", SLACK_S, *options]
    env = {**os.environ, "CHAOS_PATIENCE": PATIENCE}
    done = subprocess.run(line, capture_output=True, text=True, timeout=timeout_s, check=False, env=env)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


@pytest.mark.timeout(400)
def test_a_slice() -> None:
    """A minute. Beside a whole suite a rank may get no processor for seconds: what is wrong must not be so again."""
    code, told, errors = chaos("--seconds", "60", "--seed", "1", *TRANSPORTS, "--without", NOT_IN_CI, timeout_s=200)
    assert told["runs"] >= 6, told
    assert told["hang"] == told["wrong_sums"] == told["leaks"] == 0, errors
    assert code == (0 if told["right"] == told["runs"] else 1)
    bad = [run["plan"]["seed"] for run in told["results"] if run["grade"] != "right"]
    assert len(bad) <= max(1, told["runs"] // 20), errors
    for seed in bad:
        code, again, said = chaos("--replay", str(seed), *TRANSPORTS)
        assert code == 0 and again["right"] == 1, errors + said


@pytest.mark.long
@pytest.mark.timeout(2000)
def test_two_hundred() -> None:
    _, told, errors = chaos("--runs", "200", "--seed", "1", *TRANSPORTS, timeout_s=1900)
    assert told["right_share"] >= 0.99, errors
    assert told["hang"] == told["wrong_sums"] == told["leaks"] == 0, errors


def test_a_seed_is_a_plan() -> None:
    """The same in a row, alone, and with transports left out that it did not draw."""
    line = [sys.executable, str(SCRIPTS / "chaos"), "--plans", "--json"]

    def plans(*options: str) -> list[Any]:
        done = subprocess.run([*line, *options], capture_output=True, text=True, check=True)
        return [json.loads(text) for text in done.stdout.splitlines()]

    in_a_row = plans("--runs", "40", "--seed", "7", "--transport", "shm,tcp,sim")
    assert in_a_row == plans("--runs", "40", "--seed", "7", "--transport", "shm,tcp,sim")
    assert plans("--replay", "20", "--transport", in_a_row[13]["transport"]) == [in_a_row[13]]
    assert {plan["transport"] for plan in in_a_row} == {"shm", "tcp", "sim"}
    assert len({plan["fault"] for plan in in_a_row}) > 6
    for plan in in_a_row:
        assert 2 <= plan["ranks"] <= 8 and plan["victim"] != plan["peer"]
        if plan["transport"] == "tcp" and plan["fault"] in ("cut", "host", "slow"):
            assert plan["bed"] == "namespaces" and os.geteuid() == 0
