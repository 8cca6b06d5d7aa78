"""Options that both beds have."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

RANKS_MAX = 64
EPILOG_ENVIRONMENT = """\
environment of each rank, beside the caller's:
  RDMARING_RANK, RDMARING_WORLD_SIZE, RDMARING_LOCAL_RANK, RDMARING_RENDEZVOUS (rank 0 listens there),
  RDMARING_SECRET (one for all), RDMARING_HOST_ID (one for each host),
  BED_HOST (number of this host), BED_ADDRESSES (of all hosts, with spaces between)

exit status: 0, or that of the first rank that failed, 128 + signal where one killed it; 2 for wrong arguments and
for what this machine lacks; 124 when --timeout is over; 125 where a host itself failed
"""


def split_command(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """What stands before the first -- and behind it."""
    if "--" not in argv:
        return list(argv), []
    at = list(argv).index("--")
    return list(argv[:at]), list(argv[at + 1 :])


def positive(text: str) -> float:
    """Seconds > 0."""
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r}: accepted are seconds > 0")
    return value


def seconds(text: str) -> float:
    """Seconds >= 0."""
    value = float(text)
    if not 0 <= value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r}: accepted are seconds >= 0")
    return value


def count(most: int, least: int = 1) -> Callable[[str], int]:
    """A number from ``least`` to ``most``."""

    def number(text: str) -> int:
        if not text.isdigit() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r}: accepted are {least} to {most}")
        return int(text)

    return number


def add_common(parser: argparse.ArgumentParser, option: str, what: str, most: int) -> None:
    parser.add_argument(option, type=count(most), default=2, metavar="N", help=f"{what}; default 2")
    parser.add_argument(
        "--ranks", type=count(RANKS_MAX), default=1, metavar="M", help=f"on each of the {what}; default 1"
    )
    parser.add_argument(
        "--interleave", action="store_true", help=f"put rank r on number r %% N of the {what}; else on r // M"
    )
    parser.add_argument("--ipv6", action="store_true", help="no IPv4 but loopback's")
    parser.add_argument(
        "--grace", type=seconds, default=10.0, metavar="S", help="for the others after a rank has failed; default 10"
    )
    parser.add_argument("--timeout", type=positive, metavar="S", help="end all with status 124 after so many seconds")
