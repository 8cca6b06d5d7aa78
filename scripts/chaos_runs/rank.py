"""What every rank of a run does: exact operations one after the other, the fault if it is the victim, and a report.

    rank.py PLAN    (JSON; see plan.py)

Lines "CHAOS {...}" on standard output: "began" when the world stands, "fault" just before the fault is made, and
"ended" with the result: right or wrong sums, the error with its verdict, times, and what it leaves open.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import rdmaring as rr
from chaos_runs.faults import FAULTS, LATE_S, OP_TIMEOUT_S
from chaos_runs.meddling import SLOW_SLOT_BYTES, Wire
from chaos_runs.network import cut_edge, host_off, slow_edge
from chaos_runs.plan import Plan

ASSEMBLE_S = 60.0
QUIET_STEPS = 40  # after a fault; a job that gets so far has survived it
PAUSE_S = 0.02  # before each of them where a signal is on its way: tiny operations would all be done before it comes
OTHER_DTYPE = {"int32": "float32", "float32": "int32", "int64": "float64", "float64": "int64"}
PREFERRED_NICE = -15
# Then a stopped rank is killed. All others have told long before: their time-out, and what a loaded machine may add.
STOPPED_S = OP_TIMEOUT_S + 10.0


def say(**what: Any) -> None:
    # One write a line: launchers cut what ranks print between writes.
    os.write(1, ("CHAOS " + json.dumps(what) + "\n").encode())


def strike(after_s: float, *signals: tuple[str, float]) -> None:
    """A child sends these signals to this process, each so long after the one before; it dies with its work done."""
    steps = "; ".join(f"kill -{name} {os.getpid()}; sleep {then_s}" for name, then_s in signals)
    subprocess.Popen(
        ["sh", "-c", f"exec >/dev/null 2>&1; sleep {after_s}; {steps}"],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


def descriptors() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the listing's own
            continue
    return found


def in_dev_shm() -> list[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sorted({line.split(maxsplit=5)[5] for line in lines if "/dev/shm/" in line})


def processor_wanted_s() -> float:
    """For so long this thread has waited for one."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


class Job:
    """One rank's run."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.wire = Wire()
        self.before = descriptors()
        options: dict[str, Any] = {"transport": self.wire, "check": "crc"} if plan.transport == "sim" else {}
        self.comm = rr.init(timeout_s=ASSEMBLE_S, **options)
        self.other = self.comm.dup() if plan.fault == "order" else None
        self.me = self.comm.rank
        self.dtype = np.dtype(plan.dtype)
        self.entered, self.wanted_s = time.time(), processor_wanted_s()
        self.timeout_s = ASSEMBLE_S  # the first operations make the links
        for step in range(len(plan.calls)):
            self.regular(step)

    @property
    def is_victim(self) -> bool:
        return self.me == self.plan.victim

    # ---- operations, whose results are known ----

    def vector(self, count: int, step: int) -> Any:
        """Small integers by rank, place and step: any order of sums gives the same."""
        return self.pattern(count) * (self.me + 1 + step % 5)

    def pattern(self, count: int) -> Any:
        return (np.arange(count) % 7 + 1).astype(self.dtype)

    def call(self, comm: rr.Communicator, name: str, count: int, step: int) -> bool:
        """Whether the result is right; raises what the library raises."""
        n, extra = comm.size, step % 5
        total = sum(rank + 1 + extra for rank in range(n))
        timed: dict[str, Any] = {"timeout_s": self.timeout_s}
        self.entered, self.wanted_s = time.time(), processor_wanted_s()
        if name == "all_reduce":
            x = comm.empty(count, self.dtype) if self.plan.registered and step < 4 else np.empty(count, self.dtype)
            x[:] = self.vector(count, step)
            comm.all_reduce(x, algorithm=self.plan.algorithm, **timed)
            return bool((x == self.pattern(count) * total).all())
        if name == "all_gather":
            found = comm.all_gather(self.vector(count, step), **timed)
            want = np.concatenate([self.pattern(count) * (rank + 1 + extra) for rank in range(n)])
        elif name == "reduce_scatter":
            found = comm.reduce_scatter(self.vector(count * n, step), **timed)
            want = np.array_split(self.pattern(count * n) * total, n)[self.me]
        elif name == "broadcast":
            root = step % n
            found = comm.broadcast(self.vector(count, step), root=root, **timed)
            want = self.pattern(count) * (root + 1 + extra)
        else:
            found = comm.all_to_all(self.vector(count * n, step), **timed)
            cut = [np.array_split(self.pattern(count * n) * (rank + 1 + extra), n) for rank in range(n)]
            want = np.concatenate([parts[self.me] for parts in cut])
        return bool((found == want).all())

    def regular(self, step: int) -> bool:
        return self.call(self.comm, self.plan.calls[step % len(self.plan.calls)], self.plan.count, step)

    # ---- faults ----

    def told(self) -> None:
        say(fault=self.plan.fault, at=time.time())

    def make_fault(self, step: int) -> bool:
        """Before, or instead of, an operation of this step; returns whether the results were right."""
        maker: Callable[[int], bool] = getattr(self, f"fault_{self.plan.fault}")
        if self.plan.fault not in ("order",):
            if not self.is_victim:
                return self.regular(step)
            self.told()
        return maker(step)

    def fault_kill(self, step: int) -> bool:
        strike(self.plan.delay_ms / 1e3, ("KILL", 0.0))
        return self.regular(step)

    def fault_stop(self, step: int) -> bool:
        strike(self.plan.delay_ms / 1e3, ("STOP", STOPPED_S), ("KILL", 0.0))
        return self.regular(step)

    def fault_late(self, step: int) -> bool:
        time.sleep(LATE_S)
        return self.regular(step)

    def fault_collective(self, step: int) -> bool:
        name = self.plan.calls[step % len(self.plan.calls)]
        return self.call(self.comm, "all_gather" if name != "all_gather" else "all_reduce", self.plan.count, step)

    def fault_size(self, step: int) -> bool:
        return self.call(self.comm, self.plan.calls[step % len(self.plan.calls)], self.plan.count + 1, step)

    def fault_dtype(self, step: int) -> bool:
        self.dtype = np.dtype(OTHER_DTYPE[self.plan.dtype])
        return self.regular(step)

    def fault_order(self, step: int) -> bool:
        assert self.other is not None
        if self.is_victim:
            self.told()
        pair = (self.other, self.comm) if self.is_victim else (self.comm, self.other)
        right = [self.call(comm, "all_reduce", self.plan.count, step) for comm in pair]
        return all(right)

    def fault_memory(self, step: int) -> bool:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), resource.RLIM_INFINITY))
        return self.call(self.comm, "all_reduce", 1 << 22, step)

    def fault_descriptor(self, step: int) -> bool:
        own = sorted(number for number, where in descriptors().items() if self.before.get(number) != where)
        sockets = [number for number in own if descriptors().get(number, "").startswith("socket:")]
        number = sockets[self.plan.turn % len(sockets)]
        say(closes=number, was=descriptors()[number])
        os.close(number)
        return self.regular(step)

    def by_wire(self, step: int) -> bool:
        self.wire.do(self.plan.fault, self.plan.peer, self.plan.turn)
        return self.regular(step)

    fault_credits = fault_dropped = fault_corrupted = by_wire

    def fault_cut(self, step: int) -> bool:
        if self.plan.transport == "verbs":
            self.inject("drop_link")
        elif self.plan.transport == "tcp":
            cut_edge(self.plan.node_of(self.plan.peer))
        else:
            self.wire.do("cut", self.plan.peer)
        return self.regular(step)

    def fault_slow(self, step: int) -> bool:
        if self.plan.transport == "tcp":
            slow_edge(self.plan.node_of(self.plan.peer))
        else:
            self.wire.do("slow", self.plan.peer)
        return self.regular(step)

    def fault_host(self, step: int) -> bool:
        host_off()
        return self.regular(step)

    def fault_flushed(self, step: int) -> bool:
        self.inject("flush")
        return self.regular(step)

    def inject(self, action: str) -> None:
        from verbs_sim.build import inject  # the caller put tests/ on the path

        inject(Path(os.environ["RDMARING_LIBIBVERBS"]), action)

    # ---- the whole ----

    def run(self, steps: int) -> dict[str, Any]:
        begin = time.monotonic()
        for step in range(steps):
            if step == self.plan.step - 1:  # others may still be in this one
                self.timeout_s = FAULTS[self.plan.fault].op_timeout_s
            try:
                if step > self.plan.step and self.plan.fault in ("kill", "stop"):
                    time.sleep(PAUSE_S)
                right = self.make_fault(step) if step == self.plan.step else self.regular(step)
            except rr.RdmaringError as error:
                times = {"entered": self.entered, "error_at": time.time()}
                starved = (processor_wanted_s() - self.wanted_s) / max(0.001, times["error_at"] - self.entered)
                return {"step": step, **outcome_of(error), **times, "starved": round(starved, 3)}
            except MemoryError as error:
                return {"step": step, "error": "MemoryError", "text": str(error), "error_at": time.time()}
            if not right:
                return {"step": step, "error": None, "wrong_sum": True}
        return {"step": steps, "error": None, "seconds": time.monotonic() - begin}

    def close(self) -> None:
        if self.other is not None:
            self.other.close()
        self.comm.close()


def outcome_of(error: rr.RdmaringError) -> dict[str, Any]:
    verdict = error.verdict
    return {
        "error": type(error).__name__,
        "text": str(error),
        "rank": error.rank,
        "peer": error.peer,
        "verdict": None if verdict is None else verdict.as_dict(),
    }


def prefer() -> None:
    """A rank that wants a processor and has none is not called slow: the machine's other work stands back."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:  # of a user, or in a control group without such time
        try:
            os.setpriority(os.PRIO_PROCESS, 0, PREFERRED_NICE)
            Path("/proc/self/autogroup").write_text(str(PREFERRED_NICE))
        except OSError:
            say(preferred=False)


def main() -> int:
    plan = Plan.of(json.loads(sys.argv[1]))
    rank = int(os.environ["RDMARING_RANK"])
    if plan.bed == "local" and plan.transport != "shm":
        os.environ["RDMARING_HOST_ID"] = f"chaos-{os.environ['RDMARING_RENDEZVOUS']}-{plan.node_of(rank)}"
    if plan.fault == "slow":
        os.environ["RDMARING_SLOT_BYTES"] = str(SLOW_SLOT_BYTES)
        prefer()
    job = Job(plan)
    say(began=os.getpid(), net=os.readlink("/proc/self/ns/net"), shm=in_dev_shm())
    result = job.run(plan.step + QUIET_STEPS)
    job.close()
    left = {number: where for number, where in descriptors().items() if number not in job.before}
    if plan.fault == "descriptor" and rank == plan.victim:
        left = {}  # the number it closed may serve another now
    say(ended=result, left=sorted(left.values()))
    return 0 if result["error"] is None else 3


if __name__ == "__main__":
    sys.exit(main())
