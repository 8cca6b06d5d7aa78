"""The table and the document of many runs."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from chaos_runs.faults import FAULTS
from chaos_runs.judge import Judged
from chaos_runs.plan import Plan


def summary(runs: Sequence[Judged]) -> dict[str, Any]:
    grades = Counter(run.grade for run in runs)
    judged = len(runs) or 1
    return {
        "runs": len(runs),
        "right": grades["right"],
        "class_only": grades["class"],
        "wrong": grades["wrong"],
        "hang": grades["hang"],
        "wrong_sums": sum("wrong sum" in run.verdicts.values() for run in runs),
        "leaks": sum(len(run.leaks) for run in runs),
        "right_share": round(grades["right"] / judged, 4),
        "repeated": sum(run.repeated for run in runs),
        "seconds": round(sum(run.run_s for run in runs), 1),
    }


def document(runs: Sequence[Judged], asked: dict[str, Any]) -> dict[str, Any]:
    return {**asked, **summary(runs), "by": rows(runs), "results": [run.as_dict() for run in runs]}


def rows(runs: Sequence[Judged]) -> list[dict[str, Any]]:
    """One for each pair of fault and transport."""
    cells: dict[tuple[str, str], list[Judged]] = defaultdict(list)
    for run in runs:
        cells[run.plan.fault, run.plan.transport].append(run)
    order = list(FAULTS)
    found = []
    for (fault, transport), here in sorted(cells.items(), key=lambda cell: (order.index(cell[0][0]), cell[0][1])):
        times = [run.seconds for run in here if run.seconds is not None]
        kinds = Counter(
            text.split()[0] if text != "wrong sum" else text for run in here for text in run.verdicts.values()
        )
        found.append(
            {
                "fault": fault,
                "transport": transport,
                "runs": len(here),
                **{grade: sum(run.grade == grade for run in here) for grade in ("right", "class", "wrong", "hang")},
                "leaks": sum(len(run.leaks) for run in here),
                "verdicts": dict(kinds.most_common()),
                "median_s": round(statistics.median(times), 3) if times else None,
                "slowest_s": round(max(times), 3) if times else None,
            }
        )
    return found


def table(runs: Sequence[Judged]) -> Table:
    made = Table(box=None, pad_edge=False)
    for name in ("fault", "transport", "runs", "right", "class", "wrong", "hang", "leaks", "median s", "slowest s"):
        made.add_column(name, justify="left" if name in ("fault", "transport") else "right")
    made.add_column("verdicts of the ranks")
    for row in rows(runs):
        numbers = [row[name] for name in ("runs", "right", "class", "wrong", "hang", "leaks")]
        times = ["" if row[name] is None else f"{row[name]:.2f}" for name in ("median_s", "slowest_s")]
        kinds = ", ".join(f"{kind} {count}" for kind, count in row["verdicts"].items())
        made.add_row(row["fault"], row["transport"], *map(str, numbers), *times, kinds)
    return made


def describe(plan: Plan) -> str:
    """One line: all of a plan that people ask for."""
    where = f"{plan.ranks} ranks on {plan.nodes} node{'s'[: plan.nodes > 1]} ({plan.bed})"
    calls = " ".join(plan.calls)
    return (
        f"seed {plan.seed}: {plan.transport}, {where}: {plan.fault} ({FAULTS[plan.fault].what}) at rank {plan.victim}, "
        f"peer {plan.peer}, step {plan.step} + {plan.delay_ms:g} ms; {plan.count} {plan.dtype}, {calls}, "
        f"algorithm {plan.algorithm}, turn {plan.turn}"
    )


def show_bad(console: Console, run: Judged, transports: str) -> None:
    state = "leak" if run.grade == "right" else run.grade
    console.print(f"{state}: {describe(run.plan)}", markup=False, highlight=False, soft_wrap=True)
    for line in [*run.why, *(f"left: {each}" for each in run.leaks)]:
        console.print(f"    {line}", markup=False, highlight=False, soft_wrap=True)
    again = f"scripts/chaos --replay {run.plan.seed} --transport {transports}"
    console.print(f"    again: {again}", markup=False, highlight=False)
