"""``rdmaring trace``: record what every rank does with each slice, and read such records."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click
import numpy as np

import rdmaring
from rdmaring.cli.ranks import ARGUMENTS, json_option, keep_arguments, start_ranks
from rdmaring.diagnose.trace import Summary, read, summarize
from rdmaring.diagnose.trace.cost import measure
from rdmaring.errors import RdmaringError
from rdmaring.rendezvous.environment import is_described

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

EPILOG = """\b
Examples:
  rdmaring trace -n 4 --bytes 16M --algorithm ring --out trace.json   4 ranks on this machine
  mpirun --host a,b rdmaring trace --live --out trace.json            ranks of another launcher
  rdmaring trace -n 2 --cost                                          what tracing itself costs here
  rdmaring trace show trace.json                                      the figures again
  rdmaring trace show --json trace.json | jq .transfer_overlap
  RDMARING_TRACE=trace.json rdmaring run -n 4 train.py                a program of your own, as a whole
  with comm.trace("trace.json"): ...                                  or a part of it

\b
Open the file at https://ui.perfetto.dev (it stays in your browser) or in chrome://tracing. docs/TRACE.md says what
the figures mean.
Exit code: 0; 1 if a rank failed or a file is no trace; 2 for wrong usage.
"""


class _Trace(click.Group):
    """A command of its own, with subcommands; remembers its arguments: the ranks get the same."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        keep_arguments(ctx, args)
        return super().parse_args(ctx, args)


def _bytes(ctx: click.Context, parameter: click.Parameter, text: str) -> int:
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    if not number.isdigit() or unit not in UNITS or int(number) < 1:
        raise click.BadParameter(f"{text!r}: expected a size such as 4096, 64K, 16M, 1G")
    return int(number) * UNITS[unit]


@click.group("trace", cls=_Trace, epilog=EPILOG, invoke_without_command=True)
@click.option("-n", "--ranks", type=click.IntRange(1, 4096), help="Start this many ranks on this machine.")
@click.option("--live", is_flag=True, help="Be a rank of the launcher that started this process.")
@click.option("--bytes", "nbytes", default="16M", show_default=True, callback=_bytes, help="Of the vector: 64K, 16M.")
@click.option("--algorithm", metavar="NAME", help="ring, direct, naive; default: the library's choice.")
@click.option("--iters", type=click.IntRange(1, 10**6), default=5, show_default=True, help="Calls that are traced.")
@click.option("--warmup", type=click.IntRange(0, 10**6), default=3, show_default=True, help="Calls before them.")
@click.option("--registered", is_flag=True, help="In memory from comm.empty(), which peers use in place.")
@click.option(
    "--out",
    default="trace.json",
    show_default=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where the trace goes; packed where the name ends in .gz.",
)
@click.option("--cost", is_flag=True, help="Measure what tracing costs instead.")
@json_option
@click.pass_context
def command(ctx: click.Context, /, ranks: int | None, live: bool, **wanted: Any) -> int | None:
    """Trace a few all-reduces: slices of all ranks on one time line.

    With -n it starts its ranks on this machine; with --live it is a rank of the launcher that started it.
    """
    if ctx.invoked_subcommand is not None:
        return None
    described = is_described(os.environ)
    if ranks is not None and not described:
        return start_ranks("trace", ctx.meta[ARGUMENTS], ranks)
    if ranks is None and not live:
        raise click.UsageError("give -n RANKS, or --live under a launcher, or a subcommand: show FILE")
    try:
        return _run(**wanted)
    except (RdmaringError, OSError, MemoryError) as error:
        click.echo(f"rdmaring trace: {error or 'no memory for the buffers'}", err=True)
        return 1


def _run(
    *,
    nbytes: int,
    algorithm: str | None,
    iters: int,
    warmup: int,
    registered: bool,
    out: Path,
    cost: bool,
    json_wanted: bool,
) -> int:
    with rdmaring.init() as comm:
        if cost:
            found = measure(comm, nbytes, 100, algorithm=algorithm, registered=registered)
            if comm.rank == 0 and json_wanted:
                click.echo(json.dumps(found.__dict__, indent=2))
            elif comm.rank == 0:
                click.echo(
                    f"{nbytes} bytes, {comm.size} ranks: {found.off_us:.1f} us untraced, {found.on_us:.1f} us traced; "
                    f"ratio {found.ratio:.3f} ({found.low:.3f} to {found.high:.3f}), medians of {found.rounds} rounds"
                )
            return 0
        count = max(1, nbytes // 4)
        x = comm.empty(count) if registered else np.zeros(count, np.float32)
        for _ in range(warmup):
            comm.all_reduce(x, algorithm=algorithm)
        with comm.trace(out) as tracing:
            for _ in range(iters):
                comm.all_reduce(x, algorithm=algorithm)
        summary = tracing.summary()
    if summary is not None:
        _show(summary, json_wanted)
        if not json_wanted:
            click.echo(f"# written: {out}; open it at https://ui.perfetto.dev")
    return 0


@command.command("show")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False), metavar="FILE...")
@json_option
def show(paths: tuple[Path, ...], json_wanted: bool) -> int:
    """Print the figures of a trace.

    Several files: those that ranks wrote each by itself (FILE.rank0, FILE.rank1, ...); their clocks are not compared.
    """
    try:
        summary = summarize(read(*paths))
    except (RdmaringError, OSError) as error:
        click.echo(f"rdmaring trace show: {error}", err=True)
        return 1
    _show(summary, json_wanted)
    return 0


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def lines(summary: Summary) -> list[str]:
    """The figures as text; times in ms."""
    clock = f"clocks within {summary.clock_error_ns / 1000:.1f} us" if summary.aligned else "clocks not compared"
    if summary.aligned and not summary.clock_error_ns:
        clock = "one clock"
    found = [
        f"# {summary.world} ranks; {summary.records} records, {summary.lost} lost; {clock}",
        f"# overlap: in {_percent(summary.transfer_overlap)} of the transfer time the same rank reduces; in "
        f"{_percent(summary.reduce_overlap)} of the reduce time it has a transfer under way",
        f"# exposed wait: {_percent(summary.exposed_share)} of the time in operations",
        "#",
        "# rank  ops  operation   transfer     reduce       copy    overlap  exposed wait: late ranks"
        "       data     credit     drain  waited for",
    ]
    for rank in summary.ranks:
        times = (rank.operation_s, rank.transfer_s, rank.reduce_s, rank.copy_s, rank.overlap_s, rank.exposed_s)
        causes = (rank.open_s, rank.receive_s, rank.credit_s, rank.drain_s)
        found.append(
            f"  {rank.rank:4} {rank.operations:4} "
            + " ".join(f"{1e3 * each:10.3f}" for each in times)
            + f"  {1e3 * causes[0]:12.3f}"
            + "".join(f" {1e3 * each:10.3f}" for each in causes[1:3])
            + f" {1e3 * causes[3]:9.3f} {1e3 * rank.waited_for_s:11.3f}"
        )
    found += ["#", "#      edge   slices        bytes   transfer    GB/s  wait for data  for credit"]
    for edge in summary.edges:
        found.append(
            f"  {edge.source:4} -> {edge.destination:<4}{edge.slices:6} {edge.bytes:12} {1e3 * edge.transfer_s:10.3f} "
            f"{edge.gb_s:7.2f} {1e3 * edge.receive_s:14.3f} {1e3 * edge.credit_s:11.3f}"
        )
    found.append("# times in ms; GB = 10^9 bytes")
    if summary.slowest_rank is not None:
        rank = next(each for each in summary.ranks if each.rank == summary.slowest_rank)
        found.append(
            f"# slowest rank: {rank.rank} (others waited {1e3 * rank.waited_for_s:.3f} ms for it, "
            f"it waited {1e3 * rank.exposed_s:.3f} ms)"
        )
    if summary.slowest_edge is not None:
        source, destination = summary.slowest_edge
        found.append(f"# slowest edge: {source} -> {destination}")
    return found


def _show(summary: Summary, json_wanted: bool) -> None:
    click.echo(json.dumps(summary.as_dict(), indent=2) if json_wanted else "\n".join(lines(summary)))
