"""What people write for a cluster: times, rates, slow links, a file of constants."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from rdmaring.bench.sizes import SizesError, parse_sizes
from rdmaring.schedule.cluster import Costs, LevelCost
from rdmaring.schedule.rows import WORLD_MAX

FILE_BYTES_MAX = 4 << 20
RANKS_ACCEPTED = "numbers of ranks as sizes are written: 8, 2:4096 (doubling), 4:32:+4, or a list of these"
TIME_UNITS = {"": 1e-6, "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
RATE_UNITS = {
    "": 1e9,
    "B/s": 1.0,
    "KB/s": 1e3,
    "MB/s": 1e6,
    "GB/s": 1e9,
    "TB/s": 1e12,
    "Mb/s": 1e6 / 8,
    "Gb/s": 1e9 / 8,
}


class OptionError(ValueError):
    """The text is not what the option takes; the message says what is."""


def seconds(text: str) -> float:
    """``3us``, ``1ms``, ``0.5`` (us)."""
    number, unit = _parts(text)
    if number is None or unit not in TIME_UNITS:
        raise OptionError(f"{text!r} is no time; accepted are 3us, 500ns, 1ms, 1s, or a number of us")
    return number * TIME_UNITS[unit]


def seconds_per_byte(text: str) -> float:
    """Of a rate: ``50GB/s``, ``400Gb/s``, ``12.5`` (GB/s)."""
    number, unit = _parts(text)
    if not number or unit not in RATE_UNITS:
        raise OptionError(f"{text!r} is no rate; accepted are 12.5GB/s, 400Gb/s, 900MB/s, or a number of GB/s")
    return 1.0 / (number * RATE_UNITS[unit])


def _parts(text: str) -> tuple[float | None, str]:
    match = re.fullmatch(r"\s*(\d{1,12}(?:\.\d{0,12})?)\s*([A-Za-z/]*)\s*", text, re.ASCII)
    return (float(match[1]), match[2]) if match else (None, "")


def ranks(text: str) -> tuple[int, ...]:
    """Worlds."""
    try:
        found = parse_sizes(text)
    except SizesError:
        raise OptionError(f"{text!r} is not understood; accepted are {RANKS_ACCEPTED}") from None
    if max(found) > WORLD_MAX:
        raise OptionError(f"ranks must be up to {WORLD_MAX}, not {max(found)}")
    return found


def slow_link(text: str) -> tuple[tuple[int, int], float]:
    """``3-4:5``: between ranks 3 and 4 a byte takes five times as long."""
    match = re.fullmatch(r"(\d{1,7})-(\d{1,7}):(\d{1,6}(?:\.\d{1,6})?)", text.strip(), re.ASCII)
    if not match or match[1] == match[2]:
        raise OptionError(f"{text!r} is no slow link; accepted is A-B:FACTOR, such as 3-4:5")
    return (int(match[1]), int(match[2])), float(match[3])


def straggler(text: str) -> tuple[int, float]:
    """``5:2``: everything takes rank 5 twice as long."""
    match = re.fullmatch(r"(\d{1,7}):(\d{1,6}(?:\.\d{1,6})?)", text.strip(), re.ASCII)
    if not match:
        raise OptionError(f"{text!r} is no straggler; accepted is RANK:FACTOR, such as 5:2")
    return int(match[1]), float(match[2])


def costs_from(path: Path) -> Costs:
    """The constants of a tuning file, those for ranks with a processor each; or of a document with only them.

    Raises:
        OptionError: it cannot be read, or holds no constants; the message says what is missing.
    """
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise OptionError(f"{str(path)!r} cannot be read: {error.strerror}") from None
    if len(data) > FILE_BYTES_MAX:
        raise OptionError(f"{str(path)!r} has more than {FILE_BYTES_MAX} bytes")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise OptionError(f"{str(path)!r} is no JSON; `rdmaring tune` writes such files") from None
    try:
        given = document["constants"]["rows"] if "constants" in document else document
        reduce_s, row_s, slice_s = (float(given[name]) for name in ("reduce_s_per_byte", "row_s", "slice_s"))
        return Costs(_level(given["near"]), _level(given["far"]), reduce_s, row_s, slice_s)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise OptionError(f"{str(path)!r} holds no constants as `rdmaring tune` writes them: {error}") from None


def _level(given: Any) -> LevelCost:
    return LevelCost(*(float(given[name]) for name in ("latency_s", "s_per_byte", "cpu_s_per_byte")))
