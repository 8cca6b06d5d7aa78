"""``rdmaring run``: start the ranks of one job on this machine."""

from __future__ import annotations

import click

from rdmaring.launch import CommandError, Job, run_job

EPILOG = """\b
Examples:
  rdmaring run -n 4 train.py --epochs 3     a .py file is run with this Python
  rdmaring run -n 2 ./a.out                 any other command as it is
  rdmaring run -n 8 --grace 0 train.py      after a failure the others end at once
  rdmaring run -n 2 --env OMP_NUM_THREADS=1 train.py

Exit code: 0 if all ranks ended well, else that of the first rank that failed, 128 + the signal where one
killed it; 130 after Ctrl-C. Rank 0 reads standard input; the others find it empty.
"""


def _variables(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    variables = {}
    for value in values:
        name, equals, content = value.partition("=")
        if not name or not equals or "\0" in value:
            raise click.BadParameter(f"{value!r}: expected NAME=VALUE")
        variables[name] = content
    return variables


@click.command(
    "run",
    epilog=EPILOG,
    context_settings={"allow_interspersed_args": False},  # options after COMMAND are the command's
)
@click.option("-n", "--ranks", type=click.IntRange(1, 4096), required=True, help="How many ranks to start.")
@click.option(
    "--grace",
    "grace_s",
    type=click.FloatRange(0, 1e6),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="After the first failure the others get this long to leave, then SIGTERM, 2 s later SIGKILL.",
)
@click.option("--keep-going", is_flag=True, help="After a failure let the other ranks run to their own end.")
@click.option(
    "--pin/--no-pin",
    default=None,
    envvar="RDMARING_PIN",
    help="Bind each rank to a CPU, neighbours to one if there are fewer; without either, if ranks outnumber idle "
    "CPUs. [env: RDMARING_PIN]",
)
@click.option("--env", multiple=True, callback=_variables, metavar="NAME=VALUE", help="Set for every rank.")
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED, metavar="COMMAND...")
def command(
    ranks: int,
    grace_s: float,
    keep_going: bool,
    pin: bool | None,
    env: dict[str, str],
    program: tuple[str, ...],
) -> int:
    """Run COMMAND as the ranks of one job on this machine.

    What a rank prints is shown line by line behind its number, as in "[3] text". When one rank fails the
    others are ended, and nothing of the job outlives this command.
    """
    try:
        return run_job(Job(program, ranks, grace_s, keep_going, pin, env))
    except CommandError as error:
        click.echo(f"rdmaring run: {error}", err=True)
        return error.exit_code
