"""Who has come, and rounds of gathering among them: the server's logic, without sockets or clocks."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Protocol

from rdmaring.rendezvous.protocol import (
    Member,
    RendezvousError,
    error_frame,
    frame,
    rank_list,
)


class Seat(Protocol):
    """The server's end of one rank's connection."""

    member: Member | None

    def send(self, data: bytes) -> None: ...


class Group:
    """The ranks of one communicator: assembling, then assembled, then perhaps failed.

    ``deadline`` is the time after which fail_late() is due, in the clock of the ``now`` arguments;
    None while nobody waits.
    """

    def __init__(self, world: int) -> None:
        self.world = world
        self.assembled = False
        self.failure: RendezvousError | None = None
        self.deadline: float | None = None
        self._waited_s = 0.0  # the timeout that deadline comes from
        self._met_at = 0.0
        self._seats: dict[int, Seat] = {}
        self._members: dict[int, Member] = {}
        self._given: dict[int, bytes] = {}
        self._left: dict[int, str] = {}

    @property
    def empty(self) -> bool:
        return not self._seats

    def refusal(self, member: Member) -> RendezvousError | None:
        """Why this member cannot be of this group, in words for it; None where it can."""
        first = next(iter(self._members.values()), None)
        if first is not None and (first.version, first.wire) != (member.version, member.wire):
            return RendezvousError(
                f"rank {member.rank} runs rdmaring {member.version} ({member.wire}), but rank {first.rank}, which "
                f"came before, runs rdmaring {first.version} ({first.wire})",
                hint="install the same build of rdmaring for every rank",
            )
        if member.world != self.world:
            return RendezvousError(
                f"rank {member.rank} was started for a world of {member.world} ranks, but this job has {self.world}",
                hint="start every rank with the same world size",
            )
        other = self._members.get(member.rank)
        if other is not None and member.rank in self._seats:
            place = "on the same host" if other.host == member.host else "on another host"
            return RendezvousError(
                f"rank {member.rank} is taken: the process with pid {other.pid} {place} came first "
                f"(this one is pid {member.pid})",
                hint="give every process its own rank, and every job its own rendezvous address",
            )
        return None

    def enter(self, member: Member, seat: Seat, now: float) -> None:
        """Seat a member that refusal() has nothing against; the last one assembles the group."""
        self._seats[member.rank] = seat
        self._members[member.rank] = member
        if len(self._seats) == self.world:
            self.assembled = True
            self.deadline = None
            self._met_at = now
            members = [asdict(self._members[rank]) for rank in range(self.world)]
            self._tell_all(frame("J", json.dumps({"assembled": members}).encode()))
        else:
            self._wait_until(now, member.assembly_timeout_s)

    def give(self, rank: int, payload: bytes, timeout_s: float, now: float) -> None:
        """Take one rank's part of the round that is going on, and how long it waits; the last one completes it."""
        if self.failure is not None:
            return  # it was told when it happened, and finds that in its socket
        if rank in self._given:
            self._fail(RendezvousError(f"rank {rank} gave twice in one round", hint="is one rank number used twice?"))
            return
        self._given[rank] = payload
        if self._left:
            self._fail_for_leaver()
        elif len(self._given) < self.world:
            self._wait_until(now, timeout_s)
        else:
            self._complete()

    def leave(self, rank: int, how: str) -> None:
        """A rank's connection has ended; ``how`` says whether it closed, or was lost."""
        del self._seats[rank]
        if not self.assembled:
            del self._members[rank]  # it may come back
            if not self._seats:
                self.deadline = None
            return
        self._left[rank] = how
        if self._given and self.failure is None:
            self._fail_for_leaver()

    def fail_late(self) -> None:
        """Tell all who wait that time is up, and which ranks are missing."""
        present = set(self._given) if self.assembled else set(self._seats)
        missing = sorted(set(range(self.world)) - present)
        if self.assembled:
            met_s = (self.deadline or self._met_at) - self._met_at
            text = f"{rank_list(missing)} did not take part in a round within {met_s:.3g} s after all had met"
            hint = "look at what those ranks do: they passed the rendezvous, then stopped or failed"
        else:
            text = (
                f"the world did not assemble within {self._waited_s:.3g} s: {rank_list(missing)} "
                f"of {self.world} did not come; {rank_list(present)} did"
            )
            hint = "look at the output of the missing ranks: not started, dead, or with another secret?"
        self._fail(RendezvousError(text, missing_ranks=missing, hint=hint, timed_out=True))

    def _wait_until(self, now: float, timeout_s: float) -> None:
        if self.deadline is None or now + timeout_s < self.deadline:
            self.deadline = now + timeout_s
            self._waited_s = timeout_s

    def _complete(self) -> None:
        sizes = {rank: len(payload) for rank, payload in self._given.items()}
        if len(set(sizes.values())) > 1:
            large, small = max(sizes, key=sizes.__getitem__), min(sizes, key=sizes.__getitem__)
            self._fail(
                RendezvousError(
                    f"ranks gave parts of unlike size in one round: rank {large} {sizes[large]} bytes, "
                    f"rank {small} {sizes[small]} bytes",
                    hint="all ranks must make the same communicators in the same order",
                )
            )
            return
        everything = b"".join(self._given[rank] for rank in range(self.world))
        self._given.clear()
        self.deadline = None
        self._tell_all(frame("B", everything))

    def _fail_for_leaver(self) -> None:
        rank, how = next(iter(self._left.items()))
        member = self._members[rank]
        self._fail(
            RendezvousError(
                f"rank {rank} (pid {member.pid}) {how}, and {rank_list(self._given)} waited for it",
                missing_ranks=sorted(self._left),
                hint=f"look at the output of rank {rank}",
            )
        )

    def _fail(self, error: RendezvousError) -> None:
        self.failure = error
        self.deadline = None
        self._tell_all(error_frame(error))

    def _tell_all(self, data: bytes) -> None:
        for seat in list(self._seats.values()):
            seat.send(data)
