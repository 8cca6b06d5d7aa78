"""What runs under sanitizers, and what is left out there with a reason, names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = [line for line in (ROOT / "tests/unsanitized.txt").read_text().splitlines() if not line.startswith("#")]
SLICES = re.findall(r"tests/[\w/]+\.py::\w+", (ROOT / "scripts/sanitized.sh").read_text())


def exists(name: str) -> bool:
    path, _, test = name.partition("::")
    return (ROOT / path).exists() and (not test or f"def {test}(" in (ROOT / path).read_text())


@pytest.mark.parametrize("line", LEFT_OUT)
def test_what_is_left_out_says_why(line: str) -> None:
    name, _, why = line.partition(" # ")
    assert exists(name) and len(why.split()) > 1, line


@pytest.mark.parametrize("name", SLICES)
def test_what_ci_runs_is_there(name: str) -> None:
    assert exists(name)


def test_there_are_slices() -> None:
    assert len(SLICES) >= 10
