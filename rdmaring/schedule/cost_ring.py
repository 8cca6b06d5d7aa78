"""Closed forms of rings and chains: ring, biring, hierarchical."""

from __future__ import annotations

from typing import NamedTuple

from rdmaring.schedule.cost_model import Leg, Model


class Time(NamedTuple):
    """Seconds: of the longest chain of waits, and of the work of the busiest node's processors together."""

    critical: float
    work: float


class _Phase(NamedTuple):
    """Steps of one kind around a ring."""

    steps: int
    legs: tuple[Leg, ...]  # by level used, the slowest last
    latency: float  # of all its steps, one slice alone

    @property
    def cycle(self) -> float:
        """Time from one step to the next: bound by the way round, or by the slowest link or rank."""
        if not self.steps:
            return 0.0
        return max(self.latency / self.steps, max(leg.span for leg in self.legs))

    @property
    def work(self) -> float:
        leg = self.legs[-1]
        return self.steps * (leg.slices * leg.work + leg.row)


def _phase(model: Model, chunk: float, steps: int, far_steps: int, adds: int, crowd: float = 1.0) -> _Phase:
    """Steps with a chunk each, of which ``far_steps`` are between nodes on the longest way round."""
    pairs = [(far, model.leg(far, chunk, adds=adds, onward=True, crowd=crowd)) for far in model.levels()]
    legs = sorted((leg for _, leg in pairs), key=lambda leg: leg.span)
    if len(pairs) == 1:
        latency = steps * legs[0].hop
    else:
        latency = (steps - far_steps) * pairs[0][1].hop + far_steps * pairs[1][1].hop
    return _Phase(steps, tuple(legs), latency)


def _run(model: Model, phases: list[_Phase], first: float, crowd: float = 1.0) -> Time:
    """Phases one after another; ``first``: until the first slice leaves."""
    phases = [phase for phase in phases if phase.steps]
    last = phases[-1]
    leg = last.legs[-1]
    # Bound by the way round, the last hop is counted in it; bound by a port, the last row ends with its own way there.
    end = leg.tail + (leg.hop - last.cycle if last.cycle > last.latency / last.steps else 0.0)
    critical = first + sum(phase.steps * phase.cycle for phase in phases) + max(end, 0.0)
    work = (sum(phase.work for phase in phases) + leg.slices * leg.work + leg.row) * crowd
    return Time(critical, model.shape.largest * work)


def _far_steps(model: Model, steps: int, phases: int) -> float:
    """Hops between nodes in a phase, on the way that begins behind the cheapest hop."""
    shape = model.shape
    if shape.largest == 1:
        return steps
    return shape.nodes if shape.nodes > 1 else 0


def _ring(model: Model, nbytes: float, adds: tuple[int, ...], parts: int, crowd: float) -> Time:
    ranks = model.shape.ranks
    chunk = nbytes / (ranks * parts)
    steps = ranks - 1
    far = int(_far_steps(model, steps, len(adds)))
    phases = [_phase(model, chunk, steps, far, each, crowd) for each in adds]
    return _run(model, phases, model.start(model.levels()[0], chunk), crowd)


def ring_all_reduce(model: Model, nbytes: float) -> Time:
    """2(N - 1) steps with 1/N of the vector; the first half adds."""
    return _ring(model, nbytes, (1, 0), 1, 1.0)


def ring_reduce_scatter(model: Model, nbytes: float) -> Time:
    """N - 1 steps that add."""
    return _ring(model, nbytes, (1,), 1, 1.0)


def ring_all_gather(model: Model, nbytes: float) -> Time:
    """N - 1 steps that copy."""
    return _ring(model, nbytes, (0,), 1, 1.0)


def biring_all_reduce(model: Model, nbytes: float) -> Time:
    """A ring each way with half the vector: both use the rank's processor and port."""
    return _ring(model, nbytes, (1, 0), 2, 2.0)


def biring_all_gather(model: Model, nbytes: float) -> Time:
    """Each chunk goes half way round in both directions."""
    ranks = model.shape.ranks
    chunk = nbytes / ranks
    steps = ranks // 2
    far = min(steps, -(-model.shape.nodes // 2)) if model.shape.nodes > 1 else 0
    phase = _phase(model, chunk, steps, far, 0, 2.0)
    return _run(model, [phase], model.start(model.levels()[0], chunk, 2), 2.0)


def chain(model: Model, nbytes: float, adds: int) -> Time:
    """A chain through all ranks, pipelined slice by slice: broadcast and reduce on the ring."""
    shape = model.shape
    far_steps = shape.nodes - 1
    legs = {far: model.leg(far, nbytes, adds=adds, onward=True) for far in model.levels()}
    hops = sum(legs[far].hop * (far_steps if far else shape.ranks - shape.nodes) for far in legs)
    slowest = max(legs.values(), key=lambda leg: leg.period)
    first = model.start(model.levels()[0], nbytes)
    busiest = max(leg.slices * leg.work + leg.row for leg in legs.values())
    return Time(first + hops + slowest.tail, shape.largest * busiest)


def ring_broadcast(model: Model, nbytes: float) -> Time:
    """The vector along the chain."""
    return chain(model, nbytes, 0)


def ring_reduce(model: Model, nbytes: float) -> Time:
    """The vector along the chain, added to at each stop."""
    return chain(model, nbytes, 1)


def hierarchical_all_reduce(model: Model, nbytes: float) -> Time:
    """Reduce-scatter in the node, a ring between nodes for each local rank, all-gather in the node.

    Phases overlap by slice: what remains of the shorter level is its way there and back.
    """
    shape = model.shape
    if shape.nodes == 1 or shape.largest == 1:
        return ring_all_reduce(model, nbytes)
    inner, between = shape.smallest, shape.nodes
    part = nbytes / inner
    chunk = part / between
    gather = [model.leg(False, part, adds=adds, onward=True) for adds in (1, 0)]
    across = [model.leg(True, chunk, adds=adds, onward=True, senders=shape.largest) for adds in (1, 0)]
    near_steps, far_steps = shape.largest - 1, between - 1
    near_span = near_steps * sum(leg.span for leg in gather)
    far_time = far_steps * sum(max(leg.hop, leg.span) for leg in across) + across[1].tail
    fill = near_steps * sum(leg.hop for leg in gather)
    first = model.start(False, part)
    work = near_steps * sum(leg.slices * leg.work + leg.row for leg in gather)
    work += far_steps * sum(leg.slices * leg.work + leg.row for leg in across)
    critical = first + max(far_time + fill, near_span + far_steps * sum(leg.hop for leg in across))
    return Time(critical, shape.largest * work)
