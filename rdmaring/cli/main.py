"""``rdmaring``: loads a subcommand only when it is asked for."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Sequence
from typing import Any

import click

# Module rdmaring.cli.NAME holds the click command `command`; the help stands here, so that
# `rdmaring --help` imports none of them.
SUBCOMMANDS = {
    "run": "Start the ranks of a job on this machine.",
    "bench": "Time the collectives over a range of sizes.",
    "links": "Measure every edge between the ranks, and name the slow one.",
    "tune": "Measure the algorithms here, and write a file by which they are chosen.",
    "schedule": "Print, verify and save schedules.",
    "simulate": "Predict times against ranks and bytes, and where algorithms cross.",
    "doctor": "Say what is wrong with this machine or a pair of machines, why, and what to do.",
    "why": "Say which rank is stuck, where and on what, from outside.",
    "trace": "Record slices of all ranks on one time line, for Perfetto.",
}

EXAMPLES = """\b
Examples:
  rdmaring run -n 4 train.py --epochs 3
  rdmaring bench -n 4
  mpirun --host a,b rdmaring links --live
  rdmaring schedule ring -n 8
  rdmaring doctor
  rdmaring why 4711
"""


class LazyGroup(click.Group):
    """A group whose commands are modules, imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUBCOMMANDS:
            return None
        command = importlib.import_module(f"rdmaring.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in SUBCOMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], SUBCOMMANDS, n=1)
            advice = f"did you mean {near[0]!r}?" if near else f"the commands are {', '.join(SUBCOMMANDS)}"
            raise click.UsageError(f"no command {args[0]!r}: {advice}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(SUBCOMMANDS.items()))


def _show_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from rdmaring.cli.version import lines

        click.echo("\n".join(lines()))
        ctx.exit()


@click.group(
    cls=LazyGroup,
    epilog=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show_version,
    help="Version; build, SIMD, verbs and CUDA as they are found here.",
)
def cli() -> None:
    """All-reduce and its relatives between processes, without NCCL."""


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script. Exits with the command's code: 2 for wrong usage, 130 for Ctrl-C."""
    try:
        code: Any = cli.main(
            args=None if arguments is None else list(arguments), prog_name="rdmaring", standalone_mode=False
        )
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except click.Abort:
        click.echo("rdmaring: interrupted", err=True)
        code = 130
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
