"""Settings of links over InfiniBand and RoCE: arguments of init() and RDMARING_VERBS_* variables."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from rdmaring.errors import ArgumentError


class Range(NamedTuple):
    """What is accepted, and what it means."""

    least: float
    most: float
    meaning: str


# Defaults are the native library's (rdmaring.h, rr_verbs_options); None or an unset variable takes them.
RANGES = {
    "qps": Range(1, 8, "queue pairs a link; equal on all ranks"),
    "retry_timeout_s": Range(4.096e-6, 8800, "seconds until a packet is sent again, rounded up to 4.096 us * 2^n"),
    "retry_count": Range(1, 7, "times a packet is sent again"),
    "rnr_retry": Range(1, 7, "times a receiver may be found not ready; 7: no limit"),
    "service_level": Range(0, 15, "InfiniBand service level, or RoCE priority"),
    "traffic_class": Range(0, 255, "of the GRH: DSCP << 2 on RoCE v2"),
    "hop_limit": Range(1, 255, "of the GRH"),
    "gid_index": Range(0, 255, "the GID to use, instead of the one found by rule"),
    "gpu_direct": Range(
        0, 3, "GPU memory: 0 by dma-buf, else peer memory; 1 dma-buf alone; 2 peer memory alone; 3 staged"
    ),
    "reconnect_s": Range(0, 8800, "seconds for which a link that failed is made anew; 0: never"),
}
DEVICES_BYTES_MAX = 63


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return f"RDMARING_VERBS_{name.upper()}"


VARIABLES = {variable(name): f"verbs: {each.meaning}" for name, each in RANGES.items()}
VARIABLES["RDMARING_VERBS_DEVICES"] = "verbs: use only these devices, names between commas"


@dataclass(frozen=True)
class VerbsSettings:
    """Values given; what is not in ``numbers`` takes its default. devices: names between commas, "" for all."""

    numbers: tuple[tuple[str, float], ...] = ()
    devices: str = ""

    def fill(self, options: Any) -> None:
        """Into an ``rr_verbs_options``."""
        for name, value in self.numbers:
            if name == "retry_timeout_s":
                options.timeout_ns = int(value * 1e9)
            elif name == "reconnect_s":
                options.reconnect_ns = int(value * 1e9) or (1 << 64) - 1
            elif name == "gid_index":
                options.gid_index_plus_1 = int(value) + 1
            else:
                setattr(options, name, int(value))
        options.devices = self.devices.encode()


DEFAULT = VerbsSettings()


def _number(name: str, shown: str, given: Any) -> float:
    accepted = RANGES[name]
    try:
        value = float(given)
    except (TypeError, ValueError, OverflowError):
        value = float("nan")
    whole = name.endswith("_s") or value.is_integer()
    if not whole or not accepted.least <= value <= accepted.most:
        kind = "seconds" if name.endswith("_s") else "whole numbers"
        raise ArgumentError(f"{shown} is {given!r}; accepted are {kind} from {accepted.least:g} to {accepted.most:g}")
    return value


def _devices(shown: str, given: Any) -> str:
    if not isinstance(given, str) or len(given.encode()) > DEVICES_BYTES_MAX:
        raise ArgumentError(f"{shown} is {given!r}; accepted are device names between commas")
    return given


def read(env: Mapping[str, str]) -> VerbsSettings:
    """From variables.

    Raises:
        ArgumentError: a value that is not accepted.
    """
    numbers = {name: _number(name, variable(name), env[variable(name)]) for name in RANGES if env.get(variable(name))}
    devices = _devices("RDMARING_VERBS_DEVICES", env.get("RDMARING_VERBS_DEVICES", ""))
    return VerbsSettings(tuple(numbers.items()), devices)


def with_arguments(settings: VerbsSettings, given: Mapping[str, Any]) -> VerbsSettings:
    """What init() was given goes before the variables.

    Raises:
        ArgumentError: an unknown name, or a value that is not accepted.
    """
    numbers = dict(settings.numbers)
    devices = settings.devices
    for name, value in given.items():
        if name == "devices":
            devices = _devices(name, value)
        elif name in RANGES:
            numbers[name] = _number(name, name, value)
        else:
            near = difflib.get_close_matches(name, [*RANGES, "devices"], n=1)
            also = f"; did you mean {near[0]}?" if near else "."
            raise ArgumentError(f"verbs has no setting {name!r}{also} Accepted are {', '.join(RANGES)}, devices")
    return replace(settings, numbers=tuple(numbers.items()), devices=devices)
