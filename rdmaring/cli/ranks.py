"""A subcommand that starts itself as the ranks of a job on this machine."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

import rdmaring
from rdmaring.launch import CommandError, Job, run_job

# Ranks run this; the folder of the package comes last, as it may be found by nothing else.
RANK_PROGRAM = """\
import sys
folder = sys.argv.pop(1)
sys.path = [path for path in sys.path if path] + [folder]
from rdmaring.cli.main import main
main()
"""


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
