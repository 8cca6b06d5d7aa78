"""Rates of links, as tc writes them."""

from __future__ import annotations

import argparse
import re

UNITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
BIT_PER_S_MIN, BIT_PER_S_MAX = 8 * 10**3, 10**12


def rate(text: str) -> int:
    """Bits per second of '200mbit'."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?bit)", text.lower())
    value = int(float(found[1]) * UNITS[found[2]]) if found else 0
    if not BIT_PER_S_MIN <= value <= BIT_PER_S_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is no rate; accepted are 8kbit to 1000gbit, as in 200mbit")
    return value


def rate_of(text: str) -> tuple[int, int]:
    """Host and bits per second of '2:100mbit'."""
    found = re.fullmatch(r"(\d{1,3}):(.+)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no HOST:RATE, as in 2:100mbit")
    return int(found[1]), rate(found[2])


def edge(text: str) -> tuple[int, int, int]:
    """Source, destination and bits per second of '2-3:100mbit'."""
    found = re.fullmatch(r"(\d{1,3})-(\d{1,3}):(.+)", text)
    if not found or found[1] == found[2]:
        raise argparse.ArgumentTypeError(f"{text!r} is no FROM-TO:RATE, as in 2-3:100mbit")
    return int(found[1]), int(found[2]), rate(found[3])
