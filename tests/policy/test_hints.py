"""native/src/hints.c: every row says what to do about an error that some place raises."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[2] / "native" / "src"
TEXT = r'"((?:[^"\\]|\\.)*)"'
ROWS = re.findall(r"\{(RR_ERR_\w+), " + TEXT + ", " + TEXT + r"\}", (SOURCES / "hints.c").read_text())


@pytest.fixture(scope="module")
def sites() -> list[tuple[str, str]]:
    """Status and format of what is raised."""
    found = []
    for path in [*SOURCES.glob("*.c"), *SOURCES.glob("*.h")]:
        found += re.findall(r"rr_fail\(\s*(RR_ERR_\w+),\s*" + TEXT, path.read_text())
    assert len(found) > 300, "the sources are written otherwise than this test reads them"
    return found


def test_the_table_is_read_whole() -> None:
    assert len(ROWS) == (SOURCES / "hints.c").read_text().count("{RR_ERR_")


@pytest.mark.parametrize(("status", "begins", "hint"), ROWS)
def test_a_row_serves_some_place(status: str, begins: str, hint: str, sites: list[tuple[str, str]]) -> None:
    assert any(raised == status and text.startswith(begins) for raised, text in sites)
    assert hint and hint[-1] not in ".!"  # it becomes the end of a sentence
