"""The line that says how a job ended."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from rdmaring.launch.child import Child, signal_name
from rdmaring.rendezvous.protocol import rank_list


def how_it_ended(status: int) -> str:
    return f"killed by {signal_name(-status)}" if status < 0 else f"exit status {status}"


def verdict(children: Sequence[Child], first: Child | None, interrupted: signal.Signals | None) -> str | None:
    """One line about a job of which all ranks have ended; None where there is nothing to tell.

    first: the rank that failed first, if any did before the launcher was interrupted.
    interrupted: the signal that ended the launcher.
    """
    if first is None and interrupted is None:
        return None
    parts = []
    if first is not None and first.status is not None:
        order = " first" if len(children) > 1 else ""
        parts.append(f"rank {first.rank} failed{order}: {how_it_ended(first.status)}")
    if interrupted is not None:
        parts.append(f"ended by {signal_name(interrupted)}")
    parts += _others(children, first)
    return "rdmaring run: " + "; ".join(parts)


def _others(children: Sequence[Child], first: Child | None) -> list[str]:
    """What became of the ranks that ended after the first failure, or after the interruption."""
    since = None if first is None else first.ended_at
    rest = [
        child
        for child in children
        if child is not first and not (child.sent is None and child.status == 0 and _before(child, since))
    ]
    fates: dict[str, list[int]] = {}
    for child in rest:
        fates.setdefault(_fate(child), []).append(child.rank)
    return [
        f"{rank_list(ranks)} {fate.format(self='itself' if len(ranks) == 1 else 'themselves')}"
        for fate, ranks in fates.items()
    ]


def _before(child: Child, moment: float | None) -> bool:
    return moment is None or (child.ended_at is not None and child.ended_at <= moment)


def _fate(child: Child) -> str:
    status = child.status if child.status is not None else 0
    if child.sent is None:
        return f"left by {{self}} ({how_it_ended(status)})"
    if status == -child.sent:
        return f"ended by {child.sent.name}"
    return f"left on {child.sent.name} ({how_it_ended(status)})"
