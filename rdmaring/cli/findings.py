"""Findings as text: a table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rdmaring.diagnose.doctor import Finding, State

STYLES = {State.OK: "green", State.WARNING: "yellow", State.FAILURE: "bold red", State.NOT_APPLICABLE: "dim"}
SHORT = {State.NOT_APPLICABLE: "n/a"}
NEED_ACTION = (State.WARNING, State.FAILURE)


class FindingsText:
    """Writes groups of findings. verbose: evidence of all; else of warnings and failures alone."""

    def __init__(self, stream: TextIO | None = None, *, verbose: bool = False) -> None:
        self._stream = stream or sys.stdout
        self._verbose = verbose
        self._console = Console(file=self._stream, highlight=False) if self._stream.isatty() else None

    def group(self, title: str, findings: Sequence[Finding]) -> None:
        """A heading, a line for each finding, and beneath it what to do about it."""
        if self._console is None:
            self._plain(title, findings)
        else:
            self._table(self._console, title, findings)

    def closing(self, findings: Iterable[Finding]) -> None:
        """How many of each kind."""
        counts = dict.fromkeys(State, 0)
        for finding in findings:
            counts[finding.state] += 1
        words = ", ".join(f"{count} {SHORT.get(state, state.value)}" for state, count in counts.items())
        if self._console is None:
            print(words, file=self._stream)
        else:
            self._console.print(Text(words, "bold"))

    def _lines(self, finding: Finding) -> list[tuple[str, str]]:
        lines = []
        if finding.state in NEED_ACTION:
            lines += [("cause", finding.cause), ("fix", finding.fix)]
        if self._verbose or finding.state in NEED_ACTION:
            lines += [("read", f"{line.source}: {line.value}") for line in finding.evidence]
        return lines

    def _plain(self, title: str, findings: Sequence[Finding]) -> None:
        width = max((len(finding.id) for finding in findings), default=0)
        print(title, file=self._stream)
        for finding in findings:
            state = SHORT.get(finding.state, finding.state.value)
            print(f"  {state:<8} {finding.id:<{width}}  {finding.found}", file=self._stream)
            for name, text in self._lines(finding):
                for number, line in enumerate(text.splitlines() or [""]):
                    print(f"           {name if number == 0 else '':<6} {line}", file=self._stream)

    def _table(self, console: Console, title: str, findings: Sequence[Finding]) -> None:
        table = Table(title=Text(title), title_justify="left", box=None, pad_edge=False, show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for finding in findings:
            style = STYLES[finding.state]
            state = SHORT.get(finding.state, finding.state.value)
            table.add_row(Text(state, style), Text(finding.id, "bold"), Text(finding.found))
            for name, text in self._lines(finding):
                dim = "dim" if name == "read" else ""
                table.add_row(Text(), Text(f"  {name}", "dim"), Text(text, dim))
        console.print(table)
