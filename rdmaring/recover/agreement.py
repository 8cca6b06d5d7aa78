"""Who survives: the agreement of one epoch's ranks as a state machine, without sockets, clocks or processes.

It is Paxos for one decision, whose acceptors are the epoch's members. What is new is the dead. What a rank promised
and accepted lies in a record that outlives it (record.py), and whose death is proven can do neither any more. So the
record of a proven dead rank is its last answer, and the two quorums are:

    to choose what to propose: answers and records of the dead together are a majority of the members, or all of them
    to decide: a majority accepted; or all accepted but the proven dead, none of which had promised a higher ballot

No two decisions differ. Let ballot b be decided, and c > b be the first later one to be proposed with something else.
If a majority accepted b, c's proposer has heard of one of them, alive or by its record: it promised c, or died, after
it had accepted b, so the proposer saw b's outcome and took that or a later one. If b was decided with fewer, every
rank that had not accepted it was dead before it promised any ballot above b; so c's proposer itself, which promised c
first, had accepted b, and saw that.

A decision is final also for ranks that died after they returned it. Who survives is never decided by fewer than a
majority of the members, unless all others are proven dead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

Ballot = tuple[int, int]  # round, proposer: no two ranks propose in one ballot
NO_BALLOT: Ballot = (0, -1)

RESEND_S = 0.2
STAGGER_S = 0.5  # a rank proposes in another's place after so long for each that goes before it
STAGGER_RANKS_MAX = 20


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is decided. survivors: ascending. last_op: that all of them had finished. port: where the lowest listens."""

    survivors: tuple[int, ...]
    last_op: int
    port: int


@dataclass(frozen=True, slots=True)
class Record:
    """What a rank must not forget, and what others must be able to read when it is dead."""

    promised: Ballot = NO_BALLOT
    accepted: Ballot = NO_BALLOT
    outcome: Outcome | None = None
    decided: bool = False


@dataclass(frozen=True, slots=True)
class Here:
    """I take part. heard: I know that you do. dead: the proven dead that I know of, and their records."""

    last_op: int
    port: int
    heard: bool
    dead: tuple[tuple[int, Record], ...] = ()


@dataclass(frozen=True, slots=True)
class Prepare:
    ballot: Ballot


@dataclass(frozen=True, slots=True)
class Promise:
    """I answer no ballot below this one. record: what I had accepted before."""

    ballot: Ballot
    record: Record


@dataclass(frozen=True, slots=True)
class Accept:
    ballot: Ballot
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Accepted:
    ballot: Ballot


@dataclass(frozen=True, slots=True)
class Refused:
    """I have promised another."""

    ballot: Ballot
    promised: Ballot


@dataclass(frozen=True, slots=True)
class Decided:
    outcome: Outcome


Message = Here | Prepare | Promise | Accept | Accepted | Refused | Decided


class Agreement:
    """One member's part in it.

    Whoever runs it calls receive(), bury(), miss() and tick(); after each of these stores ``record`` where it outlives
    the process, and only then sends what take() gives. Messages may be lost, repeated, late. ``outcome``: None until
    decided. Times are seconds of one clock of the caller's.
    """

    def __init__(
        self,
        rank: int,
        members: tuple[int, ...],
        record: Record,
        last_op: int,
        port: int,
        now: float,
        patience_s: float,
    ) -> None:
        """members: ascending, this rank among them. record: this rank's, from before if it took part before.

        last_op: that this rank had finished. port: where it would host the survivors' rendezvous.
        patience_s: how long members that live, or may live, are waited for where the others are enough.
        """
        self.rank = rank
        self.members = members
        self.record = record
        self.present: dict[int, Here] = {rank: Here(last_op, port, True)}
        self.dead: dict[int, Record] = {}
        self.missed: set[int] = set()  # nobody listens there: not waited for, but that proves nothing
        self._acknowledged: set[int] = set()
        self._impatient_at = now + patience_s
        self._resend_at = now
        self._propose_at = now
        self._attempts = 0
        self._highest = record.promised
        self._ballot: Ballot | None = None
        self._promises: dict[int, Record] = {}
        self._proposal: Outcome | None = None
        self._accepts: set[int] = set()
        self._out: list[tuple[int, Message]] = []

    @property
    def outcome(self) -> Outcome | None:
        return self.record.outcome if self.record.decided else None

    # ---- what comes in ----

    def receive(self, sender: int, message: Message, now: float) -> None:
        if sender == self.rank or sender not in self.members:
            return
        if isinstance(message, Decided):
            self._decide(message.outcome)
        elif self.outcome is not None:
            self._send(sender, Decided(self.outcome))
        elif isinstance(message, Here):
            self._on_here(sender, message)
        elif isinstance(message, Prepare):
            self._on_prepare(sender, message.ballot)
        elif isinstance(message, Accept):
            self._on_accept(sender, message)
        elif isinstance(message, Promise) and message.ballot == self._ballot:
            self._promises[sender] = message.record
        elif isinstance(message, Accepted) and message.ballot == self._ballot and self._proposal is not None:
            self._accepts.add(sender)
        elif isinstance(message, Refused):
            self._on_refused(message, now)
        self._go_on(now)

    def bury(self, rank: int, record: Record, now: float) -> None:
        """The death of a member is proven here. record: what it left, read after that."""
        if rank in self.members and rank != self.rank and rank not in self.dead and self.outcome is None:
            self._note_dead(rank, record)
            self._acknowledged.clear()  # all are to know
            self._resend_at = now
        self._go_on(now)

    def miss(self, rank: int, now: float) -> None:
        """Nobody listens where that member did."""
        if rank in self.members and rank != self.rank:
            self.missed.add(rank)
        self._go_on(now)

    def tick(self, now: float) -> None:
        """Time has passed. To be called a few times a second."""
        if self.outcome is None and now >= self._resend_at:
            self._resend_at = now + RESEND_S
            self._resend()
        self._go_on(now)

    def take(self) -> list[tuple[int, Message]]:
        """What is to be sent, once ``record`` is stored."""
        out, self._out = self._out, []
        return out

    # ---- as one who is asked ----

    def _on_here(self, sender: int, here: Here) -> None:
        self.present[sender] = here
        self.missed.discard(sender)
        told = {rank for rank, _ in here.dead}
        others = set(self.members) - {self.rank} - self.dead.keys()
        news = [(rank, record) for rank, record in here.dead if rank in others]
        for rank, record in news:
            self._note_dead(rank, record)
        # One that was on its way when a death was proven here acknowledges nothing of that.
        knows_all = told >= self.dead.keys() - {sender}
        if here.heard and knows_all:
            self._acknowledged.add(sender)
        else:
            self._acknowledged.discard(sender)
        if not here.heard or not knows_all or news:
            self._send(sender, self._here(sender))

    def _on_prepare(self, sender: int, ballot: Ballot) -> None:
        self._highest = max(self._highest, ballot)
        if ballot < self.record.promised:
            self._send(sender, Refused(ballot, self.record.promised))
            return
        self.record = replace(self.record, promised=ballot)
        self._send(sender, Promise(ballot, self.record))

    def _on_accept(self, sender: int, message: Accept) -> None:
        self._highest = max(self._highest, message.ballot)
        if message.ballot < self.record.promised:
            self._send(sender, Refused(message.ballot, self.record.promised))
            return
        self.record = Record(message.ballot, message.ballot, message.outcome)
        self._send(sender, Accepted(message.ballot))

    def _note_dead(self, rank: int, record: Record) -> None:
        self.dead[rank] = record
        self._highest = max(self._highest, record.promised)

    # ---- as one who proposes ----

    def _go_on(self, now: float) -> None:
        """Whatever can be done with what is known now."""
        known = [record.outcome for record in self.dead.values() if record.decided]
        if self.outcome is None and known and known[0] is not None:
            self._decide(known[0])
        if self.outcome is not None:
            return
        if self._ballot is None and now >= self._propose_at and self._may_propose(now):
            self._begin()
        if self._ballot is not None and self._ballot < self.record.promised:
            self._give_up(now)  # another one's is under way
        if self._ballot is not None and self._proposal is None:
            self._choose()
        if self._ballot is not None and self._proposal is not None:
            self._count(now)

    def _may_propose(self, now: float) -> bool:
        if not self._is_enough(self._survivors()):
            return False
        before = [rank for rank in self._survivors() if rank < self.rank]
        waited = now >= self._impatient_at
        if not before:
            return waited or all(m in self.present or m in self.dead or m in self.missed for m in self.members)
        return now >= self._impatient_at + STAGGER_S * min(len(before), STAGGER_RANKS_MAX)

    def _survivors(self) -> tuple[int, ...]:
        return tuple(sorted(rank for rank in self.present if rank not in self.dead and rank not in self.missed))

    def _is_enough(self, survivors: tuple[int, ...]) -> bool:
        if 2 * len(survivors) > len(self.members):
            return True
        return all(rank in self.dead for rank in self.members if rank not in survivors)

    def _begin(self) -> None:
        self._ballot = (self._highest[0] + 1, self.rank)
        self._highest = self._ballot
        self.record = replace(self.record, promised=self._ballot)
        self._promises = {self.rank: self.record}
        self._proposal = None
        self._accepts = set()
        self._tell(Prepare(self._ballot))

    def _choose(self) -> None:
        """With enough answers: propose what may have been decided before, else the survivors that are known."""
        answers = {**self.dead, **self._promises}
        if 2 * len(answers) <= len(self.members) and len(answers) < len(self.members):
            return
        latest = max(answers.values(), key=lambda record: record.accepted)
        if latest.outcome is not None:
            self._proposal = latest.outcome
        else:
            survivors = self._survivors()
            if not self._is_enough(survivors):
                return
            last_op = min(self.present[rank].last_op for rank in survivors)
            self._proposal = Outcome(survivors, last_op, self.present[survivors[0]].port)
        assert self._ballot is not None
        self.record = Record(self._ballot, self._ballot, self._proposal)
        self._accepts = {self.rank}
        self._tell(Accept(self._ballot, self._proposal))

    def _count(self, now: float) -> None:
        assert self._ballot is not None
        assert self._proposal is not None
        silent = {rank for rank, record in self.dead.items() if record.promised <= self._ballot}
        if 2 * len(self._accepts) > len(self.members) or self._accepts | silent >= set(self.members):
            self._decide(self._proposal)
        elif len(silent) < len(self.dead):
            self._give_up(now)  # the next ballot is above what the dead had promised

    def _on_refused(self, message: Refused, now: float) -> None:
        self._highest = max(self._highest, message.promised)
        if message.ballot == self._ballot:
            self._give_up(now)

    def _give_up(self, now: float) -> None:
        """Later again, and later than others who do: each by its place."""
        self._ballot = None
        self._attempts += 1
        place = min(self.members.index(self.rank), STAGGER_RANKS_MAX)
        self._propose_at = now + RESEND_S * (1 + place) * min(self._attempts, 10)

    def _decide(self, outcome: Outcome) -> None:
        if self.outcome is not None:
            return
        self.record = replace(self.record, outcome=outcome, decided=True)
        self._ballot = None
        self._tell(Decided(outcome))

    # ---- what goes out ----

    def _here(self, receiver: int) -> Here:
        own = self.present[self.rank]
        return replace(own, heard=receiver in self.present, dead=tuple(sorted(self.dead.items())))

    def _tell(self, message: Message) -> None:
        for rank in self.members:
            if rank != self.rank and rank not in self.dead:
                self._send(rank, message)

    def _send(self, rank: int, message: Message) -> None:
        self._out.append((rank, message))

    def _resend(self) -> None:
        others = [rank for rank in self.members if rank != self.rank and rank not in self.dead]
        # Who has decided answers a Here by that: the lowest is asked again, although it knows that we are here.
        asked = min((rank for rank in others if rank in self.present), default=None)
        for rank in others:
            if rank not in self._acknowledged or rank not in self.present or rank == asked:
                self._send(rank, self._here(rank))
        if self._ballot is None:
            return
        for rank in others:
            if self._proposal is None and rank not in self._promises:
                self._send(rank, Prepare(self._ballot))
            elif self._proposal is not None and rank not in self._accepts:
                self._send(rank, Accept(self._ballot, self._proposal))
