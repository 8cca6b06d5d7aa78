"""docs/PROMISES.md against documents and tests: a promise stands where it is said to, and tests that exist check it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "docs" / "PROMISES.md"
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`|`(native/tests/test_\w+\.c)`")


class Promise(NamedTuple):
    """One line of the table."""

    number: int
    words: str  # of the document, between quotation marks
    document: str
    broken: str  # what was so instead
    tests: str


def promises() -> list[Promise]:
    found = []
    for line in TABLE.read_text().splitlines():
        if re.match(r"\| \d+ \|", line):
            number, words, document, broken, tests = (cell.strip() for cell in line.strip("|").split(" | "))
            found.append(Promise(int(number), words, document, broken, tests))
    return found


@cache
def functions(path: str) -> set[str]:
    return {node.name for node in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(node, ast.FunctionDef)}


@cache
def text_of(path: str) -> str:
    """As one line of words; a cell of a table there stands for a comma between clauses, and so is left as it is."""
    return " ".join((ROOT / path).read_text().split())


def test_promises_are_numbered_one_after_another() -> None:
    assert [promise.number for promise in promises()] == list(range(1, len(promises()) + 1))
    assert len({promise.words for promise in promises()}) == len(promises()) >= 20


@pytest.mark.parametrize("promise", promises(), ids=lambda promise: str(promise.number))
def test_a_promise_stands_in_its_document(promise: Promise) -> None:
    words = re.fullmatch(r'"(.+)"', promise.words)
    document = re.fullmatch(r"`(README\.md|docs/\w+\.md)`", promise.document)
    assert words and document and promise.broken
    said = words[1].replace("\\|", "|")
    assert said in text_of(document[1]), f"{document[1]} does not say {said!r}"


@pytest.mark.parametrize("promise", promises(), ids=lambda promise: str(promise.number))
def test_a_promise_has_tests_that_exist(promise: Promise) -> None:
    named = TEST.findall(promise.tests)
    assert named, f"{promise.tests!r} names no test"
    for path, function, native in named:
        assert (ROOT / (path or native)).exists(), path or native
        assert native or function in functions(path), f"{path} has no {function}"


def test_every_document_that_promises_is_looked_at() -> None:
    """The pages that users read for what they may rely on have a line each, at least."""
    named = {promise.document.strip("`") for promise in promises()}
    assert {"README.md", "docs/ALGORITHMS.md", "docs/EXAMPLES.md", "docs/FOOTGUNS.md", "docs/NUMBERS.md"} <= named
    assert {"docs/RECOVERY.md", "docs/WHY.md", "docs/WIRE.md"} <= named
