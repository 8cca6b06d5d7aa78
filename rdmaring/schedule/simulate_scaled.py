"""Times among many ranks from simulations of a few smaller worlds of the same kind.

A ring of twice as many ranks has twice as many hops, and each takes as long as before if chunks are as long as before.
So the time of two small worlds tells that of a large one: what algorithms do is periodic in the number of nodes (ring,
direct, hierarchical), or in its logarithm (trees, halving). No rule says how large a world must be for this to hold:
three or four worlds are simulated, and what the smaller of them say of the large one must be what the larger ones say.
What hides behind latencies in small worlds need not in large ones: so the time must be the same, too, if from the last
of them on what is added is that of the busiest port or processor, where this is more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from rdmaring.schedule import SHAPED, generate
from rdmaring.schedule.channels import channels_of
from rdmaring.schedule.cluster import Cluster, Costs, Shape
from rdmaring.schedule.collectives import collective_named
from rdmaring.schedule.cost_hierarchical import NODES_DIRECT_MAX
from rdmaring.schedule.cost_model import Model
from rdmaring.schedule.simulate import Simulator

TOLERANCE = 0.01  # between what smaller and what larger ones of the simulated worlds say
EFFORT_AT_ONCE = 1000  # slices of a world that is simulated itself, before smaller ones are
EFFORT_MAX = 20_000  # slices of one of the smaller worlds
EFFORT_GROWN = 300_000  # likewise, where only few of them can be had
EFFORT_LAST = 400_000  # of the world itself, where smaller ones do not tell
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
    dents: nodes of several ranks: the line is bent by up to one hop between nodes.
    parts: of the vector, or of its chunk, that a row has, where smaller worlds tell only of rows of one slice.
    crowd: every rank has to do with every other, which takes larger worlds to show.
    apart: only of nodes of one rank, or of one node.
    effort: slices of one of the smaller worlds, at most.
    """

    whole: bool = False
    doubled: bool = False
    ratio: float = 0.0
    dents: bool = False
    parts: int | None = None
    crowd: bool = False
    apart: bool = False
    effort: int = EFFORT_MAX


_PER_RANK, _PEERS = (Law(),), (Law(crowd=True),)
_SAME = (Law(whole=True, crowd=True, effort=3 * EFFORT_MAX),)
_TREE, _BINOMIAL = (Law(whole=True, doubled=True, parts=2),), (Law(whole=True, doubled=True, parts=1),)
# With the same vector the steps of larger worlds are smaller; with the same chunks there are larger ones.
_HALVED = Law(whole=True, doubled=True, ratio=0.5, effort=EFFORT_GROWN)
_GROWN = Law(doubled=True, ratio=2.0, effort=EFFORT_GROWN)
LAWS: dict[tuple[str, str], tuple[Law, ...]] = {
    ("all_reduce", "ring"): _PER_RANK,
    ("all_reduce", "biring"): (Law(dents=True),),
    ("all_reduce", "hierarchical"): _PER_RANK,
    ("all_reduce", "hierarchical-ring"): _PER_RANK,
    ("reduce_scatter", "ring"): _PER_RANK,
    ("all_gather", "ring"): _PER_RANK,
    ("all_reduce", "direct"): _PEERS,
    ("reduce_scatter", "direct"): _PEERS,
    ("all_gather", "direct"): _PEERS,
    ("all_to_all", "direct"): _PEERS,
    ("gather", "direct"): _PEERS,
    ("scatter", "direct"): _PEERS,
    ("all_reduce", "direct1"): _SAME,
    # The root adds by rank, and vectors come from all nodes in turn: the more nodes, the later the first node's last.
    ("all_reduce", "naive"): (replace(_SAME[0], apart=True),),
    ("broadcast", "direct"): _SAME,
    ("reduce", "direct"): _SAME,
    ("broadcast", "ring"): (Law(whole=True),),
    ("reduce", "ring"): (Law(whole=True),),
    ("all_reduce", "tree"): _TREE,
    ("broadcast", "tree"): _TREE,
    ("reduce", "tree"): _TREE,
    ("broadcast", "binomial"): _BINOMIAL,
    ("reduce", "binomial"): _BINOMIAL,
    ("all_reduce", "halving"): (_HALVED, _GROWN),
    # 9 % off where two ranks of a node share a rail: its large steps meet there.
    ("all_gather", "doubling"): (replace(_HALVED, apart=True), replace(_GROWN, apart=True)),
    ("reduce_scatter", "halving"): (Law(doubled=True, ratio=2.0, parts=1),),
    # Up to 14 and 4 % off where the checks below had passed: where rows meet moves with the size of the world.
    ("all_gather", "biring"): (),
    ("gather", "binomial"): (),
    ("scatter", "binomial"): (),
}
FEW_ROWS = ("halving", "doubling", "tree", "binomial", "naive")  # of most ranks, in any world; but for reduce_scatter


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
        self.laws = LAWS[found.name, algorithm]
        self._few_rows = algorithm in FEW_ROWS and found.name != "reduce_scatter"
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
        return self._at(world, nbytes) if itself else self._scaled(world, nbytes)

    def _at(self, world: World, nbytes: float) -> Found | None:
        key = world, nbytes
        if key not in self._found:
            self._found[key] = (
                self._simulated(world, nbytes, EFFORT_AT_ONCE)
                or self._scaled(world, nbytes)
                or self._simulated(world, nbytes, EFFORT_LAST)
            )
        return self._found[key]

    def _simulated(self, world: World, nbytes: float, most: int) -> Found | None:
        """None: more than ``most`` slices."""
        if world.ranks > PROBED_RANKS_MAX and not self._few_rows:
            return None
        simulator, cluster = self._simulator(world)
        once = 2 * most // 3  # where a part of the slices is simulated, half of that part is, too
        if simulator.effort(nbytes, cluster, once) > most:
            return None
        return Found(simulator.run(nbytes, cluster, arrays=False, slices_max=once).seconds, False)

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

    def _scaled(self, world: World, nbytes: float) -> Found | None:
        for law in self.laws:
            if self._tells(law, world, nbytes):
                found = self._by_law(law, world, nbytes)
                if found is not None:
                    return found
        return None

    def _by_law(self, law: Law, world: World, nbytes: float) -> Found | None:
        unit = _unit(law, world, nbytes)
        for series in self._series(law, world, nbytes):
            times = []
            for each in series.worlds:
                found = self._simulated(each, _nbytes(law, each, unit), law.effort)
                if found is None:
                    return None  # nor are larger ones simulated
                times.append(found.seconds)
            time = _continued(times, series.steps, series.ratio)
            if abs(_continued(times[:-1], series.steps + 1, series.ratio) - time) > TOLERANCE * time:
                continue
            hop = self._far_hop(world, nbytes) if law.dents else 0.0
            if self._most(law, series, unit, times) <= (1 + TOLERANCE) * time and hop <= TOLERANCE * time:
                return Found(time, True)
        return None

    def _far_hop(self, world: World, nbytes: float) -> float:
        """One slice from node to node, of nodes of several ranks: both directions meet there."""
        if world.nodes < 2 or world.per_node == 1:
            return 0.0
        model = Model(self.costs, Shape.of_sizes(world.sizes), self.channels)
        return model.leg(True, nbytes / world.ranks / 2).hop

    def _most(self, law: Law, series: _Series, unit: float, times: Sequence[float]) -> float:
        """What the world takes if from the last of times on it waits for its busiest port or processor alone."""
        busy = []
        for world in series.worlds:
            simulator, cluster = self._simulator(world)
            busy.append(simulator.busiest(_nbytes(law, world, unit), cluster))
        waited, held = (_steps(each, series.steps, series.ratio) for each in (times, busy))
        return times[-1] + sum(max(pair) for pair in zip(waited, held, strict=True))

    def _ratio(self, law: Law, world: World, axis: str) -> float:
        """As in Law. On one node whose ranks share processors the work of all grows by more with each."""
        processors = self.costs.processors_per_node
        shared = axis == "rest" and processors is not None and processors < world.rest
        return 1.0 if shared and not law.doubled else law.ratio

    def _axes(self, world: World) -> Iterator[str]:
        """What to make smaller."""
        if not world.nodes:
            yield "rest"
            return
        if self.algorithm != "hierarchical":  # its rows depend on the number of nodes
            yield "nodes"

    def _tells(self, law: Law, world: World, nbytes: float) -> bool:
        """Trees, and what halves: only of 2^k nodes; trees of rows of one slice. Else what a doubling adds changes."""
        if law.apart and world.nodes and world.per_node > 1:
            return False
        places = world.nodes or world.rest
        if law.doubled and (world.rest * world.nodes or places & (places - 1)):
            return False
        return law.parts is None or self._one_slice(_unit(law, world, nbytes) / law.parts)

    def _one_slice(self, nbytes: float) -> bool:
        return nbytes / self.channels <= self.costs.slice_bytes

    def _series(self, law: Law, world: World, nbytes: float) -> Iterator[_Series]:
        """Smaller worlds, each at the same distance from the one before it."""
        for axis in self._axes(world):
            ratio = self._ratio(law, world, axis)
            wanted: int = getattr(world, axis)
            alone = axis == "rest" or world.per_node == 1
            for sizes, steps in _sizes(law, wanted, alone, 4 if ratio else 3):
                smaller = [world._replace(**{axis: size}) for size in sizes]
                if law.ratio == _HALVED.ratio and not self._one_slice(nbytes / smaller[0].ranks):
                    continue  # what a doubling adds must be of one slice
                yield _Series(smaller, steps, ratio)


class _Series(NamedTuple):
    """steps: how many distances it is from the last of the worlds to the one that is asked for. ratio: as in Law."""

    worlds: list[World]
    steps: int
    ratio: float


def _unit(law: Law, world: World, nbytes: float) -> float:
    """What is the same in all worlds: bytes of the vector, or of a chunk."""
    return nbytes if law.whole else nbytes / world.ranks


def _nbytes(law: Law, world: World, unit: float) -> float:
    return unit if law.whole else unit * world.ranks


def _sizes(law: Law, wanted: int, alone: bool, count: int) -> Iterator[tuple[list[int], int]]:
    """Sizes, at equal distances, and how many distances it is from the last to the wanted one.

    alone: of one rank each.
    """
    if law.doubled:
        yield from _doubled(wanted, count, 8 if alone else 2)
        return
    if alone:
        starts = [(16, 8), (32, 32), (128, 128), (512, 512)]
    else:
        starts = [(2, 2), (4, 4), (8, 8), (16, 16)] if law.crowd else [(2, 2), (4, 2), (4, 4), (8, 8), (16, 16)]
    if law.crowd:
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
    for first, distance in ((0, 1), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (0, 2), (1, 2)):
        last = first + (count - 1) * distance
        if last < len(chain) - 1 and (len(chain) - 1 - last) % distance == 0:
            yield chain[first : last + 1 : distance], (len(chain) - 1 - last) // distance


def _steps(times: Sequence[float], steps: int, ratio: float) -> Iterator[float]:
    """What each of so many steps adds after the last of times at equal distances."""
    step = times[-1] - times[-2]
    growth = (step - (times[-2] - times[-3])) if ratio else 0.0
    for _ in range(steps):
        growth *= ratio
        step += growth
        yield step


def _continued(times: Sequence[float], steps: int, ratio: float) -> float:
    """What follows so many steps after the last of times at equal distances."""
    return times[-1] + sum(_steps(times, steps, ratio))
