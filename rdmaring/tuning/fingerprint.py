"""Which machines and links a job runs on: what every rank says of itself, and what follows for all of them alike.

Each rank's record goes round once, when the world is made; from all of them every rank finds the same facts.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rdmaring.errors import ArgumentError
from rdmaring.tuning.constants import SLOWEST_FIRST

RECORD_BYTES = 2048  # of each rank, padded with blanks: a round of the rendezvous takes equal sizes
NAME_MAX = 100  # characters of a CPU's or device's name
DEVICES_MAX = 8


@dataclass(frozen=True)
class Fingerprint:
    """What a tuning file holds for. Each part is sorted text, once each.

    hosts: kind of CPU and processors of a node. transports: that join two of the ranks. devices: of RDMA.
    """

    hosts: tuple[str, ...]
    transports: tuple[str, ...]
    devices: tuple[str, ...]

    def differences(self, job: Fingerprint) -> list[str]:
        """In words, which parts of a file's fingerprint are others than the job's."""
        return [
            f"{name} are {', '.join(here) or 'none'}, the file has {', '.join(there) or 'none'}"
            for name in ("hosts", "transports", "devices")
            for here, there in [(getattr(job, name), getattr(self, name))]
            if here != there
        ]


@dataclass(frozen=True)
class Facts:
    """Equal on all ranks. processors: of the node that has fewest. probe: all ranks asked for it."""

    fingerprint: Fingerprint
    processors: int
    transport: str  # the slowest that joins two of the ranks
    probe: bool
    file: str  # digest of the tuning file; "" without


def own_record(transports: Iterable[str], devices: Iterable[str], *, file: str = "", probe: bool = False) -> bytes:
    """What this rank says. file: digest of its tuning file, if it has one."""
    cpus = sum(1 << cpu for cpu in os.sched_getaffinity(0))
    record = {
        "cpu": cpu_name()[:NAME_MAX],
        "cpus": f"{cpus:x}"[-512:],
        "transports": sorted({name[:NAME_MAX] for name in transports}),
        "devices": sorted({name[:NAME_MAX] for name in devices})[:DEVICES_MAX],
        "file": file,
        "probe": probe,
    }
    return json.dumps(record, ensure_ascii=True).encode().ljust(RECORD_BYTES)


def agree(records: bytes, nodes: Sequence[int]) -> Facts:
    """The facts, from all ranks' records in rank order. nodes: of each rank.

    Raises:
        ArgumentError: ranks differ in their tuning files, or in wanting a probe; on all ranks alike.
    """
    each = [json.loads(records[at : at + RECORD_BYTES]) for at in range(0, len(nodes) * RECORD_BYTES, RECORD_BYTES)]
    _check_same([bool(record["probe"]) for record in each], "probe= or RDMARING_PROBE", "probe")
    _check_same([record["file"] for record in each], "tuning= or RDMARING_TUNING", "tuning file")
    cpus: dict[int, int] = {}
    kinds: dict[int, str] = {}
    for node, record in zip(nodes, each, strict=True):
        cpus[node] = cpus.get(node, 0) | int(record["cpus"], 16)  # a rank may be pinned to some of its node's
        kinds.setdefault(node, record["cpu"])
    counts = {node: max(1, mask.bit_count()) for node, mask in cpus.items()}
    transports = sorted({name for record in each for name in record["transports"]})
    fingerprint = Fingerprint(
        hosts=tuple(sorted({f"{kinds[node]} x {counts[node]}" for node in kinds})),
        transports=tuple(transports),
        devices=tuple(sorted({name for record in each for name in record["devices"]})),
    )
    return Facts(
        fingerprint,
        min(counts.values()),
        slowest(transports),
        bool(each[0]["probe"]),
        str(each[0]["file"]),
    )


def slowest(transports: Iterable[str]) -> str:
    """Of these names; what is not built in is slower than all that are."""
    names = set(transports)
    others = sorted(names - set(SLOWEST_FIRST))
    return next((name for name in (*others, *SLOWEST_FIRST) if name in names), "shm")


def cpu_name() -> str:
    """As the kernel calls it."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _check_same(values: Sequence[Any], argument: str, what: str) -> None:
    other = next((rank for rank, value in enumerate(values) if value != values[0]), None)
    if other is not None:
        has = ["no " + what if not value else f"{what} {value}" if isinstance(value, str) else what for value in values]
        raise ArgumentError(
            f"the ranks differ in {argument}: rank 0 has {has[0]}, rank {other} has {has[other]}; accepted is the same "
            "on all ranks",
            hint="give every rank the same file and arguments: they would choose different algorithms",
        )
