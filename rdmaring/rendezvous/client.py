"""A rank's end of the rendezvous."""

from __future__ import annotations

import os
import socket
import time
import weakref
from collections.abc import Callable, Sequence

from rdmaring._version import __version__
from rdmaring.rendezvous.connection import Connection, NotOurServerError
from rdmaring.rendezvous.protocol import (
    LINK_KEY_BYTES,
    ROUND_BYTES_MAX,
    Member,
    RendezvousError,
    job_key,
    link_key,
)
from rdmaring.rendezvous.sockets import format_address, resolve

CONNECT_TIMEOUT_S = 5.0  # of one try at one address
CANDIDATE_CONNECT_TIMEOUT_S = 1.5  # where there are others to try: longer than one lost SYN takes to repeat
ANSWER_TIMEOUT_S = 5.0  # for a server to prove the secret
CANDIDATE_TIMEOUT_S = 1.0  # where it may as well be at another port
ANSWER_SLACK_S = 2.0  # the server tells of a timeout; we wait this much longer for its word
LEFT_S_MIN = 0.05  # when time is up, what is there already is still taken
RETRY_FIRST_S, RETRY_MAX_S = 0.02, 0.25

_rendezvous: weakref.WeakSet[Rendezvous] = weakref.WeakSet()


class Rendezvous:
    """A place among ``world`` assembled ranks, and rounds of gathering among them.

    rank, world: this rank's number and how many there are.
    members: how each rank introduced itself, in rank order.
    local_ranks: the ranks that name the same host as this one, itself among them.
    key: 16 bytes made of the job's secret, by which its links prove themselves to each other.
    left_s: seconds for what its rounds are for: the time-out begins anew when all have met.
    One thread at a time. Closing it leaves the other ranks as they are.
    """

    def __init__(
        self,
        member: Member,
        members: Sequence[Member],
        connection: Connection | None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self.rank = member.rank
        self.key = bytes(LINK_KEY_BYTES)  # of a world of one
        self.world = member.world
        self.members = tuple(members)
        self.local_ranks = tuple(each.rank for each in members if each.host == member.host)
        self._deadline = time.monotonic() + member.round_timeout_s
        self._connection = connection
        self._on_close = on_close
        self._closed = False
        self._pid = os.getpid()
        _rendezvous.add(self)

    @classmethod
    def alone(cls, host: str, timeout_s: float) -> Rendezvous:
        """The rendezvous of a world of one: no sockets."""
        member = Member(0, 1, __version__, "", host, os.getpid(), timeout_s, timeout_s)
        return cls(member, [member], None)

    @classmethod
    def connect(
        cls,
        addresses: Sequence[tuple[str, int]],
        rank: int,
        world: int,
        secret: bytes,
        timeout_s: float,
        *,
        host: str,
        wire: str = "",
        job: str = "",
        patient: bool = True,
        on_close: Callable[[], None] | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> Rendezvous:
        """Find the job's server at one of ``addresses``, and wait until all ranks have come.

        addresses: (host, port) pairs. With one, a server that proves nothing is an error at once; with
        several, it is passed over.
        host: the identity of this rank's node.
        wire: what this build's links speak; ranks that differ do not meet.
        patient: whether the server may start later than this rank.
        on_close: called once when this rendezvous is closed.
        check: called while this rank waits, a few times a second; what it raises ends the wait.

        Raises RendezvousError; one that timed out names the missing ranks.
        """
        deadline = time.monotonic() + timeout_s
        search = _Search(addresses, job_key(secret, job), deadline, patient, check)
        while True:
            connection = search.find(rank)
            left_s = max(LEFT_S_MIN, deadline - time.monotonic())
            member = Member(rank, world, __version__, wire, host, os.getpid(), left_s, timeout_s)
            try:
                members = connection.enter(member, deadline + ANSWER_SLACK_S, check)
            except ConnectionError as error:
                # The server of an earlier job was about to stop, or rank 0 died before all had come.
                connection.close()
                search.note_loss(error)
                continue
            except BaseException:
                connection.close()
                raise
            meeting = cls(member, members, connection, on_close)
            meeting.key = link_key(secret, job)
            return meeting

    @property
    def left_s(self) -> float:
        return max(LEFT_S_MIN, self._deadline - time.monotonic())

    def exchange(self, mine: bytes) -> bytes:
        """Gather: give ``mine`` (as many bytes on every rank, at most 1 MiB), get all ranks' in rank order.

        Raises:
            RendezvousError: a rank left, came too late or gave another number of bytes; it names the rank.
            ValueError: ``mine`` is too large, or this rendezvous is closed.
        """
        if self._closed:
            raise ValueError("the rendezvous is closed")
        if len(mine) > ROUND_BYTES_MAX:
            raise ValueError(f"{len(mine)} bytes in one round, at most {ROUND_BYTES_MAX} are allowed")
        if self._connection is None:
            return bytes(mine)
        if os.getpid() != self._pid:
            raise RendezvousError(
                "the rendezvous belongs to the process that made it, not to a fork() of it",
                hint="call init() in the child, or start it by spawn",
            )
        try:
            return self._connection.give(bytes(mine), self.left_s, ANSWER_SLACK_S, self.world)
        except ConnectionError as error:
            raise RendezvousError(
                f"rank {self.rank} lost the rendezvous at {self._connection.address}: {error}",
                hint="the launcher, or rank 0 where it hosts the rendezvous, has ended; look at its output",
            ) from error

    def close(self) -> None:
        """Leave. May be called again."""
        if self._closed:
            return
        self._closed = True
        if self._connection is not None:
            self._connection.leave()
        if self._on_close is not None and os.getpid() == self._pid:
            self._on_close()

    def close_in_child(self) -> None:
        """After fork(): give up the copy of the socket, so that this rank's death is seen by its server."""
        if self._connection is not None:
            self._connection.close()

    def __enter__(self) -> Rendezvous:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Search:
    """Tries the addresses in turn until one proves the job's secret; remembers why the others did not."""

    def __init__(
        self,
        addresses: Sequence[tuple[str, int]],
        key: bytes,
        deadline: float,
        patient: bool,
        check: Callable[[], None],
    ) -> None:
        self._check = check
        self._addresses = addresses
        self._key = key
        self._began = time.monotonic()
        self._deadline = deadline
        self._patient = patient
        self._pause_s = RETRY_FIRST_S
        self._reasons: dict[str, str] = {}
        self._tried: set[str] = set()  # what the addresses' hosts stand for

    def find(self, rank: int) -> Connection:
        while True:
            for address in self._addresses:
                connection = self._try(address)
                if connection is not None:
                    return connection
                if time.monotonic() >= self._deadline:
                    raise self._nobody(rank)
            if not self._patient and self._pause_s >= RETRY_MAX_S:
                raise self._nobody(rank)
            self._check()
            time.sleep(min(self._pause_s, max(0.0, self._deadline - time.monotonic())))
            self._pause_s = min(2 * self._pause_s, RETRY_MAX_S)

    def note_loss(self, error: ConnectionError) -> None:
        if time.monotonic() >= self._deadline:
            raise RendezvousError(
                f"the rendezvous ended while the world assembled: {error}",
                hint="see rank 0's own output",
                missing_ranks=[0],
                timed_out=True,
            ) from error
        time.sleep(RETRY_FIRST_S)

    def _try(self, address: tuple[str, int]) -> Connection | None:
        name = format_address(address)
        try:
            places = resolve(*address)
        except OSError as error:
            self._reasons[name] = error.strerror or str(error)
            return None
        for family, kind, protocol, _, place in places:
            left_s = self._deadline - time.monotonic()
            if left_s <= 0:
                return None
            self._tried.add(str(place[0]))
            connection = Connection(socket.socket(family, kind, protocol), name)
            only = len(self._addresses) == 1
            answer_s = ANSWER_TIMEOUT_S if only else CANDIDATE_TIMEOUT_S
            try:
                connection.open(place, min(left_s, CONNECT_TIMEOUT_S if only else CANDIDATE_CONNECT_TIMEOUT_S))
                connection.meet(self._key, time.monotonic() + min(left_s, answer_s))
                return connection
            except NotOurServerError as error:
                self._reasons[name] = str(error)
                connection.close()
                if len(self._addresses) == 1:
                    raise
            except OSError as error:
                self._reasons[name] = error.strerror or str(error)
                connection.close()
            except BaseException:
                connection.close()
                raise
        return None

    def _nobody(self, rank: int) -> RendezvousError:
        waited_s = time.monotonic() - self._began
        if len(self._addresses) == 1:
            where = format_address(self._addresses[0])
        else:
            hosts = ", ".join(dict.fromkeys(host for host, _ in self._addresses))
            where = f"{len(self._addresses)} candidate addresses on {hosts}"
        reasons = "; ".join(sorted(set(self._reasons.values()))) or "no answer"
        if not self._patient:
            return RendezvousError(
                f"rank {rank} does not reach the rendezvous at {where}, which its launcher (after a failure: one of "
                f"the survivors) hosts: {reasons}",
                hint="whoever hosts it has ended, or a launcher's variables RDMARING_* reached a process outside "
                "its job",
            )
        hint = "is rank 0 started, is the address one of its host, does a firewall stand between?"
        if self._tried and all(each == "::1" or each.startswith("127.") for each in self._tried):
            hint = (
                f"{', '.join(sorted(self._tried))} is this host's own loopback, where another host is never reached: "
                "if rank 0 runs elsewhere, give its address on the network (RDMARING_RENDEZVOUS, address=), and look "
                "at what its name stands for in /etc/hosts; if it runs here, is it started?"
            )
        return RendezvousError(
            f"rank {rank} found no rendezvous at {where} within {waited_s:.3g} s: {reasons}; "
            f"rank 0, which hosts it, did not come",
            missing_ranks=[0] if rank else [],
            hint=hint,
            timed_out=True,
        )


def _close_in_child() -> None:
    for each in list(_rendezvous):
        each.close_in_child()


os.register_at_fork(after_in_child=_close_in_child)
