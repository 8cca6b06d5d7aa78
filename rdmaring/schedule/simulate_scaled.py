"""Times among many ranks from simulations of a few smaller worlds of the same kind.

A ring of twice as many ranks has twice as many hops, and each takes as long as before if chunks are as long as before.
So the time of two small worlds tells that of a large one: what algorithms do is periodic in the number of nodes (ring,
direct, hierarchical), or in its logarithm (trees, halving). No rule says how large a world must be for this to hold:
three or four worlds are simulated, and what the smaller of them say of the large one must be what the larger ones say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rdmaring.schedule import SHAPED, generate
from rdmaring.schedule.channels import channels_of
from rdmaring.schedule.cluster import Cluster, Costs
from rdmaring.schedule.collectives import collective_named
from rdmaring.schedule.cost_hierarchical import NODES_DIRECT_MAX
from rdmaring.schedule.simulate import Simulator

TOLERANCE = 0.01  # between what smaller and what larger ones of the simulated worlds say
EFFORT_AT_ONCE = 1000  # slices of a world that is simulated itself, before smaller ones are
EFFORT_MAX = 20_000  # slices of one of the smaller worlds
EFFORT_LAST = 24_000  # of the world itself, where smaller ones do not tell
PROBED_RANKS_MAX = 2048  # of worlds whose rows are looked at, unless they are few
CHECKED_ALL = 16  # ranks; the algorithms are known to be the same for all of more, or not


class World(NamedTuple):
    """So many equal nodes, and one with the rest. One node: nodes is 0, and rest has its ranks."""

    nodes: int
    per_node: int
    rest: int

    @property
    def ranks(self) -> int:
        return self.nodes * self.per_node + self.rest

    @property
    def sizes(self) -> tuple[int, ...]:
        return (self.per_node,) * self.nodes + (self.rest,) * (self.rest > 0)

    @classmethod
    def of_sizes(cls, sizes: Sequence[int]) -> World | None:
        """None: nodes differ in other ways."""
        if len(sizes) == 1:
            return cls(0, 0, sizes[0])
        *full, last = sizes
        if len(set(full)) > 1 or last > full[0]:
            return None
        return cls(len(sizes), last, 0) if last == full[0] else cls(len(full), full[0], last)


@dataclass(frozen=True, slots=True)
class Law:
    """How the time of an algorithm grows with the world.

    whole: with the same vector; else with the same chunks, of which a vector has as many as there are ranks.
    doubled: by as much with each doubling of the nodes; else with each node.
    ratio: what is added grows, and what it grows by becomes so many times as much each time; 0: it does not grow.
    crowd: every rank has to do with every other. What hides behind latency in small worlds need not in large ones.
    """

    whole: bool = False
    doubled: bool = False
    ratio: float = 0.0
    crowd: bool = False


_PER_RANK, _PEERS = Law(), Law(crowd=True)
LAWS: dict[tuple[str, str], Law] = {
    ("all_reduce", "ring"): _PER_RANK,
    ("all_reduce", "biring"): _PER_RANK,
    ("all_reduce", "hierarchical"): _PER_RANK,
    ("all_reduce", "hierarchical-ring"): _PER_RANK,
    ("reduce_scatter", "ring"): _PER_RANK,
    ("all_gather", "ring"): _PER_RANK,
    ("all_gather", "biring"): _PER_RANK,
    ("all_reduce", "direct"): _PEERS,
    ("reduce_scatter", "direct"): _PEERS,
    ("all_gather", "direct"): _PEERS,
    ("all_to_all", "direct"): _PEERS,
    ("gather", "direct"): _PEERS,
    ("scatter", "direct"): _PEERS,
    ("all_reduce", "direct1"): Law(whole=True, crowd=True),
    ("all_reduce", "naive"): Law(whole=True, crowd=True),
    ("broadcast", "direct"): Law(whole=True, crowd=True),
    ("reduce", "direct"): Law(whole=True, crowd=True),
    ("broadcast", "ring"): Law(whole=True),
    ("reduce", "ring"): Law(whole=True),
    ("all_reduce", "tree"): Law(whole=True, doubled=True),
    ("broadcast", "tree"): Law(whole=True, doubled=True),
    ("reduce", "tree"): Law(whole=True, doubled=True),
    ("broadcast", "binomial"): Law(whole=True, doubled=True),
    ("reduce", "binomial"): Law(whole=True, doubled=True),
    ("all_reduce", "halving"): Law(whole=True, doubled=True, ratio=0.5),
    ("all_gather", "doubling"): Law(whole=True, doubled=True, ratio=0.5),
    ("gather", "binomial"): Law(whole=True, doubled=True, ratio=0.5),
    ("scatter", "binomial"): Law(whole=True, doubled=True, ratio=0.5),
    ("reduce_scatter", "halving"): Law(doubled=True, ratio=2.0),
}
# Up to 14 and 4 % off where the checks below had passed: where rows meet moves with the size of the world.
UNTOLD = frozenset((("all_gather", "biring"), ("gather", "binomial"), ("scatter", "binomial")))
FEW_ROWS = frozenset((("all_reduce", "halving"), ("all_gather", "doubling")))  # of a rank, in any world


class Found(NamedTuple):
    """scaled: from smaller worlds; else from a simulation of the world itself."""

    seconds: float
    scaled: bool


class Scaled:
    """Times of one algorithm with one set of constants. Simulations are kept for the next size or world."""

    def __init__(self, collective: str, algorithm: str, costs: Costs, channels: int = 1) -> None:
        found = collective_named(collective)
        self.collective, self.algorithm, self.costs = found.name, algorithm, costs
        self.root = 0 if found.rooted else None
        self.channels = channels_of(found.name, channels)
        self.law = LAWS[found.name, algorithm]
        self._few_rows = (found.name, algorithm) in FEW_ROWS
        self._ring: Scaled | None = None
        self._simulators: dict[World, tuple[Simulator, Cluster]] = {}
        self._found: dict[tuple[World, float], Found | None] = {}

    def find(self, nbytes: float, sizes: Sequence[int], *, itself: bool = True) -> Found | None:
        """nbytes and the time as in ``predict``; None: the worlds that can be simulated do not tell.

        sizes: ranks of each node. itself: whether a world that is small enough may be simulated itself.
        """
        world = World.of_sizes(sizes)
        if world is None:
            return None
        if self.algorithm == "hierarchical" and len(sizes) > NODES_DIRECT_MAX:
            if self._ring is None:
                self._ring = Scaled(self.collective, "hierarchical-ring", self.costs, self.channels)
            return self._ring.find(nbytes, sizes, itself=itself)
        unit = nbytes if self.law.whole else nbytes / world.ranks
        return self._at(world, unit) if itself else self._scaled(world, unit)

    def _at(self, world: World, unit: float) -> Found | None:
        """unit: bytes of the vector, or of a chunk."""
        key = world, unit
        if key not in self._found:
            self._found[key] = (
                self._simulated(world, unit, EFFORT_AT_ONCE)
                or self._scaled(world, unit)
                or self._simulated(world, unit, EFFORT_LAST)
            )
        return self._found[key]

    def _simulated(self, world: World, unit: float, most: int) -> Found | None:
        """None: more than ``most`` slices."""
        if world.ranks > PROBED_RANKS_MAX and not self._few_rows:
            return None
        simulator, cluster = self._simulator(world)
        nbytes = self._nbytes(world, unit)
        once = 2 * most // 3  # where a part of the slices is simulated, half of that part is, too
        if simulator.effort(nbytes, cluster, once) > most:
            return None
        return Found(simulator.run(nbytes, cluster, arrays=False, slices_max=once).seconds, False)

    def _nbytes(self, world: World, unit: float) -> float:
        return unit if self.law.whole else unit * world.ranks

    def _simulator(self, world: World) -> tuple[Simulator, Cluster]:
        if world not in self._simulators:
            cluster = Cluster(self.costs, world.sizes)
            nodes = cluster.node_of_rank() if self.algorithm in SHAPED else None
            schedule = generate(
                self.collective, self.algorithm, world.ranks, self.root, nodes=nodes, channels=self.channels
            )
            self._simulators[world] = Simulator(schedule, world.sizes, CHECKED_ALL), cluster
        return self._simulators[world]

    # ---- from smaller worlds ----

    def _scaled(self, world: World, unit: float) -> Found | None:
        if not self._tells(world, unit):
            return None
        for axis in self._axes(world):
            ratio = self._ratio(world, axis)
            for sizes, steps in self._series(world, axis, 4 if ratio else 3):
                smaller = [world._replace(**{axis: size}) for size in sizes]
                times = []
                for each in smaller:
                    found = self._simulated(each, unit, EFFORT_MAX)
                    if found is None:
                        break
                    times.append(found.seconds)
                if len(times) < len(smaller):
                    break
                time = _continued(times, steps, ratio)
                if abs(_continued(times[:-1], steps + 1, ratio) - time) > TOLERANCE * time:
                    continue
                if not self.law.crowd or self._most(smaller, unit, times, steps) <= (1 + TOLERANCE) * time:
                    return Found(time, True)
        return None

    def _most(self, smaller: Sequence[World], unit: float, times: Sequence[float], steps: int) -> float:
        """What the world takes if the busiest port or processor is what it waits for from the last of times on."""
        busy = []
        for world in smaller[-2:]:
            simulator, cluster = self._simulator(world)
            busy.append(simulator.busiest(self._nbytes(world, unit), cluster))
        return times[-1] + steps * max(busy[1] - busy[0], times[-1] - times[-2])

    def _ratio(self, world: World, axis: str) -> float:
        """As in Law. On one node whose ranks share processors the work of all grows by more with each."""
        processors = self.costs.processors_per_node
        shared = axis == "rest" and processors is not None and processors < world.rest
        return 1.0 if shared and not self.law.doubled else self.law.ratio

    def _axes(self, world: World) -> Iterator[str]:
        """What to make smaller."""
        if not world.nodes:
            yield "rest"
            return
        if self.algorithm != "hierarchical":  # its rows depend on the number of nodes
            yield "nodes"

    def _tells(self, world: World, unit: float) -> bool:
        """Trees, and what halves: only of 2^k nodes, and of rows of one slice. Else what a doubling adds changes."""
        if (self.collective, self.algorithm) in UNTOLD:
            return False
        if not self.law.doubled:
            return True
        places = world.nodes or world.rest
        parts = 2 if self.law.whole else 1
        one_slice = unit / parts / self.channels <= self.costs.slice_bytes
        return not world.rest * world.nodes and places & (places - 1) == 0 and one_slice

    def _series(self, world: World, axis: str, count: int) -> Iterator[tuple[list[int], int]]:
        """Sizes, at equal distances, and how many distances it is from the last to the world's own."""
        wanted: int = getattr(world, axis)
        if self.law.doubled:
            yield from _doubled(wanted, count, 8 if axis == "rest" or world.per_node == 1 else 2)
            return
        if axis == "rest" or world.per_node == 1:
            starts = [(16, 8), (32, 32), (128, 128), (512, 512)]
        else:
            starts = [(2, 2), (4, 4), (8, 8)] if self.law.crowd else [(2, 2), (4, 2), (4, 4)]
        if self.law.crowd:
            starts = starts[1:]
        for least, distance in starts:
            first = least + (wanted - least) % distance
            sizes = [first + place * distance for place in range(count)]
            if sizes[-1] < wanted:
                yield sizes, (wanted - sizes[-1]) // distance


def _doubled(wanted: int, count: int, least: int) -> Iterator[tuple[list[int], int]]:
    """Sizes that become the wanted one by doubling."""
    chain = [wanted]
    while chain[0] % 2 == 0 and chain[0] > least:
        chain.insert(0, chain[0] // 2)
    for first, distance in ((0, 1), (1, 1), (2, 1), (0, 2), (1, 2)):
        last = first + (count - 1) * distance
        if last < len(chain) - 1 and (len(chain) - 1 - last) % distance == 0:
            yield chain[first : last + 1 : distance], (len(chain) - 1 - last) // distance


def _continued(times: Sequence[float], steps: int, ratio: float) -> float:
    """What follows so many steps after the last of times at equal distances."""
    step = times[-1] - times[-2]
    growth = (step - (times[-2] - times[-3])) if ratio else 0.0
    if ratio in (0.0, 1.0):
        return times[-1] + steps * step + growth * steps * (steps + 1) / 2
    found = times[-1]
    for _ in range(steps):
        growth *= ratio
        step += growth
        found += step
    return found
