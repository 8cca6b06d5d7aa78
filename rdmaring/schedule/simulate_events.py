"""The event simulator: any schedule, one event after another in the order of time.

A slice of a row passes through a rank's processor when all it needs is there, then queues at its sender's port and at
its receiver's, first in, first out. The model is that of docs/SIMULATE.md.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import defaultdict, deque
from dataclasses import dataclass

from rdmaring.schedule.cluster import Cluster
from rdmaring.schedule.simulate_table import Node, Table, Target

DONE, ARRIVED, AT_PORT, LEFT = range(4)
SLOTS = 2  # slices of a row that wait at a port: so rows that send at once take turns there

Port = tuple[str, int]  # a rank's own, or a rail
NO_PORT: Port = ("", 0)


@dataclass(frozen=True, slots=True)
class Outcome:
    """seconds: when the last rank is done. finished: of each rank. work, sent: seconds and bytes of each rank.

    extrapolated: so many slices that fewer were simulated: twice, and the time for all by the line through both.
    """

    seconds: float
    finished: tuple[float, ...]
    work: tuple[float, ...]
    sent: tuple[float, ...]
    extrapolated: bool = False


def slice_count(nbytes: float, slice_bytes: float) -> int:
    """Of a row with so many bytes."""
    return max(1, math.ceil(nbytes / slice_bytes - 1e-9))


def slice_counts(table: Table, nbytes: float, slice_bytes: int) -> list[int]:
    """Of each row."""
    return [slice_count(nbytes * (node.end - node.begin), slice_bytes) for node in table.nodes]


class EventRun:
    """One run; times in seconds."""

    def __init__(self, table: Table, nbytes: float, cluster: Cluster) -> None:
        costs = cluster.costs
        self.table, self.costs = table, costs
        self.slices = slice_counts(table, nbytes, costs.slice_bytes)
        nodes = table.nodes
        self.size = [nbytes * (node.end - node.begin) / count for node, count in zip(nodes, self.slices, strict=True)]
        self.home = cluster.node_of_rank()
        self.rails = [cluster.rail_of_rank(channel) for channel in range(costs.rails)]
        self.factor = [cluster.stragglers.get(rank, 1.0) for rank in range(table.world)]
        self.slow = {**cluster.slow_links, **{(b, a): factor for (a, b), factor in cluster.slow_links.items()}}
        self.jitter = cluster.jitter
        self.random = random.Random(cluster.seed)
        self.work = [self._work(node, size) for node, size in zip(nodes, self.size, strict=True)]
        self.users: list[list[int]] = [[] for _ in nodes]  # rows that need a row
        for number, node in enumerate(nodes):
            for need in node.needs:
                self.users[need.row].append(number)
        self.got = [[0] * count for count in self.slices]
        self.issued = [0] * len(nodes)
        self.done = [0] * len(nodes)
        self.left = [0] * len(nodes)  # slices whose sends have left
        self.head = list(table.first[:-1])
        world = table.world
        self.ready: list[deque[tuple[int, int]]] = [deque() for _ in range(world)]
        self.busy = [False] * world
        self.free = [costs.processors_per_node or size for size in cluster.sizes]
        self.waiting: list[deque[int]] = [deque() for _ in cluster.sizes]
        self.out_free: dict[Port, float] = {}
        self.in_free: dict[Port, float] = {}
        self.link_at: dict[tuple[int, int], float] = {}
        self.finished = [0.0] * world
        self.worked = [0.0] * world
        self.sent = [0.0] * world
        self.heap: list[tuple[float, int, int, int, int, float, Port]] = []
        self.count = 0

    def _work(self, node: Node, size: float) -> float:
        """Of the processor, for one slice."""
        costs = self.costs
        cpu = sum((costs.near if self._near(node.rank, target) else costs.far).cpu_s_per_byte for target in node.sends)
        messages = max(1, node.receives, len(node.sends))
        work = costs.slice_s * messages + size * (node.adds * costs.reduce_s_per_byte + cpu)
        return work * self.factor[node.rank]

    def _near(self, rank: int, target: Target) -> bool:
        return self.home[rank] == self.home[target.rank] and not target.away

    def _push(self, at: float, kind: int, row: int, part: int, wire: float = 0.0, port: Port = NO_PORT) -> None:
        self.count += 1
        heapq.heappush(self.heap, (at, self.count, kind, row, part, wire, port))

    def run(self) -> Outcome:
        """To the end.

        Raises:
            RuntimeError: some rows never ran: the schedule stops.
        """
        table = self.table
        for rank in range(table.world):
            for row in range(table.first[rank], min(table.first[rank] + table.window, table.first[rank + 1])):
                self._look(row, 0.0)
        heap = self.heap
        while heap:
            now, _, kind, row, part, wire, port = heapq.heappop(heap)
            if kind == DONE:
                self._finish(row, part, now)
            elif kind == AT_PORT:
                self._receive(row, part, now, wire, port)
            elif kind == ARRIVED:
                self.got[row][part] += 1
                self._look(row, now)
            else:
                self._leave(row, part, now)
        if self.done != self.slices:
            stuck = next(n for n, (done, want) in enumerate(zip(self.done, self.slices, strict=True)) if done < want)
            rank = table.nodes[stuck].rank
            raise RuntimeError(f"rank {rank}, row {stuck - table.first[rank]} never ran: the schedule stops there")
        return Outcome(max(self.finished), tuple(self.finished), tuple(self.worked), tuple(self.sent))

    def busiest(self) -> float:
        """Seconds for which the busiest port, way between nodes or processor is held; no event is run for it."""
        costs = self.costs
        held: defaultdict[tuple[str, Port], float] = defaultdict(float)
        for row, node in enumerate(self.table.nodes):
            rank, count = node.rank, self.slices[row]
            held["processor", ("rank", rank)] += costs.row_s * self.factor[rank] + self.work[row] * count
            for target in node.sends:
                near = self._near(rank, target)
                wire = self.size[row] * count * (costs.near if near else costs.far).s_per_byte
                ends = (
                    (("rank", rank), ("rank", target.rank)) if near else self._rails(rank, target.rank, target.channel)
                )
                held["out", ends[0]] += wire
                held["in", ends[1]] += wire
                if not near:
                    held["way", ("node", self.home[rank])] += wire * costs.oversubscription / costs.rails
        nodes = [0.0] * len(self.free)
        for rank in range(self.table.world):
            nodes[self.home[rank]] += held["processor", ("rank", rank)]
        shared = (time / processors for time, processors in zip(nodes, self.free, strict=True))
        return max(*held.values(), *shared)

    def _look(self, row: int, now: float) -> None:
        """Give to the processor what of a row has become ready."""
        node = self.table.nodes[row]
        rank = node.rank
        if row >= self.head[rank] + self.table.window:
            return
        got, count = self.got[row], self.slices[row]
        while self.issued[row] < count:
            part = self.issued[row]
            if node.sends and part >= self.left[row] + SLOTS:
                return
            if got[part] < node.receives or not self._met(row, node, part):
                return
            self.issued[row] = part + 1
            self.ready[rank].append((row, part))
            if not self.busy[rank] and len(self.ready[rank]) == 1:
                self._offer(rank, now)

    def _met(self, row: int, node: Node, part: int) -> bool:
        """What the slice needs of earlier rows is done."""
        for need in node.needs:
            done = self.done[need.row]
            if done == self.slices[need.row]:
                continue
            if need.whole:
                return False
            earlier = self.table.nodes[need.row]
            length, count = node.end - node.begin, self.slices[row]
            begin, end = node.begin + length * part / count, node.begin + length * (part + 1) / count
            if end <= earlier.begin or begin >= earlier.end:
                continue
            reach = (min(end, earlier.end) - earlier.begin) / ((earlier.end - earlier.begin) or 1.0)
            if done < math.ceil(reach * self.slices[need.row] - 1e-9):
                return False
        return True

    def _offer(self, rank: int, now: float) -> None:
        """The rank wants a processor."""
        home = self.home[rank]
        if self.free[home] and not self.waiting[home]:
            self._begin(rank, now)
        else:
            self.waiting[home].append(rank)
            self.busy[rank] = True  # in the queue: it is offered no second time

    def _begin(self, rank: int, now: float) -> None:
        row, part = self.ready[rank].popleft()
        self.free[self.home[rank]] -= 1
        self.busy[rank] = True
        work = self.work[row] + (self.costs.row_s * self.factor[rank] if part == 0 else 0.0)
        self.worked[rank] += work
        self._push(now + work, DONE, row, part)

    def _finish(self, row: int, part: int, now: float) -> None:
        """A slice has passed the processor: it is sent, and others may go on."""
        node = self.table.nodes[row]
        rank, home = node.rank, self.home[node.rank]
        self.done[row] += 1
        self.finished[rank] = now
        self.free[home] += 1
        self.busy[rank] = False
        leaves = now
        for target in node.sends:
            leaves = max(leaves, self._send(row, part, target, now))
        if part + 1 == self.slices[row] or (node.sends and self.slices[row] > SLOTS):
            self._push(leaves, LEFT, row, part)
        for user in self.users[row]:
            self._look(user, now)
        if not self.busy[rank] and self.ready[rank]:
            self._offer(rank, now)
        while self.free[home] and self.waiting[home]:
            self._begin(self.waiting[home].popleft(), now)

    def _send(self, row: int, part: int, target: Target, now: float) -> float:
        """Through the sender's port; returns when it has left."""
        rank, peer, size, costs = self.table.nodes[row].rank, target.rank, self.size[row], self.costs
        near = self._near(rank, target)
        level = costs.near if near else costs.far
        slow = self.slow.get((rank, peer), 1.0)
        wire = size * level.s_per_byte * slow
        port, there = (("rank", rank), ("rank", peer)) if near else self._rails(rank, peer, target.channel)
        begin = max(now, self.out_free.get(port, 0.0))
        end = begin + wire * self.factor[rank]
        self.out_free[port] = end
        late = 0.0
        if not near and costs.oversubscription > 1.0:
            way = ("node", self.home[rank])
            start = max(begin, self.out_free.get(way, 0.0))
            self.out_free[way] = start + wire * costs.oversubscription / costs.rails
            late = max(0.0, self.out_free[way] - end)
        arrives = end - wire + late + level.latency_s
        if self.jitter:
            arrives += level.latency_s * self.jitter * self.random.expovariate(1.0)
            arrives = max(arrives, self.link_at.get((rank, peer), 0.0))  # first in, first out
            self.link_at[rank, peer] = arrives
        self.sent[rank] += size
        self._push(arrives, AT_PORT, target.row, part, wire, there)
        return end

    def _rails(self, rank: int, peer: int, channel: int) -> tuple[Port, Port]:
        rails = self.rails[channel % self.costs.rails]
        return ("rail", rails[rank]), ("rail", rails[peer])

    def _receive(self, row: int, part: int, now: float, wire: float, port: Port) -> None:
        """Through the receiver's port."""
        end = max(now, self.in_free.get(port, 0.0)) + wire
        self.in_free[port] = end
        self._push(end, ARRIVED, row, part)

    def _leave(self, row: int, part: int, now: float) -> None:
        """A slice has left: its row may send another; or the row is over, and rows leave the window in order."""
        self.left[row] = part + 1
        if part + 1 < self.slices[row]:
            self._look(row, now)
            return
        rank = self.table.nodes[row].rank
        head, window, end = self.head[rank], self.table.window, self.table.first[rank + 1]
        while head < end and self.left[head] == self.slices[head]:
            head += 1
            self.head[rank] = head
            if head + window - 1 < end:
                self._look(head + window - 1, now)
