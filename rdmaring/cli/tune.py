"""``rdmaring tune``: measure the algorithms here, and write a file by which they are chosen."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

import rdmaring
from rdmaring._version import __version__
from rdmaring.bench.sizes import SizesError, format_bytes, parse_sizes
from rdmaring.bench.tune import COLLECTIVES, Measured, best_of, errors, measure, rows_of, with_tables
from rdmaring.choice import time_text
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
from rdmaring.errors import ArgumentError, RdmaringError
from rdmaring.tuning.constants import KINDS, Constants, Table
from rdmaring.tuning.file import costs_dict, default_path, load, merged, save

SIZES = "8:64M:x4,64M"
WRONG_FOUND = 3  # the exit code

EPILOG = """\b
Examples:
  rdmaring tune -n 8                                 8 ranks on this machine; about a minute
  RDMARING_TUNING=~/.config/rdmaring/tuning.json rdmaring run -n 8 train.py
  rdmaring tune -n 4 --collective all_reduce --sizes 64:16M:x4 --seconds 20 -o t.json
  rdmaring tune --hosts a,b                          one rank on each of two hosts, by ssh
  mpirun --host a:4,b:4 rdmaring tune -o t.json      ranks of another launcher; rank 0 writes the file
  rdmaring tune -n 2 --json | jq .errors

\b
Every candidate is first checked on exact data: one with wrong elements is named, and left out of the file. Then all
are timed in turn; the file has the medians, and constants of the cost model fitted to them. A file that is there
already, of the same hosts, transports and devices, keeps its measurements of other numbers of ranks.
A job uses the file where RDMARING_TUNING or rdmaring.init(tuning=) names it, the same on all ranks.
Exit code, of rank 0: 0; 3 if a candidate was refused; 1 if a rank failed or the file cannot be written; 2 for wrong
usage.
"""


@click.command("tune", cls=KeepArguments, epilog=EPILOG)
@click.option("-n", "--ranks", type=click.IntRange(2, 4096), help="Start this many ranks on this machine.")
@hosts_option
@agent_option
@click.option(
    "--collective",
    default=",".join(COLLECTIVES),
    show_default=True,
    metavar="NAME,...",
    help="Which are measured; the others are chosen by the fitted constants.",
)
@click.option("--sizes", default=SIZES, show_default=True, metavar="BYTES,...", help="Bytes of the vector, float32.")
@click.option(
    "--seconds",
    type=click.FloatRange(0.1, 36000),
    default=60.0,
    show_default=True,
    help="About how long to measure. Each cell gets its share, but five rounds at least.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Default: rdmaring/tuning.json in the user's configuration folder.",
)
@click.option("--fresh", is_flag=True, help="Keep nothing of a file that is there already.")
@json_option
@pin_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    ranks: int | None,
    hosts: str | None,
    agent: str,
    collective: str,
    sizes: str,
    seconds: float,
    output: Path | None,
    fresh: bool,
    json_wanted: bool,
    pin: bool | None,
) -> int:
    """Measure the algorithms on these ranks, and write a file by which they are chosen.

    With -n it starts its ranks on this machine; without, it is a rank of the launcher that started it.
    """
    names, nbytes = _names(collective), _sizes(sizes)
    path = output or default_path(os.environ)
    described = _check_place(ranks, hosts)
    if not described and hosts is not None:
        return start_on_hosts("tune", ctx.meta[ARGUMENTS], host_names(hosts), agent)
    if not described:
        assert ranks is not None
        return start_ranks("tune", ctx.meta[ARGUMENTS], ranks, pin)
    try:
        with rdmaring.init(tuning="", probe=False) as comm, progress(shown=comm.rank == 0) as advance:
            measured = measure(comm, names, nbytes, seconds, advance)
            if comm.rank:
                return 0  # a launcher would end rank 0, which still writes, when another rank fails
            assert comm._facts is not None
            fingerprint, nodes = comm._facts.fingerprint, comm._nodes
            before = () if fresh else _tables_of(path, fingerprint)
            constants = with_tables(comm._chooser.constants, merged(before, measured.table))
        save(path, fingerprint, constants)
    except OSError as error:
        if isinstance(error, RdmaringError):
            click.echo(f"rdmaring tune: {error}", err=True)
        else:
            click.echo(f"rdmaring tune: {path} cannot be written: {error.strerror}", err=True)
        return 1
    except (RdmaringError, MemoryError) as error:
        click.echo(f"rdmaring tune: {error or 'no memory for the buffers'}", err=True)
        return 1
    if json_wanted:
        click.echo(json.dumps(_document(path, constants, measured, nodes, asdict(fingerprint)), indent=2))
    else:
        _show(path, constants, measured, nodes)
    return WRONG_FOUND if measured.refused else 0


def _tables_of(path: Path, fingerprint: Any) -> tuple[Table, ...]:
    """Of a file that is there already, if it is for the same hosts, transports and devices."""
    if not path.exists():
        return ()
    try:
        found = load(str(path), "--output")
    except ArgumentError as error:
        click.echo(f"rdmaring tune: what is there is not kept: {error.cause}", err=True)
        return ()
    differences = found.fingerprint.differences(fingerprint)
    if differences:
        click.echo(f"rdmaring tune: {path} is replaced: it was for another job: {'; '.join(differences)}", err=True)
        return ()
    return found.constants.tables


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    unknown = [name for name in names if name not in COLLECTIVES]
    if unknown or len(set(names)) != len(names):
        raise click.BadParameter(
            f"{text!r}: accepted are {', '.join(COLLECTIVES)}, each once", param_hint="--collective"
        )
    return names


def _sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(dict.fromkeys(max(4, size // 4 * 4) for size in parse_sizes(text)))
    except SizesError as error:
        raise click.BadParameter(str(error), param_hint="--sizes") from None
    if len(sizes) > 100:
        raise click.BadParameter(f"{text!r} makes {len(sizes)} sizes; accepted are up to 100", param_hint="--sizes")
    return sizes


def _check_place(ranks: int | None, hosts: str | None) -> bool:
    """Whether this process is a rank already."""
    place = find_place(ranks, hosts)
    if place is None and ranks is None and hosts is None:
        raise click.UsageError("one of -n for ranks on this machine, --hosts for others, or a launcher")
    if place is not None and place.world < 2:
        raise click.UsageError("the job has one rank: there is nothing to choose")
    return place is not None


# ---- what is shown ----


def _show(path: Path, constants: Constants, measured: Measured, nodes: Sequence[int]) -> None:
    found = errors(constants, measured.table, nodes)
    for collective, error in found.items():
        click.echo(f"{collective}: predicted within {100 * error:.0f} % of measured in the median cell")
        for nbytes, algorithm, seconds in best_of(measured.table, collective):
            click.echo(f"  {format_bytes(nbytes):>10}  {algorithm:<14}{time_text(seconds):>10}")
    for each in measured.refused:
        click.secho(
            f"refused: {each.algorithm} of {each.collective} gave {each.wrong} wrong elements at {each.nbytes} bytes",
            fg="red",
            bold=True,
        )
    click.echo(f"written: {path}")
    click.echo(f"use it by: export RDMARING_TUNING={path.absolute()}")


def _document(
    path: Path, constants: Constants, measured: Measured, nodes: Sequence[int], fingerprint: dict[str, Any]
) -> dict[str, Any]:
    return {
        "rdmaring": __version__,
        "file": str(path),
        "nodes": list(measured.table.sizes),
        "fingerprint": fingerprint,
        "errors": errors(constants, measured.table, nodes),
        "constants": {kind: costs_dict(getattr(constants, kind)) for kind in KINDS},
        "times": [
            {"collective": collective, "algorithm": algorithm, "size_bytes": nbytes, "seconds": seconds}
            for collective, algorithm, nbytes, seconds in rows_of(measured.table)
        ],
        "refused": [asdict(each) for each in measured.refused],
    }
