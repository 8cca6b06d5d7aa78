"""What predictions are made of: the constants of two levels, and the shape of a job. Plain data.

A rank is a processor and, at each level, a port in each direction. Level `near` is what joins the ranks of one
node, level `far` what joins nodes; ranks of a node share its rails. docs/SIMULATE.md has the whole model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

SLICE_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class LevelCost:
    """One level's links."""

    latency_s: float  # from the end of a slice's way out of its sender to the receiver's seeing it: alpha
    s_per_byte: float  # of a port, in each direction: beta
    cpu_s_per_byte: float = 0.0  # of the sender's processor: 0 where a NIC or a DMA engine moves the bytes

    def __post_init__(self) -> None:
        for name in ("latency_s", "s_per_byte", "cpu_s_per_byte"):
            _check_at_least(name, getattr(self, name), 0.0)


@dataclass(frozen=True, slots=True)
class Costs:
    """The constants that all ranks share."""

    near: LevelCost
    far: LevelCost
    reduce_s_per_byte: float  # of one addition, per byte of its result: gamma
    row_s: float  # the engine's time for a row
    slice_s: float  # the engine's time for a slice received, or sent; a slice that is both counts once
    slice_bytes: int = SLICE_BYTES
    processors_per_node: int | None = None  # None: one for each rank
    rails: int = 1  # local rank l, channel k uses rail (l + k) mod rails
    oversubscription: float = 1.0  # bytes per second of a node's rails / those of its way to other nodes

    def __post_init__(self) -> None:
        for name in ("reduce_s_per_byte", "row_s", "slice_s"):
            _check_at_least(name, getattr(self, name), 0.0)
        _check_at_least("slice_bytes", self.slice_bytes, 1)
        _check_at_least("rails", self.rails, 1)
        _check_at_least("oversubscription", self.oversubscription, 1.0)
        if self.processors_per_node is not None:
            _check_at_least("processors_per_node", self.processors_per_node, 1)

    def far_share(self, senders: int, channels: int = 1) -> float:
        """How many times longer than alone a rank's byte takes when so many of its node send between nodes.

        Below 1 where one rank's channels use several rails side by side.
        """
        at_rails = -(-senders * channels // self.rails) / channels
        return max(at_rails, senders * self.oversubscription / self.rails)


def _check_at_least(name: str, value: float, least: float) -> None:
    if not value >= least or value == float("inf"):
        raise ValueError(f"{name} must be a finite number of {least:g} or more, not {value!r}")


@dataclass(frozen=True, slots=True)
class Shape:
    """Ranks on nodes, as far as predictions look: ranks of a node are neighbours in rank order."""

    ranks: int
    nodes: int
    smallest: int  # ranks of the smallest node
    largest: int

    @classmethod
    def of_sizes(cls, sizes: Sequence[int]) -> Shape:
        """From the number of ranks of each node.

        Raises:
            ValueError: no node, or one without ranks.
        """
        if not sizes or min(sizes) < 1:
            raise ValueError(f"nodes must be one or more, each with a rank or more; not {tuple(sizes)[:8]}")
        return cls(sum(sizes), len(sizes), min(sizes), max(sizes))

    @classmethod
    def even(cls, ranks: int, ranks_per_node: int) -> Shape:
        """Nodes of equal size; the last has what remains.

        Raises:
            ValueError: a number below one.
        """
        if ranks < 1 or ranks_per_node < 1:
            raise ValueError(f"ranks and ranks_per_node must be 1 or more, not {ranks} and {ranks_per_node}")
        nodes = -(-ranks // ranks_per_node)
        rest = ranks - (nodes - 1) * ranks_per_node
        return cls(ranks, nodes, min(rest, ranks_per_node), min(ranks_per_node, ranks))

    @classmethod
    def of_ranks(cls, node_of_rank: Sequence[Hashable]) -> Shape:
        """From each rank's node, as `generate(nodes=)` takes it."""
        return cls.of_sizes(tuple(Counter(node_of_rank).values()))
