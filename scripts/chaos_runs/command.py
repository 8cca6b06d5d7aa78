"""The command scripts/chaos."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import count
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress

from chaos_runs import report, worlds
from chaos_runs.faults import FAULTS, TRANSPORTS
from chaos_runs.heart import Heart
from chaos_runs.judge import Judged, judge
from chaos_runs.plan import Plan, draw

TABLE_COLUMNS = 160
AGAIN_MAX = 4  # times a run is repeated because the machine stood still, or
STARVED_MAX = 0.2  # let a rank without a processor for more of the time: then no edge is called slow
FAULT_NAMES = (*FAULTS, *(f"{fault.name}:{each}" for fault in FAULTS.values() for each in sorted(fault.transports)))

EPILOG = """\b
Examples:
  scripts/chaos --runs 200 --seed 1 --transport shm,tcp,verbs,sim --json > chaos.json
  scripts/chaos --seconds 60                     as many as start in a minute
  scripts/chaos --fault kill,stop --runs 20      these faults alone
  scripts/chaos --replay 17                      the run of seed 17 again, with all that its ranks printed
  scripts/chaos --runs 50 --plans                what would be done

\b
Run k of --seed S has seed S + k. Transports: shm; tcp (nodes of this machine, and network namespaces where root can
make them); verbs (the substitute libibverbs of the tests); sim (a simulated wire with check="crc"); softroce (guests
with real verbs; about a minute a run).

\b
CHAOS_PATIENCE in the environment multiplies time-outs: on a machine with other work, where ranks get no processor for
seconds, those of 2 s are over without any fault.

\b
Exit code: 0 if every verdict was right, nothing hung and nothing is left; 1 if not; 2 for wrong usage. It ends only
its own processes: those that it has started, found by a mark in their environment.
"""


def names(accepted: Sequence[str]) -> Any:
    """A callback for an option that takes some of these, between commas."""

    def parse(context: click.Context, option: click.Parameter, text: str) -> tuple[str, ...]:
        given = tuple(name.strip() for name in text.split(",") if name.strip())
        for name in given:
            if name not in accepted:
                raise click.BadParameter(
                    f"{name!r} is none; accepted are {', '.join(each for each in accepted if ':' not in each)}"
                )
        return given

    return parse


@click.command(
    "chaos", epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120}
)
@click.option("--runs", type=click.IntRange(1), help="How many. [default: 20, or no limit with --seconds]")
@click.option("--seconds", type=click.FloatRange(1), help="No run begins later than this.")
@click.option("--seed", default=1, show_default=True, help="Of the first run.")
@click.option("--replay", type=int, metavar="SEED", help="One run, with all that its ranks print.")
@click.option(
    "--transport", default="shm,tcp,sim", show_default=True, callback=names(TRANSPORTS), help="Some of these."
)
@click.option("--fault", "only", default="", callback=names(FAULT_NAMES), help="These alone: kill,stop:tcp.")
@click.option("--without", default="", callback=names(FAULT_NAMES), help="All faults but these.")
@click.option("--jobs", default=2, show_default=True, type=click.IntRange(1, 64), help="Runs at a time.")
@click.option(
    "--slack-s",
    default=3.0,
    show_default=True,
    type=click.FloatRange(0),
    help="What a loaded machine may add to a bound.",
)
@click.option("--plans", is_flag=True, help="Say what would be done, and do nothing.")
@click.option("--json", "as_json", is_flag=True, help="One document on standard output.")
@click.pass_context
def command(context: click.Context, /, **given: Any) -> None:
    """Faults drawn by seed, in real jobs of 2 to 8 ranks; their verdicts are compared with what was done."""
    if given["replay"] is not None:
        given.update(seed=given["replay"], runs=1)
    if given["runs"] is None and given["seconds"] is None:
        given["runs"] = 20
    if given["plans"] and given["runs"] is None:
        raise click.UsageError("--plans needs --runs")
    root = os.geteuid() == 0
    if not root and "tcp" in given["transport"]:
        click.echo("not root: no network namespaces, so no cut or slow links and no lost hosts over tcp", err=True)

    def plans() -> Iterator[Plan]:
        for number in range(given["runs"]) if given["runs"] else count():
            yield draw(given["seed"] + number, given["transport"], root, given["only"], given["without"])

    if given["plans"]:
        for plan in plans():
            click.echo(json.dumps(plan.as_dict()) if given["as_json"] else report.describe(plan))
        return
    console = Console(stderr=True)
    runs = run_all(plans(), given, console)
    if given["replay"] is not None:
        console.print(runs[0].output, markup=False, highlight=False, soft_wrap=True)
    tell(runs, given, console)
    context.exit(0 if all(run.good for run in runs) else 1)


def one(plan: Plan, slack_s: float, heart: Heart) -> Judged:
    """Made again where the machine stood still meanwhile: time-outs that ran on without their ranks tell nothing.

    Likewise where an edge is slow and a rank was: docs/WHY.md says why nothing is said then.
    """
    for again in range(AGAIN_MAX + 1):
        begin = time.monotonic()
        judged = judge(plan, worlds.run(plan), slack_s)
        judged.repeated = again
        hidden = plan.fault == "slow" and judged.grade != "right" and judged.starved > STARVED_MAX
        if not hidden and not heart.stood_still_s(begin, time.monotonic()):
            break
    return judged


def run_all(plans: Iterator[Plan], given: dict[str, Any], console: Console) -> list[Judged]:
    """In the order of their seeds."""
    until = time.monotonic() + (given["seconds"] or float("inf"))
    done: list[Judged] = []
    running: set[Future[Judged]] = set()
    shown = ",".join(given["transport"])
    with (
        Progress(console=console, disable=not console.is_terminal) as progress,
        ThreadPoolExecutor(given["jobs"]) as pool,
        Heart() as heart,
    ):
        bar = progress.add_task("runs", total=given["runs"])
        more = True
        while more or running:
            while more and len(running) < given["jobs"]:
                plan = next(plans, None) if time.monotonic() < until else None
                more = plan is not None
                if plan is not None:
                    running.add(pool.submit(one, plan, given["slack_s"], heart))
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                run = future.result()
                done.append(run)
                progress.advance(bar)
                if not run.good:
                    report.show_bad(console, run, shown)
    return sorted(done, key=lambda run: run.plan.seed)


def tell(runs: list[Judged], given: dict[str, Any], console: Console) -> None:
    totals = report.summary(runs)
    if given["as_json"]:
        asked = {"seed": given["seed"], "transports": list(given["transport"])}
        json.dump(report.document(runs, asked), sys.stdout, indent=1)
        print()
        return
    out = Console() if sys.stdout.isatty() else Console(width=TABLE_COLUMNS)
    out.print(report.table(runs))
    out.print(
        f"{totals['runs']} runs from seed {given['seed']}: {totals['right']} right, {totals['class_only']} right but "
        f"for the place, {totals['wrong']} wrong, {totals['hang']} too late, {totals['wrong_sums']} with wrong sums, "
        f"{totals['leaks']} leaks",
        highlight=False,
    )


def main() -> None:
    command()
