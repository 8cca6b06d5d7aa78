"""Which link serves each edge, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rdmaring._native import check, ffi, lib


@dataclass(frozen=True)
class Link:
    """Both directions of the edge between this rank and a peer.

    transport: "shm". ordinary: how memory that is not registered travels: "cma" (the kernel copies it
    once; large vectors among more than two ranks) or "slots" (through shared memory, two copies). reason: why not
    better. huge_pages: the slots lie on some.
    """

    rank: int
    peer: int
    peer_pid: int
    transport: str
    ordinary: str
    reason: str
    slot_bytes: int
    slot_count: int
    huge_pages: bool
    sent_bytes: int
    received_bytes: int
    sent_slices: int
    received_slices: int


def link_of(handle: Any, rank: int, peer: int) -> Link:
    """The facts of one edge."""
    facts = ffi.new("rr_link_facts *")
    check(lib.rr_comm_link_facts(handle, peer, facts))

    def text(value: Any) -> str:
        return str(ffi.string(value).decode("utf-8", "replace"))

    return Link(
        rank,
        peer,
        facts.peer_pid,
        text(facts.transport),
        text(facts.ordinary),
        text(facts.reason),
        facts.slot_bytes,
        facts.slot_count,
        bool(facts.huge_pages),
        facts.sent_bytes,
        facts.received_bytes,
        facts.sent_slices,
        facts.received_slices,
    )
