"""``rdmaring schedule``: print, prove, save and load schedules."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from rdmaring.cli.ranks import json_option
from rdmaring.schedule import ORDERED, SHAPED, Schedule, ScheduleError, algorithms_of, generate
from rdmaring.schedule.collectives import COLLECTIVES
from rdmaring.schedule.encode import decode_file, encode_file
from rdmaring.schedule.show import as_dict, render
from rdmaring.schedule.verify import Proof, verify

EPILOG = """\b
Examples:
  rdmaring schedule ring -n 8                          all_reduce by a ring of 8: its rows, and the proof
  rdmaring schedule direct -n 4 --collective reduce_scatter --rank 0
  rdmaring schedule ring -n 4 --collective broadcast --root 2
  rdmaring schedule ring -n 4 --order 0,2,1,3          a ring that visits the ranks in this order
  rdmaring schedule hierarchical -n 8 --nodes-of 4     four ranks a node; --nodes 2,3: nodes of two and three
  rdmaring schedule ring -n 8 --save ring8.rrs         what rr_schedule_load() reads
  rdmaring schedule --load ring8.rrs                   prints and proves a saved one
  rdmaring schedule ring -n 64 --rank 0 --no-verify    of many ranks one, at once
  rdmaring schedule --list                             which algorithms there are
Exit code: 0; 1 if a schedule is wrong or a file cannot be read or written; 2 for wrong usage.
"""


@click.command("schedule", epilog=EPILOG)
@click.argument("algorithm", required=False)
@click.option("-n", "--ranks", type=click.IntRange(1, 1 << 20), help="World size.")
@click.option(
    "--collective",
    type=click.Choice(list(COLLECTIVES)),
    default="all_reduce",
    show_default=True,
    metavar="NAME",
    help=", ".join(COLLECTIVES) + ".",
)
@click.option("--root", type=int, help="Of broadcast, reduce, gather and scatter; default 0.")
@click.option("--order", metavar="RANK,...", help="The ranks as the ring visits them; default 0,1,2,...")
@click.option("--nodes-of", type=click.IntRange(1, 1 << 20), metavar="K", help="Ranks a node; the last has the rest.")
@click.option("--nodes", metavar="SIZE,...", help="Ranks of each node, one after another; default one node.")
@click.option("--rank", "shown", type=int, multiple=True, help="Print this rank only; may be repeated.")
@click.option("--verify/--no-verify", "proving", default=True, show_default=True, help="Prove it for all ranks.")
@click.option(
    "--save",
    "target",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the file that the C library reads.",
)
@click.option(
    "--load",
    "source",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Take the schedule from a file instead.",
)
@click.option("--list", "listing", is_flag=True, help="List the algorithms of each collective.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    algorithm: str | None,
    ranks: int | None,
    collective: str,
    root: int | None,
    order: str | None,
    nodes_of: int | None,
    nodes: str | None,
    shown: tuple[int, ...],
    proving: bool,
    target: Path | None,
    source: Path | None,
    listing: bool,
    json_wanted: bool,
) -> int:
    """Print the schedule of ALGORITHM among -n ranks: who sends which chunk to whom, row by row.

    It is proven for all ranks: every contribution arrives exactly once, nothing races, and it comes to its
    end with one credit a link. Only then it is saved.
    """
    if listing:
        click.echo(json.dumps(_algorithms(), indent=2) if json_wanted else _list_text())
        return 0
    try:
        if source is not None:
            schedule = _load(ctx, source, algorithm)
        else:
            schedule = _make(algorithm, ranks, collective, root, order, _sizes(algorithm, ranks, nodes_of, nodes))
        for rank in shown:
            if not 0 <= rank < schedule.world:
                raise click.BadParameter(
                    f"{rank} is no rank of this schedule; accepted are 0..{schedule.world - 1}",
                    param_hint="--rank",
                )
        proof = verify(schedule) if proving else None
        if target is not None:
            target.write_bytes(encode_file(schedule))
    except ScheduleError as error:
        where = "" if source is None else f"{source}: "
        click.echo(f"rdmaring schedule: {where}{error}", err=True)
        return 1
    except OSError as error:
        click.echo(f"rdmaring schedule: {error.filename}: {error.strerror}", err=True)
        return 1
    ranks_shown = shown or None
    if json_wanted:
        document = as_dict(schedule, ranks_shown) | {"proof": None if proof is None else proof_dict(proof)}
        click.echo(json.dumps(document, indent=2))
        return 0
    click.echo(render(schedule, ranks_shown))
    click.echo("not proven: --no-verify" if proof is None else proof_text(schedule, proof))
    if target is not None:
        click.echo(f"saved to {target}, {target.stat().st_size} bytes")
    return 0


def proof_text(schedule: Schedule, proof: Proof) -> str:
    """What was proven, in two lines."""
    ranks = "rank" if schedule.world == 1 else "ranks"
    return (
        f"steps {schedule.step_count}; sent by a rank {_range_text(proof.sent)} of the vector; "
        f"busiest link {_fraction_text(proof.busiest_link)}; window {schedule.window}; "
        f"{proof.row_count} rows, {proof.transfer_count} transfers\n"
        f"proven for {schedule.world} {ranks}: every contribution exactly once where it belongs, "
        "combined in one order on all ranks; no read before its write, no race, in place and out of place; "
        "ends with one credit a link"
    )


def proof_dict(proof: Proof) -> dict[str, Any]:
    """For JSON; fractions of the vector as strings such as "3/2"."""
    return {
        "row_count": proof.row_count,
        "transfer_count": proof.transfer_count,
        "sent": [str(sent) for sent in proof.sent],
        "busiest_link": str(proof.busiest_link),
        "orders": list(proof.orders),
    }


def _fraction_text(value: Fraction) -> str:
    return str(value) if value.denominator == 1 else f"{value} ({float(value):.3f})"


def _range_text(values: Sequence[Fraction]) -> str:
    least, most = min(values), max(values)
    return _fraction_text(most) if least == most else f"{_fraction_text(least)} to {_fraction_text(most)}"


def _make(
    algorithm: str | None,
    ranks: int | None,
    collective: str,
    root: int | None,
    order: str | None,
    sizes: list[int] | None,
) -> Schedule:
    """A built-in one; what does not fit is wrong usage."""
    accepted = algorithms_of(collective)
    if algorithm is None:
        raise click.UsageError(
            f"ALGORITHM is missing; of {collective} there are {', '.join(accepted)}; or give --load FILE"
        )
    if algorithm not in accepted:
        others = [name for name in COLLECTIVES if algorithm in algorithms_of(name)]
        also = f" ({algorithm} serves {', '.join(others)})" if others else ""
        raise click.BadParameter(
            f"{algorithm!r} does not serve {collective}; accepted are {', '.join(accepted)}{also}",
            param_hint="ALGORITHM",
        )
    if ranks is None:
        raise click.UsageError("-n is missing: the number of ranks, such as -n 8")
    rooted = COLLECTIVES[collective].rooted
    if root is not None and not rooted:
        raise click.BadParameter(f"{root} given, but {collective} has no root", param_hint="--root")
    if root is not None and not 0 <= root < ranks:
        raise click.BadParameter(f"{root} is no rank; accepted are 0..{ranks - 1}", param_hint="--root")
    visits = None if order is None else _order(algorithm, ranks, order)
    nodes = None if sizes is None else [node for node, size in enumerate(sizes) for _ in range(size)]
    return generate(collective, algorithm, ranks, (root or 0) if rooted else None, visits, nodes)


def _sizes(algorithm: str | None, ranks: int | None, nodes_of: int | None, text: str | None) -> list[int] | None:
    """How many ranks each node has; None: not asked for."""
    option = "--nodes" if text is not None else "--nodes-of"
    if text is None and nodes_of is None:
        return None
    if text is not None and nodes_of is not None:
        raise click.UsageError("--nodes and --nodes-of say the same; give one of them")
    if algorithm is not None and algorithm not in SHAPED:
        raise click.BadParameter(f"{algorithm} knows no nodes; accepted with {', '.join(SHAPED)}", param_hint=option)
    if ranks is None:
        raise click.UsageError("-n is missing: the number of ranks, such as -n 8")
    if nodes_of is not None:
        return [nodes_of] * (ranks // nodes_of) + [ranks % nodes_of] * (ranks % nodes_of > 0)
    assert text is not None
    sizes = [int(part) if part.isdecimal() else 0 for part in text.split(",")]
    if min(sizes) < 1 or sum(sizes) != ranks:
        raise click.BadParameter(
            f"{text!r}; accepted are numbers >= 1 that add up to {ranks} ranks, such as 2,3 for 5", param_hint=option
        )
    return sizes


def _order(algorithm: str, ranks: int, text: str) -> list[int]:
    if algorithm not in ORDERED:
        raise click.BadParameter(
            f"{algorithm} visits no ring; accepted with {', '.join(sorted(ORDERED))}", param_hint="--order"
        )
    parts = text.split(",")
    if sorted(parts) != sorted(map(str, range(ranks))):
        raise click.BadParameter(
            f"{text!r}; accepted is each of the ranks 0..{ranks - 1} once, such as 0,2,1", param_hint="--order"
        )
    return list(map(int, parts))


def _load(ctx: click.Context, source: Path, algorithm: str | None) -> Schedule:
    """A saved one: it says itself what it is."""
    given = [name for name in ("ranks", "collective", "root", "order", "nodes_of", "nodes") if _from_user(ctx, name)]
    if algorithm is not None or given:
        named = ["ALGORITHM"] * (algorithm is not None) + [
            "-n" if name == "ranks" else f"--{name.replace('_', '-')}" for name in given
        ]
        raise click.UsageError(f"{', '.join(named)} with --load: the file says what it holds; leave it out")
    return decode_file(source.read_bytes())


def _from_user(ctx: click.Context, name: str) -> bool:
    found = ctx.get_parameter_source(name)
    return found is not None and found.name == "COMMANDLINE"


def _algorithms() -> dict[str, list[str]]:
    return {collective: list(algorithms_of(collective)) for collective in COLLECTIVES}


def _list_text() -> str:
    width = max(map(len, COLLECTIVES))
    return "\n".join(f"{name.ljust(width)}  {' '.join(served)}" for name, served in _algorithms().items())
