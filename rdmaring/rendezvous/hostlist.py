"""Slurm's way to write many host names: ``node[01-03,7],gpu5``."""

from __future__ import annotations

import re

from rdmaring.rendezvous.protocol import WORLD_MAX

# Names and bracketed ranges; a comma inside brackets does not part hosts.
_ITEM = re.compile(r"(?:[^\[\],\s]|\[[0-9,\-]+\])+")
_PART = re.compile(r"\[([0-9,\-]+)\]|([^\[\]]+)")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def expand(text: str, hosts_max: int = WORLD_MAX) -> list[str]:
    """The host names in their order; of several brackets in one name the last varies fastest.

    Raises ValueError: not a host list, or one of more than ``hosts_max`` hosts.
    """
    hosts: list[str] = []
    position = 0
    while True:
        item = _ITEM.match(text, position)
        if item is None:
            raise ValueError(f"host list {text!r}: expected names such as node[01-03,7],gpu5")
        hosts += _expand_one(item.group(), hosts_max - len(hosts), text)
        position = item.end()
        if position == len(text):
            return hosts
        if text[position] != ",":
            raise ValueError(f"host list {text!r}: unexpected {text[position]!r} at character {position}")
        position += 1


def _expand_one(item: str, hosts_max: int, text: str) -> list[str]:
    names = [""]
    for ranges, plain in _PART.findall(item):
        numbers = _numbers(ranges, hosts_max, text) if ranges else [plain]
        if len(names) * len(numbers) > hosts_max:
            raise ValueError(f"host list {text!r} has too many hosts")
        names = [name + number for name in names for number in numbers]
    if len(names) > hosts_max:
        raise ValueError(f"host list {text!r} has too many hosts")
    return names


def _numbers(ranges: str, numbers_max: int, text: str) -> list[str]:
    """``01-03,7`` as written numbers; the width of a range's first number holds for all of it."""
    numbers: list[str] = []
    for each in ranges.split(","):
        found = _RANGE.fullmatch(each)
        if found is None:
            raise ValueError(f"host list {text!r}: {each!r} is no number and no range")
        first, last = found.group(1), found.group(2) or found.group(1)
        if int(last) < int(first) or int(last) - int(first) >= numbers_max:
            raise ValueError(f"host list {text!r}: the range {each} is empty or too long")
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return numbers
