"""Sizes as people write them: ``8:256M:x2``, ``1M``, ``8,1K,64K:1M``."""

from __future__ import annotations

import re
from collections.abc import Iterator

UNIT_BYTES = {None: 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
BYTES_MAX = 1 << 50
SIZES_MAX = 10_000  # of one request; more is a slip of the keyboard

ACCEPTED = (
    "BYTES with K, M or G for 2^10, 2^20, 2^30 (1M), FIRST:LAST for doubling (8:16M), "
    "FIRST:LAST:xFACTOR, FIRST:LAST:+STEP, or a list of these"
)

_NUMBER = re.compile(r"(\d{1,16})\s*(?:([KMGT])(?:I?B)?|B)?", re.ASCII)


class SizesError(ValueError):
    """The text is no list of sizes; the message says which part, and what is accepted."""


def parse_sizes(text: str) -> tuple[int, ...]:
    """The sizes in bytes, in the order given, each once.

    >>> parse_sizes("8:64:x2,1K")
    (8, 16, 32, 64, 1024)

    Raises:
        SizesError: a part that is none of the accepted forms.
    """
    found: dict[int, None] = {}
    for part in text.split(","):
        for size in _range(part):
            found[size] = None
            if len(found) > SIZES_MAX:
                raise SizesError(f"{part.strip()!r} makes more than {SIZES_MAX} sizes")
    return tuple(found)


def parse_bytes(text: str) -> int:
    """A number of bytes.

    >>> parse_bytes("64K")
    65536

    Raises:
        SizesError: it is none.
    """
    match = _NUMBER.fullmatch(text.strip().upper())
    size = int(match[1]) * UNIT_BYTES[match[2]] if match else 0
    if not 0 < size <= BYTES_MAX:
        raise SizesError(f"{text.strip()!r} is no size; accepted are {ACCEPTED}")
    return size


def _range(part: str) -> Iterator[int]:
    first, *rest = part.split(":")
    size = parse_bytes(first)
    if not rest:
        yield size
        return
    if len(rest) > 2:
        raise SizesError(f"{part.strip()!r} has {len(rest)} colons; accepted are {ACCEPTED}")
    last = parse_bytes(rest[0])
    if last < size:
        raise SizesError(f"{part.strip()!r} ends below its beginning; accepted are {ACCEPTED}")
    factor, step = _growth(part, rest[1] if len(rest) == 2 else "x2")
    while size <= last:
        yield size
        size = size * factor + step


def _growth(part: str, text: str) -> tuple[int, int]:
    """The next size is size * factor + step."""
    sign, amount = text.strip()[:1].lower(), text.strip()[1:]
    if sign == "x" and amount.isdecimal() and 2 <= int(amount) <= BYTES_MAX:
        return int(amount), 0
    if sign == "+":
        return 1, parse_bytes(amount)
    raise SizesError(f"{text.strip()!r} in {part.strip()!r} is no growth; accepted are x2, x4 ... and +BYTES")


def format_bytes(size: float) -> str:
    """For people: ``8 B``, ``64 KiB``, ``1.5 MiB``."""
    units = ["TiB", "GiB", "MiB", "KiB", "B"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop()
    return f"{size:.3g} {units[-1]}" if size < 1000 else f"{size:.0f} {units[-1]}"
