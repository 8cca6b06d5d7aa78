"""The constants by which algorithms are chosen: built in for each transport, or of a file or a probe. Pure data."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property

from rdmaring.schedule.cluster import Costs, LevelCost

MAILBOX_BYTES_MAX = 16384  # what a mailbox holds (native/src/page.h)
MAILBOX_WORLD_MAX = 64
KINDS = ("rows", "rows_crowded", "mailbox", "mailbox_crowded")  # of Costs, in Constants
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

    rows: of algorithms that run as rows; mailbox: of tiny messages, which no rows carry. crowded: where a node has more
    ranks than processors, so that a rank that waits gives its processor away. tables: measured times, which go before
    predictions. source: where all this comes from, for people; no part of the digest.
    """

    rows: Costs
    rows_crowded: Costs
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

    def costs(self, largest: int, *, mailbox: bool) -> Costs:
        """Those of a job whose largest node has ``largest`` ranks."""
        processors = self.rows.processors_per_node
        crowded = processors is not None and largest > processors
        if mailbox:
            return self.mailbox_crowded if crowded else self.mailbox
        return self.rows_crowded if crowded else self.rows

    def table(self, sizes: tuple[int, ...]) -> Table | None:
        """What was measured on nodes of so many ranks, in whatever order the nodes come."""
        wanted = sorted(sizes)
        return next((table for table in self.tables if sorted(table.sizes) == wanted), None)

    def on(self, processors: int | None) -> Constants:
        """The same on nodes of so many processors."""
        return replace(self, **{kind: replace(getattr(self, kind), processors_per_node=processors) for kind in KINDS})


# Seconds, and seconds per byte; measured by `rdmaring tune` (docs/TUNING.md says where).
SHM = LevelCost(latency_s=0.8e-6, s_per_byte=0.06e-9, cpu_s_per_byte=0.06e-9)
SHM_CROWDED = LevelCost(latency_s=2e-6, s_per_byte=0.06e-9, cpu_s_per_byte=0.06e-9)
SHM_MAILBOX = LevelCost(latency_s=0.3e-6, s_per_byte=0.1e-9)
SHM_MAILBOX_CROWDED = LevelCost(latency_s=2e-6, s_per_byte=0.1e-9)
FAR = {
    "verbs": LevelCost(latency_s=3e-6, s_per_byte=0.1e-9),
    "tcp": LevelCost(latency_s=30e-6, s_per_byte=0.4e-9, cpu_s_per_byte=0.2e-9),
}
FAR_MAILBOX = {
    "verbs": LevelCost(latency_s=3e-6, s_per_byte=0.1e-9),
    "tcp": LevelCost(latency_s=20e-6, s_per_byte=0.4e-9),
}
SLOWEST_FIRST = ("tcp", "verbs", "shm")


def built_in(transport: str, processors: int | None) -> Constants:
    """transport: the slowest that joins two of the ranks; one that is not built in counts as tcp."""
    far = FAR.get(transport, FAR["tcp"])
    far_mailbox = FAR_MAILBOX.get(transport, FAR_MAILBOX["tcp"])
    return Constants(
        rows=Costs(SHM, far, 0.05e-9, row_s=0.3e-6, slice_s=0.3e-6, processors_per_node=processors),
        rows_crowded=Costs(SHM_CROWDED, far, 0.05e-9, row_s=1e-6, slice_s=1e-6, processors_per_node=processors),
        mailbox=Costs(SHM_MAILBOX, far_mailbox, 0.1e-9, row_s=0.2e-6, slice_s=0.05e-6, processors_per_node=processors),
        mailbox_crowded=Costs(
            SHM_MAILBOX_CROWDED, far_mailbox, 0.1e-9, row_s=1e-6, slice_s=0.2e-6, processors_per_node=processors
        ),
        source=f"built in for {transport}",
    )
