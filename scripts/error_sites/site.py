"""One place that raises an error."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VALUE = "…"  # stands in a text for what is known only when it is raised


@dataclass(frozen=True)
class Site:
    """A place.

    kinds: names of statuses (C) or of a class (Python) that it may raise; empty: it raises what it was handed.
    text: what it says, with VALUE for what it fills in; empty: all is filled in.
    hints: what it says is to be done: of several one is chosen when it is raised; VALUE alone: another's words.
    """

    path: Path
    line: int
    kinds: tuple[str, ...]
    text: str
    hints: tuple[str, ...]

    @property
    def place(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"

    def says(self, message: str) -> bool:
        """Can it have raised this message?"""
        parts = [re.escape(part) for part in self.text.split(VALUE)]
        return re.fullmatch(".+".join(parts), message) is not None
