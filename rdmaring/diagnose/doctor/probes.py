"""What was measured between two machines, in one direction each."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rdmaring.rendezvous.protocol import ProtocolError, integer, string

PAIRS_MAX = 64  # of addresses that are tried in one direction
PATHS_MAX = 8  # of interfaces whose path is measured in one direction
TEXT_CHARS_MAX = 256


@dataclass(frozen=True, slots=True)
class Reach:
    """A TCP connection from source to target. time_us: of connecting; error: "" where it worked."""

    source: str
    target: str
    time_us: int
    error: str

    @property
    def works(self) -> bool:
        return not self.error


@dataclass(frozen=True, slots=True)
class PathMtu:
    """Datagrams that must not be fragmented, from source to target.

    source_mtu, target_mtu: of the interfaces at both ends, in bytes with IP header.
    arrived: the largest datagram that arrived, in the same count; 0: not even the smallest.
    reported: the MTU that this kernel or a router named for the path; 0: nobody said anything.
    reporter: who said it.
    """

    source: str
    target: str
    source_mtu: int
    target_mtu: int
    arrived: int
    reported: int
    reporter: str

    @property
    def expected(self) -> int:
        return min(self.source_mtu, self.target_mtu)


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """Their clock minus ours, and half the round trip by which it can be wrong."""

    offset_us: int
    error_us: int


@dataclass(frozen=True, slots=True)
class Probes:
    """One direction."""

    reach: tuple[Reach, ...]
    paths: tuple[PathMtu, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def decode_probes(fields: Any) -> Probes:
    """Probes that the other end measured. Raises ProtocolError."""
    if not isinstance(fields, dict):
        raise ProtocolError("probes are not a JSON object")
    reach, paths = fields.get("reach"), fields.get("paths")
    for each, count_max in ((reach, PAIRS_MAX), (paths, PATHS_MAX)):
        if not isinstance(each, list) or len(each) > count_max or not all(isinstance(one, dict) for one in each):
            raise ProtocolError("probes are not lists of objects")
    assert isinstance(reach, list)
    assert isinstance(paths, list)
    return Probes(tuple(_reach(one) for one in reach), tuple(_path(one) for one in paths))


def _reach(fields: dict[str, Any]) -> Reach:
    return Reach(
        string(fields, "source"),
        string(fields, "target"),
        integer(fields, "time_us", 0, 1 << 62),
        string(fields, "error", TEXT_CHARS_MAX),
    )


def _path(fields: dict[str, Any]) -> PathMtu:
    return PathMtu(
        source=string(fields, "source"),
        target=string(fields, "target"),
        source_mtu=integer(fields, "source_mtu", 0, 1 << 31),
        target_mtu=integer(fields, "target_mtu", 0, 1 << 31),
        arrived=integer(fields, "arrived", 0, 1 << 31),
        reported=integer(fields, "reported", 0, 1 << 31),
        reporter=string(fields, "reporter"),
    )
