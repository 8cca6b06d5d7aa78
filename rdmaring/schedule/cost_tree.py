"""Closed forms of trees, in which messages are passed on slice by slice: tree, binomial.

Time is that of the first slice along the deepest path, and what the busiest port or processor takes for each slice
after it.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from rdmaring.schedule.cost_model import Leg, Model
from rdmaring.schedule.cost_ring import Time


def rounds(ranks: int) -> int:
    """The least k with 2^k >= ranks."""
    return (ranks - 1).bit_length()


def _streamed(model: Model, edges: _Edges, far: bool, port: float, work: float) -> float:
    """Time if a port or a processor is busy from the first slice's coming to the last's."""
    leg = edges.leg(far)
    slices = edges.slices
    return (
        model.start(far, edges.size * slices) + leg.latency + leg.row + max(slices * port + work, port + slices * work)
    )


class _Edges(NamedTuple):
    """What one slice takes over an edge of a tree."""

    near: Leg
    far: Leg
    slices: int
    size: float

    def leg(self, far: bool) -> Leg:
        return self.far if far else self.near


def _edges(model: Model, nbytes: float) -> _Edges:
    near, far = model.leg(False, nbytes), model.leg(True, nbytes)
    return _Edges(near, far, near.slices, nbytes / near.slices)


# ---- double binary trees ----


def _far_depth(model: Model, depth: int) -> int:
    """Of the hops from the root of a tree over ranks in order, how many are between nodes on the worst path."""
    shape = model.shape
    if shape.nodes == 1:
        return 0
    return depth - max(0, shape.largest.bit_length() - 2) if shape.largest > 1 else depth


def _busiest_far(model: Model, rank: float) -> float:
    """Slices that leave a node's rail for one that every edge carries: trees cross a node's border several times.

    rank: of these, how many a single rank sends if all its neighbours are on other nodes.
    """
    crossings = rank if model.shape.nodes == 2 else 1.5 * rank
    return max(crossings / model.costs.rails, 0.75 * rank) if model.shape.largest > 1 else rank


def _sends(model: Model, edges: _Edges, far: bool, count: int, adds: int, receives: int) -> float:
    """Work for one slice that is received so often and sent so often."""
    cpu = model.level(far).cpu_s_per_byte * count
    return model.work(edges.size, adds, max(1, receives, count), cpu)


def tree_all_reduce(model: Model, nbytes: float) -> Time:
    """Up and down two trees, half the vector each; who is inside one is a leaf of the other."""
    ranks = model.shape.ranks
    depth = ranks.bit_length() - 1
    far = _far_depth(model, depth)
    edges = _edges(model, nbytes / 2)
    row = edges.near.row
    lone_child = ranks == 1 << depth  # the root's
    critical = model.start(far == depth, nbytes / 2)
    for level in range(depth):  # from the root, level by level
        is_far = level < far
        leg = edges.leg(is_far)
        children = 1 if level == 0 and lone_child else 2
        critical += children * leg.wire + leg.latency + row  # up: all children's slices through one port
        critical += _sends(model, edges, is_far, children if level == 0 else 1, children, children)
        below = 2 if level < depth - 1 else 0
        second = children if level else (1 if ranks < (2 << depth) - 1 else 2)
        critical += second * leg.wire + leg.latency + row  # down: the second child is sent to after the first
        critical += _sends(model, edges, is_far, below, 0, 1)
    ends = {2: 2.0, 3: 3.0}.get(ranks, 4.0)
    port = max(ends * edges.near.wire, _busiest_far(model, ends) * edges.far.wire if far else 0.0)
    inside = _sends(model, edges, bool(far), 1, 2, 2) + _sends(model, edges, bool(far), 2, 0, 1)
    leaf = _sends(model, edges, bool(far), 1, 0, 1) + model.work(edges.size)
    work = inside + leaf if ranks > 2 else leaf * 2
    each = edges.slices * work + 4 * row
    # A few slices go up before any comes down; of many, those that go up and those that come down share ports.
    few = critical + (edges.slices - 1) * max(port / 2, inside / 2)
    many = _streamed(model, edges, bool(far), port, work)
    return Time(max(few, many), model.shape.largest * each)


def _rooted(model: Model, nbytes: float, adds: bool) -> Time:
    """The root above two trees of the other ranks, half the vector each."""
    size = model.shape.ranks - 1
    depth = size.bit_length() - 1
    far = _far_depth(model, depth)
    between = far > 0 or (model.shape.nodes > 1 and model.shape.largest == 1)  # some edges of the trees, or all
    edges = _edges(model, nbytes / 2)
    row = edges.near.row
    top = edges.leg(model.shape.nodes > 1)
    critical = model.start(far == depth and far > 0, nbytes / 2)
    critical += 2 * top.wire + top.latency + row + model.work(edges.size, int(adds))
    critical += (
        model.start(model.shape.nodes > 1, nbytes / 2) if not adds else edges.near.row + model.work(edges.size, 1)
    )
    for level in range(depth):
        leg = edges.leg(level < far)
        children = 1 if level == 0 and size == 1 << depth else 2
        critical += children * leg.wire + leg.latency + row
        if adds:
            critical += _sends(model, edges, level < far, 1, children, children)
        else:
            critical += _sends(model, edges, level < far, 2 if level < depth - 1 else 0, 0, 1)
    inside = _sends(model, edges, between, 1, 2, 2) if adds else _sends(model, edges, between, 2, 0, 1)
    other = _sends(model, edges, between, 1, 0, 1) if adds else model.work(edges.size)
    work = max(inside + other, 2 * model.work(edges.size, int(adds), 1, model.level(between).cpu_s_per_byte))
    port = max(2 * edges.near.wire, _busiest_far(model, 2.0) * edges.far.wire if between else 0.0)
    each = edges.slices * work + 2 * row
    few = critical + (edges.slices - 1) * max(port, work) + min(edges.slices - 1, 1) * port / 4
    return Time(few, model.shape.largest * each)


def tree_broadcast(model: Model, nbytes: float) -> Time:
    """Down two trees."""
    return _rooted(model, nbytes, adds=False)


def tree_reduce(model: Model, nbytes: float) -> Time:
    """Up two trees."""
    return _rooted(model, nbytes, adds=True)


# ---- binomial trees ----


def _children(size: int) -> list[tuple[int, int]]:
    """(distance, ranks below and itself) of each child of a place with ``size`` ranks, the largest first."""
    return [(1 << bit, min(1 << bit, size - (1 << bit))) for bit in reversed(range(rounds(size)))]


def _is_far(model: Model, distance: int) -> bool:
    return model.shape.nodes > 1 and distance >= model.shape.largest


def _stage(model: Model, edges: _Edges, adds: bool) -> tuple[float, float]:
    """What the root's port takes for a slice, and its processor."""
    far = [_is_far(model, distance) for distance, _ in _children(model.shape.ranks)]
    port = max(far.count(False) * edges.near.wire, far.count(True) * edges.far.wire)
    cpu = 0.0 if adds else sum(model.level(each).cpu_s_per_byte for each in far)
    return port, model.work(edges.size, len(far) * adds, len(far), cpu)


def binomial_broadcast(model: Model, nbytes: float) -> Time:
    """Down the binomial tree, the largest subtree first."""
    edges = _edges(model, nbytes)

    @cache
    def below(size: int) -> float:
        """From the first slice's being at a place to its being everywhere below."""
        children = _children(size)
        cpu = sum(model.level(_is_far(model, distance)).cpu_s_per_byte for distance, _ in children)
        busy = {False: 0.0, True: 0.0}
        last = 0.0
        for distance, ranks in children:
            leg = edges.leg(_is_far(model, distance))
            busy[_is_far(model, distance)] += leg.wire
            last = max(last, busy[_is_far(model, distance)] + leg.latency + below(ranks))
        return edges.near.row + model.work(edges.size, 0, max(1, len(children)), cpu) + last

    port, work = _stage(model, edges, False)
    critical = below(model.shape.ranks) + (edges.slices - 1) * max(port, work)
    others = (model.shape.largest - 1) * (edges.slices * model.work(edges.size) + edges.near.row)
    return Time(critical, edges.slices * work + others)


def binomial_reduce(model: Model, nbytes: float) -> Time:
    """Up the binomial tree: a rank adds what its children send when all of it is there."""
    edges = _edges(model, nbytes)

    @cache
    def ready(size: int, onward: bool) -> float:
        """When the first slice of what is below is added up. onward: it is sent on between nodes."""
        cpu = model.level(onward).cpu_s_per_byte if size < model.shape.ranks else 0.0
        children = _children(size)
        arrived = {False: 0.0, True: 0.0}
        for distance, ranks in reversed(children):
            far = _is_far(model, distance)
            leg = edges.leg(far)
            arrived[far] = max(arrived[far], ready(ranks, far) + leg.latency) + leg.wire
        work = model.work(edges.size, len(children), max(1, len(children)), cpu)
        return max(arrived.values()) + edges.near.row + work

    port, work = _stage(model, edges, True)
    # Children's first slices come one after another anyhow; of many slices the root's port is never idle.
    leg = edges.leg(model.shape.nodes > 1)
    few = ready(model.shape.ranks, False) + (edges.slices - 1) * max(leg.wire, work)
    critical = max(few, _streamed(model, edges, model.shape.nodes > 1, port, work))
    others = (model.shape.largest - 1) * (edges.slices * model.work(edges.size) + edges.near.row)
    return Time(critical, edges.slices * work + others)


def _parts(model: Model, nbytes: float) -> Time:
    """A row a rank's part: the deepest makes a hop for each bit, and all pass through the root's ports."""
    shape = model.shape
    far_children = [_is_far(model, distance) for distance, _ in _children(shape.ranks)]
    of_level = {far: model.leg(far, nbytes / shape.ranks, onward=True) for far in (False, True)}
    below = dict.fromkeys(of_level, 0)
    for (_, ranks), far in zip(_children(shape.ranks), far_children, strict=True):
        below[far] += ranks
    depth = shape.ranks.bit_length() - 1
    far_hops = min(depth, sum(far_children))
    start = max(model.start(far, nbytes / shape.ranks) for far in model.levels())
    last = of_level[bool(far_hops)]
    chain = start + (depth - far_hops) * of_level[False].hop + far_hops * of_level[True].hop + last.tail
    busy = max(
        (below[far] * leg.slices * leg.port + leg.latency for far, leg in of_level.items() if below[far]), default=0.0
    )
    work = sum(below[far] * (leg.slices * leg.work + leg.row) for far, leg in of_level.items())
    stream = start + max(busy + last.row + last.work, last.wire + last.latency + work)
    return Time(max(chain, stream), work + shape.largest * start)


def binomial_gather(model: Model, nbytes: float) -> Time:
    """Up the binomial tree."""
    return _parts(model, nbytes)


def binomial_scatter(model: Model, nbytes: float) -> Time:
    """Down the binomial tree."""
    return _parts(model, nbytes)
