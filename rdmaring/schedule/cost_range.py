"""Where a closed form says what the simulator says, within AGREEMENT; elsewhere it is an estimate.

A form adds up one chain of waits and takes the busiest port or processor if that is longer. That is all there is where
ranks do the same at the same time and one of these things is the slowest all the way. It is not where ranks of a node
wait for each other at a rail, where trees and partners of halving share a port in an order that depends on times, or
where a port waits for a processor in one half and a processor for a port in the other. docs/SIMULATE.md has the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rdmaring.schedule.cluster import Costs, Shape
from rdmaring.schedule.cost_hierarchical import NODES_DIRECT_MAX
from rdmaring.schedule.cost_model import Model

AGREEMENT = 0.02  # relative
TREE_RANKS_MAX = 2  # among 4, with 512 KiB and a narrow way out, rows up and down took 3.8 % longer
SLIGHT = 0.02  # of a latency: what a hop may be longer without being seen

Rule = Callable[["_Case"], str | None]

SEVERAL = "nodes of several ranks, which wait for each other where they share ports"
UNEVEN = "nodes of different sizes"
OTHER_WORLDS = "a number of ranks that is no power of two: ranks differ in what they wait for"
SLICED = "rows of several slices, which share ports in an order that depends on times"
SLOW_PROCESSOR = "a processor that is slower than its port: what waits for which changes on the way"
SHARED = "ranks that share processors"
NARROW = "a way out of the node that is narrower than the rail into the root"
CHANNELS = "several channels, whose rows take turns at ports and processors"
ALWAYS = "the order in which rows share ports and processors, which depends on times"


class _Case:
    """One call on one shape."""

    def __init__(self, model: Model, nbytes: float) -> None:
        self.model, self.nbytes = model, nbytes
        self.ranks = model.shape.ranks

    def one_level(self) -> str | None:
        shape = self.model.shape
        return None if shape.nodes == 1 or shape.largest == 1 else SEVERAL

    def even(self) -> str | None:
        shape = self.model.shape
        return None if shape.smallest == shape.largest else UNEVEN

    def into_one(self) -> str | None:
        """All send to one rank: each has its own way out of its node, and only their rails meet."""
        costs = self.model.costs
        return self.one_level() or (NARROW if self.model.shape.nodes > 1 and costs.far_share(1) > 1 else None)

    def power_of_two(self) -> str | None:
        return None if self.ranks & (self.ranks - 1) == 0 else OTHER_WORLDS

    def one_slice(self, parts: float) -> str | None:
        """Of rows that have one of so many parts of the vector."""
        return None if self.nbytes / parts / self.model.channels <= self.model.costs.slice_bytes else SLICED

    def keeps_up(self, parts: float, adds: int = 1, sliced: bool = True) -> str | None:
        """A processor adds, or copies, and sends a slice on before the next one is there.

        sliced: it matters only for rows of several slices; else the additions of one must be too short to be seen.
        """
        if sliced and self.one_slice(parts) is None:
            return None
        nbytes = self.nbytes / parts
        size = nbytes / self.model.slices(nbytes)
        for far in self.model.levels():
            level = self.model.level(far)
            slow = self.model.work(size, adds, 2 - adds, level.cpu_s_per_byte) - size * level.s_per_byte
            if not sliced and self.one_slice(parts) is None:  # only where additions are too short to be seen
                slow = self.model.work(size, adds, 0, level.cpu_s_per_byte) - SLIGHT * level.latency_s
            if slow > 0:
                return SLOW_PROCESSOR
        return None


def _ring(case: _Case) -> str | None:
    if case.one_level() is None:
        return case.keeps_up(case.ranks)
    return case.even() or case.keeps_up(case.ranks, sliced=False)


def _direct_once(case: _Case) -> str | None:
    """Of several slices the later ones share ports and processors with what becomes of the first."""
    return case.one_level() or case.one_slice(case.ranks)


def _one_level(case: _Case) -> str | None:
    return case.one_level()


def _few_steps(case: _Case) -> str | None:
    return case.one_level() or case.power_of_two() or case.one_slice(2)


def _hierarchical(case: _Case) -> str | None:
    shape = case.model.shape
    if shape.largest == 1:
        if shape.nodes == 2:
            return case.keeps_up(1)
        return _direct_once(case) if shape.nodes <= NODES_DIRECT_MAX else _ring(case)
    if shape.nodes == 2:  # they swap sums
        return case.even() or case.keeps_up(shape.largest)
    return _direct_once(case) if shape.nodes == 1 else ALWAYS


RULES: dict[tuple[str, str], Rule] = {
    ("all_reduce", "ring"): _ring,
    ("all_reduce", "halving"): _few_steps,
    ("all_reduce", "tree"): lambda case: _few_steps(case) or (ALWAYS if case.ranks > TREE_RANKS_MAX else None),
    ("all_reduce", "direct"): _direct_once,
    ("all_reduce", "direct1"): lambda case: case.one_level() or case.keeps_up(1),
    ("all_reduce", "hierarchical"): _hierarchical,
    ("reduce_scatter", "ring"): lambda case: _ring(case) or case.one_slice(case.ranks),
    ("reduce_scatter", "direct"): _direct_once,
    ("all_gather", "ring"): lambda case: case.even(),
    ("all_gather", "direct"): lambda case: case.one_level() or case.keeps_up(case.ranks, 0),
    ("all_gather", "doubling"): _few_steps,
    ("broadcast", "ring"): lambda _: None,
    ("broadcast", "direct"): lambda _: None,
    ("broadcast", "binomial"): _one_level,
    ("reduce", "ring"): lambda _: None,
    ("reduce", "direct"): lambda case: case.into_one(),
    ("reduce", "binomial"): lambda case: case.one_level() or case.power_of_two() or case.one_slice(1),
    ("all_to_all", "direct"): _one_level,
    ("gather", "direct"): lambda case: case.into_one(),
    ("scatter", "direct"): _direct_once,
}


def beyond(
    collective: str, algorithm: str, nbytes: float, nodes: Shape | Sequence[int], costs: Costs, channels: int = 1
) -> str | None:
    """Why ``predict`` may be further than AGREEMENT from the simulator; None: it is not. Arguments as there."""
    shape = nodes if isinstance(nodes, Shape) else Shape.of_sizes(nodes)
    if shape.ranks == 1:
        return None
    processors = costs.processors_per_node
    if processors is not None and processors < shape.largest:
        return SHARED
    if channels > 1:
        return CHANNELS
    rule = RULES.get(("all_reduce" if collective == "barrier" else collective, algorithm))
    return ALWAYS if rule is None else rule(_Case(Model(costs, shape, channels), nbytes))
