"""``rdmaring bench``: time the collectives, check their results."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

import rdmaring
from rdmaring.bench.cases import (
    IN_PLACE,
    OUT_OF_PLACE,
    PLACES,
    Case,
    Cases,
    Request,
    RequestError,
    make_cases,
    make_request,
)
from rdmaring.bench.measure import Bench, host, links
from rdmaring.bench.records import Line, Report
from rdmaring.cli import picture
from rdmaring.cli.bench_tensors import show_tensors
from rdmaring.cli.explain import show_explanations
from rdmaring.cli.progress import make_bar
from rdmaring.cli.ranks import ARGUMENTS, KeepArguments, find_place, json_option, pin_option, start_ranks
from rdmaring.cli.tables import BenchTable, as_json, opening_lines, printer, save_csv
from rdmaring.errors import RdmaringError

SIZES, SIZES_OF_TENSORS = "8:256M:x2", "64:16K:x4"

EPILOG = """\b
Examples:
  rdmaring bench -n 4                                all_reduce, float32, 8 B to 256 MiB
  rdmaring bench -n 4 --registered --plan            the fastest way of calling it
  rdmaring bench -n 4 --algorithm ring,naive         side by side, with what each moved
  rdmaring bench -n 2 --collective all_gather,reduce_scatter --dtype float32,bfloat16 --sizes 1K:1M:x4
  rdmaring bench -n 2 --op sum,max --sizes 64,4K,1M --in-place --all-times
  rdmaring bench -n 2 --sizes 8:64M --json > result.json
  rdmaring bench -n 2 --tensors 1000 --sizes 64:16K:x4   1,000 arrays as one list, beside a call for each
  rdmaring bench -n 2 --plot busbw.png --csv all.csv
  rdmaring bench -n 8 --explain --sizes 8:64M:x8     which algorithm each size gets, and why; with --measure,
                                                     what each of them takes now
  torchrun --nproc-per-node 4 --no-python rdmaring bench --sizes 1M     ranks from another launcher

\b
The columns are those of nccl-tests:
  size, count   of the whole vector, for reduce_scatter and all_gather too
  time          median over the samples, in us; a sample is the slowest rank's mean over a batch of calls
  algbw         size / time, in 10^9 bytes a second
  busbw         algbw * 2(N-1)/N for all_reduce, * (N-1)/N for reduce_scatter and all_gather; comparable with
                the bandwidth of a link whatever the algorithm
  #wrong        elements on all ranks that differ from the exact result, on data where it does not depend on order
  faster        with --tensors: how many times faster the list is than a call for each array
  error         largest of any element against float64, in ulp of the dtype, on data that round at every step
Exit code: 0; 1 if any element was wrong or a rank failed; 2 for wrong usage.
"""


@click.command("bench", cls=KeepArguments, epilog=EPILOG)
@click.option("-n", "--ranks", type=click.IntRange(1, 4096), help="Start this many ranks on this machine.")
@click.option(
    "--collective",
    default="all_reduce",
    show_default=True,
    metavar="NAME,...",
    help="all_reduce, reduce_scatter, all_gather, broadcast, reduce, all_to_all, gather, scatter.",
)
@click.option(
    "--algorithm",
    default="auto",
    show_default=True,
    metavar="NAME,...",
    help="auto (the library's choice), ring, direct, direct1, naive. "
    "Several are shown side by side, with steps, bytes and the busiest rank and link.",
)
@click.option(
    "--dtype",
    default="float32",
    show_default=True,
    metavar="NAME,...",
    help="float16, bfloat16, float32, float64, int8 .. int64, uint8 .. uint64.",
)
@click.option("--op", default="sum", show_default=True, metavar="NAME,...", help="sum, prod, min, max, avg.")
@click.option(
    "--sizes",
    show_default=f"{SIZES}; with --tensors {SIZES_OF_TENSORS}",
    metavar="BYTES,...",
    help="Bytes of the vector: 1M, 8:16M (doubling), 8:1M:x4, 1M:2M:+64K, or a list of these.",
)
@click.option("--root", default=0, show_default=True, help="Of broadcast, reduce, gather and scatter.")
@click.option("--in-place", is_flag=True, help="Only that; default: both.")
@click.option("--out-of-place", is_flag=True, help="Only that; default: both.")
@click.option("--registered", is_flag=True, help="In memory from comm.empty(), which peers use in place.")
@click.option("--plan", is_flag=True, help="Persistent plans instead of calls.")
@click.option("--channels", type=click.IntRange(1, 16), metavar="K", help="Vectors travel in K parts side by side.")
@click.option(
    "--tensors",
    type=click.IntRange(1, 10**6),
    metavar="N",
    help="N arrays of each size, in place: one call for the list of them beside a call for each.",
)
@click.option("--iters", type=click.IntRange(1, 10**6), default=20, show_default=True, help="Samples of each cell.")
@click.option("--warmup", type=click.IntRange(0, 10**6), default=5, show_default=True, help="Calls before them.")
@click.option("--batch", type=click.IntRange(1, 10**6), help="Calls in a sample; default: as many as take about 1 ms.")
@click.option("--check/--no-check", default=True, show_default=True, help="Compare with the exact result.")
@click.option("--all-times", is_flag=True, help="Columns for the least time and the 99th percentile, too.")
@click.option("--explain", "explained", is_flag=True, help="Show what would be chosen, and why; no table.")
@click.option("--measure", "timed", is_flag=True, help="With --explain: time the candidates (float32), too.")
@json_option
@click.option(
    "--csv",
    "csv_path",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Save one record for each row and placement, too.",
)
@click.option(
    "--plot",
    "plot_path",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Draw busbw against size; the kind of picture is that of the name: .png, .svg, .pdf.",
)
@pin_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    ranks: int | None,
    in_place: bool,
    out_of_place: bool,
    all_times: bool,
    explained: bool,
    timed: bool,
    json_wanted: bool,
    csv_path: Path | None,
    plot_path: Path | None,
    pin: bool | None,
    **wanted: Any,
) -> int:
    """Time the collectives over a range of sizes, and check their results.

    With -n it starts its ranks on this machine; without, it is a rank of the launcher that started it
    (rdmaring run, torchrun), or a world of one.
    """
    request = _request(in_place, out_of_place, **wanted)
    place = find_place(ranks)
    world = place.world if place is not None else ranks or 1
    try:
        cases = make_cases(request, world)
    except RequestError as error:
        raise click.BadParameter(str(error), param_hint=error.option) from None
    _check_outputs(csv_path, plot_path)
    if timed and not explained:
        raise click.UsageError("--measure: accepted with --explain only")
    if request.tensors is not None:
        _check_tensors(
            {
                "--plan": request.plan,
                "--explain": explained,
                "--all-times": all_times,
                "--csv": csv_path,
                "--plot": plot_path,
                "--out-of-place": out_of_place,
            }
        )
    if ranks is not None and place is None:
        return start_ranks("bench", ctx.meta[ARGUMENTS], ranks, pin)
    try:
        with rdmaring.init(channels=request.channels) as comm:
            if request.tensors is not None:
                return show_tensors(comm, request, cases, as_json=json_wanted)
            if explained:
                return show_explanations(comm, cases, as_json=json_wanted, measure=timed)
            if comm.rank:
                return 1 if Bench(comm, request, cases).run().wrong else 0
            report = _measure(comm, request, cases, None if json_wanted else BenchTable(request, all_times=all_times))
    except (RdmaringError, MemoryError) as error:
        click.echo(f"rdmaring bench: {error or 'no memory for the buffers'}", err=True)
        return 1
    if json_wanted:
        click.echo(as_json(report))
    if csv_path is not None:
        save_csv(report, csv_path)
    if plot_path is not None:
        picture.save_picture(report, plot_path)
    return 1 if report.wrong else 0


def _request(
    in_place: bool,
    out_of_place: bool,
    *,
    collective: str,
    algorithm: str,
    dtype: str,
    op: str,
    sizes: str | None,
    iters: int,
    **more: Any,
) -> Request:
    places = {(True, False): (IN_PLACE,), (False, True): (OUT_OF_PLACE,)}.get((in_place, out_of_place), PLACES)
    try:
        return make_request(
            collectives=collective,
            algorithms=algorithm,
            dtypes=dtype,
            ops=op,
            sizes=sizes or (SIZES if more["tensors"] is None else SIZES_OF_TENSORS),
            places=places,
            samples=iters,
            **more,
        )
    except RequestError as error:
        raise click.BadParameter(str(error), param_hint=error.option) from None


def _check_outputs(csv_path: Path | None, plot_path: Path | None) -> None:
    """What would fail after minutes of measuring fails now."""
    for option, path in (("--csv", csv_path), ("--plot", plot_path)):
        if path is not None and not path.absolute().parent.is_dir():
            raise click.BadParameter(f"{str(path)!r}: there is no such folder", param_hint=option)
    if plot_path is not None:
        try:
            picture.check_picture(plot_path)
        except picture.PictureError as error:
            raise click.BadParameter(str(error), param_hint="--plot") from None


def _check_tensors(others: dict[str, Any]) -> None:
    """Options that say nothing of a list."""
    for option, given in others.items():
        if given:
            raise click.UsageError(f"{option} with --tensors: accepted is one of them")


def _measure(comm: Any, request: Request, cases: Cases, table: BenchTable | None) -> Report:
    """On rank 0: measure, and show each row as soon as it is there."""
    write = printer(sys.stdout)
    collective = ""
    with _progress(sum(len(case.places) for case in cases.served)) as (advance, aside):

        def on_line(line: Line) -> None:
            nonlocal collective
            if table is None:
                return
            with aside():
                if line.case.collective != collective:
                    collective = line.case.collective
                    write("\n".join(table.heading(collective)), "bold")
                write(table.row(line), "bold red" if line.wrong else "")

        if table is not None:
            with aside():
                write("\n".join(opening_lines(request, comm.size, host(), links(comm), cases.skipped)), "dim")
        report = Bench(comm, request, cases).run(on_line, advance)
    if table is not None:
        write("\n".join(table.closing(report)), "bold red" if report.wrong else "bold")
    return report


@contextmanager
def _progress(total: int) -> Iterator[tuple[Any, Any]]:
    """advance(case, place), and aside(), in which to write to standard output, for a bar on a terminal."""
    bar = make_bar()
    task = bar.add_task("", total=total)
    begun = 0

    def advance(case: Case, place: str) -> None:
        nonlocal begun
        bar.update(task, description=f"{case}, {place.replace('_', ' ')}", completed=begun, refresh=True)
        begun += 1

    @contextmanager
    def aside() -> Iterator[None]:
        bar.stop()
        yield
        sys.stdout.flush()
        bar.start()

    with bar:
        yield advance, aside
