"""docs/COMPLAINTS.md against the tests: every complaint names a test that there is, and what is here is named there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from rdmaring.settings import VARIABLES

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "docs" / "COMPLAINTS.md"
COUNT = 45
ANSWERED_MIN = 40
PARTLY = "*partly*"  # begins what is said of a complaint that is not answered in full
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
SOURCE = re.compile(r"[\w./-]+(#| PR#?)\d+")
HERE = Path(__file__).resolve().parent


def rows() -> list[list[str]]:
    """The cells of each complaint: number, symptom, source, what is done, tests."""
    lines = [line for line in TABLE.read_text().splitlines() if re.match(r"\| \d+ \|", line)]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


@cache
def functions(path: str) -> set[str]:
    return {node.name for node in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(node, ast.FunctionDef)}


def test_all_complaints_are_there_once_and_in_order() -> None:
    assert [int(row[0]) for row in rows()] == list(range(1, COUNT + 1))


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_a_complaint_has_a_source_an_answer_and_a_test_that_exists(row: list[str]) -> None:
    _number, symptom, source, answer, tests = row
    assert symptom and answer
    assert SOURCE.search(source), f"{source!r} is no public issue"
    named = TEST.findall(tests)
    assert named, f"{tests!r} names no test"
    for path, function in named:
        assert (ROOT / path).exists(), path
        assert function in functions(path), f"{path} has no {function}"


def test_enough_of_them_are_answered() -> None:
    answered = [row for row in rows() if not row[3].startswith(PARTLY)]
    assert len(answered) >= ANSWERED_MIN
    assert f"{len(answered)} of {COUNT} are answered" in TABLE.read_text()


def test_every_test_of_complaints_stands_in_the_table() -> None:
    named = {function for row in rows() for path, function in TEST.findall(row[4]) if "tests/complaints/" in path}
    there = {
        function
        for path in HERE.glob("test_*.py")
        if path != Path(__file__).resolve()
        for function in functions(str(path.relative_to(ROOT)))
        if function.startswith("test_")
    }
    assert there == named


# Of the launcher, and of what is built: no settings of a job.
OTHERS = {"RDMARING_H", "RDMARING_LINK_H", "RDMARING_VERSION", "RDMARING_CUDA_FLAGS"}


def test_advice_names_variables_that_exist() -> None:
    """Whoever follows a hint meets no variable that does nothing."""
    sources = [*(ROOT / "native" / "src").glob("*.c"), *(ROOT / "rdmaring").rglob("*.py")]
    named = {
        (path.name, name)
        for path in sources
        for name in re.findall(r"\bRDMARING_[A-Z0-9_]*[A-Z0-9]\b(?!\()", path.read_text())
    }
    assert ("hints.c", "RDMARING_MEMORY_BUDGET") in named or len(named) > 30
    assert [each for each in sorted(named) if each[1] not in VARIABLES and each[1] not in OTHERS] == []
