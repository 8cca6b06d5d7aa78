"""Closed forms of rings and chains: ring, biring."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from rdmaring.schedule.cost_model import Leg, Model


class Time(NamedTuple):
    """Seconds: of the longest chain of waits, and of the work of the busiest node's processors together."""

    critical: float
    work: float


def _rows(legs: Sequence[tuple[int, Leg]]) -> float:
    """Time of so many rows of each kind, one after another, if ports or processors are never idle."""
    return sum(steps * leg.span for steps, leg in legs)


def _around(
    model: Model, chunk: float, phases: Sequence[tuple[int, int]], crowd: float = 1.0, spare: float = 0.0
) -> Time:
    """Phases around a ring, each (steps, additions per byte), with ``chunk`` bytes a step.

    crowd: as many rings use a rank's port and processor at once. spare: steps in which they do not. Time is that of the
    longest of two chains: the one that takes every hop between nodes on its way, and the one that stays at the slowest
    link. (A chain that takes F far hops takes the near ones between them; for what is left of its rows it stays.)
    """
    shape, costs = model.shape, model.costs
    steps = sum(count for count, _ in phases)
    far_crowd = crowd if shape.largest == 1 or (shape.largest - 1) % costs.rails == 0 else 1.0
    near = [(count, model.leg(False, chunk, adds=adds, onward=True, crowd=crowd)) for count, adds in phases]
    far = [(count, model.leg(True, chunk, adds=adds, onward=True, crowd=far_crowd)) for count, adds in phases]
    busy = [leg.slices * leg.work + leg.row for _, leg in (far if shape.largest == 1 else near)]
    own = crowd * sum(count * work for (count, _), work in zip(phases, busy, strict=True))
    first = max(model.start(level, chunk) for level in model.levels())
    stay = max(_rows(near) if shape.largest > 1 else 0.0, _rows(far) if shape.nodes > 1 else 0.0, own) / steps
    mean = {id(kind): sum(count * leg.hop for count, leg in kind) / steps for kind in (near, far)}
    if shape.nodes == 1:
        way = steps * mean[id(near)]
    elif shape.largest == 1:
        way = steps * mean[id(far)]
    else:
        between = (shape.ranks - shape.nodes) / shape.nodes  # near hops for each far one
        hops = math.floor((steps + between) / (1 + between))
        rest = steps - hops - (hops - 1) * between
        way = hops * mean[id(far)] + (hops - 1) * between * mean[id(near)] + rest * max(stay, mean[id(near)])
        fewest = math.floor(steps / (1 + between))  # where hops inside take longer than those between nodes
        way = max(way, fewest * mean[id(far)] + (steps - fewest) * mean[id(near)])
    is_far = shape.largest == 1 or (shape.nodes > 1 and far[-1][1].span > near[-1][1].span)
    last = (far if is_far else near)[-1][1]
    ends = _unsent(model, chunk, is_far)
    stays = (steps - spare) * stay - last.span + last.hop
    other = (crowd - 1) * max(last.wire, last.work + last.row)
    critical = first + max(way, stays) + last.tail - ends + other
    return Time(critical, shape.largest * (own + crowd * busy[-1]))


def _unsent(model: Model, nbytes: float, far: bool) -> float:
    """What a leg counts for sending on, where nothing is sent on."""
    return nbytes / model.slices(nbytes) * model.level(far).cpu_s_per_byte


def ring_all_reduce(model: Model, nbytes: float) -> Time:
    """2(N - 1) steps with 1/N of the vector; the first half adds."""
    ranks = model.shape.ranks
    return _around(model, nbytes / ranks, ((ranks - 1, 1), (ranks - 1, 0)))


def ring_reduce_scatter(model: Model, nbytes: float) -> Time:
    """N - 1 steps that add."""
    return _around(model, nbytes / model.shape.ranks, ((model.shape.ranks - 1, 1),))


def ring_all_gather(model: Model, nbytes: float) -> Time:
    """N - 1 steps that copy."""
    return _around(model, nbytes / model.shape.ranks, ((model.shape.ranks - 1, 0),))


def biring_all_reduce(model: Model, nbytes: float) -> Time:
    """A ring each way with half the vector: both use the rank's processor and port."""
    ranks = model.shape.ranks
    return _around(model, nbytes / (2 * ranks), ((ranks - 1, 1), (ranks - 1, 0)), crowd=2.0)


def biring_all_gather(model: Model, nbytes: float) -> Time:
    """Each chunk goes half way round in both directions."""
    ranks = model.shape.ranks
    if ranks == 2:
        return ring_all_gather(model, nbytes)
    # the last step of an even ring goes one way only
    return _around(model, nbytes / ranks, ((ranks // 2, 0),), crowd=2.0, spare=0.0 if ranks % 2 else 0.5)


def chain(model: Model, nbytes: float, adds: int, far_steps: int) -> Time:
    """A chain through all ranks, pipelined slice by slice: broadcast and reduce on the ring."""
    shape = model.shape
    legs = {far: model.leg(far, nbytes, adds=adds, onward=True) for far in model.levels()}
    hops = sum(legs[far].hop * (far_steps if far else shape.ranks - 1 - far_steps) for far in legs)
    far = max(legs, key=lambda level: legs[level].period)
    slowest = legs[far]
    ends = _unsent(model, nbytes, far)
    first = max(model.start(level, nbytes) for level in legs)
    stage = slowest.period if shape.ranks > 2 else max(slowest.port, slowest.work - ends)
    busiest = max(leg.slices * leg.work + leg.row for leg in legs.values())
    return Time(first + hops - ends + (slowest.slices - 1) * stage, shape.largest * busiest)


def ring_broadcast(model: Model, nbytes: float) -> Time:
    """The vector along the chain."""
    return chain(model, nbytes, 0, model.shape.nodes - 1)


def ring_reduce(model: Model, nbytes: float) -> Time:
    """The vector along the chain from the rank after the root, added to at each stop."""
    shape = model.shape
    return chain(model, nbytes, 1, 0 if shape.nodes == 1 else min(shape.nodes, shape.ranks - 1))
