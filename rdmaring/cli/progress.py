"""A bar on a terminal's standard error, for commands that take long."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

Advance = Callable[[str, int, int], None]  # what is under way, how many are done, of how many


def make_bar(*, shown: bool = True, auto_refresh: bool = False) -> Progress:
    """auto_refresh: by a thread, which would disturb what is measured."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
        auto_refresh=auto_refresh,
        disable=not (shown and sys.stderr.isatty()),
    )


@contextmanager
def progress(*, shown: bool) -> Iterator[Advance]:
    """Of a measurement."""
    with make_bar(shown=shown) as bar:
        task = bar.add_task("", total=1)

        def advance(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total, refresh=True)

        yield advance
