"""What a job's ranks keep from the beginning in order to go on after a failure, and the agreement run over it."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from rdmaring.recover import peer as hello
from rdmaring.recover.agreement import Agreement, Decided, Outcome, Record
from rdmaring.recover.mesh import Mesh
from rdmaring.recover.messages import decode, encode
from rdmaring.recover.page import Page
from rdmaring.recover.peer import HELLO_BYTES, Peer, has_ended, start_time
from rdmaring.rendezvous.client import Rendezvous
from rdmaring.rendezvous.protocol import ProtocolError, RendezvousError, integer, job_key
from rdmaring.rendezvous.server import Server
from rdmaring.rendezvous.sockets import listen_everywhere

POLL_S = 0.05
LINGER_S = 0.5  # of the answering thread, while it has connections
TURN_S = 0.002
CALL_S = 0.3  # how often the host of a meeting calls those who may not come
ASSEMBLY_S = 8.0  # for the survivors to meet once they have agreed, and for each round of theirs
AGAIN_WITHOUT = "shrink() agrees anew by itself; if it gives up, call it again, on all that are left"


class NoAgreementError(Exception):
    """In time there was neither a majority nor proof that all others are dead. absent: rank -> why it may live."""

    def __init__(self, present: Sequence[int], absent: dict[int, str]) -> None:
        super().__init__("no agreement")
        self.present = tuple(present)
        self.absent = absent


@dataclass(frozen=True, slots=True)
class Standing:
    """One epoch of a job. members: its ranks, by the numbers they had in the first; they count from 0 in this order."""

    epoch: int
    members: tuple[int, ...]

    def after(self, outcome: Outcome) -> Standing:
        return Standing(self.epoch + 1, outcome.survivors)


class Survivors:
    """Of one rank of a job, from init() to the end of its last communicator.

    Holds two listening sockets, which no thread serves before the first agreement, and the page of its node's records.
    """

    def __init__(self, rank: int, world: int, key: bytes) -> None:
        self.rank = rank
        self.world = world
        self._key = job_key(key, "recovery")
        self._users = 1
        self._counting = threading.Lock()  # of users: threads share and release
        self._mesh: Mesh | None = None
        self._page: Page | None = None
        self._peers: tuple[Peer, ...] = ()
        self._provable: frozenset[int] = frozenset()  # ranks of this node whose deaths can be proven
        self._parts: dict[int, int] = {}  # of the page: rank -> index
        self._records: dict[int, Record] = {}
        self._agreements: dict[int, Agreement] = {}
        self._hosts: dict[int, list[socket.socket]] = {}  # epoch -> where we would host what follows it
        self._call_next = 0.0
        self._asked = 0  # the latest epoch that another rank has asked about
        self._turn = threading.RLock()  # whoever holds it drives
        self._callers = 0  # that want it: the thread stands back
        self._answering: threading.Thread | None = None
        self._ending = False
        self._pid = os.getpid()

    @classmethod
    def join(cls, rank: int, nodes: Sequence[int], key: bytes, exchange: Callable[[bytes], bytes]) -> Survivors:
        """Collective: two rounds of ``exchange``, which gathers as many bytes from each rank. nodes: of all ranks.

        key: shared by the job's ranks, and known to nobody else.

        Raises RendezvousError, OSError: no socket or no memory; ProtocolError: ranks of another version.
        """
        self = cls(rank, len(nodes), key)
        if self.world == 1:
            return self
        near = [each for each in range(self.world) if nodes[each] == nodes[rank]]
        index = near.index(rank)
        listeners = listen_everywhere(0)
        made: int | None = None
        try:
            own = Peer(rank, nodes[rank], os.getpid(), start_time("self") or 0, hello.own_hosts(), 0, 0, 0)
            own = replace(own, port=listeners[0].getsockname()[1])
            if index == 0 and len(near) > 1:
                self._page, made = Page.make(self.world, index, len(near))
                own = replace(own, descriptor=made, inode=os.fstat(made).st_ino)
            told = exchange(hello.encode(own))
            parts = [told[at : at + HELLO_BYTES] for at in range(0, len(told), HELLO_BYTES)]
            self._peers = tuple(hello.decode(part, each, nodes[rank]) for each, part in enumerate(parts))
            if index > 0:
                first = self._peers[near[0]]
                self._page = _opened(first, self.world, index)
            shares = exchange(b"\1" if self._page is not None else b"\0")
            self._mesh = Mesh(listeners, rank, self._peers, self._key)
        except BaseException:
            for each in listeners:
                each.close()
            if self._page is not None:
                self._page.close()
            raise
        finally:
            if made is not None:
                os.close(made)
        self._parts = {each: number for number, each in enumerate(near)}
        self._provable = frozenset(each for each in near if each != rank and shares[each] and self._is_seen(each))
        return self

    def _is_seen(self, rank: int) -> bool:
        try:
            return not has_ended(self._peers[rank])
        except OSError:
            return False

    # ---- users ----

    def share(self) -> Survivors:
        """For one more communicator of the job."""
        with self._counting:
            self._users += 1
        return self

    def release(self) -> None:
        """A communicator has ended; with the last one all is given back."""
        if os.getpid() != self._pid:
            return
        with self._counting:
            self._users -= 1
            # At the interpreter's end the thread stands still, perhaps in its turn, and all goes with the process.
            if self._users or self._ending or sys.is_finalizing():
                return
            self._ending = True
        if self._mesh is not None:
            self._mesh.wake()
        if self._answering is not None:
            self._answering.join()
        with self._turn:
            if self._mesh is not None:
                self._mesh.close()
            if self._page is not None:
                self._page.close()
            for listeners in self._hosts.values():
                _close_all(listeners)
            self._hosts.clear()

    # ---- the agreement ----

    def agree(self, standing: Standing, last_op: int, deadline: float) -> Outcome:
        """Run it among ``standing.members``. deadline: of time.monotonic(). May be called again after any error.

        last_op: that this rank had finished.

        Raises NoAgreementError.
        """
        now = time.monotonic()
        with self._driven():
            if standing.epoch not in self._hosts and self.world > 1:
                self._hosts[standing.epoch] = listen_everywhere(0)
            port = self._hosts[standing.epoch][0].getsockname()[1] if self.world > 1 else 0
            record = self._records.get(standing.epoch, Record())
            patience_s = max(0.0, (deadline - now) / 2)
            agreement = Agreement(self.rank, standing.members, record, last_op, port, now, patience_s)
            self._agreements[standing.epoch] = agreement
            while agreement.outcome is None:
                now = time.monotonic()
                if now >= deadline:
                    raise NoAgreementError(*self._who(agreement, now))
                self._look(agreement, now)
                agreement.tick(now)
                self._give_out(standing.epoch, agreement, now)
                if agreement.outcome is None:
                    self._serve(POLL_S)
        self._answer_from_now_on()
        return agreement.outcome

    def _look(self, agreement: Agreement, now: float) -> None:
        """Who died, and who is not to be reached."""
        for rank in agreement.members:
            if rank in self._provable and rank not in agreement.dead and self._page is not None:
                try:
                    if has_ended(self._peers[rank]):
                        left = self._page.load(self._parts[rank])
                        agreement.bury(rank, left.get(self._epoch_of(agreement), Record()), now)
                except (OSError, ProtocolError):
                    continue  # it says nothing that would prove a death
        for rank in self._mesh.missed(now) if self._mesh is not None else ():
            if rank in agreement.members:
                agreement.miss(rank, now)

    def _epoch_of(self, agreement: Agreement) -> int:
        return next(epoch for epoch, each in self._agreements.items() if each is agreement)

    def _give_out(self, epoch: int, agreement: Agreement, now: float) -> None:
        """Store first, then send."""
        if self._records.get(epoch) != agreement.record:
            self._records[epoch] = agreement.record
            if self._page is not None:
                self._page.store(self._records)
        for rank, message in agreement.take():
            if self._mesh is not None:
                self._mesh.send(rank, {"epoch": epoch, **encode(message)}, now)

    def _serve(self, timeout_s: float | None) -> None:
        """What comes within that time, to whichever epoch it belongs."""
        if self._mesh is None:
            return
        for sender, fields in self._mesh.poll(timeout_s, time.monotonic):
            try:
                epoch = integer(fields, "epoch", 0, 1 << 31)
                message = decode(fields, self.world)
            except ProtocolError:
                continue  # a rank of this job, but of another build: it is not answered
            self._asked = max(self._asked, epoch)
            agreement = self._agreements.get(epoch)
            if agreement is not None:
                now = time.monotonic()
                agreement.receive(sender, message, now)
                self._give_out(epoch, agreement, now)

    def _who(self, agreement: Agreement, now: float) -> tuple[list[int], dict[int, str]]:
        """Who takes part; and of the others, why none of them is proven dead."""
        missed = self._mesh.missed(now) if self._mesh is not None else []
        present = [rank for rank in agreement.present if rank not in agreement.dead and rank not in missed]
        absent = [rank for rank in agreement.members if rank not in present and rank not in agreement.dead]
        return sorted(present), {rank: self._why(rank, missed) for rank in absent}

    def _why(self, rank: int, missed: Sequence[int]) -> str:
        peer = self._peers[rank]
        trouble = self._mesh.trouble(rank) if self._mesh is not None else ""
        if peer.node != self._peers[self.rank].node:
            if rank in missed:
                return f"it is on another node and not to be reached ({trouble}), which proves nothing of its process"
            return "it is on another node, where its host answers, but it has not called shrink()"
        if rank not in self._provable:
            return f"its process {peer.pid} is not seen in this one's /proc, or they share no memory"
        if rank in missed:
            return f"its process {peer.pid} lives, but it has closed its communicator"
        return f"its process {peer.pid} lives, but it has not called shrink()"

    # ---- after it ----

    @contextlib.contextmanager
    def _driven(self) -> Iterator[None]:
        """The answering thread stands back."""
        self._callers += 1
        try:
            if self._mesh is not None:
                self._mesh.wake()
            with self._turn:
                yield
        finally:
            self._callers -= 1

    def _answer_from_now_on(self) -> None:
        """Whoever asks later is told what was decided, by a thread that sleeps until then."""
        if self._mesh is not None and self._answering is None:
            self._answering = threading.Thread(target=self._answer, name="rdmaring-recover", daemon=True)
            self._answering.start()

    def _answer(self) -> None:
        while not self._ending:
            if self._callers:
                time.sleep(TURN_S)
                continue
            with self._turn:
                # With connections open it looks after them; without any it sleeps until somebody calls.
                self._serve(LINGER_S if self._mesh is not None and self._mesh.busy else None)

    # ---- the survivors meet ----

    def meet(self, outcome: Outcome, standing: Standing, host: str, wire: str, deadline: float) -> Rendezvous:
        """A rendezvous of the survivors alone. standing: the epoch that begins. host, wire: as of the first one.

        Raises RendezvousError: one of them did not come.
        """
        timeout_s = max(2.0, min(ASSEMBLY_S, deadline - time.monotonic()))
        rank = outcome.survivors.index(self.rank)
        if len(outcome.survivors) == 1:
            return Rendezvous.alone(host, timeout_s)
        job = f"epoch {standing.epoch}"
        server: Server | None = None
        lowest = outcome.survivors[0]
        if rank == 0:
            server = Server(self._hosts.pop(standing.epoch - 1), len(outcome.survivors), self._key, job)
            server.start()
        hosts = ("127.0.0.1", "::1") if rank == 0 else self._peers[lowest].hosts
        try:
            meeting = Rendezvous.connect(
                [(each, outcome.port) for each in hosts],
                rank,
                len(outcome.survivors),
                self._key,
                timeout_s,
                host=host,
                wire=wire,
                job=job,
                patient=False,  # it has listened since before it agreed
                on_close=server.stop if server is not None else None,
                check=lambda: self._check_meeting(outcome, standing),
            )
        except BaseException:
            if server is not None:
                server.stop()
            raise
        # All survivors know the decision: they could not have met else.
        with self._driven():
            if self._mesh is not None:
                self._mesh.hang_up()
        return meeting

    def _check_meeting(self, outcome: Outcome, standing: Standing) -> None:
        """Raises RendezvousError: one of the survivors will not come."""
        for rank in outcome.survivors:
            with contextlib.suppress(OSError):  # it says nothing
                if rank in self._provable and has_ended(self._peers[rank]):
                    raise RendezvousError(
                        f"the process of rank {rank} has ended meanwhile", missing_ranks=[rank], hint=AGAIN_WITHOUT
                    )
        # Whoever agrees on what comes after this epoch has given it up.
        if self._asked >= standing.epoch:
            raise RendezvousError("another of the survivors has given up", hint=AGAIN_WITHOUT)
        if self.rank == outcome.survivors[0] and self._mesh is not None:
            self._call_far(self._mesh, outcome, standing)

    def _call_far(self, mesh: Mesh, outcome: Outcome, standing: Standing) -> None:
        """The host of the meeting looks after those whose deaths nobody may prove. Raises RendezvousError."""
        now = time.monotonic()
        if now < self._call_next:
            return
        self._call_next = now + CALL_S
        far = [rank for rank in outcome.survivors if rank != self.rank and rank not in self._provable]
        with self._driven():
            for rank in far:
                mesh.send(rank, {"epoch": standing.epoch - 1, **encode(Decided(outcome))}, now)
            self._serve(0)
            gone = sorted(set(far) & set(mesh.missed(time.monotonic())))
        if gone:
            raise RendezvousError(
                f"rank {gone[0]} does not listen any more: {mesh.trouble(gone[0])}",
                missing_ranks=gone,
                hint=AGAIN_WITHOUT,
            )


def _opened(first: Peer, world: int, index: int) -> Page | None:
    """The page that the node's first rank made; None where this process may not open it: then no death is proven."""
    try:
        return Page.open(first.pid, first.descriptor, first.inode, world, index)
    except OSError:
        return None


def _close_all(listeners: Sequence[socket.socket]) -> None:
    for each in listeners:
        each.close()
