"""The command scripts/softroce."""

from __future__ import annotations

import argparse
import platform
import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from beds import guests, initramfs, kernel, packages
from beds.addresses import Family, first_address
from beds.arguments import EPILOG_ENVIRONMENT, add_common, count, split_command
from beds.guests import Guests, Machine
from beds.job import BedError, Job, LackingError, Rules, signalled
from beds.namespaces import SCRIPTS
from beds.world import World

GUESTS_MAX = 16
TIMEOUT_S = 300.0
EPILOG = f"""\
examples:
  scripts/softroce --guests 1 --ranks 2 -- rdmaring bench
  scripts/softroce --guests 2 -- ibv_devinfo -v
  scripts/softroce --guests 2 --loss 1% --delay 1ms -- python train.py
  scripts/softroce --guests 2 -- sh -c 'test $RDMARING_RANK = 0 && exec ib_write_bw -d rxe0 -x 1 -F
                                        sleep 2; exec ib_write_bw -d rxe0 -x 1 -F 10.77.0.1'

in a guest: this machine's files, read-only below a layer in the guest's memory, so what is written there is lost
(--share DIR is not); the device rxe0 on eth0; 10.77.0.1, .2, ... and fd77::1, fd77::2, ... on one wire

{EPILOG_ENVIRONMENT}"""


def _netem(pattern: str, example: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise argparse.ArgumentTypeError(f"{text!r}: accepted is a value as in {example}")
        return text

    return parse


def _folder(text: str) -> Path:
    path = Path(text).resolve()
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is no folder")
    return path


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/softroce",
        usage="%(prog)s [--guests N] [--ranks M] [OPTIONS] -- COMMAND [ARGUMENTS...]",
        description="Run COMMAND once per rank in guests that have real verbs over soft-RoCE, joined by one wire.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_common(parser, "--guests", "guests", GUESTS_MAX)
    parser.set_defaults(timeout=TIMEOUT_S)
    parser.add_argument("--smp", type=count(16), default=1, metavar="N", help="CPUs of each guest; default 1")
    parser.add_argument(
        "--memory", type=count(1 << 20, 256), default=1024, metavar="MB", help="of each guest; default 1024"
    )
    loss = _netem(r"\d{1,3}(\.\d+)?%", "1%")
    parser.add_argument("--loss", type=loss, help="of what each guest sends: 1%%")
    delay = _netem(r"\d+(\.\d+)?(us|ms|s)", "1ms")
    parser.add_argument("--delay", type=delay, help="of what each guest sends, so a round trip has twice this: 1ms")
    parser.add_argument(
        "--memlock", type=count(1 << 40, 0), metavar="KB", help="memory a rank may lock; default unlimited"
    )
    parser.add_argument("--share", type=_folder, metavar="DIR", help="guests write into this folder, at the same path")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """The exit status: see EPILOG_ENVIRONMENT."""
    options, command = split_command(argv)
    arguments = _arguments(options)
    if not command:
        print(
            "scripts/softroce: no COMMAND: write it behind --, as in scripts/softroce -- ibv_devinfo", file=sys.stderr
        )
        return 2
    try:
        if platform.machine() != "x86_64":
            raise LackingError(f"this is {platform.machine()}: guests run this machine's programs on an x86-64 kernel")
        packages.need({**packages.GUESTS, **packages.GUEST_TOOLS})
        machine = Machine(
            kernel=kernel.get(),
            family=Family.IPV6 if arguments.ipv6 else Family.BOTH,
            cpus=arguments.smp,
            memory_mb=arguments.memory,
            loss=arguments.loss,
            delay=arguments.delay,
            memlock_kb=arguments.memlock,
            share=arguments.share,
        )
        start = initramfs.build(machine.kernel, sys.executable, SCRIPTS)
    except BedError as error:
        print(f"scripts/softroce: {error}", file=sys.stderr)
        return error.status
    names = [f"guest{guest}" for guest in range(arguments.guests)]
    addresses = [first_address(machine.family, guest) for guest in range(arguments.guests)]
    world = World(arguments.guests, arguments.ranks, arguments.interleave, addresses)
    try:
        take = signalled()
        with Guests(machine, arguments.guests, start) as running:
            rules = Rules(arguments.grace, arguments.timeout)
            return Job(guests.hosts(running, machine, names, world.ranks(command)), rules, take).run()
    except BedError as error:
        print(f"scripts/softroce: {error}", file=sys.stderr)
        return error.status
    except BrokenPipeError:
        return 128 + signal.SIGPIPE  # nobody reads what we write
