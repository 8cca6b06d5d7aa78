"""Closed forms of halving and doubling: a walk over their log2(N) steps.

Of all ranks the walk follows one that has to wait longest: its next message is the part that arrives last.
"""

from __future__ import annotations

from typing import NamedTuple

from rdmaring.schedule.cost_model import Model
from rdmaring.schedule.cost_ring import Time

WINDOW = 12  # as doubling.py declares


class _Step(NamedTuple):
    """One exchange of one rank."""

    size: int  # chunks it is responsible for before a halving step, after a doubling step
    chunks: int  # sent
    distance: int


def _steps(ranks: int, near_first: bool) -> list[_Step]:
    """Of halving; doubling takes them backwards. near_first: a power of two begins with neighbours."""
    found, size = [], ranks
    turned = near_first and ranks & ranks - 1 == 0
    while size > 1:
        half = (size + 1) // 2
        found.append(_Step(size, size - half, ranks // size if turned else half))
        size = half
    return found


class _Walk:
    """Where the first and the last slice of a step are, in time."""

    def __init__(self, model: Model, nbytes: float, rows_each: bool, start: float = 0.0) -> None:
        """rows_each: every chunk has a row of its own. start: when the own chunk can be sent, if it has no row then."""
        self.model = model
        self.chunk = nbytes / model.shape.ranks
        self.rows_each = rows_each
        self.there = [(start, start, 0, 0.0)]  # of each step: its first slice, its last, how many, how far apart
        self.end = start
        self.free = {False: 0.0, True: 0.0}  # ports
        self.work = 0.0

    def step(self, step: _Step, adds: int, *, halves: bool, row: bool, skips: bool) -> None:
        """One exchange.

        halves: what is sent is half of what came before, the later half at worst. row: what is sent has a row of
        its own; else the row before sends it. skips: nothing of the last step's is sent.
        """
        model, shape = self.model, self.model.shape
        far = shape.nodes > 1 and step.distance >= shape.largest
        parts = step.chunks if self.rows_each else 1 if shape.ranks & shape.ranks - 1 == 0 else min(2, step.chunks)
        leg = model.leg(far, step.chunks * self.chunk / parts, adds=adds, senders=shape.largest)
        count = parts * leg.slices
        cpu = step.chunks * self.chunk / count * model.level(far).cpu_s_per_byte
        sending = cpu + (model.costs.slice_s if row else 0.0)
        issue = sending + leg.row * row
        first, last, before, apart = self.there[-2 if skips else -1]
        ready = first + (max(0, before - count) * apart if halves else 0.0) + issue
        pace = max(leg.port, leg.work + sending)
        rows = (parts - 1) * leg.row * (1 + row)
        begin = max(self.free[far] + leg.port, ready + leg.wire)
        end = max(self.free[far] + count * leg.port, begin + (count - 1) * pace + rows, last + issue + leg.wire)
        if self.rows_each:  # of a step's rows, half of which receive, a window's are open: then they wait for a hop
            end = max(end, begin + (-(-2 * parts // WINDOW) - 1) * leg.hop + leg.wire)
        self.free[far] = end
        arrived = leg.latency + leg.row + leg.work
        self.there.append((begin + arrived, end + arrived - (leg.row if count > 1 else 0.0), count, pace))
        self.end = max(self.end, self.there[-1][1])
        self.work += count * (leg.work + sending) + parts * leg.row * (1 + row)


def _scatter(walk: _Walk, near_first: bool = False) -> None:
    before = None
    for step in _steps(walk.model.shape.ranks, near_first):
        skips = before is not None and before.size % 2 == 1 and step.chunks == 1
        walk.step(step, 1, halves=before is not None, row=True, skips=skips)
        before = step


def _gather(walk: _Walk, near_first: bool = False) -> None:
    before = None
    for step in reversed(_steps(walk.model.shape.ranks, near_first)):
        skips = before is not None and step.size % 2 == 1 and before.chunks == 1
        walk.step(step, 0, halves=False, row=before is not None, skips=skips)
        before = step


def halving_all_reduce(model: Model, nbytes: float) -> Time:
    """Recursive halving, then doubling."""
    walk = _Walk(model, nbytes, rows_each=False)
    _scatter(walk, near_first=True)
    _gather(walk, near_first=True)
    return Time(walk.end, model.shape.largest * walk.work)


def halving_reduce_scatter(model: Model, nbytes: float) -> Time:
    """Recursive halving; a row a chunk."""
    walk = _Walk(model, nbytes, rows_each=True)
    _scatter(walk)
    return Time(walk.end, model.shape.largest * walk.work)


def doubling_all_gather(model: Model, nbytes: float) -> Time:
    """Recursive doubling."""
    chunk = nbytes / model.shape.ranks
    walk = _Walk(model, nbytes, rows_each=False, start=model.costs.row_s + model.work(chunk / model.slices(chunk)))
    _gather(walk)
    return Time(walk.end, model.shape.largest * walk.work)
