"""``rdmaring links``: measure every edge between the ranks, name the slow one, find the best ring."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

import rdmaring
from rdmaring.cli import heat_map
from rdmaring.cli.links_tables import as_json, show
from rdmaring.cli.progress import progress
from rdmaring.cli.ranks import (
    ARGUMENTS,
    KeepArguments,
    agent_option,
    find_place,
    host_names,
    hosts_option,
    json_option,
    pin_option,
    start_ranks,
)
from rdmaring.cli.remote import start_on_hosts
from rdmaring.diagnose.links.measure import BUDGET_S
from rdmaring.diagnose.links.probe import Options, probe
from rdmaring.diagnose.links.records import Report
from rdmaring.errors import RdmaringError

SLOW_FOUND = 3  # the exit code

EPILOG = """\b
Examples:
  rdmaring links -n 4                                    4 ranks on this machine
  rdmaring links --hosts a,b,c,d                         one rank on each of four hosts, by ssh
  mpirun --host a,b,c,d rdmaring links --live            one rank on each of four hosts
  srun -N 8 --ntasks-per-node 1 rdmaring links --live    the same under Slurm
  torchrun --nproc-per-node 2 --no-python rdmaring links --live
  scripts/hosts --hosts 6 -- rdmaring links --live       hosts that are network namespaces
  rdmaring links -n 4 --picture map.png --json > links.json
  mpirun --host a,b,c,d rdmaring links --live --reorder  and the order for RDMARING_RING_ORDER

\b
On other hosts a launcher starts `rdmaring links --live` as every rank; or --hosts does it by ssh, with rdmaring
installed at the same path on all of them.
  bandwidth   from a rank (row) to another (column), one edge at a time unless --parallel; median of 3 or more
              messages of up to 4 MiB in registered memory, every byte compared; GB/s are 10^9 bytes a second
  latency     half a round trip of 8 bytes, median
  slow        below 0.7 of the median of the edges of the same transport, and outside of their scatter; measured
              again before it is said. A host is named if all edges that it sends on, receives on, or both, are slow
  ring        each edge in an all-reduce: what its bytes take at its measured rate, and the rest; by a trace: how
              long its sender waited for room in it (credit), and its receiver for bytes (receive)
  expected    from port speed and PCIe, where sysfs tells them
Exit code, of rank 0: 0; 3 if a slow edge, host or rank was named; 1 if bytes arrived wrong or a rank failed;
2 for wrong usage.
"""


@click.command("links", cls=KeepArguments, epilog=EPILOG)
@click.option("-n", "--ranks", type=click.IntRange(2, 256), help="Start this many ranks on this machine.")
@hosts_option
@agent_option
@click.option("--live", is_flag=True, help="Be a rank of the launcher that started this process.")
@click.option("--reorder", is_flag=True, help="Show the best ring, and the setting that makes jobs use it.")
@json_option
@click.option(
    "--picture",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Draw a heat map of the bandwidths: .png, .svg, .pdf.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.1, 3600),
    default=BUDGET_S,
    show_default=True,
    help="About how long to measure bandwidths. Each edge gets its share, 3 messages at least.",
)
@click.option("--seed", type=click.IntRange(0, 1 << 31), default=0, show_default=True, help="Of the data sent.")
@click.option("--parallel", is_flag=True, help="Measure pairs that have no rank in common at the same time.")
@pin_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    ranks: int | None,
    hosts: str | None,
    agent: str,
    live: bool,
    reorder: bool,
    json_wanted: bool,
    picture: Path | None,
    seconds: float,
    seed: int,
    parallel: bool,
    pin: bool | None,
) -> int:
    """Measure bandwidth and latency from every rank to every other, with the data checked; name the slow edge.

    With -n it starts its ranks on this machine; with --live it is a rank of the launcher that started it
    (rdmaring run, mpirun, srun, torchrun), and all ranks of the job must run it.
    """
    described = _check_place(ranks, live, hosts)
    if picture is not None:
        _check_picture(picture)
    if hosts is not None and not live:
        return start_on_hosts("links", [*ctx.meta[ARGUMENTS], "--live"], host_names(hosts), agent)
    if not described:
        assert ranks is not None
        return start_ranks("links", ctx.meta[ARGUMENTS], ranks, pin)
    try:
        with rdmaring.init() as comm, progress(shown=comm.rank == 0) as advance:
            sysfs = Path(os.environ.get("RDMARING_SYSFS") or "/sys")
            options = Options(seed=seed, budget_s=seconds, parallel=parallel, sys=sysfs)
            report = probe(comm, options, advance)
            first = comm.rank == 0
    except (RdmaringError, MemoryError) as error:
        click.echo(f"rdmaring links: {error or 'no memory for the buffers'}", err=True)
        return 1
    if not first:
        return 0  # a launcher would end rank 0, which still writes, when another rank fails
    if json_wanted:
        click.echo(as_json(report))
    else:
        show(report, sys.stdout, reorder=reorder)
    if picture is not None:
        heat_map.save(report, picture)
    return _exit_code(report)


def _exit_code(report: Report) -> int:
    if report.wrong:
        return 1
    return SLOW_FOUND if report.slow else 0


def _check_place(ranks: int | None, live: bool, hosts: str | None) -> bool:
    """Whether this process is a rank already, and not to start some."""
    place = find_place(ranks, hosts)
    if live and place is None:
        raise click.UsageError(
            "--live: no launcher has started this process. Start it as every rank of a job, such as "
            "`mpirun --host a,b rdmaring links --live`, or use -n for ranks on this machine"
        )
    if place is None and ranks is None and hosts is None:
        raise click.UsageError("one of -n for ranks on this machine, --hosts for others, or --live under a launcher")
    if place is not None and place.world < 2:
        raise click.UsageError("the job has one rank: there is no edge to measure")
    return place is not None


def _check_picture(path: Path) -> None:
    """What would fail after the measuring fails now."""
    if not path.absolute().parent.is_dir():
        raise click.BadParameter(f"{str(path)!r}: there is no such folder", param_hint="--picture")
    try:
        heat_map.check_picture(path)
    except heat_map.PictureError as error:
        raise click.BadParameter(str(error), param_hint="--picture") from None
