"""Ranks that agree over a network which loses, repeats, delays and cuts, and that die at any moment; by seed."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rdmaring.recover.agreement import Agreement, Here, Message, Outcome, Record

TICK_S = 0.1
CHAOS_S = 6.0  # then the network is whole again, and nobody dies any more
END_S = 30.0


@dataclass
class Rank:
    """One process: what it has stored outlives it."""

    agreement: Agreement | None = None
    stored: Record = field(default_factory=Record)
    alive: bool = True
    returned: Outcome | None = None


class Eager(Agreement):
    """Proposes at any time, and something else each time: what is safe must not depend on who proposes."""

    chance: random.Random

    def _may_propose(self, now: float) -> bool:
        return self.chance.random() < 0.3 and self._is_enough(self._survivors())

    def _survivors(self) -> tuple[int, ...]:
        known = super()._survivors()
        return tuple(rank for rank in known if rank == self.rank or self.chance.random() < 0.8)


class World:
    """A world of ``size`` ranks on nodes; a rank proves deaths on its own node only."""

    def __init__(self, seed: int, agreement: Callable[..., Agreement] = Agreement) -> None:
        self.random = random.Random(seed)
        self.eager = self.random.random() < 0.5
        self.make = type("Eager", (Eager, agreement), {"chance": self.random}) if self.eager else agreement
        self.size = self.random.randint(1, 7)
        node_count = self.random.randint(1, 3)
        self.node = [self.random.randrange(node_count) for _ in range(self.size)]
        self.loss = self.random.choice((0.0, 0.05, 0.3))
        self.repeated = self.random.choice((0.0, 0.1))
        self.delay_s = self.random.choice((0.001, 0.05, 0.6))
        self.ranks = [Rank() for _ in range(self.size)]
        self.patience_s = [self.random.choice((0.0, 1.0)) for _ in range(self.size)]
        self.last_op = [self.random.randint(5, 7) for _ in range(self.size)]
        # These have not heard of each other when the others propose: so proposals differ.
        self.deaf = {pair for pair in self._pairs() if self.random.random() < self.random.choice((0.0, 0.5))}
        self.cuts: list[tuple[float, float, frozenset[int]]] = []
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.now = 0.0
        self._serial = 0
        self._plan_faults()

    def _pairs(self) -> list[tuple[int, int]]:
        return [(a, b) for a in range(self.size) for b in range(self.size) if a != b]

    def _plan_faults(self) -> None:
        everyone = range(self.size)
        for rank in everyone:
            self.at(self.random.choice((0.0, 0.0, self.random.uniform(0, CHAOS_S))), lambda rank=rank: self.enter(rank))
            if self.random.random() < self.random.choice((0.1, 0.6)):
                # in bursts, since what is decided is decided in the first moments
                self.at(self.random.choice((0.0, 1.0)) + self.random.expovariate(3), lambda rank=rank: self.kill(rank))
        for _ in range(self.random.randrange(3)):
            begin = self.random.uniform(0, CHAOS_S / 2)
            side = frozenset(self.random.sample(everyone, self.random.randint(0, self.size)))
            self.cuts.append((begin, self.random.uniform(begin, CHAOS_S), side))
        for _ in range(self.random.choice((0, 3, 12))):  # nobody listens there: true or not
            who, whom = self.random.choices(everyone, k=2)
            self.at(self.random.expovariate(2), lambda who=who, whom=whom: self.miss(who, whom))
        for _ in range(self.random.randrange(3)):  # a call of shrink() that times out, and is made again
            who = self.random.choice(everyone)
            self.at(self.random.uniform(0, CHAOS_S), lambda who=who: self.enter(who))

    # ---- events ----

    def at(self, when: float, what: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self.events, (when, self._serial, what))

    def run(self) -> None:
        while self.events and self.events[0][0] < END_S and not self._is_over():
            self.now, _, what = heapq.heappop(self.events)
            what()

    def _is_over(self) -> bool:
        return all(rank.returned is not None or not rank.alive for rank in self.ranks)

    def enter(self, rank: int) -> None:
        own = self.ranks[rank]
        if not own.alive or own.returned is not None:
            return
        fresh = own.agreement is None
        own.agreement = self.make(
            rank, tuple(range(self.size)), own.stored, self.last_op[rank], 1000 + rank, self.now, self.patience_s[rank]
        )
        if fresh:
            self.tick(rank)

    def tick(self, rank: int) -> None:
        own = self.ranks[rank]
        if not own.alive or own.agreement is None:
            return
        for other in range(self.size):
            proven = not self.ranks[other].alive and self.node[other] == self.node[rank]
            if proven and other not in own.agreement.dead and self.random.random() < 0.3:
                record = self.ranks[other].stored
                self.give(rank, lambda a, other=other, record=record: a.bury(other, record, self.now))
        self.give(rank, lambda a: a.tick(self.now))
        self.at(self.now + TICK_S, lambda: self.tick(rank))

    def miss(self, rank: int, other: int) -> None:
        self.give(rank, lambda a: a.miss(other, self.now))

    def kill(self, rank: int) -> None:
        self.ranks[rank].alive = False

    def give(self, rank: int, event: Callable[[Agreement], None]) -> None:
        """An event, then what it leads to; a dying rank may get through any part of that."""
        own = self.ranks[rank]
        if not own.alive or own.agreement is None:
            return
        event(own.agreement)
        dies = self.now < CHAOS_S and self.random.random() < 0.003
        if dies and self.random.random() < 0.3:
            self.kill(rank)  # before anything is stored
            return
        own.stored = own.agreement.record
        out = own.agreement.take()
        if dies:
            out = self.random.sample(out, self.random.randint(0, len(out)))
        for receiver, message in out:
            self.send(rank, receiver, message)
        if own.agreement.outcome is not None and own.returned is None:
            own.returned = own.agreement.outcome
        if dies:
            self.kill(rank)

    def send(self, sender: int, receiver: int, message: Message) -> None:
        if self.now < CHAOS_S and isinstance(message, Here) and (sender, receiver) in self.deaf:
            return
        copies = 1 + (self.random.random() < self.repeated)
        for _ in range(copies):
            if self.now < CHAOS_S and (self.random.random() < self.loss or self._is_cut(sender, receiver)):
                continue
            delay_s = self.random.expovariate(1 / self.delay_s)
            self.at(self.now + delay_s, lambda: self.give(receiver, lambda a: a.receive(sender, message, self.now)))

    def _is_cut(self, one: int, other: int) -> bool:
        return any(a <= self.now < b and (one in side) != (other in side) for a, b, side in self.cuts)

    # ---- what must hold ----

    def violations(self) -> list[str]:
        """What does not hold at the end, one sentence each."""
        found = []
        outcomes = {rank.returned for rank in self.ranks if rank.returned is not None}
        if len(outcomes) > 1:
            found.append(f"two outcomes of one epoch: {outcomes}")
        for outcome in outcomes:
            found += self._wrong_in(outcome)
        living = [rank for rank in range(self.size) if self.ranks[rank].alive]
        waiting = [rank for rank in living if self.ranks[rank].returned is None]
        if waiting and not self.eager and (2 * len(living) > self.size or self._all_proven_from(living)):
            found.append(f"ranks {waiting} of the living {living} of {self.size} never ended")
        return found

    def _all_proven_from(self, living: list[int]) -> bool:
        nodes = {self.node[rank] for rank in living}
        return all(self.node[rank] in nodes for rank in range(self.size) if rank not in living)

    def _wrong_in(self, outcome: Outcome) -> list[str]:
        survivors = outcome.survivors
        found = []
        absent = [rank for rank in range(self.size) if rank not in survivors]
        if 2 * len(survivors) <= self.size and any(self.ranks[rank].alive for rank in absent):
            found.append(f"a minority {survivors} of {self.size} went on, and one of {absent} lives")
        if outcome.last_op != min(self.last_op[rank] for rank in survivors):
            found.append(f"last_op is {outcome.last_op}; the survivors had finished {self.last_op}")
        if outcome.port != 1000 + survivors[0] or list(survivors) != sorted(set(survivors)):
            found.append(f"{outcome}: the rendezvous is the lowest survivor's")
        return found


def run(seed: int, agreement: Callable[..., Any] = Agreement) -> list[str]:
    world = World(seed, agreement)
    world.run()
    return world.violations()
