"""Which link serves each edge, and why; in which order the ring visits the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rdmaring._native import check, ffi, lib


@dataclass(frozen=True)
class Link:
    """Both directions of the edge between this rank and a peer.

    transport: "shm" inside a node; "verbs" or "tcp" between nodes. ordinary: how memory that is not registered
    travels: "cma" (the kernel copies it once; large vectors among more than two ranks), "slots" (through shared
    or registered memory, a copy at each end) or "stream" (straight from its place). reason: why not better.
    peer_node: nodes count from 0; peer_host: its name, of ranks on other nodes. device, rail: of verbs ("mlx5_0/1").
    channels: links between the two ranks; rails: those that serve them. streams: sockets or queue pairs of all
    channels. path: addresses at both ends, once an edge between nodes is joined.
    huge_pages: the slots lie on some. line_ns: what storing to a cache line takes that the peer has read, when it was
    last looked at (with slots of 16 KiB and more): a few ns where the two cores share a cache, more where they do not;
    None: not yet. reconnects: how often a link of verbs failed and was made anew.
    failovers: how often a channel of it moved to another rail, since its own stayed dead; device, rail and rails are
    those that serve now, and moved says from where to where ("channel 0 from mlx5_0/1 to mlx5_1/1").
    gpu: how vectors in GPU memory travel, "" where there are none: "cuda_ipc" (from one GPU into the other's
    memory), "carried" (streams fill and empty slots in pinned host memory, the host moves these over the link),
    "gpudirect" (the NIC reads and writes this rank's GPU memory: verbs) or "staged" (the host runs all, through pinned
    host memory); gpu_reason: by which registration, or why each was refused. Each end of an edge is as it is by itself.
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
    peer_node: int
    peer_host: str
    device: str
    rail: int | None
    streams: int
    path: str
    channels: int = 1
    rails: tuple[int, ...] = ()
    line_ns: float | None = None
    reconnects: int = 0
    failovers: int = 0
    moved: str = ""
    gpu: str = ""
    gpu_reason: str = ""


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
        facts.peer_node,
        text(facts.peer_host),
        text(facts.device),
        None if facts.rail < 0 else int(facts.rail),
        facts.streams,
        text(facts.path),
        facts.channels,
        tuple(rail for rail in range(32) if facts.rails >> rail & 1),
        facts.line_ps / 1000 if facts.line_ps else None,
        facts.reconnects,
        facts.failovers,
        text(facts.moved),
        text(facts.gpu),
        text(facts.gpu_reason),
    )


def ring_order(nodes: Sequence[int]) -> tuple[int, ...]:
    """The ranks in an order in which a ring enters and leaves each node once.

    nodes: the node of each rank. Nodes come in the order of their first rank, the ranks of a node ascending: where
    the ranks of each node are neighbours already, that is 0, 1, ..., N - 1.
    """
    first: dict[int, int] = {}
    for rank, node in enumerate(nodes):
        first.setdefault(node, rank)
    return tuple(sorted(range(len(nodes)), key=lambda rank: (first[nodes[rank]], rank)))


def order_within(order: Sequence[int], members: Sequence[int]) -> tuple[int, ...]:
    """The ring of a group whose rank i is rank ``members[i]`` of the ring ``order``: they keep their turn."""
    turn = {rank: place for place, rank in enumerate(order)}
    return tuple(sorted(range(len(members)), key=lambda rank: turn[members[rank]]))
