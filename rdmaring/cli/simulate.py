"""``rdmaring simulate``: predicted times against ranks and bytes, and where the algorithms cross."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from rdmaring.bench.sizes import SizesError, parse_sizes
from rdmaring.cli import simulate_options as options
from rdmaring.cli import simulate_tables as tables
from rdmaring.cli.picture import PictureError, check_picture
from rdmaring.cli.progress import make_bar
from rdmaring.cli.ranks import json_option
from rdmaring.cli.simulate_picture import save_picture
from rdmaring.schedule import ScheduleError
from rdmaring.schedule.cluster import Cluster, Costs
from rdmaring.schedule.collectives import COLLECTIVES
from rdmaring.schedule.cost import FORMS
from rdmaring.schedule.simulate_presets import PRESETS
from rdmaring.schedule.simulate_sweep import ESTIMATE, Cell, Sweep, check_algorithms, crossings, run, textbook

T = TypeVar("T")
CELLS_MAX = 200_000
TABLES_MAX = 3  # of more worlds, only who is the fastest

EPILOG = """\b
Examples:
  rdmaring simulate                                         8 ranks of one node, all algorithms, 8 B to 1 GiB
  rdmaring simulate --ranks 2:4096 --nodes-of 8 --preset dgx-h100
  rdmaring simulate --ranks 131072 --nodes-of 8 --bytes 1M:1G --algorithm ring,tree,hierarchical
  rdmaring simulate --ranks 16 --nodes-of 4 --latency 1us --rate 20GB/s --far-latency 1ms --far-rate 10Gb/s
  rdmaring simulate --ranks 64 --slow-link 3-4:5 --bytes 1M --events
  rdmaring simulate --ranks 64 --straggler 5:2 --jitter 0.3 --seed 7 --algorithm ring,halving
  rdmaring simulate --ranks 8 --costs tuning.json           with what `rdmaring tune` has measured
  rdmaring simulate --textbook --ranks 2:4096               why rings: naive beside ring
  rdmaring simulate --ranks 2:1024 --plot time.png --json > times.json

\b
Times come from closed forms where these are within 2 % of an event simulation of the schedules' rows; elsewhere from
the simulation, of as many ranks or of fewer from which more can be told (scaled); or they are estimates and marked.
With --events, or if something is slow or random, all are simulated. docs/SIMULATE.md has the model, and what holds.
Exit code: 0; 1 if something cannot be simulated; 2 for wrong usage.
"""


def _preset_list() -> str:
    return "; ".join(f"{name}: {preset.title}" for name, preset in PRESETS.items())


@click.command("simulate", epilog=EPILOG)
@click.option("--ranks", default="8", show_default=True, metavar="N,...", help=f"{options.RANKS_ACCEPTED}.")
@click.option("--bytes", "sizes", default="8:1G:x4", show_default=True, metavar="BYTES,...", help="Of the vector.")
@click.option("--nodes-of", type=click.IntRange(1), metavar="N", help="Ranks a node; default: all ranks on one node.")
@click.option(
    "--collective",
    type=click.Choice(list(dict.fromkeys(name for name, _ in FORMS if name in COLLECTIVES))),
    default="all_reduce",
    show_default=True,
)
@click.option("--algorithm", default="all", show_default=True, metavar="NAME,...", help="all, or some.")
@click.option("--preset", type=click.Choice(list(PRESETS)), default="cpu", show_default=True, help=f"{_preset_list()}.")
@click.option("--costs", "costs_path", type=click.Path(path_type=Path), metavar="FILE", help="Of `rdmaring tune`.")
@click.option("--latency", metavar="TIME", help="Inside a node: 3us, 500ns.")
@click.option("--rate", metavar="RATE", help="Of a rank's port inside a node: 450GB/s, 100Gb/s.")
@click.option("--far-latency", metavar="TIME", help="Between nodes.")
@click.option("--far-rate", metavar="RATE", help="Of one rail between nodes.")
@click.option("--reduce-rate", metavar="RATE", help="At which a rank adds.")
@click.option("--overhead", metavar="TIME", help="Of the engine, for a row and for a slice.")
@click.option("--slice-bytes", metavar="BYTES", help="Unit of pipelining.")
@click.option("--rails", type=click.IntRange(1, 1024), help="Ports of a node to other nodes.")
@click.option("--oversubscription", type=click.FloatRange(1.0), help="Rails' rate / rate of the way between nodes.")
@click.option("--processors", type=click.IntRange(1), help="Of a node, if fewer than its ranks.")
@click.option("--channels", type=click.IntRange(1, 64), default=1, show_default=True, help="Of the vector.")
@click.option("--slow-link", "slow_links", multiple=True, metavar="A-B:FACTOR", help="Between two ranks; repeatable.")
@click.option("--straggler", "stragglers", multiple=True, metavar="R:FACTOR", help="A slow rank; repeatable.")
@click.option("--jitter", type=click.FloatRange(0.0), default=0.0, help="Of latency, relative to it.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of jitter.")
@click.option("--events", is_flag=True, help="Simulate the rows even where a closed form would do.")
@click.option("--textbook", "textbook_wanted", is_flag=True, help="naive beside ring: why rings.")
@json_option
@click.option(
    "--plot",
    "plot_path",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Draw time against bytes and against ranks: .png, .svg, .pdf.",
)
def command(plot_path: Path | None, json_wanted: bool, textbook_wanted: bool, **given: Any) -> int:
    """Predict how long collectives take on a described cluster, and which algorithm is the fastest."""
    costs, source = _costs(given)
    sweep = _sweep(given, costs)
    if plot_path is not None:
        try:
            check_picture(plot_path)
        except PictureError as error:
            raise click.BadParameter(str(error), param_hint="--plot") from None
    lines = textbook(sweep.worlds, max(sweep.sizes), sweep.per_node, costs) if textbook_wanted else []
    cells: list[Cell] = []
    if not textbook_wanted or plot_path is not None:
        try:
            with _progress(sweep.count) as advance:
                for cell in run(sweep):
                    cells.append(cell)
                    advance(f"{cell.algorithm}, {cell.ranks} ranks")
        except ScheduleError as error:
            click.echo(f"rdmaring simulate: {error}", err=True)
            return 1
    if json_wanted:
        click.echo(tables.document(sweep, cells, source, lines))
    else:
        _show(sweep, cells, source, lines)
    if plot_path is not None:
        save_picture(sweep, cells, plot_path)
    return 0


def _taken(option: str, read: Callable[[str], T], text: str) -> T:
    try:
        return read(text)
    except (options.OptionError, SizesError, ScheduleError) as error:
        raise click.BadParameter(str(error), param_hint=option) from None


def _costs(given: dict[str, Any]) -> tuple[Costs, str]:
    """The constants, and where they come from."""
    preset = PRESETS[given["preset"]]
    costs, source = preset.costs, f"preset {given['preset']}: {preset.source}"
    if given["costs_path"] is not None:
        costs = _taken("--costs", lambda _: options.costs_from(given["costs_path"]), "")
        source = f"file {given['costs_path']}"
    for level in ("near", "far"):
        prefix = "" if level == "near" else "far_"
        for name, field, read in (
            ("latency", "latency_s", options.seconds),
            ("rate", "s_per_byte", options.seconds_per_byte),
        ):
            text = given[prefix + name]
            if text is not None:
                option = f"--{prefix}{name}".replace("_", "-")
                changed = replace(getattr(costs, level), **{field: _taken(option, read, text)})
                costs = replace(costs, **{level: changed})
                source += f"; {option} {text}"
    if given["reduce_rate"] is not None:
        costs = replace(
            costs, reduce_s_per_byte=_taken("--reduce-rate", options.seconds_per_byte, given["reduce_rate"])
        )
    if given["overhead"] is not None:
        each = _taken("--overhead", options.seconds, given["overhead"])
        costs = replace(costs, row_s=each, slice_s=each)
    if given["slice_bytes"] is not None:
        costs = replace(costs, slice_bytes=_taken("--slice-bytes", parse_sizes, given["slice_bytes"])[0])
    for name in ("rails", "oversubscription"):
        if given[name] is not None:
            costs = replace(costs, **{name: given[name]})
    return replace(costs, processors_per_node=given["processors"]), source


def _sweep(given: dict[str, Any], costs: Costs) -> Sweep:
    worlds = _taken("--ranks", options.ranks, given["ranks"])
    links = dict(_taken("--slow-link", options.slow_link, text) for text in given["slow_links"])
    slow = dict(_taken("--straggler", options.straggler, text) for text in given["stragglers"])
    per_node = given["nodes_of"] or max(worlds)
    disturbed = None
    if links or slow or given["jitter"]:
        try:
            disturbed = Cluster(costs, (min(worlds),), links, slow, given["jitter"], given["seed"])
        except ValueError as error:
            raise click.UsageError(f"{error}; of the smallest world of --ranks") from None
    sweep = Sweep(
        collective=given["collective"],
        algorithms=_taken("--algorithm", lambda text: check_algorithms(given["collective"], text), given["algorithm"]),
        worlds=worlds,
        sizes=_taken("--bytes", parse_sizes, given["sizes"]),
        per_node=per_node,
        costs=costs,
        channels=given["channels"],
        events=given["events"],
        disturbed=disturbed,
    )
    if sweep.count > CELLS_MAX:
        raise click.UsageError(f"{sweep.count} cells are asked for; {CELLS_MAX} are possible: fewer ranks or sizes")
    return sweep


def _show(sweep: Sweep, cells: list[Cell], source: str, lines: list[Any]) -> None:
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    console.print(f"{sweep.collective}: {tables.costs_text(sweep.costs)}", style="bold")
    console.print(f"from {source}", style="dim")
    if lines:
        console.print(tables.textbook_table(lines, max(sweep.sizes)))
    if not cells or lines:
        return
    if len(sweep.sizes) == 1:
        console.print(tables.per_size(cells, sweep.algorithms, sweep.sizes[0]))
    elif len(sweep.worlds) <= TABLES_MAX:
        for world in sweep.worlds:
            console.print(tables.per_world(cells, sweep.algorithms, world))
    else:
        console.print(tables.map_of_fastest(cells))
    for text in tables.crossing_lines(crossings(cells)):
        console.print(text)
    note = "; ~ an estimate" if any(cell.method == ESTIMATE for cell in cells) else ""
    text = f"{tables.methods_text(cells)}{note}; the bound is what no algorithm can be faster than on these ports"
    console.print(text, style="dim")


@contextmanager
def _progress(total: int) -> Iterator[Callable[[str], None]]:
    """A bar on a terminal, where work takes long."""
    with make_bar(auto_refresh=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda text: bar.update(task, description=text, advance=1)
