"""``rdmaring why``: who is stuck, where, on what."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from rdmaring.diagnose.why import Group, RankState, Report, look

WATCH_S = 1.0

EPILOG = """\b
Examples:
  rdmaring why                 all jobs on this machine
  rdmaring why 4711            the job of process 4711: a rank, or its launcher
  rdmaring why --job 8c1f      the job whose number ends so; numbers stand in the first line of each
  rdmaring why --watch         again every second; says what has changed
  rdmaring why --json 4711     one document, for programs

\b
Exit codes: 0 nothing is stuck, 1 there is a verdict, 2 wrong usage, 3 no job was found.
Nothing is written, and the job need not help: it may hang, be stopped or be killed in part.
"""


@click.command("why", epilog=EPILOG)
@click.argument("pid", type=click.IntRange(min=1), required=False)
@click.option("--job", metavar="ID", help="Number of a job or communicator, or its end.")
@click.option("--json", "as_json", is_flag=True, help="One document on stdout.")
@click.option("--watch", is_flag=True, help="Look again every second until Ctrl-C; print what has changed.")
def command(pid: int | None, job: str | None, as_json: bool, watch: bool) -> int:
    """Say which rank is stuck, where and on what, for jobs on this machine.

    PID: a rank, or a process that has started ranks. It reads the ranks' progress pages from outside.
    """
    if as_json and watch:
        raise click.UsageError("--json prints one document, --watch goes on: give one of them")
    if pid is not None and job is not None:
        raise click.UsageError("PID and --job both name a job: give one of them")
    if pid is not None and not Path(f"/proc/{pid}").exists():
        raise click.UsageError(f"there is no process {pid}")
    told = ""
    while True:
        report = look(None if pid is None else family(pid), job)
        text = json.dumps(report.as_dict(), indent=2) if as_json else "\n".join(lines_of(report))
        if text != told:
            click.echo(text)
            told = text
        if not watch:
            return 3 if not report.groups else 1 if report.stuck else 0
        time.sleep(WATCH_S)


def family(pid: int) -> frozenset[int]:
    """A process and all that descend from it."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended meanwhile
                continue
            parents[int(entry.name)] = int(fields[1])
    found = {pid}
    while True:
        more = {child for child, parent in parents.items() if parent in found} - found
        if not more:
            return frozenset(found)
        found |= more


def lines_of(report: Report) -> list[str]:
    """For people."""
    lines = []
    for group in report.groups:
        kind = f"job {group.job}" if group.comm == group.job else f"  communicator {group.comm}"
        away = f", {len(group.absent)} not on this machine" if group.absent else ""
        lines.append(f"{kind}: {group.world} rank{'s' if group.world > 1 else ''}{away}")
        lines.append(f"  {verdict_line(group)}")
        if group.verdict is not None:
            lines += [f"    {each}" for each in group.verdict.evidence]
        lines += [f"    {rank_line(each)}" for each in group.ranks]
    if not report.groups:
        lines.append("no job of rdmaring was found here")
        lines += [f"  could not be read: {each}" for each in report.refused[:10]]
        if report.refused:
            lines.append("  run it as the user who runs the job, or as root")
    else:
        lines += [f"  {each}" for each in report.refused]
    return lines


def verdict_line(group: Group) -> str:
    if group.verdict is not None:
        return group.verdict.text
    if group.absent and any(rank.op is not None and rank.waited_s > 1 for rank in group.ranks):
        return "the cause is not on this machine: run `rdmaring why` where the other ranks are"
    return "nothing is stuck"


def rank_line(rank: RankState) -> str:
    where = f"in op {rank.op}: {rank.call}" if rank.op is not None else f"in user code, last finished op {rank.op_done}"
    waits = f"; waits {' and '.join(rank.waits)}" if rank.waits else ""
    alive = "" if rank.life == "runs" and rank.state == "open" else f" [{rank.life}, {rank.state}]"
    return f"rank {rank.rank} (pid {rank.pid}){alive} {where}{waits}"
