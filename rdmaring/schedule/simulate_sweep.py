"""Times over many sizes, worlds and algorithms, by closed form or by simulation; where algorithms cross."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rdmaring.schedule import ALGORITHMS, SHAPED, generate
from rdmaring.schedule.channels import channels_of
from rdmaring.schedule.cluster import Cluster, Costs, Shape
from rdmaring.schedule.collectives import collective_named
from rdmaring.schedule.cost import FORMS, bound, predict
from rdmaring.schedule.cost_range import beyond
from rdmaring.schedule.rows import Schedule, ScheduleError, sent_by_rows
from rdmaring.schedule.simulate import Simulator
from rdmaring.schedule.simulate_scaled import Scaled

# scaled: from simulations of smaller worlds. estimate: a closed form where nothing better can be had.
CLOSED, EVENTS, SCALED, ESTIMATE = "closed form", "simulated", "scaled", "estimate"
TEXTBOOK_ROWS_MAX = 64  # worlds whose rows are counted; the declared numbers of larger ones are proven equal for these


@dataclass(frozen=True, slots=True)
class Cell:
    """One prediction. share: of the bound on what any algorithm can do, 1 is the best possible."""

    ranks: int
    nodes: int
    nbytes: int
    algorithm: str
    seconds: float
    share: float
    method: str


@dataclass(frozen=True, slots=True)
class Crossing:
    """From ``nbytes`` on, ``after`` is faster than ``before``, among ``ranks``."""

    ranks: int
    nbytes: float
    before: str
    after: str


@dataclass(frozen=True)
class Sweep:
    """What is asked: every algorithm for every world and size on nodes of ``per_node`` ranks.

    disturbed: a cluster to take slow links, stragglers and jitter from; None: nothing is slow.
    """

    collective: str
    algorithms: tuple[str, ...]
    worlds: tuple[int, ...]
    sizes: tuple[int, ...]
    per_node: int
    costs: Costs
    channels: int = 1
    events: bool = False
    disturbed: Cluster | None = None

    @property
    def count(self) -> int:
        return len(self.algorithms) * len(self.worlds) * len(self.sizes)


def algorithms_with_forms(collective: str) -> tuple[str, ...]:
    """Algorithms whose time is known in closed form, in the order of the schedules."""
    name = "all_reduce" if collective == "barrier" else collective
    known = [algorithm for served, algorithm in FORMS if served == name]
    made = [algorithm for served, algorithm in ALGORITHMS if served == name]
    return tuple(algorithm for algorithm in made if algorithm in known)


def schedule_for(collective: str, algorithm: str, cluster: Cluster, channels: int = 1) -> Schedule:
    """The schedule that the library would run there."""
    found = collective_named(collective)
    root = 0 if found.rooted else None
    nodes = cluster.node_of_rank() if algorithm in SHAPED else None
    return generate(
        collective,
        algorithm,
        len(cluster.node_of_rank()),
        root,
        nodes=nodes,
        channels=channels_of(found.name, channels),
    )


def run(sweep: Sweep) -> Iterator[Cell]:
    """The cells, one by one.

    Raises:
        ScheduleError: something cannot be simulated; the message says what can.
    """
    scaled = {name: Scaled(sweep.collective, name, sweep.costs, sweep.channels) for name in sweep.algorithms}
    for world in sweep.worlds:
        cluster = _cluster(sweep, world)
        for algorithm in sweep.algorithms:
            seconds = _seconds_by(sweep, algorithm, cluster, scaled[algorithm])
            for nbytes in sweep.sizes:
                yield _cell(sweep, world, cluster, algorithm, nbytes, *seconds(nbytes))


def _cluster(sweep: Sweep, world: int) -> Cluster:
    plain = Cluster.even(sweep.costs, world, sweep.per_node)
    if sweep.disturbed is None:
        return plain
    slow = sweep.disturbed
    return Cluster(sweep.costs, plain.sizes, slow.slow_links, slow.stragglers, slow.jitter, slow.seed)


def _seconds_by(sweep: Sweep, algorithm: str, cluster: Cluster, scaled: Scaled) -> Callable[[int], tuple[float, str]]:
    """A closed form where it says what the simulator says; else the simulator, on this world or on smaller ones."""
    collective, shape, costs, channels = sweep.collective, cluster.shape, sweep.costs, sweep.channels
    simulators: list[Simulator] = []

    def simulator() -> Simulator:
        if not simulators:
            simulators.append(Simulator(schedule_for(collective, algorithm, cluster, channels), cluster.sizes))
        return simulators[0]

    def seconds(nbytes: int) -> tuple[float, str]:
        if sweep.events or not cluster.regular:
            return simulator().run(nbytes, cluster).seconds, EVENTS
        closed = predict(collective, algorithm, nbytes, shape, costs, channels)
        if beyond(collective, algorithm, nbytes, shape, costs, channels) is None:
            return closed, CLOSED
        found = scaled.find(nbytes, cluster.sizes)
        if found is None:
            return closed, ESTIMATE
        return found.seconds, SCALED if found.scaled else EVENTS

    return seconds


def _cell(sweep: Sweep, world: int, cluster: Cluster, algorithm: str, nbytes: int, seconds: float, method: str) -> Cell:
    least = bound(sweep.collective, nbytes, cluster.shape, sweep.costs)
    share = least / seconds if seconds else 1.0
    return Cell(world, cluster.shape.nodes, nbytes, algorithm, seconds, share, method)


def fastest(cells: Iterable[Cell]) -> dict[tuple[int, int], Cell]:
    """By (ranks, bytes)."""
    found: dict[tuple[int, int], Cell] = {}
    for cell in cells:
        key = cell.ranks, cell.nbytes
        if key not in found or cell.seconds < found[key].seconds:
            found[key] = cell
    return found


def crossings(cells: Sequence[Cell]) -> list[Crossing]:
    """Where, as sizes grow, another algorithm becomes the fastest; between two sizes by straight lines."""
    times = {(cell.ranks, cell.nbytes, cell.algorithm): cell.seconds for cell in cells}
    best = sorted(fastest(cells).items())
    found = []
    for ((ranks, less), before), ((other, more), after) in pairwise(best):
        if ranks != other or before.algorithm == after.algorithm:
            continue
        ahead = times[ranks, less, after.algorithm] - before.seconds
        behind = times[ranks, more, before.algorithm] - after.seconds
        place = ahead / (ahead + behind) if ahead + behind else 1.0
        found.append(Crossing(ranks, less + place * (more - less), before.algorithm, after.algorithm))
    return found


@dataclass(frozen=True, slots=True)
class TextbookLine:
    """naive and ring all-reduce of the same vector. Bytes are of one rank, for a vector of one byte."""

    ranks: int
    naive_root: float
    naive_steps: int
    naive_seconds: float
    ring_rank: float
    ring_steps: int
    ring_seconds: float
    counted: bool  # from all rows, not from what the schedule declares


def textbook(worlds: Sequence[int], nbytes: int, per_node: int, costs: Costs) -> list[TextbookLine]:
    """Why rings: the root's bytes of naive grow with the world, every rank's of the ring stay below two vectors."""
    found = []
    for world in worlds:
        naive, ring = (generate("all_reduce", algorithm, world) for algorithm in ("naive", "ring"))
        counted = world <= TEXTBOOK_ROWS_MAX
        if counted:
            root, rank = (float(sent_by_rows(each.rows(0), each.chunk_count)) for each in (naive, ring))
        else:
            root, rank = float(naive.sent(0)), float(ring.sent(0))
        shape = Shape.even(world, per_node)
        seconds = [predict("all_reduce", algorithm, nbytes, shape, costs) for algorithm in ("naive", "ring")]
        found.append(
            TextbookLine(world, root, naive.step_count, seconds[0], rank, ring.step_count, seconds[1], counted)
        )
    return found


@dataclass(frozen=True, slots=True)
class Compared:
    """A time that was measured beside what was predicted for it, both in seconds."""

    nbytes: int
    algorithm: str
    measured: float
    closed: float
    simulated: float


def compare(
    collective: str, measured: Iterable[tuple[str, int, float]], cluster: Cluster, *, channels: int = 1
) -> list[Compared]:
    """Predictions beside measurements.

    measured: (algorithm, bytes, seconds). The simulation is of the schedule that the library runs on such nodes.

    Raises:
        ScheduleError: an algorithm without a closed form or schedule.
    """
    simulators: dict[str, Simulator] = {}
    found = []
    for algorithm, nbytes, seconds in measured:
        if algorithm not in simulators:
            simulators[algorithm] = Simulator(schedule_for(collective, algorithm, cluster, channels), cluster.sizes)
        closed = predict(collective, algorithm, nbytes, cluster.sizes, cluster.costs, channels)
        simulated = simulators[algorithm].run(nbytes, cluster).seconds
        found.append(Compared(nbytes, algorithm, seconds, closed, simulated))
    return found


def check_algorithms(collective: str, names: str) -> tuple[str, ...]:
    """all, or a list of names.

    Raises:
        ScheduleError: one of them does not exist.
    """
    known = algorithms_with_forms(collective)
    if names == "all":
        return known
    chosen = tuple(dict.fromkeys(name.strip() for name in names.split(",")))
    for name in chosen:
        if name not in known:
            raise ScheduleError(f"algorithm of {collective} must be all or some of {', '.join(known)}; not {name!r}")
    return chosen
