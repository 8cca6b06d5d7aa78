"""What may not stand in any file of the project: leftovers, other people's paths, rooms too large."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 80


def project_files() -> list[Path]:
    """All files that belong to the project, as git knows them."""
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z"]
    listing = subprocess.run(
        [*command, "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    )
    paths = [ROOT / name.decode() for name in listing.stdout.split(b"\0") if name]
    return [path for path in paths if path.is_file()]


FILES = project_files()
PYTHON = [
    path
    for path in FILES
    if path.suffix == ".py" or (path.suffix == "" and path.read_bytes().startswith(b"#!/usr/bin/env python"))
]
CODE = [*PYTHON, *(path for path in FILES if path.suffix in (".c", ".h", ".cu"))]

# Each is written in two parts, so that this file does not hold it.
LEFTOVERS = ["TO" "DO", "FIX" "ME", "XX" "X", "HA" "CK", "NotImplemented" "Error", "place" "holder"]
OUTSIDE = [
    "/" "work/", "../" "shared", "/home/" r"\w", "/ro" "ot/", "/tmp/" "venv",
    "py" r"pi\.org", "python" r"hosted\.org", "deb" r"\.debian\.org", "npm" r"js\.(org|com)",
]  # fmt: skip


def lines_with(pattern: str, flags: int = 0) -> list[str]:
    found = []
    for path in FILES:
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue  # a picture
        for number, line in enumerate(text.splitlines(), 1):
            if re.search(pattern, line, flags):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    return found


def test_files_are_found() -> None:
    assert {"pyproject.toml", "test_text.py", "rdmaring.h"} <= {path.name for path in FILES}
    assert len(PYTHON) > 20


@pytest.mark.parametrize("word", LEFTOVERS)
def test_nothing_is_left_over(word: str) -> None:
    assert lines_with(rf"\b{word}\b") == []


@pytest.mark.parametrize("pattern", OUTSIDE)
def test_nothing_refers_to_a_place_outside(pattern: str) -> None:
    assert lines_with(pattern) == []


@pytest.mark.parametrize("path", CODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_is_a_small_room(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= FILE_LINES_MAX


@pytest.mark.parametrize("path", PYTHON, ids=lambda path: str(path.relative_to(ROOT)))
def test_python_functions_are_short_and_swallow_nothing(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < FUNCTION_LINES_MAX, node.name
        if isinstance(node, ast.ExceptHandler):
            caught = "" if node.type is None else ast.unparse(node.type)
            silent = all(isinstance(statement, ast.Pass) for statement in node.body)
            assert not (silent and caught in ("", "Exception", "BaseException")), f"line {node.lineno}"
