"""Schedules: generated, proven, encoded, shown. Pure Python; nothing here needs the native library."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rdmaring.schedule import binomial, biring, direct, doubling, halving, hierarchical, naive, parts, ring, tree
from rdmaring.schedule.channels import check_channels, identity_suffix, in_channels
from rdmaring.schedule.collectives import collective_named
from rdmaring.schedule.deps import with_after
from rdmaring.schedule.order import check_order, in_order
from rdmaring.schedule.own_rows import Algorithm, Own, load, own, save
from rdmaring.schedule.rows import (
    WORLD_MAX,
    After,
    Buffer,
    Flag,
    Kind,
    Op,
    Receive,
    Recipe,
    Row,
    Schedule,
    ScheduleError,
    Send,
    identity_of,
)

__all__ = [
    "ALGORITHMS",
    "ORDERED",
    "SHAPED",
    "WIRES",
    "After",
    "Algorithm",
    "Buffer",
    "Flag",
    "Kind",
    "Op",
    "Own",
    "Receive",
    "Row",
    "Schedule",
    "ScheduleError",
    "Send",
    "algorithms_of",
    "generate",
    "load",
    "own",
    "save",
]

# Raised whenever any rows change, so that ranks of different releases see that they differ.
VERSION = 1

ALGORITHMS: dict[tuple[str, str], Callable[[int, int | None], Recipe]] = {
    ("all_reduce", "ring"): ring.all_reduce,
    ("all_reduce", "biring"): biring.all_reduce,
    ("all_reduce", "tree"): tree.all_reduce,
    ("all_reduce", "halving"): halving.all_reduce,
    ("all_reduce", "direct"): direct.all_reduce,
    ("all_reduce", "direct1"): direct.all_reduce_one_shot,
    ("all_reduce", "hierarchical"): lambda world, _: hierarchical.all_reduce((0,) * world),
    ("all_reduce", "hierarchical-ring"): lambda world, _: hierarchical.all_reduce_ring((0,) * world),
    ("all_reduce", "naive"): naive.all_reduce,
    ("reduce_scatter", "ring"): ring.reduce_scatter,
    ("reduce_scatter", "halving"): halving.reduce_scatter,
    ("reduce_scatter", "direct"): direct.reduce_scatter,
    ("all_gather", "ring"): ring.all_gather,
    ("all_gather", "biring"): biring.all_gather,
    ("all_gather", "doubling"): doubling.all_gather,
    ("all_gather", "direct"): direct.all_gather,
    ("broadcast", "ring"): ring.broadcast,
    ("broadcast", "tree"): tree.broadcast,
    ("broadcast", "binomial"): binomial.broadcast,
    ("broadcast", "direct"): direct.broadcast,
    ("reduce", "ring"): ring.reduce,
    ("reduce", "tree"): tree.reduce,
    ("reduce", "binomial"): binomial.reduce,
    ("reduce", "direct"): direct.reduce,
    ("all_to_all", "direct"): parts.all_to_all,
    ("gather", "direct"): parts.gather,
    ("gather", "binomial"): parts.gather_binomial,
    ("scatter", "direct"): parts.scatter,
    ("scatter", "binomial"): parts.scatter_binomial,
}

# Those that can keep partial sums of 16-bit floats in float32 on their way, by what stands in ``wire=``.
WIRES: dict[tuple[str, str, str], Callable[[int, int | None], Recipe]] = {
    ("all_reduce", "ring", "float32"): ring.all_reduce_wide,
    ("reduce_scatter", "ring", "float32"): ring.reduce_scatter_wide,
}

ORDERED = frozenset({"ring", "biring"})  # algorithms whose ranks stand in a ring
# algorithms whose rows depend on which ranks share a node; above they stand as for one node
SHAPED: dict[str, Callable[[Sequence[int]], Recipe]] = {
    "hierarchical": hierarchical.all_reduce,
    "hierarchical-ring": hierarchical.all_reduce_ring,
}


def algorithms_of(collective: str) -> tuple[str, ...]:
    """The names of the algorithms that serve ``collective``."""
    name = collective_named(collective).name
    return tuple(algorithm for served, algorithm in ALGORITHMS if served == name)


def generate(
    collective: str,
    algorithm: str,
    world: int,
    root: int | None = None,
    order: Sequence[int] | None = None,
    nodes: Sequence[int] | None = None,
    wire: str | None = None,
    channels: int = 1,
) -> Schedule:
    """The schedule of a built-in algorithm; rows are made when asked for, one rank at a time.

    root: the rank for broadcast, reduce, gather and scatter; None for the other collectives.
    wire: "float32" keeps partial sums of 16-bit floats wide on their way; only those in WIRES. None: as the vector is.
    order: the ranks as the ring visits them, each once; only algorithms in ORDERED have one. None: 0, 1, ..., N - 1.
    nodes: the node of each rank, by any numbers that are equal on equal nodes; only algorithms in SHAPED have them.
        None: one node.
    channels: the vector in so many disjoint parts, each with its own instance of the rows (see ``channels``).

    Raises:
        ScheduleError: no such collective or algorithm, or world, root, order or nodes do not fit.
    """
    found = collective_named(collective)
    make = ALGORITHMS.get((found.name, algorithm))
    if make is None:
        names = ", ".join(algorithms_of(found.name))
        raise ScheduleError(f"algorithm of {found.name} must be one of {names}; not {algorithm!r}")
    if wire is not None:
        make = WIRES.get((found.name, algorithm, wire))
        if make is None:
            served = ", ".join(f"{kind} of {name} by {by}" for name, by, kind in WIRES)
            raise ScheduleError(f"wire {wire!r} with {algorithm} of {found.name}; accepted are {served}")
    if not 1 <= world <= WORLD_MAX:
        raise ScheduleError(f"world must be in 1..{WORLD_MAX}, not {world}")
    if found.rooted and (root is None or not 0 <= root < world):
        raise ScheduleError(f"root of {found.name} must be in 0..{world - 1}, not {root}")
    if not found.rooted and root is not None:
        raise ScheduleError(f"{found.name} has no root; root must be None, not {root}")
    check_channels(channels, found.name)
    turned = None
    if order is not None:
        if algorithm not in ORDERED:
            raise ScheduleError(f"{algorithm} visits no ring; order is taken by {', '.join(sorted(ORDERED))}")
        turned = check_order(order, world)
    shape = _check_nodes(nodes, algorithm, world)
    if shape is not None:
        recipe = SHAPED[algorithm](shape)
    elif turned is None:
        recipe = make(world, root)
    else:
        recipe = in_order(make(world, None if root is None else turned.index(root)), turned)
    recipe = in_channels(recipe, channels, per_rank=found.per_rank_chunks)
    more = "".join(f"/{name}{','.join(map(str, each))}" for name, each in (("", turned), ("nodes=", shape)) if each)
    more += identity_suffix(channels)
    wide = "" if wire is None else f"/{wire}"
    return Schedule(
        collective=found.name,
        algorithm=algorithm,
        world=world,
        root=root,
        chunk_count=recipe.chunk_count,
        step_count=recipe.step_count,
        window=recipe.window,
        scratch_cells=recipe.scratch_cells,
        identity=identity_of(f"{found.name}/{algorithm}/{VERSION}/{world}/{root}{more}{wide}"),
        make_rows=lambda rank: with_after(recipe.rows(rank)),
        make_sent=recipe.sent,
        weights=recipe.weights,
    )


def _check_nodes(nodes: Sequence[int] | None, algorithm: str, world: int) -> tuple[int, ...] | None:
    """The nodes numbered in the order of their first ranks, so that equal shapes are equal. None: one node."""
    if nodes is None:
        return None
    if algorithm not in SHAPED:
        raise ScheduleError(f"{algorithm} knows no nodes; nodes are taken by {', '.join(SHAPED)}")
    if len(nodes) != world:
        raise ScheduleError(f"nodes must name one node for each of {world} ranks, not {len(nodes)}")
    numbers = {node: number for number, node in enumerate(dict.fromkeys(nodes))}
    return tuple(numbers[node] for node in nodes) if len(numbers) > 1 else None
