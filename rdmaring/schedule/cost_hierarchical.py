"""Closed forms of the hierarchical all-reduce: inside the nodes, between them, inside again.

Each rank owns a g-th of the vector, g being the ranks of a node; with more than two nodes that is cut in a
part for each node. Two nodes swap sums, up to NODES_DIRECT_MAX exchange them directly, more form a ring.
"""

from __future__ import annotations

from rdmaring.schedule.cost_direct import direct1_all_reduce, direct_all_reduce
from rdmaring.schedule.cost_model import Leg, Model
from rdmaring.schedule.cost_ring import Time, ring_all_reduce

NODES_DIRECT_MAX = 8
SLOTS = 2  # slices of a row that wait at a port, as in the simulator


class _Parts:
    """What one part takes inside a node and between nodes; seconds for a slice unless said otherwise."""

    def __init__(self, model: Model, nbytes: float, parts: int) -> None:
        shape, costs = model.shape, model.costs
        self.model, self.parts = model, parts
        self.inside = shape.largest - 1
        self.outside = shape.nodes - 1
        chunk = nbytes / shape.largest / parts
        self.near = model.leg(False, chunk)
        self.far: Leg = model.leg(True, chunk, senders=shape.largest)
        self.slices, self.row = self.near.slices, self.near.row
        self.size = chunk / self.slices
        self.near_cpu = self.size * costs.near.cpu_s_per_byte
        self.far_cpu = self.size * costs.far.cpu_s_per_byte
        self.copy = costs.slice_s
        self.send = costs.slice_s + self.near_cpu  # to one neighbour
        self.sum = model.work(self.size, self.inside, max(1, self.inside))  # of the node's contributions
        # of the processor for a whole part: what it sends into its node, adds, and receives from it
        self.spread_work = self.inside * (self.row + self.slices * self.send)
        self.sum_work = self.row + self.slices * (self.sum + self.far_cpu)
        self.gather_work = self.inside * (self.row + self.slices * self.copy)
        self.near_port = self.inside * self.slices * self.near.wire  # for a whole part
        self.far_port = self.slices * self.far.port

    @property
    def spread(self) -> float:
        """From the first send into the node to the first slice's being there from all neighbours: they take turns."""
        ahead = min(self.slices, SLOTS)
        issue = (self.inside - 1) * (self.row + ahead * self.send)
        busy = max((self.inside - 1) * ahead * self.near.wire, issue)
        return self.row + self.send + busy + self.near.wire + self.near.latency

    def add(self, receives: int, near: bool, far: int) -> float:
        """Work of a row that adds what came from other nodes and sends it to neighbours (near) and so many nodes."""
        sends = far + (self.inside if near else 0)
        cpu = far * self.far_cpu + (self.inside * self.near_cpu if near else 0.0)
        costs = self.model.costs
        return costs.slice_s * max(receives, sends, 1) + receives * self.size * costs.reduce_s_per_byte + cpu

    @property
    def hand_out(self) -> float:
        """A result to all neighbours: from leaving the processor to the last one's having it."""
        return self.inside * self.near.wire + self.near.latency + self.row + self.copy


def _one_hop(model: Model, nbytes: float) -> Time:
    """Two nodes: their owners swap sums."""
    part = _Parts(model, nbytes, 1)
    total = part.sum + part.far_cpu
    added = part.add(1, True, 0)
    stage = max(part.far.port, part.inside * part.near.wire, total + added)
    across = part.far.port + part.far.latency + part.row + added
    few = part.spread + part.row + total + across + part.hand_out + (part.slices - 1) * stage
    copies = part.inside * (part.row + part.copy)  # neighbours hand out one rail's turn after another
    turns = max(0.0, part.far.port - part.far.wire)
    port = part.row + part.send + 2 * part.near_port + part.near.latency + part.row + part.copy
    work = part.spread_work + part.sum_work + part.row + part.slices * added + part.gather_work
    return Time(
        max(few, few - part.hand_out - turns + part.near.wire + part.near.latency + copies, port, work),
        model.shape.largest * work,
    )


def _two_hops(model: Model, nbytes: float) -> Time:
    """Part t of what a rank owns is added by its owner on node t, and sent back to all."""
    part = _Parts(model, nbytes, model.shape.nodes)
    others = part.outside
    each = max(part.near_port, part.spread_work + part.sum_work)  # from one part's sum to the next
    total, added = part.sum + part.far_cpu, part.add(others, True, others)
    passed = part.add(0, True, 0)
    first_sum = part.spread + part.row + total
    arrived = first_sum + (others - 1) * each + part.far.port + part.far.latency
    own_sum = part.spread + others * each + part.row + part.sum
    summed = max(arrived, own_sum) + part.row + added
    back = others * part.far.port + part.far.latency + part.row + passed
    stage = max(others * part.far.port, part.inside * part.near.wire, added)
    few = summed + back + part.hand_out + (part.slices - 1) * stage
    near_total = 2 * part.near_port * part.parts + part.near.latency
    far_total = part.spread + part.row + total + 2 * others * part.far_port + part.far.latency + part.row + passed
    work = part.parts * (part.spread_work + part.sum_work + part.gather_work)
    work += part.row + part.slices * added + others * (part.row + part.slices * passed)
    critical = max(few, near_total + part.row + part.send, far_total + part.hand_out, work)
    return Time(critical, model.shape.largest * work)


def _ring_of_nodes(model: Model, nbytes: float) -> Time:
    """Part t of what a rank owns goes round the nodes, adding, and round again, whole."""
    part = _Parts(model, nbytes, model.shape.nodes)
    turns = part.outside
    added, passed = part.add(1, False, 1), part.add(0, True, 1)
    turn_work = part.spread_work + part.sum_work + part.row + part.slices * added
    back_work = part.row + part.slices * passed + part.gather_work
    # Ranks of a node queue at its rails once; from then on each finds its turn free.
    hop = part.far.wire + part.far.latency + part.row
    scatter = max(hop + added, part.far_port, part.near_port, turn_work)
    gather = max(hop + passed, part.far_port, part.near_port, back_work)
    begin = part.spread + part.row + part.sum + part.far_cpu
    tail = (part.slices - 1) * max(part.far.port, part.inside * part.near.wire, passed)
    queue = part.far.port - part.far.wire
    critical = begin + queue + turns * scatter + (turns - 1) * gather + hop + passed + tail + part.hand_out
    work = (turns + 1) * (part.spread_work + part.sum_work + part.gather_work)
    work += turns * (2 * part.row + part.slices * (added + passed))
    return Time(critical, model.shape.largest * work)


def ring_all_reduce_of_nodes(model: Model, nbytes: float) -> Time:
    """A ring between nodes whatever their number; of one node: direct; of nodes with one rank each: the ring."""
    if model.shape.nodes == 1:
        return direct_all_reduce(model, nbytes)
    if model.shape.largest == 1:
        return ring_all_reduce(model, nbytes)
    return _ring_of_nodes(model, nbytes)


def all_reduce(model: Model, nbytes: float) -> Time:
    """One hop between two nodes, two between up to NODES_DIRECT_MAX, a ring between more."""
    shape = model.shape
    if shape.nodes > NODES_DIRECT_MAX or shape.nodes == 1:
        return ring_all_reduce_of_nodes(model, nbytes)
    if shape.largest == 1:  # two exchange their vectors, more cut them
        return direct1_all_reduce(model, nbytes) if shape.nodes == 2 else direct_all_reduce(model, nbytes)
    return _one_hop(model, nbytes) if shape.nodes == 2 else _two_hops(model, nbytes)
