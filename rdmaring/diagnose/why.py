"""Who is stuck, where, on what: the verdict of jobs on this machine, from outside. Records; nothing is printed."""

from __future__ import annotations

import mmap
import time
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from rdmaring._native import ffi, lib, verdict_of
from rdmaring.diagnose import segments
from rdmaring.verdict import Verdict

QUIET_NS = 500_000_000
STARVED_NS = 10_000_000_000  # a rank that waits, and has not looked around for less, may have had no processor
LOOKS, LOOK_AGAIN_S = 6, 0.3
STUCK_S = 1.0  # a rank that waits for less may just be waiting its turn
LIVES = {
    lib.RR_LIFE_UNKNOWN: "unknown",
    lib.RR_LIFE_RUNS: "runs",
    lib.RR_LIFE_STOPPED: "stopped",
    lib.RR_LIFE_FROZEN: "frozen",
    lib.RR_LIFE_ENDED: "ended",
    lib.RR_LIFE_LOST: "lost",
    lib.RR_LIFE_MUTE: "mute",
}
STATES = ("set-up", "open", "failed", "closed")
WAITS = {
    lib.RR_WAIT_ENTRY: "for rank {} to enter",
    lib.RR_WAIT_DATA: "for data of rank {}",
    lib.RR_WAIT_CREDIT: "for room at rank {}",
    lib.RR_WAIT_READERS: "for rank {} to have read",
    lib.RR_WAIT_TINY: "for the tiny message of rank {}",
    lib.RR_WAIT_SEND: "in send() to rank {}",
    lib.RR_WAIT_RECEIVE: "in recv() from rank {}",
}


@dataclass(frozen=True)
class RankState:
    """One rank of a communicator, as its page and the kernel tell.

    life: "runs", "stopped", "frozen", "ended", "unknown".
    state: of its communicator: "set-up", "open", "failed", "closed".
    op, call: the operation it is in, and what it called; None in user code. op_done: the last finished.
    waits: for whom, and for what; waited_s: for how long for just that.
    """

    rank: int
    pid: int
    life: str
    state: str
    op: int | None
    call: str | None
    op_done: int
    waits: tuple[str, ...]
    waited_s: float


@dataclass(frozen=True)
class Group:
    """One communicator: its ranks on this machine, those that are elsewhere, and its verdict, if anything is wrong.

    job, comm: hexadecimal; communicators whose processes are the same, or in part, have one ``job``.
    """

    job: str
    comm: str
    world: int
    ranks: tuple[RankState, ...]
    absent: tuple[int, ...]
    verdict: Verdict | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        fields = asdict(self)
        fields["verdict"] = None if self.verdict is None else self.verdict.as_dict()
        return fields


@dataclass(frozen=True)
class Report:
    """What was found.

    groups: of all jobs asked for, the largest communicator of each first. refused: what could not be read, and why.
    """

    groups: tuple[Group, ...]
    refused: tuple[str, ...]

    @property
    def stuck(self) -> bool:
        return any(group.verdict is not None for group in self.groups)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"groups": [group.as_dict() for group in self.groups], "refused": list(self.refused)}


def look(pids: frozenset[int] | None = None, job: str | None = None) -> Report:
    """The communicators of this machine, or of some of its processes, or of one job.

    pids: those in which one of these processes takes part, and all others of the same jobs. job: a job's or a
    communicator's number, or its end. None: no limit.
    """
    for _ in range(LOOKS - 1):
        report, unsettled = _look(pids, job)
        if report.stuck or not unsettled:
            return report
        time.sleep(LOOK_AGAIN_S)
    return _look(pids, job)[0]


def _look(pids: frozenset[int] | None, job: str | None) -> tuple[Report, bool]:
    """Once; and whether what a rank waits in may be out of date."""
    found = segments.find()
    comms: dict[int, dict[int, Any]] = {}
    users: dict[int, set[int]] = {}
    for place, seen in alike(found).items():
        comms.setdefault(seen.comm, {})[seen.rank] = seen
        own = {seen.pid} if seen.life != lib.RR_LIFE_UNKNOWN else set()
        users.setdefault(seen.comm, set()).update(found.mapped_by[place] | own)
    groups: list[Group] = []
    unsettled = False
    for number, members in _jobs(comms, users).items():
        together = [_group(number, comm, comms[comm]) for comm in sorted(members, key=lambda c: (-_world(comms[c]), c))]
        if pids is not None and not any(users[comm] & pids for comm in members):
            continue
        names = {name for each in together for name in (each.job, each.comm)}
        if job is not None and not any(name.endswith(job.lower()) for name in names):
            continue
        groups += together
        unsettled = unsettled or any(_is_unsettled(seen) for comm in members for seen in comms[comm].values())
    refused = [text for _, text in sorted(found.refused.items())] if not groups else []
    refused += [text for _, text in sorted(found.unbelieved.items())]
    refused += [f"process {pid} runs another version of rdmaring" for pid in sorted(found.versions)]
    return Report(tuple(groups), tuple(refused)), unsettled


def alike(found: segments.Segments) -> dict[tuple[str, int], Any]:
    """Pages of one communicator that claim worlds of unlike size: those of the most frequent claim, or of the least."""
    claims: dict[int, Counter[int]] = {}
    for seen in found.pages.values():
        claims.setdefault(seen.comm, Counter())[int(seen.world)] += 1
    pages = {}
    for place, seen in found.pages.items():
        world = -max((count, -size) for size, count in claims[seen.comm].items())[1]
        if seen.world == world:
            pages[place] = seen
        else:
            found.unbelieved[seen.pid] = (
                f"process {seen.pid}: its page claims a world of {seen.world} ranks, the others of its communicator "
                f"tell of {world}"
            )
    return pages


def _world(members: dict[int, Any]) -> int:
    return max(int(seen.world) for seen in members.values())


def _jobs(comms: dict[int, Any], users: dict[int, set[int]]) -> dict[int, list[int]]:
    """Communicators with processes in common, by the number of the largest."""
    jobs: list[tuple[set[int], list[int]]] = []
    for comm, processes in users.items():
        joined: tuple[set[int], list[int]] = (set(processes), [comm])
        apart = []
        for job in jobs:
            if job[0] & joined[0]:
                joined[0].update(job[0])
                joined[1].extend(job[1])
            else:
                apart.append(job)
        jobs = [*apart, joined]
    return {max(members, key=lambda comm: (_world(comms[comm]), comm)): members for _, members in jobs}


def name_of(comm: int) -> str:
    """As verdicts write it."""
    return f"{comm & 0xFFFFFFFF:08x}"


def _group(job: int, comm: int, members: dict[int, Any]) -> Group:
    world = _world(members)
    ranks = tuple(_state(members[rank]) for rank in sorted(members))
    absent = tuple(rank for rank in range(world) if rank not in members)
    return Group(name_of(job), name_of(comm), world, ranks, absent, judge(members, world))


def _state(seen: Any) -> RankState:
    inside = seen.op_entered > seen.op_done
    waits = [
        WAITS[seen.wait_kind[side]].format(seen.wait_peer[side])
        + (f" in row {seen.wait_row[side]}" if seen.wait_row[side] >= 0 else "")
        for side in (0, 1)
        if seen.wait_kind[side] in WAITS and seen.life != lib.RR_LIFE_ENDED
    ]
    return RankState(
        rank=seen.rank,
        pid=seen.pid,
        life=LIVES[seen.life],
        state=STATES[seen.page_state] if 0 <= seen.page_state < len(STATES) else "unknown",
        op=seen.op_entered if inside else None,
        call=ffi.string(seen.call).decode("utf-8", "replace") if inside else None,
        op_done=seen.op_done,
        waits=tuple(waits),
        waited_s=round(seen.waited_ns / 1e9, 3) if waits else 0.0,
    )


def judge(members: dict[int, Any], world: int) -> Verdict | None:
    """The verdict of a communicator: what a rank has found by itself; else what the pages tell now."""
    for rank in sorted(members):
        own = verdict_of(members[rank].verdict) if members[rank].page_state == 2 else None
        if own is not None:
            return own
    ended = _unmissed(members, ("ended",))
    if ended is not None:
        return ended
    # Memory that nobody has written takes none: a page may claim many ranks, of which few are here.
    room = mmap.mmap(-1, world * ffi.sizeof("rr_rank_seen"), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    records = ffi.from_buffer("rr_rank_seen[]", room)
    for rank, seen in members.items():
        records[rank] = seen[0]
    found = ffi.new("rr_verdict *")
    waiting = [seen for seen in members.values() if seen.op_entered > seen.op_done and _waits_now(seen)]
    for seen in sorted(waiting, key=lambda each: (-each.waited_ns, each.rank)):
        lib.rr_verdict_search(records, world, seen.rank, seen.op_entered, found)
        verdict = verdict_of(found)
        certain = found.kind in (lib.RR_VERDICT_DIED, lib.RR_VERDICT_STOPPED, lib.RR_VERDICT_ORDER)
        if verdict is not None and (certain or seen.waited_ns > STUCK_S * 1e9):
            return verdict
    stopped = _unmissed(members, ("stopped", "frozen"))
    if stopped is not None:
        return stopped
    lib.rr_verdict_slow(records, world, max(seen.op_entered for seen in members.values()), found)
    return verdict_of(found)


def _waits_now(seen: Any) -> bool:
    """Who runs and waits looks around some hundred times a second; who is stopped waits for what it waited for."""
    return bool(seen.life != lib.RR_LIFE_ENDED and (seen.life != lib.RR_LIFE_RUNS or seen.quiet_ns < QUIET_NS))


def _is_unsettled(seen: Any) -> bool:
    """It ran when it looked around last, and was not run for long; or it has gone on since."""
    inside = seen.op_entered > seen.op_done and bool(seen.wait_kind[0] or seen.wait_kind[1])
    return inside and seen.life == lib.RR_LIFE_RUNS and QUIET_NS <= seen.quiet_ns < STARVED_NS


def _unmissed(members: dict[int, Any], lives: tuple[str, ...]) -> Verdict | None:
    """A rank that has ended, or is stopped, whether anybody waits for it by now or not."""
    for rank, seen in sorted(members.items()):
        name = LIVES[seen.life]
        if seen.page_state != 1 or name not in lives:
            continue
        kind, what = ("died", "has ended") if name == "ended" else ("stopped", f"is {name}")
        text = f"{kind}: rank {rank} (pid {seen.pid}) {what}, last finished op {seen.op_done}"
        behind = [each.rank for each in members.values() if each.op_entered > seen.op_done and each.rank != rank]
        told = f"{len(behind)} of {len(members) - 1} others are in an operation that it has not finished"
        return Verdict(kind, rank, min(behind, default=None), None, None, None, None, text, (told,))
    return None
