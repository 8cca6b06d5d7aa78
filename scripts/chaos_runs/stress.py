"""The command scripts/kill_stress: starts workers, kills them at random, starts the job again when few are left."""

from __future__ import annotations

import json
import os
import random
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

WORKER = Path(__file__).with_name("stress_worker.py")
SILENT_S = 180.0  # without a word from a living worker
PAUSE_S = 5.0  # of this script itself: its machine stood still, and so did the ranks, whose times went on
FLAT_KIB = 8192  # what the elder may grow between its second quarter and its last

EPILOG = """\b
Examples:
  scripts/kill_stress --minutes 30 --ranks 4 --seed 1
  scripts/kill_stress --minutes 5 --ranks 4 --nodes 2 --json    nodes joined by TCP

\b
One worker, the elder, is never killed: it lives through all incarnations of the job, as another rank in each, and its
memory must not grow. All others may die at any moment, rank 0 too. The seed draws whom, and when. When half of the
ranks or fewer are left the job starts again with new ones, from the last operation that all survivors had finished.

\b
Exit code: 0 if all sums were right, memory and descriptors stayed flat and nothing hung; 1 if not; 2 for wrong usage.
It ends only its own processes.
"""


@dataclass
class Worker:
    """One process. ready: it has begun. stands: its world was made. waits: for the next incarnation."""

    process: subprocess.Popen[bytes]
    ready: bool = False
    stands: bool = False
    waits: bool = True
    begun: bytes = b""
    heard_at: float = field(default_factory=time.monotonic)
    step: int = 0
    sums: int = 0


@dataclass
class Totals:
    """What happened. rss_kib, descriptors: of the elder at the end of each incarnation, all closed."""

    kills: int = 0
    killed_rank_0: int = 0
    shrinks: int = 0
    incarnations: int = 0
    steps: int = 0
    replayed: int = 0
    wrong: list[str] = field(default_factory=list)
    without_quorum: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    unexpected: list[str] = field(default_factory=list)
    hung: list[str] = field(default_factory=list)
    paused_s: list[float] = field(default_factory=list)
    not_begun: list[str] = field(default_factory=list)  # worlds that did not assemble, in a rank's words
    rss_kib: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    shrink_s: list[float] = field(default_factory=list)
    slow: list[dict[str, Any]] = field(default_factory=list)  # shrinks of any worker, with what was logged in each

    def growth_kib(self) -> int:
        """From the second quarter's median to the last's: in the first, what is kept for later is filled."""
        quarter = len(self.rss_kib) // 4
        if quarter == 0:
            return 0
        parts = (self.rss_kib[quarter : 2 * quarter], self.rss_kib[-quarter:])
        early, late = (sorted(part)[len(part) // 2] for part in parts)
        return late - early

    @property
    def flat(self) -> bool:
        return self.growth_kib() <= FLAT_KIB and len(set(self.descriptors)) <= 1

    @property
    def good(self) -> bool:
        without_cause = len(self.not_begun) if not self.paused_s else 0
        return not (self.wrong or self.hung or self.unexpected or without_cause) and self.flat and self.steps > 0

    def as_dict(self) -> dict[str, Any]:
        times = sorted(self.shrink_s)
        return {
            "good": self.good,
            "incarnations": self.incarnations,
            "kills": self.kills,
            "killed_rank_0": self.killed_rank_0,
            "shrinks": self.shrinks,
            "without_quorum": self.without_quorum,
            "steps": self.steps,
            "replayed": self.replayed,
            "wrong": self.wrong,
            "hung": self.hung,
            "unexpected": self.unexpected,
            "paused_s": [round(pause, 1) for pause in self.paused_s],
            "not_begun": self.not_begun,
            "errors": dict(self.errors),
            "rss_kib": [self.rss_kib[0], self.rss_kib[-1]] if self.rss_kib else [],
            "growth_kib": self.growth_kib(),
            "descriptors": sorted(set(self.descriptors)),
            "shrink_median_s": round(times[len(times) // 2], 3) if times else None,
            "shrink_slowest_s": round(times[-1], 3) if times else None,
            "slow": self.slow,
        }


class Stress:
    """The job over all its incarnations."""

    def __init__(self, ranks: int, nodes: int, seed: int, kill_every_s: float, count: int) -> None:
        self.ranks, self.nodes, self.count, self.kill_every_s = ranks, nodes, count, kill_every_s
        self.dice = random.Random(seed)
        self.totals = Totals()
        self.workers: list[Worker] = []  # the first is the elder
        self.order: list[Worker] = []  # by rank of this incarnation
        self.selector = selectors.DefaultSelector()
        self.until = float("inf")
        self.looked_at = time.monotonic()
        self.secret = secrets.token_hex(16)

    def run(self, seconds: float) -> Totals:
        try:
            while time.monotonic() < self.until and not self.totals.hung:
                self.begin()
                self.until = min(self.until, time.monotonic() + seconds)
                self.incarnation()
        finally:
            for worker in self.workers:
                worker.process.kill()
                worker.process.wait()
        return self.totals

    def look(self, wait_s: float) -> float:
        """Hear what workers say. What this script stood still for does not count. Returns the time."""
        for key, _ in self.selector.select(wait_s):
            self.hear(key.data)
        now = time.monotonic()
        pause_s = now - self.looked_at
        self.looked_at = now
        if pause_s > PAUSE_S:
            self.totals.paused_s.append(pause_s)
            self.until += pause_s
            for worker in self.workers:
                worker.heard_at = now
        return now

    def begin(self) -> None:
        """Survivors and new workers become a world, in drawn order."""
        survivors = len(self.workers)
        # Without a quorum they have not agreed, and are one step apart at most: all go back to the earlier.
        start = min(self.workers, key=lambda worker: worker.step) if survivors else None
        step, sums = (start.step, start.sums) if start else (0, 0)
        while len(self.workers) < self.ranks:
            self.workers.append(self.start())
        # A loaded machine takes longer to start them than a world waits for a rank.
        until = time.monotonic() + SILENT_S
        while not all(worker.ready for worker in self.workers) and self.look(0.2) < until:
            pass
        self.totals.incarnations += 1
        self.order = self.dice.sample(self.workers, self.ranks)
        port = _free_port()
        for rank, worker in enumerate(self.order):
            told = {
                "rank": rank,
                "size": self.ranks,
                "address": f"127.0.0.1:{port}",
                "step": step,
                "sums": sums,
                "count": self.count,
                "node": rank * self.nodes // self.ranks,
            }
            worker.waits, worker.stands, worker.heard_at = False, False, time.monotonic()
            assert worker.process.stdin is not None
            worker.process.stdin.write(json.dumps(told).encode() + b"\n")
            worker.process.stdin.flush()

    def start(self) -> Worker:
        env = {name: value for name, value in os.environ.items() if not name.startswith("RDMARING_")}
        env |= {"RDMARING_SECRET": self.secret, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, str(WORKER)], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        worker = Worker(process)
        assert process.stdout is not None
        self.selector.register(process.stdout, selectors.EVENT_READ, worker)
        return worker

    def incarnation(self) -> None:
        """Kills until all survivors say that they are too few, or the time is over."""
        next_kill = float("inf")
        while not all(worker.waits for worker in self.workers):
            now = self.look(0.05)
            silent = [worker.process.pid for worker in self.workers if now - worker.heard_at > SILENT_S]
            if silent:
                self.totals.hung.append(f"incarnation {self.totals.incarnations}: silent for {SILENT_S:g} s: {silent}")
            if silent or now > self.until:
                return
            targets = [worker for worker in self.workers[1:] if not worker.waits]
            if next_kill == float("inf") and all(worker.stands for worker in self.workers):
                next_kill = now + self.dice.expovariate(1 / self.kill_every_s)
            if now >= next_kill and targets:
                self.kill(self.dice.choice(targets))
                next_kill = now + self.dice.expovariate(1 / self.kill_every_s)

    def kill(self, worker: Worker) -> None:
        self.totals.kills += 1
        self.totals.killed_rank_0 += worker is self.order[0]
        worker.process.send_signal(signal.SIGKILL)
        self.drop(worker)

    def drop(self, worker: Worker) -> None:
        assert worker.process.stdout is not None and worker.process.stdin is not None
        self.selector.unregister(worker.process.stdout)
        worker.process.stdout.close()
        worker.process.stdin.close()
        worker.process.wait()
        self.workers.remove(worker)

    def hear(self, worker: Worker) -> None:
        if worker not in self.workers:  # killed in this turn
            return
        assert worker.process.stdout is not None
        data = os.read(worker.process.stdout.fileno(), 1 << 16)
        if not data:
            pid = worker.process.pid
            self.drop(worker)
            self.totals.unexpected.append(f"worker {pid} ended by itself with status {worker.process.returncode}")
            return
        worker.heard_at = time.monotonic()
        *lines, worker.begun = (worker.begun + data).split(b"\n")
        for line in lines:
            self.note(worker, json.loads(line))

    def note(self, worker: Worker, said: dict[str, Any]) -> None:
        elder = worker is self.workers[0]
        totals = self.totals
        worker.ready |= "ready" in said
        worker.stands |= "stands" in said
        if "wrong" in said:
            totals.wrong.append(said["wrong"])
        if "error" in said:
            totals.errors[said["error"]] += 1
        if "not_begun" in said:
            totals.not_begun.append(said["not_begun"])
            worker.waits = True
        if "unexpected" in said:
            totals.unexpected.append(said["unexpected"])
        if "shrunk" in said and elder:
            totals.shrinks += 1
            totals.replayed += said["replayed"]
            totals.shrink_s.append(said["seconds"])
        if "slow" in said:
            totals.slow.append({"what": said["slow"], "log": said["log"]})
        if "few" in said:
            worker.waits, worker.step, worker.sums = True, said["step"], said["sums"]
            totals.without_quorum += said["few"] == "no quorum" and elder
            if elder:
                totals.rss_kib.append(said["rss_kib"])
                totals.descriptors.append(said["descriptors"])
        if elder and "step" in said:
            totals.steps = said["step"]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@click.command("kill_stress", epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--minutes", default=30.0, show_default=True, type=click.FloatRange(0.05))
@click.option("--ranks", default=4, show_default=True, type=click.IntRange(2, 64))
@click.option("--nodes", default=1, show_default=True, type=click.IntRange(1), help="Joined by TCP.")
@click.option("--seed", default=1, show_default=True)
@click.option("--kill-every-s", default=1.0, show_default=True, type=click.FloatRange(0.05), help="On average.")
@click.option("--count", default=20_000, show_default=True, type=click.IntRange(1), help="Elements of float64.")
@click.option("--json", "as_json", is_flag=True, help="One document on standard output.")
@click.pass_context
def command(context: click.Context, /, minutes: float, as_json: bool, **given: Any) -> None:
    """Ranks are killed at random; survivors shrink() and go on; the job restarts when too few are left."""
    if given["nodes"] > given["ranks"]:
        raise click.UsageError(f"--nodes is {given['nodes']}; accepted are up to {given['ranks']} for as many ranks")
    totals = Stress(**given).run(minutes * 60)
    if as_json:
        click.echo(json.dumps({"seed": given["seed"], **totals.as_dict()}, indent=1))
    else:
        for name, value in totals.as_dict().items():
            click.echo(f"{name:>18}: {value}")
    context.exit(0 if totals.good else 1)


def main() -> None:
    command()
