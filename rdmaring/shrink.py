"""From a communicator that was lost to the survivors' own: agreement, meeting, links."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rdmaring import group
from rdmaring._native import check, ffi, lib
from rdmaring.errors import (
    ArgumentError,
    LeftOutError,
    NoQuorumError,
    RdmaringError,
    SetupError,
    UnsupportedError,
)
from rdmaring.recover import Recovery
from rdmaring.recover.survivors import NoAgreementError, Standing, Survivors
from rdmaring.rendezvous import Rendezvous, RendezvousError
from rdmaring.rendezvous.protocol import ProtocolError, rank_list
from rdmaring.topology import order_within

if TYPE_CHECKING:
    from rdmaring.communicator import Communicator
    from rdmaring.recover.agreement import Outcome

log = logging.getLogger("rdmaring")

TIMEOUT_S_DEFAULT = 60.0
NAMED_MAX = 8  # absent ranks whose reasons a message holds


@dataclass
class Stand:
    """What one communicator keeps for shrink().

    first: the epoch that it is of. now: the one that is agreed on next: later than ``first`` where survivors had
    agreed, but did not come together. last_common_op: of the first agreement; None before it.
    host, wire: as this rank introduced itself to the first rendezvous.
    """

    survivors: Survivors
    first: Standing
    now: Standing
    host: str
    wire: str
    last_common_op: int | None = None


def stand(comm: Communicator, meeting: Rendezvous) -> None:
    """Collective, once when the world is made: tell where this rank is found after a failure.

    Raises:
        SetupError: no socket could be had, or the ranks do not understand each other.
    """
    own = meeting.members[comm.rank]
    try:
        survivors = Survivors.join(comm.rank, comm._nodes, meeting.key, meeting.exchange)
    except (OSError, ProtocolError, RendezvousError) as error:
        raise SetupError(
            f"rank {comm.rank} cannot make ready for a failure: {error}",
            hint="it needs three file descriptors: raise `ulimit -n`; and the same build of rdmaring on all ranks",
            rank=comm.rank,
        ) from error
    standing = Standing(0, tuple(range(comm.size)))
    comm._stand = Stand(survivors, standing, standing, own.host, own.wire)


def shrink(comm: Communicator, timeout_s: float | None) -> Communicator:
    """See ``Communicator.shrink``."""
    comm._check_open()
    if comm._stand is None:
        raise UnsupportedError(
            f"communicator {comm.name!r} was split off another; shrink() serves that of init() and what it returned",
            hint="call shrink() on the communicator of init(), then split() the result again",
            rank=comm.rank,
        )
    if timeout_s is None:
        timeout_s = min(TIMEOUT_S_DEFAULT, comm._settings.timeout_s)
    if not timeout_s > 0:
        raise ArgumentError(f"timeout_s is {timeout_s!r}; accepted are seconds > 0, or None")
    check(lib.rr_comm_abort(comm._handle, b"shrink() was called"))  # does nothing where it is lost already
    survivors = comm._stand.survivors.share()  # another thread may close the communicator meanwhile
    try:
        comm._check_open()
        return _shrunk(comm, comm._stand, time.monotonic() + timeout_s, timeout_s)
    finally:
        survivors.release()


def _shrunk(comm: Communicator, stand: Stand, deadline: float, timeout_s: float) -> Communicator:
    """Agree and meet, until both have gone well. ``comm`` is closed then."""
    while True:
        outcome = _agree(comm, stand, deadline, timeout_s)
        try:
            found = _made(comm, stand, outcome, deadline)
        except (RdmaringError, RendezvousError, OSError) as error:
            # One of them died in between, or was too slow: it, or its absence, is the next agreement's matter.
            log.info("rank %d: the survivors did not come together: %s", comm.rank, error)
            stand.now = stand.now.after(outcome)
            if time.monotonic() >= deadline:
                raise SetupError(
                    f"rank {comm.rank} agreed with the survivors, but they did not come together within "
                    f"{timeout_s:g} s: {error}",
                    hint="call shrink() again, with a longer timeout_s",
                    rank=comm.rank,
                ) from error
            continue
        comm.close()
        return found


def _agree(comm: Communicator, stand: Stand, deadline: float, timeout_s: float) -> Outcome:
    last_op = _last_op(comm) if stand.now is stand.first else 0
    try:
        outcome = stand.survivors.agree(stand.now, last_op, deadline)
    except NoAgreementError as error:
        raise _no_quorum(comm, stand, error, timeout_s) from None
    if stand.survivors.rank not in outcome.survivors:
        names = rank_list(stand.first.members.index(rank) for rank in outcome.survivors)
        raise LeftOutError(
            f"rank {comm.rank} came too late: {names} went on without it",
            hint="end this process; a longer timeout_s of shrink() waits longer for ranks that are busy",
            rank=comm.rank,
        )
    if stand.last_common_op is None:
        stand.last_common_op = outcome.last_op
    return outcome


def _last_op(comm: Communicator) -> int:
    record = ffi.new("rr_run_stats *")
    check(lib.rr_comm_last_stats(comm._handle, record))
    return int(record.op)


def _no_quorum(comm: Communicator, stand: Stand, error: NoAgreementError, timeout_s: float) -> NoQuorumError:
    """In this communicator's ranks."""
    number = stand.first.members.index
    present = tuple(number(rank) for rank in error.present)
    absent = {number(rank): why for rank, why in error.absent.items()}
    reasons = "; ".join(f"rank {rank}: {why}" for rank, why in list(absent.items())[:NAMED_MAX])
    more = f"; and {len(absent) - NAMED_MAX} more" if len(absent) > NAMED_MAX else ""
    count = len(stand.now.members)
    if absent:
        cause = (
            f"no majority: {rank_list(present)} of {count} came within {timeout_s:g} s, and the death of the others "
            f"is not proven: {reasons}{more}"
        )
    else:
        cause = f"{rank_list(present)} of {count} did not agree within {timeout_s:g} s, although they reach each other"
    found = NoQuorumError(
        cause,
        hint="call shrink() again when they are back, or end the job: without a majority another part of it may go on",
        rank=comm.rank,
    )
    found.present, found.absent = present, absent
    return found


def _made(comm: Communicator, stand: Stand, outcome: Outcome, deadline: float) -> Communicator:
    """The survivors' communicator. Raises what tells that one of them is missing."""
    from rdmaring.communicator import Communicator

    standing = stand.now.after(outcome)
    meeting: Any = stand.survivors.meet(outcome, standing, stand.host, stand.wire, deadline)
    old_ranks = tuple(stand.first.members.index(rank) for rank in outcome.survivors)
    settings = replace(comm._settings, key=meeting.key)
    if settings.ring_order is not None:
        settings = replace(settings, ring_order=order_within(settings.ring_order, list(old_ranks)))
    try:
        handle = group.create(meeting.rank, meeting.world, meeting.exchange, settings, meeting.left_s)
    except BaseException:
        meeting.close()
        raise
    found = Communicator(handle, meeting.rank, meeting.world, comm.name, settings, meeting)
    found._stand = Stand(stand.survivors.share(), standing, standing, stand.host, stand.wire)
    group.set_ring(found)
    found._facts = comm._facts
    found._use_constants(comm._chooser.constants)
    lost = tuple(rank for rank in range(comm.size) if rank not in old_ranks)
    assert stand.last_common_op is not None  # the agreement noted it
    found.recovered = Recovery(old_ranks, stand.last_common_op, lost)
    return found
