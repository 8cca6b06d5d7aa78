"""Tuning files: what `rdmaring tune` has measured, for one kind of hosts, transports and devices. Bounded when read."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rdmaring._version import __version__
from rdmaring.errors import ArgumentError
from rdmaring.schedule.cluster import Costs, LevelCost
from rdmaring.schedule.cost import FORMS
from rdmaring.tuning.constants import KINDS, Constants, Table, Times
from rdmaring.tuning.fingerprint import Fingerprint

FORMAT = "rdmaring tuning"
VERSION = 1

FILE_BYTES_MAX = 4 << 20
TEXTS_MAX = 64  # of one part of a fingerprint
TEXT_MAX = 200
TABLES_MAX = 64
NODES_MAX = 1 << 16
SERIES_MAX = 1000
POINTS_MAX = 256
NBYTES_MAX = 1 << 50
SECONDS_MAX = 1e4
LEVEL_FIELDS = ("latency_s", "s_per_byte", "cpu_s_per_byte")
COSTS_FIELDS = ("reduce_s_per_byte", "row_s", "slice_s")


@dataclass(frozen=True)
class TuningFile:
    """path: where it was read. digest: of its bytes. constants: without processors, which the job's hosts say."""

    path: str
    digest: str
    fingerprint: Fingerprint
    constants: Constants


class _Refused(ValueError):
    """What is wrong, and where in the document."""


def default_path(env: Mapping[str, str]) -> Path:
    """Where `rdmaring tune` writes: below the user's configuration. Only used where RDMARING_TUNING says so."""
    base = env.get("XDG_CONFIG_HOME") or str(Path(env.get("HOME") or "~").expanduser() / ".config")
    return Path(base) / "rdmaring" / "tuning.json"


def load(path: str, argument: str = "tuning") -> TuningFile:
    """Read and check a file. argument: by which it was given, for messages.

    Raises:
        ArgumentError: it cannot be read, or is none; the message says where.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ArgumentError(
            f"{argument} is {path!r}, which cannot be read: {error.strerror}",
            hint="make one by `rdmaring tune`",
        ) from None
    try:
        fingerprint, constants = _parse(data)
    except _Refused as error:
        raise ArgumentError(
            f"{argument} is {path!r}, which is no tuning file of this release: {error}",
            hint="make one by `rdmaring tune`",
        ) from None
    constants = replace(constants, source=f"from {path}")
    return TuningFile(path, hashlib.sha256(data).hexdigest()[:16], fingerprint, constants)


def save(path: Path, fingerprint: Fingerprint, constants: Constants) -> None:
    """Write a file in one piece: who reads meanwhile sees the old one or the new one.

    Raises:
        OSError: it cannot be written.
    """
    text = json.dumps(_plain(fingerprint, constants), indent=1, allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def merged(tables: Sequence[Table], new: Table) -> tuple[Table, ...]:
    """The tables with ``new`` in the place of the one of its shape; the newest are kept."""
    others = [table for table in tables if sorted(table.sizes) != sorted(new.sizes)]
    return (*others[-(TABLES_MAX - 1) :], new)


# ---- writing ----


def _plain(fingerprint: Fingerprint, constants: Constants) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "rdmaring": __version__,
        "fingerprint": {name: list(getattr(fingerprint, name)) for name in ("hosts", "transports", "devices")},
        "constants": {kind: costs_dict(getattr(constants, kind)) for kind in KINDS},
        "tables": [
            {
                "nodes": list(table.sizes),
                "times": [
                    {"collective": key[0], "algorithm": key[1], "bytes_and_seconds": [list(each) for each in times]}
                    for key, times in sorted(table.times.items())
                ],
            }
            for table in constants.tables
        ],
    }


def costs_dict(costs: Costs) -> dict[str, Any]:
    """The numbers that are measured; what the job says itself is left out."""
    found: dict[str, Any] = {
        level: {name: getattr(getattr(costs, level), name) for name in LEVEL_FIELDS} for level in ("near", "far")
    }
    return found | {name: getattr(costs, name) for name in COSTS_FIELDS}


# ---- reading ----


def _parse(data: bytes) -> tuple[Fingerprint, Constants]:
    if len(data) > FILE_BYTES_MAX:
        raise _Refused(f"it has more than {FILE_BYTES_MAX} bytes")
    try:
        document = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise _Refused(f"it is no JSON: {str(error)[:100]}") from None
    _field(document, "format", lambda value: value == FORMAT, repr(FORMAT))
    _field(document, "version", lambda value: type(value) is int and value == VERSION, f"{VERSION}")
    given = _object(document, "fingerprint")
    fingerprint = Fingerprint(*(_texts(given, name) for name in ("hosts", "transports", "devices")))
    constants = _object(document, "constants")
    costs: dict[str, Any] = {kind: _costs(_object(constants, kind)) for kind in KINDS}
    tables = tuple(_table(each) for each in _list(document, "tables", TABLES_MAX))
    return fingerprint, Constants(**costs, tables=tables)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number here")


def _field(given: Any, name: str, is_right: Any, accepted: str) -> Any:
    if not isinstance(given, dict):
        raise _Refused(f"{name} is looked for in {str(given)[:40]!r}, which is no object")
    if name not in given or not is_right(given[name]):
        raise _Refused(f"{name} is {str(given.get(name))[:60]!r}; accepted is {accepted}")
    return given[name]


def _object(given: Any, name: str) -> Any:
    return _field(given, name, lambda value: isinstance(value, dict), "an object")


def _list(given: Any, name: str, most: int) -> list[Any]:
    found = _field(given, name, lambda value: isinstance(value, list) and len(value) <= most, f"a list of up to {most}")
    return list(found)


def _text(given: Any, name: str) -> str:
    return str(_field(given, name, lambda value: isinstance(value, str), "text"))


def _texts(given: Any, name: str) -> tuple[str, ...]:
    found = _list(given, name, TEXTS_MAX)
    if not all(isinstance(each, str) and len(each) <= TEXT_MAX for each in found):
        raise _Refused(f"{name} of the fingerprint holds something else than text of up to {TEXT_MAX} characters")
    return tuple(found)


def _is_seconds(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= SECONDS_MAX


def _seconds(given: Any, name: str) -> float:
    return float(_field(given, name, _is_seconds, f"a number of seconds, 0 to {SECONDS_MAX:g}"))


def _costs(given: Any) -> Costs:
    levels = [LevelCost(*(_seconds(_object(given, level), name) for name in LEVEL_FIELDS)) for level in ("near", "far")]
    near, far = levels
    reduce_s_per_byte, row_s, slice_s = (_seconds(given, name) for name in COSTS_FIELDS)
    return Costs(near, far, reduce_s_per_byte, row_s, slice_s)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 < value <= NODES_MAX


def _table(given: Any) -> Table:
    sizes = _list(given, "nodes", NODES_MAX)
    if not sizes or not all(_is_count(each) for each in sizes):
        raise _Refused("nodes of a table are no numbers of ranks > 0")
    times: dict[tuple[str, str], Times] = {}
    for series in _list(given, "times", SERIES_MAX):
        key = (_text(series, "collective"), _text(series, "algorithm"))
        if key not in FORMS or key in times:
            raise _Refused(f"a table has times of {str(key)[:60]}; accepted is each collective and algorithm once")
        times[key] = _times(series)
    return Table(tuple(sizes), times)


def _times(series: Any) -> Times:
    points = _list(series, "bytes_and_seconds", POINTS_MAX)
    before = 0
    for point in points:
        if (
            not isinstance(point, list)
            or len(point) != 2
            or type(point[0]) is not int
            or not before < point[0] <= NBYTES_MAX
            or not _is_seconds(point[1])
            or not point[1] > 0
        ):
            raise _Refused(
                f"bytes_and_seconds has {str(point)[:60]}; accepted are pairs of bytes, ascending, and seconds above 0"
            )
        before = point[0]
    return tuple((int(nbytes), float(seconds)) for nbytes, seconds in points)
