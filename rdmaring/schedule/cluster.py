"""What predictions are made of: the constants of two levels, and the shape of a job. Plain data.

A rank is a processor and, at each level, a port in each direction. Level `near` is what joins the ranks of one
node, level `far` what joins nodes; ranks of a node share its rails. docs/SIMULATE.md has the whole model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

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


@dataclass(frozen=True)
class Cluster:
    """Nodes with ranks, and what is not as it should be. Ranks are numbered node by node.

    slow_links: (rank, rank) -> how many times longer a byte takes between the two, in both directions.
    stragglers: rank -> how many times longer everything takes that it does itself: work, and sending.
    jitter: a slice's latency is multiplied by 1 + jitter * x, x drawn from the exponential distribution of mean 1.
    """

    costs: Costs
    sizes: tuple[int, ...]
    slow_links: Mapping[tuple[int, int], float] = field(default_factory=dict)
    stragglers: Mapping[int, float] = field(default_factory=dict)
    jitter: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        ranks = Shape.of_sizes(self.sizes).ranks
        named = [*self.stragglers, *(rank for link in self.slow_links for rank in link)]
        for rank in named:
            if not 0 <= rank < ranks:
                raise ValueError(f"rank {rank} is slow, but ranks are 0..{ranks - 1}")
        for factor in (*self.slow_links.values(), *self.stragglers.values()):
            _check_at_least("factor", factor, 0.0)
        _check_at_least("jitter", self.jitter, 0.0)

    @classmethod
    def even(cls, costs: Costs, ranks: int, ranks_per_node: int) -> Cluster:
        """Nodes of equal size; the last has what remains."""
        shape = Shape.even(ranks, ranks_per_node)
        last = ranks - (shape.nodes - 1) * min(ranks_per_node, ranks)
        return cls(costs, (ranks_per_node,) * (shape.nodes - 1) + (last,))

    @property
    def shape(self) -> Shape:
        return Shape.of_sizes(self.sizes)

    @property
    def regular(self) -> bool:
        """Nothing is slow, and nothing random: what closed forms assume."""
        return not (self.slow_links or self.stragglers or self.jitter)

    def node_of_rank(self) -> list[int]:
        return [node for node, size in enumerate(self.sizes) for _ in range(size)]

    def rail_of_rank(self, channel: int = 0) -> list[int]:
        """Of each rank, a number that it shares with those that use the same rail of the same node."""
        rails = self.costs.rails
        return [
            node * rails + (place + channel) % rails for node, size in enumerate(self.sizes) for place in range(size)
        ]
