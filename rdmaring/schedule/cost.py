"""How long a collective takes, in closed form: a pure function of sizes, shape and constants, in microseconds.

alpha-beta-gamma at two levels, with the engine's own overheads, pipelining by slices and shared processors; what each
form says is compared with the event simulator in the tests. docs/SIMULATE.md has the model and what it leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rdmaring.schedule import cost_direct, cost_halving, cost_hierarchical, cost_ring, cost_tree
from rdmaring.schedule.cluster import Costs, LevelCost, Shape
from rdmaring.schedule.collectives import collective_named
from rdmaring.schedule.cost_model import Model
from rdmaring.schedule.cost_ring import Time
from rdmaring.schedule.rows import ScheduleError

__all__ = ["FORMS", "Costs", "LevelCost", "Shape", "bound", "predict"]

Form = Callable[[Model, float], Time]

FORMS: dict[tuple[str, str], Form] = {
    ("all_reduce", "ring"): cost_ring.ring_all_reduce,
    ("all_reduce", "biring"): cost_ring.biring_all_reduce,
    ("all_reduce", "tree"): cost_tree.tree_all_reduce,
    ("all_reduce", "halving"): cost_halving.halving_all_reduce,
    ("all_reduce", "direct"): cost_direct.direct_all_reduce,
    ("all_reduce", "direct1"): cost_direct.direct1_all_reduce,
    ("all_reduce", "hierarchical"): cost_hierarchical.all_reduce,
    ("all_reduce", "hierarchical-ring"): cost_hierarchical.ring_all_reduce_of_nodes,
    ("all_reduce", "naive"): cost_direct.naive_all_reduce,
    ("reduce_scatter", "ring"): cost_ring.ring_reduce_scatter,
    ("reduce_scatter", "direct"): cost_direct.direct_reduce_scatter,
    ("reduce_scatter", "halving"): cost_halving.halving_reduce_scatter,
    ("all_gather", "ring"): cost_ring.ring_all_gather,
    ("all_gather", "biring"): cost_ring.biring_all_gather,
    ("all_gather", "direct"): cost_direct.direct_all_gather,
    ("all_gather", "doubling"): cost_halving.doubling_all_gather,
    ("broadcast", "ring"): cost_ring.ring_broadcast,
    ("broadcast", "direct"): cost_direct.direct_broadcast,
    ("broadcast", "tree"): cost_tree.tree_broadcast,
    ("broadcast", "binomial"): cost_tree.binomial_broadcast,
    ("reduce", "ring"): cost_ring.ring_reduce,
    ("reduce", "direct"): cost_direct.direct_reduce,
    ("reduce", "tree"): cost_tree.tree_reduce,
    ("reduce", "binomial"): cost_tree.binomial_reduce,
    ("all_to_all", "direct"): cost_direct.direct_all_to_all,
    ("gather", "direct"): cost_direct.direct_gather,
    ("gather", "binomial"): cost_tree.binomial_gather,
    ("scatter", "direct"): cost_direct.direct_scatter,
    ("scatter", "binomial"): cost_tree.binomial_scatter,
}


def predict(
    collective: str,
    algorithm: str,
    nbytes: float,
    nodes: Shape | Sequence[int],
    costs: Costs,
    channels: int = 1,
) -> float:
    """Seconds from the first rank's entering to the last one's leaving, if all enter at once.

    nbytes: of the whole vector: for reduce_scatter each rank's input, for all_gather each rank's output, for all_to_all
    either, for gather and scatter what the root holds. nodes: a Shape, or the number of ranks of each node.

    Raises:
        ScheduleError: no form for this collective and algorithm.
        ValueError: nbytes below 0, no rank, or channels below 1.
    """
    name = "all_reduce" if collective == "barrier" else collective
    form = FORMS.get((name, algorithm))
    if form is None:
        names = ", ".join(known for served, known in FORMS if served == name)
        if not names:
            collective_named(collective)  # raises, unless there is a collective without a form
        raise ScheduleError(f"no closed form for {collective} by {algorithm!r}; there are {names or 'none'}")
    if not 0 <= nbytes < float("inf"):
        raise ValueError(f"nbytes must be 0 or more, not {nbytes!r}")
    if channels < 1:
        raise ValueError(f"channels must be 1 or more, not {channels!r}")
    shape = nodes if isinstance(nodes, Shape) else Shape.of_sizes(nodes)
    if shape.ranks == 1:
        return costs.row_s
    found = form(Model(costs, shape, channels), nbytes)
    processors = costs.processors_per_node
    if processors is None or processors >= shape.largest:
        return found.critical
    return max(found.critical, found.work / processors)


_BOUND_PASSES = {"all_reduce": 2.0, "barrier": 2.0}


def bound(collective: str, nbytes: float, nodes: Shape | Sequence[int], costs: Costs) -> float:
    """Seconds below which no algorithm gets on these ports, however small latency and overheads.

    For all_reduce 2(N-1)/N S beta on a rank's port, or 2(G-1)/G S beta / rails on the way out of one of G nodes,
    whichever is more; half of it for the other collectives in which everybody holds a part, S beta for rooted ones.
    """
    shape = nodes if isinstance(nodes, Shape) else Shape.of_sizes(nodes)
    if shape.ranks == 1:
        return 0.0
    if collective in ("broadcast", "reduce"):
        port, out = 1.0, 1.0
    else:
        passes = _BOUND_PASSES.get(collective, 1.0)
        port, out = (passes * (parts - 1) / parts for parts in (shape.ranks, max(shape.nodes, 1)))
    single = costs.far if shape.largest == 1 else costs.near
    between = out * nbytes * costs.far.s_per_byte * costs.oversubscription / costs.rails if shape.nodes > 1 else 0.0
    return max(port * nbytes * single.s_per_byte, between)
