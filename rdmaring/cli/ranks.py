"""Subcommands that are ranks of a job: they start themselves on this machine or on hosts, or a launcher has."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

import rdmaring
from rdmaring.launch import CommandError, Job, run_job
from rdmaring.rendezvous import RendezvousError
from rdmaring.rendezvous.environment import detect, is_described
from rdmaring.rendezvous.place import Place

ARGUMENTS = "rdmaring.arguments"  # in a context's meta

# Ranks run this; the folder of the package comes last, as it may be found by nothing else.
RANK_PROGRAM = """\
import sys
folder = sys.argv.pop(1)
sys.path = [path for path in sys.path if path] + [folder]
from rdmaring.cli.main import main
main()
"""


class KeepArguments(click.Command):
    """Remembers its arguments as they came: the ranks get the same."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        keep_arguments(ctx, args)
        return super().parse_args(ctx, args)


def keep_arguments(ctx: click.Context, args: list[str]) -> None:
    ctx.meta[ARGUMENTS] = list(args)


hosts_option = click.option("--hosts", metavar="HOST,...", help="Start one rank on each of these hosts, by the agent.")
agent_option = click.option(
    "--agent",
    default="ssh",
    show_default=True,
    metavar="COMMAND",
    help="With --hosts: what runs a command line on a host, as `ssh HOST COMMAND` does.",
)
pin_option = click.option(
    "--pin/--no-pin",
    default=None,
    envvar="RDMARING_PIN",
    help="With -n: bind each rank to a CPU, neighbours to one if there are fewer; without either, if ranks outnumber "
    "idle CPUs.",
)
json_option = click.option("--json", "json_wanted", is_flag=True, help="One document on standard output, nothing else.")


def find_place(ranks: int | None, hosts: str | None = None) -> Place | None:
    """Which rank this process is, if a launcher has started it.

    Raises:
        click.UsageError: -n or --hosts do not fit each other, or what the launcher says.
    """
    if hosts is not None and ranks is not None:
        raise click.UsageError("--hosts and -n: accepted is one of them")
    try:
        described, place = is_described(os.environ), detect(os.environ)
    except RendezvousError as error:
        raise click.UsageError(f"{error}. {error.hint}") from None
    if described and ranks is not None and ranks != place.world:
        raise click.UsageError(
            f"-n is {ranks}, but a launcher has started this process as rank {place.rank} of {place.world}; "
            "leave out -n there"
        )
    return place if described else None


def host_names(text: str) -> list[str]:
    """Of --hosts."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if len(names) < 2 or any(name.startswith("-") for name in names):
        raise click.BadParameter(f"{text!r}: accepted are two or more host names between commas", param_hint="--hosts")
    return names


def start_ranks(subcommand: str, arguments: Sequence[str], ranks: int, pin: bool | None = None) -> int:
    """Run ``rdmaring SUBCOMMAND ARGUMENTS`` as so many ranks; rank 0 writes to our own output.

    Returns the exit code.
    """
    folder = str(Path(rdmaring.__file__).resolve().parents[1])
    program = [sys.executable, "-c", RANK_PROGRAM, folder, subcommand, *arguments]
    try:
        return run_job(Job(program, ranks, pin=pin, direct=True))
    except CommandError as error:
        click.echo(f"rdmaring {subcommand}: {error}", err=True)
        return error.exit_code
