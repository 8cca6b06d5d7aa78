"""Compares what the ranks of a run said with what was done to them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from chaos_runs import leaks
from chaos_runs.faults import FAULTS, Fault
from chaos_runs.plan import Plan
from chaos_runs.worlds import Ran

GRADES = ("right", "class", "wrong", "hang")  # from good to bad; class: right but for rank or edge


@dataclass
class Judged:
    """grade: of the worst rank. seconds: of the slowest error after the fault. why: of all that is not right.

    starved: largest share of the time in which a rank wanted a processor and had none. repeated: so many times before,
        the machine stood still, or let ranks starve where that hides the fault.
    """

    plan: Plan
    grade: str
    leaks: list[str] = field(default_factory=list)
    why: list[str] = field(default_factory=list)
    verdicts: dict[int, str] = field(default_factory=dict)
    seconds: float | None = None
    run_s: float = 0.0
    output: str = ""
    starved: float = 0.0
    repeated: int = 0

    @property
    def good(self) -> bool:
        return self.grade == "right" and not self.leaks

    def as_dict(self) -> dict[str, Any]:
        told = asdict(self)
        del told["output"]
        return told | {"plan": self.plan.as_dict()} | ({} if self.good else {"output": self.output})


def judge(plan: Plan, ran: Ran, slack_s: float) -> Judged:
    """slack_s: what the machine may add to each bound; a time beyond counts as a hang."""
    fault = FAULTS[plan.fault]
    found = Judged(plan, "right", run_s=ran.seconds, output=ran.output, leaks=leaks.find(ran))
    if ran.hung:
        _note(found, "hang", f"the job was there after {ran.seconds:.0f} s")
    victim = ran.ranks.get(plan.victim, {})
    if fault.kinds[0] != "none" and "fault" not in victim:
        _note(found, "wrong", "the fault was not made: something else went wrong before")
    found.starved = max((said.get("ended", {}).get("starved", 0.0) for said in ran.ranks.values()), default=0.0)
    times = []
    for rank in range(plan.ranks):
        if not judged_at_all(plan, fault, rank):
            continue
        said = ran.ranks.get(rank, {})
        if "ended" not in said:
            _note(found, "hang" if ran.hung else "wrong", f"rank {rank} did not report")
            continue
        found.verdicts[rank] = words(said["ended"])
        grade, why = grade_of(plan, fault, rank, said["ended"])
        if why:
            _note(found, grade, f"rank {rank}: {why}")
        seconds = after_fault(plan, said["ended"], victim)
        if seconds is not None:
            times.append(seconds)
            if seconds > fault.within_s + slack_s:
                _note(
                    found,
                    "hang",
                    f"rank {rank} raised {seconds:.1f} s after the fault; {fault.within_s:g} s is the rule",
                )
    found.seconds = max(times) if times else None
    return found


def _note(found: Judged, grade: str, why: str) -> None:
    found.grade = max(found.grade, grade, key=GRADES.index)
    found.why.append(why)


def judged_at_all(plan: Plan, fault: Fault, rank: int) -> bool:
    return rank != plan.victim or fault.own


def words(ended: dict[str, Any]) -> str:
    """As the report shows it: class, rank, peer."""
    if ended.get("wrong_sum"):
        return "wrong sum"
    if ended["error"] is None:
        return "none"
    verdict = ended.get("verdict")
    if verdict is None:
        return f"{ended['error']} {ended.get('rank')} {ended.get('peer')}"
    return f"{verdict['kind']} {verdict['rank']} {verdict['peer']}"


def grade_of(plan: Plan, fault: Fault, rank: int, ended: dict[str, Any]) -> tuple[str, str]:
    """Grade, and why if it is not "right"."""
    if ended.get("wrong_sum"):
        return "wrong", f"a sum of step {ended['step']} was wrong"
    kinds = kinds_for(plan, fault)
    if ended["error"] is None:
        return ("right", "") if "none" in kinds else ("wrong", "no error")
    verdict = ended.get("verdict")
    if verdict is None:
        # An error that says all by itself: on the rank that found it by class, on the others by what they adopted.
        wanted = [kind for kind in kinds if kind.endswith("Error")]
        if not wanted:
            return "wrong", f"no verdict: {ended['error']}: {ended['text']}"
        named = {rank for rank in (plan.victim, plan.peer) if f"rank {rank}" in ended["text"]}
        if ended["error"] not in wanted and not named:
            return "wrong", f"{ended['error']}: {ended['text']}"
        if named | {rank} < {plan.victim, plan.peer, rank}:
            return "class", f"{ended['error']}: {ended['text']}"
        return "right", ""
    if verdict["kind"] not in kinds:
        return "wrong", verdict["text"]
    if not place_fits(plan, fault, rank, verdict):
        return "class", verdict["text"]
    return "right", ""


def kinds_for(plan: Plan, fault: Fault) -> tuple[str, ...]:
    kinds = fault.kinds
    alone = plan.transport != "shm" and plan.ranks_per_node == 1
    if fault.name == "stop" and alone:
        # Without a neighbour on its node nobody can look: docs/WHY.md.
        return (*kinds, "never_entered")
    if fault.name == "credits" and alone:
        return (*kinds, "stopped", "never_entered")  # likewise: silent is all that is known of it
    if fault.name == "cut" and plan.transport == "tcp" and plan.nodes == 2:
        return (*kinds, "host_gone")  # nobody else can be asked: likewise
    return kinds


def place_fits(plan: Plan, fault: Fault, rank: int, verdict: dict[str, Any]) -> bool:
    named = {verdict["rank"], verdict["peer"]}
    if fault.name == "cut" and plan.transport == "verbs":
        return plan.victim in named  # its port has lost its wire: all its edges are cut
    if fault.edge == "edge":
        return named == {plan.victim, plan.peer}
    if fault.edge == "touching":
        return plan.victim in named
    if fault.edge == "node":
        off = plan.node_of(plan.victim)
        if plan.node_of(rank) == off:  # of several nodes it names its own, of two the other
            return verdict["rank"] is not None
        return verdict["rank"] is not None and plan.node_of(verdict["rank"]) == off
    return bool(verdict["rank"] == plan.victim)


def after_fault(plan: Plan, ended: dict[str, Any], victim: dict[str, Any]) -> float | None:
    """Seconds to the error: from the fault, or from this rank's entering the call where it came to it later."""
    if ended["error"] is None or "error_at" not in ended:
        return None
    entered = ended.get("entered", ended["error_at"])
    if plan.bed == "guests" or "at" not in victim:  # whose clocks differ
        return float(ended["error_at"] - entered)
    return float(ended["error_at"] - max(entered, victim["at"] + plan.delay_ms / 1e3))
