"""Which algorithm serves a call: a function of sizes and world alone, so that all ranks choose alike.

The constants are measured (docs/BENCHMARKS.md). They are part of no bits but of those that depend on the
algorithm; a forced ``algorithm=`` or RDMARING_ALGORITHM goes before them.
"""

from __future__ import annotations

from dataclasses import dataclass

MAILBOX_BYTES_MAX = 16384  # what a mailbox holds (native/src/page.h)
MAILBOX_WORLD_MAX = 64

# All-reduce through mailboxes: every rank reads every payload whole, N times the work of two-shot, and
# meets the others once instead of twice. With two ranks on two CPUs a meeting is cheap; with more ranks
# than CPUs it is a round of context switches.
MAILBOX_BYTES_OF_TWO = 8192
MAILBOX_READ_BYTES_MAX = 131072  # by one rank in all: bounds what wide worlds take through mailboxes
DIRECT_WORLD_MAX = 32  # two-shot opens a link to every rank; wider worlds take the ring

# Between nodes, where every message is a trip: docs/BENCHMARKS.md.
FAR_MAILBOX_BYTES = 4096
FAR_MAILBOX_WORLD_MAX = 8
FAR_DIRECT_BYTES = 1 << 20
FAR_DIRECT_WORLD_MAX = 8

SLICE_BYTES = 256 << 10
SCRATCH_CELL_BYTES = 1 << 20  # of one cell: rounds keep scratch small whatever the vector's size


@dataclass(frozen=True)
class Choice:
    """algorithm: of the schedule. mailbox: sent as a tiny message. reason: for people."""

    algorithm: str
    mailbox: bool
    slice_bytes: int
    reason: str


def mailbox_bytes(world: int) -> int:
    """The largest all-reduce that goes through mailboxes."""
    if world > MAILBOX_WORLD_MAX:
        return 0
    return MAILBOX_BYTES_OF_TWO if world == 2 else min(MAILBOX_BYTES_MAX, MAILBOX_READ_BYTES_MAX // world)


def _choose_far(collective: str, nbytes: int, world: int, nodes: int) -> Choice:
    """Between nodes: what counts is how often a message waits for the one before it, and what each host sends."""
    where = f"{world} ranks on {nodes} nodes"
    if collective in ("all_reduce", "barrier") and nbytes <= FAR_MAILBOX_BYTES and world <= FAR_MAILBOX_WORLD_MAX:
        return Choice("direct1", True, SLICE_BYTES, f"{nbytes} bytes fit a message to every rank of {where}: one hop")
    if nbytes <= FAR_DIRECT_BYTES and world <= FAR_DIRECT_WORLD_MAX:
        return Choice("direct", False, SLICE_BYTES, f"{nbytes} bytes, {where}: two hops, an edge to every rank")
    return Choice("ring", False, SLICE_BYTES, f"{where}: two links a rank, 2(N-1)/N of the vector sent")


def choose(collective: str, nbytes: int, world: int, nodes: int = 1) -> Choice:
    """The algorithm for ``nbytes`` of vector per rank."""
    if nodes > 1:
        return _choose_far(collective, nbytes, world, nodes)
    if collective in ("all_reduce", "barrier") and nbytes <= mailbox_bytes(world):
        return Choice(
            "direct1",
            True,
            SLICE_BYTES,
            f"{nbytes} bytes fit a mailbox (up to {mailbox_bytes(world)} bytes among {world} ranks): one hop",
        )
    if world <= DIRECT_WORLD_MAX:
        return Choice("direct", False, SLICE_BYTES, f"all {world} ranks share memory: fewest steps and passes over it")
    return Choice("ring", False, SLICE_BYTES, f"{world} ranks: two links a rank, 2(N-1)/N of the vector sent")
