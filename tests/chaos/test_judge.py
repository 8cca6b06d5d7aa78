"""The judge: what is right, right but for the place, wrong, too late, or left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))

from chaos_runs import command, leaks
from chaos_runs.heart import Heart
from chaos_runs.judge import judge
from chaos_runs.plan import Plan
from chaos_runs.worlds import MARK, Ran

NO_RUN = "no such run"


def plan(fault: str = "kill", **more: Any) -> Plan:
    return Plan(
        **{
            "seed": 1, "transport": "shm", "fault": fault, "bed": "local", "ranks": 3, "ranks_per_node": 3,
            "victim": 1, "peer": 2, "step": 3, "delay_ms": 0.0, "turn": 1, "count": 3, "dtype": "int64",
            "calls": ("all_reduce",), "algorithm": None, "registered": False, **more,
        }
    )  # fmt: skip


def ended(kind: str | None, rank: int | None = 1, after_s: float = 0.5, **more: Any) -> dict[str, Any]:
    verdict = None if kind is None else {"kind": kind, "rank": rank, "peer": 0, "text": f"{kind}: rank {rank}"}
    told = {"step": 3, "error": "PeerDiedError", "text": "rank 0", "rank": 0, "peer": 1, "verdict": verdict}
    return {"ended": {**told, "entered": 100.0, "error_at": 100.0 + after_s, **more}, "left": [], "began": 1}


def ran(*ranks: dict[str, Any], hung: bool = False) -> Ran:
    victim = {"began": 1, "fault": "kill", "at": 100.0}
    return Ran(NO_RUN, hung, 1, "", 1.0, {0: ranks[0], 1: victim, 2: ranks[-1]})


RIGHT = ended("died")


@pytest.mark.parametrize(
    ("one", "grade", "why"),
    [
        (RIGHT, "right", ""),
        (ended("died", rank=2), "class", "rank 2: died: rank 2"),
        (ended("never_entered"), "wrong", "rank 2: never_entered"),
        (ended(None), "wrong", "no verdict"),
        (ended(None, error=None), "wrong", "no error"),
        (ended(None, wrong_sum=True), "wrong", "was wrong"),
        (ended("died", after_s=9), "hang", "9.0 s after the fault"),
        ({"began": 1}, "wrong", "rank 2 did not report"),
    ],
)
def test_grades(one: dict[str, Any], grade: str, why: str) -> None:
    """By the worst rank."""
    found = judge(plan(), ran(RIGHT, one), slack_s=3)
    assert found.grade == grade
    assert why in " ".join(found.why)
    assert found.good == (grade == "right")


def test_a_job_that_had_to_be_ended_hung() -> None:
    assert judge(plan(), ran(RIGHT, RIGHT, hung=True), 3).grade == "hang"


def test_a_fault_that_was_not_made_is_no_success() -> None:
    said = ran(RIGHT, RIGHT)
    del said.ranks[1]["fault"]
    assert judge(plan(), said, 3).grade == "wrong"


def test_an_edge_is_both_of_its_ends() -> None:
    cut = plan("cut", transport="sim", ranks_per_node=1)

    def on(rank: int, peer: int) -> str:
        each = ended("link_down", rank)
        each["ended"]["verdict"]["peer"] = peer
        said = ran(each, each)
        said.ranks[1] |= each
        return judge(cut, said, 3).grade

    assert on(1, 2) == on(2, 1) == "right"
    assert on(0, 1) == "class"


@pytest.mark.parametrize("kind", ["no_credit", "stopped", "never_entered"])
def test_who_is_alone_on_its_node_is_only_known_to_be_silent(kind: str) -> None:
    """docs/WHY.md: a neighbour sees that a rank runs, and takes nothing; nobody else does."""
    said = ended(kind)
    assert judge(plan("credits", transport="sim", ranks_per_node=1), ran(said, said), 3).grade == "right"
    with_neighbour = judge(plan("credits", transport="sim"), ran(said, said), 3)
    assert with_neighbour.grade == ("right" if kind == "no_credit" else "wrong")


def test_a_machine_that_stood_still_is_noticed() -> None:
    heart = Heart()
    heart._pauses = [(10.0, 15.0), (20.0, 24.0)]
    assert heart.stood_still_s(0.0, 9.0) == heart.stood_still_s(16.0, 19.0) == 0.0
    assert heart.stood_still_s(12.0, 21.0) == 3.0 + 1.0


def test_what_ranks_leave_open_is_a_leak() -> None:
    left = {**RIGHT, "left": ["socket:[7]"]}
    found = judge(plan(), ran(RIGHT, left), 3)
    assert found.leaks == ["descriptor of rank 2: socket:[7]"] and not found.good


def test_a_process_that_is_left_is_found_and_ended() -> None:
    mark = f"test-{os.getpid()}"
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env={**os.environ, MARK: mark})
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        until = time.monotonic() + 10
        while child.pid not in leaks.marked(mark) and time.monotonic() < until:
            time.sleep(0.01)
        found = leaks.find(Ran(mark, False, 0, "", 1.0))
        assert len(found) == 1 and found[0].startswith(f"process {child.pid} (")
        assert child.wait(10) < 0
        assert other.poll() is None
    finally:
        for process in (child, other):
            process.kill()
            process.wait()


def test_a_slow_edge_among_starved_ranks_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/WHY.md: without a processor for each rank nothing is called slow. Any other fault has one try."""
    starved = ran(ended(None, starved=0.5), ended(None, starved=0.1))
    right = ended("slow")
    right["ended"]["verdict"]["peer"] = 2
    for fault, times in (("slow", 2), ("kill", 1)):
        runs = iter([starved, ran(right, right)])
        monkeypatch.setattr(command.worlds, "run", lambda _, runs=runs: next(runs))
        found = command.one(plan(fault, transport="sim", ranks_per_node=1), 3, Heart())
        assert found.repeated == times - 1, fault
        assert found.grade == ("right" if fault == "slow" else "wrong"), found.why
