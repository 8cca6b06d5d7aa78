"""The same model for thousands of ranks: row by row, slice by slice, for all ranks at once.

Processor and ports serve what comes in the order of rows, not of time; where all ranks do the same the two agree.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rdmaring.schedule.cluster import Cluster
from rdmaring.schedule.simulate_events import SLOTS, Outcome, slice_count
from rdmaring.schedule.simulate_pattern import Pattern, Source, Step, Wait

Times = NDArray[np.float64]
Ranks = NDArray[np.intp]
WINDOW_KEPT = 256  # a wider window is never what a rank waits for


class _Route(NamedTuple):
    """One send of every rank: the ports it takes, by sender."""

    out: Ranks
    into: Ranks
    way: Ranks | None  # the node it leaves, if the way between nodes is narrower than the rails
    s_per_byte: Times
    latency: Times
    cpu_s_per_byte: Times
    alone: bool  # no two use the same port


def _serve(ports: Ranks, ready: Times, hold: Times, free: Times, alone: bool) -> Times:
    """When each begins to hold its port, first in, first out; ``free`` says when each port is, before and after."""
    if alone:
        begin: Times = np.maximum(ready, free[ports])
        free[ports] = begin + hold
        return begin
    begin = np.empty(len(ports))
    order = np.lexsort((ready, ports))
    of_port = ports[order]
    starts = np.flatnonzero(np.append(True, of_port[1:] != of_port[:-1]))
    place = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
    for turn in range(int(place.max()) + 1):
        now = order[place == turn]
        begin[now] = np.maximum(ready[now], free[ports[now]])
        free[ports[now]] = begin[now] + hold[now]
    return begin


class ArrayRun:
    """One run of a pattern on a cluster; times in seconds."""

    def __init__(self, pattern: Pattern, nbytes: float, cluster: Cluster) -> None:
        world = pattern.world
        self.pattern, self.nbytes, self.cluster, self.costs = pattern, nbytes, cluster, cluster.costs
        self.ranks = np.arange(world)
        self.node = np.asarray(cluster.node_of_rank())
        self.rails = [world + np.asarray(cluster.rail_of_rank(channel)) for channel in range(self.costs.rails)]
        self.factor = np.ones(world)
        for rank, factor in cluster.stragglers.items():
            self.factor[rank] = factor
        self.random = np.random.default_rng(cluster.seed)
        ports = world + len(cluster.sizes) * self.costs.rails
        self.processor: Times = np.zeros(world)
        self.out: Times = np.zeros(ports)
        self.into: Times = np.zeros(ports)
        self.ways: Times = np.zeros(len(cluster.sizes))
        self.routes: dict[tuple[tuple[int, ...], int], _Route] = {}
        self.arrived: dict[tuple[int, int], Times] = {}  # (row, send): by sender, at the receiver, by slice
        self.done: dict[int, Times] = {}
        self.worked: Times = np.zeros(world)
        self.sent = 0.0
        self.unused_after = _last_uses(pattern)

    def slices(self, step: Step) -> int:
        """Of a row."""
        return slice_count(self.nbytes * step.length, self.costs.slice_bytes)

    def run(self) -> Outcome:
        """To the end."""
        retired: deque[Times] = deque()
        over: Times = np.zeros(self.pattern.world)
        for index, step in enumerate(self.pattern.steps):
            opens = retired.popleft() if len(retired) >= self.pattern.window else None
            left = self._step(index, step, opens)
            over = np.maximum(over, left)
            if self.pattern.window <= WINDOW_KEPT:
                retired.append(over)
            self._forget(index)
        seconds = float(self.processor.max())
        processors = self.costs.processors_per_node
        if processors is not None:
            work = np.bincount(self.node, weights=self.worked) / processors
            seconds = max(seconds, float(work.max()))
        sent = (self.sent,) * self.pattern.world
        return Outcome(seconds, tuple(self.processor), tuple(self.worked), sent)

    def _step(self, index: int, step: Step, opens: Times | None) -> Times:
        """One row of all ranks; returns when all of it has left."""
        costs, count = self.costs, self.slices(step)
        size = self.nbytes * step.length / count
        ready = self._ready(step, count, opens)
        routes = [self._route(distances, step.channel) for distances in step.distances]
        messages = max(1, len(step.sources), len(step.distances))
        work = costs.slice_s * messages + size * step.adds * costs.reduce_s_per_byte
        each = np.full(self.pattern.world, work)
        for route in routes:
            each += size * route.cpu_s_per_byte
        each *= self.factor
        done = np.empty((count, self.pattern.world))
        arrivals = [np.empty((count, self.pattern.world)) for _ in step.distances]
        left: list[Times] = []
        for part in range(count):
            begin = np.maximum(ready[part], self.processor)
            if step.distances and part >= SLOTS:
                begin = np.maximum(begin, left[part - SLOTS])
            self.processor = begin + each + (costs.row_s * self.factor if part == 0 else 0.0)
            done[part] = self.processor
            gone = self.processor
            for number, route in enumerate(routes):
                arrivals[number][part], end = self._send(route, size, self.processor)
                gone = np.maximum(gone, end)
            left.append(gone)
        self.worked += each * count + costs.row_s * self.factor
        self.sent += size * count * len(step.distances)
        for number, arrival in enumerate(arrivals):
            self.arrived[index, number] = arrival
        self.done[index] = done
        return left[-1]

    def _ready(self, step: Step, count: int, opens: Times | None) -> Times:
        """When each slice has what it needs."""
        ready = np.zeros((count, self.pattern.world))
        if opens is not None:
            ready = np.maximum(ready, opens)
        for sources in step.sources:
            ready = np.maximum(ready, self._received(sources))
        for wait in step.waits:
            earlier = self.done[wait.row]
            for part in range(count):
                needed = _needed(step, wait, part, count, len(earlier))
                if needed:
                    ready[part] = np.maximum(ready[part], earlier[needed - 1])
        return ready

    def _received(self, sources: tuple[Source, ...]) -> Times:
        """Arrivals, by receiver."""
        first = sources[0]
        if all(source == first for source in sources):
            return np.roll(self.arrived[first.row, first.send], first.distance, axis=1)
        period = self.pattern.period
        parts = [
            self.arrived[source.row, source.send][:, (self.ranks[place::period] - source.distance) % self.pattern.world]
            for place, source in enumerate(sources)
        ]
        found = np.empty((len(parts[0]), self.pattern.world))
        for place, part in enumerate(parts):
            found[:, place::period] = part
        return found

    def _route(self, distances: tuple[int, ...], channel: int) -> _Route:
        """The send that goes so far, by class of ranks."""
        key = distances, channel % self.costs.rails
        if key not in self.routes:
            self.routes[key] = self._find_route(*key)
        return self.routes[key]

    def _find_route(self, distances: tuple[int, ...], rail: int) -> _Route:
        world, near, far = self.pattern.world, self.costs.near, self.costs.far
        peers = (self.ranks + np.asarray(distances)[self.ranks % self.pattern.period]) % world
        is_near = self.node == self.node[peers]
        out = np.where(is_near, self.ranks, self.rails[rail])
        into = np.where(is_near, peers, self.rails[rail][peers])
        s_per_byte = np.where(is_near, near.s_per_byte, far.s_per_byte)
        for (a, b), factor in self.cluster.slow_links.items():
            s_per_byte[((self.ranks == a) & (peers == b)) | ((self.ranks == b) & (peers == a))] *= factor
        return _Route(
            out=out,
            into=into,
            way=np.where(is_near, -1, self.node) if self.costs.oversubscription > 1.0 else None,
            s_per_byte=s_per_byte,
            latency=np.where(is_near, near.latency_s, far.latency_s),
            cpu_s_per_byte=np.where(is_near, near.cpu_s_per_byte, far.cpu_s_per_byte),
            alone=len(np.unique(out)) == len(np.unique(into)) == world,
        )

    def _send(self, route: _Route, size: float, now: Times) -> tuple[Times, Times]:
        """Through both ports: (when it is at the receiver, when it has left), by sender."""
        wire = size * route.s_per_byte
        hold = wire * self.factor
        end = _serve(route.out, now, hold, self.out, route.alone) + hold
        there = end - wire + route.latency
        if route.way is not None:
            far = np.flatnonzero(route.way >= 0)
            share = wire[far] * self.costs.oversubscription / self.costs.rails
            through = _serve(route.way[far], end[far] - hold[far], share, self.ways, False) + share
            there[far] += np.maximum(0.0, through - end[far])
        if self.cluster.jitter:
            there += route.latency * self.cluster.jitter * self.random.exponential(size=len(there))
        return _serve(route.into, there, wire, self.into, route.alone) + wire, end

    def _forget(self, index: int) -> None:
        """What no later row asks for."""
        rows, sends = self.unused_after.pop(index, ((), ()))
        for row in rows:
            self.done.pop(row, None)
        for send in sends:
            self.arrived.pop(send, None)


def _last_uses(pattern: Pattern) -> dict[int, tuple[list[int], list[tuple[int, int]]]]:
    """By row: the rows, and the sends, that nobody asks for after it."""
    rows = {index: index for index in range(len(pattern.steps))}
    sends: dict[tuple[int, int], int] = {}
    for index, step in enumerate(pattern.steps):
        for wait in step.waits:
            rows[wait.row] = index
        for sources in step.sources:
            for source in sources:
                sends[source.row, source.send] = index
    found: dict[int, tuple[list[int], list[tuple[int, int]]]] = {}
    for row, last in rows.items():
        found.setdefault(last, ([], []))[0].append(row)
    for send, last in sends.items():
        found.setdefault(last, ([], []))[1].append(send)
    return found


def _needed(step: Step, wait: Wait, part: int, count: int, earlier: int) -> int:
    """How many slices of the earlier row a slice waits for."""
    if wait.whole:
        return earlier
    begin, end = step.begin + step.length * part / count, step.begin + step.length * (part + 1) / count
    if end <= wait.begin or begin >= wait.end:
        return 0
    reach = (min(end, wait.end) - wait.begin) / ((wait.end - wait.begin) or 1.0)
    return min(earlier, max(1, math.ceil(reach * earlier - 1e-9)))
