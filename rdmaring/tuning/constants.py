"""The constants by which algorithms are chosen: built in for each transport, or of a file or a probe. Pure data."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from rdmaring.schedule.cluster import Costs, LevelCost

MAILBOX_BYTES_MAX = 16384  # what a mailbox holds (native/src/page.h)
MAILBOX_WORLD_MAX = 64
KINDS = ("rows", "rows_crowded", "rows_large", "rows_large_crowded", "mailbox", "mailbox_crowded")  # in Constants
LARGE_BYTES = 32 << 20  # of a node's vectors together: from here on they do not stay in its caches
LARGER_BY = 2.0  # a measured time says nothing of vectors so many times beyond the largest measured

Times = tuple[tuple[int, float], ...]  # (bytes, seconds), ascending in bytes


def in_mailbox(algorithm: str, nbytes: int, world: int) -> bool:
    """Whether this algorithm, on a vector of this size, goes through the mailboxes."""
    return algorithm == "direct1" and nbytes <= MAILBOX_BYTES_MAX and world <= MAILBOX_WORLD_MAX


@dataclass(frozen=True, slots=True)
class Table:
    """Measured on one shape of job. sizes: the ranks of each node. times: (collective, algorithm) -> Times."""

    sizes: tuple[int, ...]
    times: Mapping[tuple[str, str], Times]

    def measured_s(self, collective: str, algorithm: str, nbytes: int) -> float | None:
        """Between measured sizes a straight line through the logarithms of both; beyond the largest by its rate.

        None where it was not measured, or far beyond.
        """
        world = sum(self.sizes)
        tiny = in_mailbox(algorithm, nbytes, world)
        times = [
            each
            for each in self.times.get((collective, algorithm), ())
            if in_mailbox(algorithm, each[0], world) == tiny
        ]
        if not times:
            return None
        if nbytes <= times[0][0]:
            return times[0][1]
        for (before, before_s), (after, after_s) in itertools.pairwise(times):
            if nbytes <= after:
                share = math.log(nbytes / before) / math.log(after / before)
                return math.exp((1 - share) * math.log(before_s) + share * math.log(after_s))
        last, last_s = times[-1]
        return last_s * nbytes / last if nbytes <= LARGER_BY * last else None


@dataclass(frozen=True)
class Constants:
    """All that decides which algorithm serves a call, beside the call and the shape of the job.

    rows: of algorithms that run as rows; large: on vectors that stay in no cache; mailbox: of tiny messages, which no
    rows carry. crowded: where a node has more ranks than processors, so that a rank that waits gives its own away.
    tables: measured times, which go before predictions. source: where all this comes from, for people; no part of the
    digest.
    """

    rows: Costs
    rows_crowded: Costs
    rows_large: Costs
    rows_large_crowded: Costs
    mailbox: Costs
    mailbox_crowded: Costs
    tables: tuple[Table, ...] = ()
    source: str = field(default="built in", compare=False)

    @cached_property
    def digest(self) -> int:
        """32 bits of SHA-256 over all numbers, never 0: stands in the descriptor of every operation."""
        plain = {kind: asdict(getattr(self, kind)) for kind in KINDS}
        tables = [[table.sizes, sorted([*key, *times] for key, times in table.times.items())] for table in self.tables]
        text = json.dumps([plain, tables], sort_keys=True, allow_nan=False)  # repr of floats: every bit counts
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little") or 1

    def crowded(self, largest: int) -> bool:
        """Whether so many ranks on a node share its processors."""
        processors = self.rows.processors_per_node
        return processors is not None and largest > processors

    def kind(self, algorithm: str, nbytes: int, ranks: int, largest: int) -> str:
        """Which of KINDS are the costs of a call. largest: ranks of the largest node."""
        crowded = "_crowded" if self.crowded(largest) else ""
        if in_mailbox(algorithm, nbytes, ranks):
            return f"mailbox{crowded}"
        return f"rows{'_large' if nbytes * largest >= LARGE_BYTES else ''}{crowded}"

    def costs(self, algorithm: str, nbytes: int, ranks: int, largest: int) -> Costs:
        """Those of a call."""
        found: Costs = getattr(self, self.kind(algorithm, nbytes, ranks, largest))
        return found

    def table(self, sizes: tuple[int, ...]) -> Table | None:
        """What was measured on nodes of so many ranks, in whatever order the nodes come."""
        wanted = sorted(sizes)
        return next((table for table in self.tables if sorted(table.sizes) == wanted), None)

    def on(self, processors: int | None) -> Constants:
        """The same on nodes of so many processors."""
        return replace(self, **{kind: replace(getattr(self, kind), processors_per_node=processors) for kind in KINDS})


# Seconds, and seconds per byte. Of shared memory fitted to docs/BENCHMARKS.md: a virtual machine with two processors.
# Each: level, addition, row, slice.
NEAR: dict[str, tuple[LevelCost, float, float, float]] = {
    "rows": (LevelCost(0.47e-6, 6e-12, 4e-12), 0.12e-9, 0.02e-6, 0.84e-6),
    "rows_crowded": (LevelCost(2e-6, 60e-12, 86e-12), 2.5e-12, 2.8e-6, 0.03e-6),
    "rows_large": (LevelCost(0.47e-6, 6e-12, 4e-12), 0.57e-9, 0.02e-6, 1e-6),
    "rows_large_crowded": (LevelCost(2e-6, 60e-12, 180e-12), 2.5e-12, 2.8e-6, 0.03e-6),
    "mailbox": (LevelCost(0.74e-6, 127e-12), 0.127e-9, 0.6e-6, 0.07e-6),
    "mailbox_crowded": (LevelCost(2e-6, 100e-12), 0.08e-9, 2.4e-6, 0.26e-6),
}
# By what joins nodes: of rows, and of tiny messages. TCP as between machines of some 10 Gbit/s.
FAR = {
    "verbs": (LevelCost(3e-6, 0.1e-9), LevelCost(3e-6, 0.1e-9)),
    "tcp": (LevelCost(40e-6, 1e-9, 0.3e-9), LevelCost(40e-6, 1e-9, 0.3e-9)),
}
SLOWEST_FIRST = ("tcp", "verbs", "shm")


def built_in(transport: str, processors: int | None) -> Constants:
    """transport: the slowest that joins two of the ranks; one that is not built in counts as tcp."""
    rows, tiny = FAR.get(transport, FAR["tcp"])
    costs: dict[str, Any] = {}
    for kind, (near, addition_s, row_s, slice_s) in NEAR.items():
        far = tiny if kind.startswith("mailbox") else rows
        costs[kind] = Costs(near, far, addition_s, row_s, slice_s, processors_per_node=processors)
    return Constants(**costs, source=f"built in for {transport}")
