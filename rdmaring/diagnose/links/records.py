"""What was found about the edges of a communicator, as plain data. Rates in GB/s: 10^9 bytes a second."""

from __future__ import annotations

from dataclasses import dataclass, field

GB = 1e9  # bytes


@dataclass(frozen=True, slots=True)
class Member:
    """One rank. counters: of its devices and its network, how far each moved meanwhile; without those that stood."""

    rank: int
    node: int
    host: str
    pid: int
    cpus: tuple[int, ...]  # on which it may run
    counters: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Expected:
    """What an edge could carry at most, by what the system says of both ends' devices.

    gb_s: None where it says nothing. text: which device says so, or why nothing is known.
    """

    gb_s: float | None
    text: str


@dataclass(frozen=True, slots=True)
class Edge:
    """One direction between two ranks.

    gb_s: of the median message; of an edge that was measured again, the best of the medians. latency_us: half a
    round trip of 8 bytes, median. wrong: elements that did not arrive as they were sent, over all messages.
    """

    source: int
    target: int
    transport: str
    device: str
    gb_s: float
    latency_us: float
    message_bytes: int
    message_count: int
    wrong: int
    expected: Expected
    measured_gb_s: tuple[float, ...] = ()  # each time it was measured

    @property
    def of_expected(self) -> float | None:
        return None if self.expected.gb_s is None else self.gb_s / self.expected.gb_s


@dataclass(frozen=True, slots=True)
class RingEdge:
    """One edge of the ring during an all-reduce.

    elapsed_us: of the operation, on the rank where it took longest; median. transfer_us: what the bytes that the edge
    carried take at its measured rate; wait_us: the rest. Of one traced operation: credit_us: how long its sender waited
    for room in it; receive_us: how long its receiver had asked for bytes that were not all there.
    """

    source: int
    target: int
    sent_bytes: int
    elapsed_us: float
    transfer_us: float
    credit_us: float
    receive_us: float

    @property
    def wait_us(self) -> float:
        return max(0.0, self.elapsed_us - self.transfer_us)

    @property
    def busy(self) -> float:
        """The part of the time in which it moved bytes: near 1 for the edge that sets the pace."""
        return min(1.0, self.transfer_us / self.elapsed_us) if self.elapsed_us else 0.0


@dataclass(frozen=True, slots=True)
class Ring:
    """The ring as it is, under an all-reduce of ``nbytes``."""

    order: tuple[int, ...]
    nbytes: int
    elapsed_us: float  # of the slowest rank, median
    busbw_gb_s: float
    wrong: int
    edges: tuple[RingEdge, ...]

    @property
    def slowest(self) -> RingEdge:
        return max(self.edges, key=lambda edge: edge.transfer_us)


@dataclass(frozen=True, slots=True)
class Slow:
    """An edge, or all edges of a host or rank in one direction or both, that is slower than what compares with it.

    what: "edge", "host" or "rank". source, target: the edge's ends, None for a host or rank. ranks: those it is about.
    direction: "sending", "receiving" or "both". ratio: gb_s / reference_gb_s.
    """

    what: str
    source: int | None
    target: int | None
    ranks: tuple[int, ...]
    direction: str
    transport: str
    gb_s: float
    reference_gb_s: float
    text: str
    evidence: tuple[str, ...]

    @property
    def ratio(self) -> float:
        return self.gb_s / self.reference_gb_s


@dataclass(frozen=True, slots=True)
class Report:
    """All of it; the same on every rank."""

    version: str
    world: int
    seed: int
    seconds: float
    members: tuple[Member, ...]
    edges: tuple[Edge, ...]
    ring: Ring | None  # None: a world of one
    slow: tuple[Slow, ...]
    not_judged: tuple[str, ...]  # which edges could not be compared, and why
    best_order: tuple[int, ...]
    best_bottleneck_gb_s: float
    bottleneck_gb_s: float  # of the ring as it is
    best_is_exact: bool
    best_is_worth: bool

    @property
    def wrong(self) -> int:
        return sum(edge.wrong for edge in self.edges) + (0 if self.ring is None else self.ring.wrong)
