"""Closed forms of the algorithms in which ranks talk to all others, or all to one: direct, direct1, naive."""

from __future__ import annotations

from rdmaring.schedule.cost_model import Leg, Model
from rdmaring.schedule.cost_ring import Time

TURN = 2  # slices of a row that wait at a port, as in the simulator


class _Fan:
    """What one rank exchanges with all others: by level, a leg and the number of peers."""

    def __init__(self, model: Model, nbytes: float, *, crowded: bool, add: bool = False) -> None:
        """crowded: all ranks of a node send between nodes at once. add: what arrives is added by one row."""
        shape, costs = model.shape, model.costs
        self.peers = shape.ranks - 1
        near = shape.largest - 1
        senders = shape.largest if crowded else 1
        self.legs: list[tuple[Leg, int]] = []
        if near:
            self.legs.append((model.leg(False, nbytes), near))
        if self.peers > near:
            self.legs.append((model.leg(True, nbytes, senders=senders), self.peers - near))
        leg = self.legs[0][0]
        self.slices = leg.slices
        self.size = nbytes / leg.slices
        self.row = leg.row
        self.receive = costs.slice_s  # work for a slice that is only received
        cpu = sum(
            count * model.level(leg is not self.legs[0][0] or not near).cpu_s_per_byte for leg, count in self.legs
        )
        self.send_work = self.peers * costs.slice_s + self.size * cpu  # for a slice to all peers
        self.add_work = self.peers * (costs.slice_s + self.size * costs.reduce_s_per_byte) if add else 0.0
        self.port = max(count * leg.port for leg, count in self.legs)  # a slice to each peer
        self.first = min(leg.port + leg.latency for leg, _ in self.legs)  # ... until the first is there
        self.away = max(count * leg.port + leg.latency for leg, count in self.legs)  # ... until the last is there


def _scatter(fan: _Fan) -> float:
    """All send a chunk to each, one row each, and begin to have the first slice of all: N - 1 rows."""
    each = fan.send_work / fan.peers
    issue = (fan.peers - 1) * (fan.row + fan.slices * each)
    arrived = 0.0
    for leg, count in fan.legs:
        busy = max((count - 1) * leg.slices * leg.port, issue)
        arrived = max(arrived, fan.row + each + busy + leg.port + leg.latency)
    return arrived


def direct_reduce_scatter(model: Model, nbytes: float) -> Time:
    """One step: chunk p to each p; all contributions to the own chunk are added by one row.

    Rows that send take turns, TURN slices each, so all contributions grow alike; the last peer's last turn ends it.
    """
    fan = _Fan(model, nbytes / model.shape.ranks, crowded=True, add=True)
    port = max(leg.port for leg, _ in fan.legs)
    behind = (min(fan.slices, TURN) - 1) * max(0.0, fan.add_work - port)
    critical = _scatter(fan) + (fan.slices - 1) * port + fan.row + fan.add_work + behind
    work = fan.peers * fan.row + fan.slices * (fan.send_work + fan.add_work) + fan.row
    return Time(max(critical, work), model.shape.largest * work)


def direct_all_reduce(model: Model, nbytes: float) -> Time:
    """Two steps: as reduce_scatter, then each sends its chunk to all."""
    fan = _Fan(model, nbytes / model.shape.ranks, crowded=True, add=True)
    made = fan.add_work + fan.send_work - fan.peers * model.costs.slice_s  # a slice received from all is sent to all
    begin = _scatter(fan) + fan.row + made
    copies = fan.peers * (fan.row + fan.slices * fan.receive)
    at_port = (fan.slices - 1) * max(fan.port, made) + fan.away + fan.row + fan.receive
    at_processor = (fan.slices - 1) * made + fan.first + copies
    # Where chunks have many slices the port is never idle: what is sent on queues behind what is not yet sent.
    streamed = 2 * fan.row + fan.send_work / fan.peers + fan.receive
    streamed += max(2 * count * fan.slices * leg.port + leg.latency for leg, count in fan.legs)
    work = fan.slices * (fan.send_work + made) + copies + (fan.peers + 1) * fan.row
    return Time(max(begin + at_port, begin + at_processor, streamed), model.shape.largest * work)


def direct_all_gather(model: Model, nbytes: float) -> Time:
    """One step: the own chunk to all."""
    fan = _Fan(model, nbytes / model.shape.ranks, crowded=True)
    copies = fan.peers * (fan.row + fan.slices * fan.receive)
    first = fan.row + fan.send_work
    at_port = (fan.slices - 1) * max(fan.port, fan.send_work) + fan.away + fan.row + fan.receive
    at_processor = (fan.slices - 1) * fan.send_work + fan.first + copies
    work = fan.slices * fan.send_work + fan.row + copies
    return Time(first + max(at_port, at_processor), model.shape.largest * work)


def direct_all_to_all(model: Model, nbytes: float) -> Time:
    """One step: to each its part of the vector."""
    fan = _Fan(model, nbytes / model.shape.ranks, crowded=True)
    copies = fan.peers * (fan.row + fan.slices * fan.receive)
    leg_tail = max((leg.slices - 1) * leg.port for leg, _ in fan.legs)
    own = fan.row + fan.slices * fan.receive  # a copy
    arrived = own + _scatter(fan) + leg_tail + fan.row + fan.receive
    sends = own + fan.peers * fan.row + fan.slices * fan.send_work
    return Time(max(arrived, sends + copies), model.shape.largest * (sends + copies))


def direct1_all_reduce(model: Model, nbytes: float) -> Time:
    """One step: the whole vector to all, added by everybody."""
    fan = _Fan(model, nbytes, crowded=True, add=True)
    stage = max(fan.port, fan.send_work + fan.add_work)
    critical = fan.row + fan.send_work + fan.away + fan.row + fan.add_work + (fan.slices - 1) * stage
    work = 2 * fan.row + fan.slices * (fan.send_work + fan.add_work)
    return Time(critical, model.shape.largest * work)


def direct_broadcast(model: Model, nbytes: float) -> Time:
    """The root sends the vector to each."""
    fan = _Fan(model, nbytes, crowded=False)
    stage = max(fan.port, fan.send_work)
    critical = fan.row + fan.send_work + (fan.slices - 1) * stage + fan.away + fan.row + fan.receive
    others = (model.shape.largest - 1) * (fan.row + fan.slices * fan.receive)
    return Time(critical, fan.row + fan.slices * fan.send_work + others)


def direct_reduce(model: Model, nbytes: float) -> Time:
    """Each sends the vector to the root, which adds all in one row."""
    fan = _Fan(model, nbytes, crowded=False, add=True)
    sender = max(model.start(far, nbytes) for far in model.levels())
    stage = max(fan.port, fan.add_work)
    critical = sender + fan.away + fan.row + fan.add_work + (fan.slices - 1) * stage
    others = (model.shape.largest - 1) * (fan.row + fan.slices * fan.send_work / fan.peers)
    return Time(critical, fan.row + fan.slices * fan.add_work + others)


def direct_gather(model: Model, nbytes: float) -> Time:
    """Each sends its part of the vector to the root."""
    fan = _Fan(model, nbytes / model.shape.ranks, crowded=False)
    sender = max(model.start(far, nbytes / model.shape.ranks) for far in model.levels())
    copies = fan.peers * (fan.row + fan.slices * fan.receive)
    at_port = fan.away + (fan.slices - 1) * fan.port + fan.row + fan.receive
    critical = sender + max(at_port, fan.first + copies)
    return Time(critical, copies + (model.shape.largest - 1) * sender)


def direct_scatter(model: Model, nbytes: float) -> Time:
    """The root sends to each its part of the vector, one row each."""
    fan = _Fan(model, nbytes / model.shape.ranks, crowded=False)
    tail = max((leg.slices - 1) * leg.port for leg, _ in fan.legs)
    critical = _scatter(fan) + tail + fan.row + fan.receive
    sends = fan.peers * fan.row + fan.slices * fan.send_work
    return Time(critical, sends + (model.shape.largest - 1) * (fan.row + fan.slices * fan.receive))


def naive_all_reduce(model: Model, nbytes: float) -> Time:
    """All vectors to rank 0, added one after another; then the result to each, one after another."""
    fan = _Fan(model, nbytes, crowded=False)
    count, slices = fan.peers, fan.slices
    sender = max(model.start(far, nbytes) for far in model.levels())
    add = model.work(fan.size, 1)
    latency = max(leg.latency for leg, _ in fan.legs)
    rows_in = max(fan.port / count, slices * add + fan.row)
    arrive = sender + latency + (slices - 1) * fan.port + count * rows_in
    each = fan.send_work / count
    rows_out = max(slices * fan.port, count * (fan.row + slices * each))
    critical = arrive + fan.row + each + rows_out + latency + fan.row + fan.receive
    work = count * (2 * fan.row + slices * (add + each)) + (model.shape.largest - 1) * 2 * fan.row
    return Time(critical, work)
