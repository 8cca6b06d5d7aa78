"""A worker of scripts/kill_stress: a rank of one incarnation of the job after the other.

A line of JSON on standard input begins an incarnation: rank, size, address, step and sums to go on from, count, node.
What it does, and finds wrong, it says in such lines on standard output.

The state of the job is a vector that gains one all_reduce a step. All contributions are whole numbers times one
pattern, so each sum and the state are known exactly, whoever is left: state == sums * pattern.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

import rdmaring as rr

TIMEOUT_S = 60.0
SHRINK_S = 30.0
TELL_S = 1.0
KEPT = 4  # states to go back to
SLOW_S = 3.0  # a shrink() that takes longer is told with what the library logged meanwhile
LOG_LINES = 100


def say(**what: Any) -> None:
    os.write(1, (json.dumps(what) + "\n").encode())


def rss_kib() -> int:
    status = Path("/proc/self/status").read_text()
    found: str = re.findall(r"VmRSS:\s+(\d+)", status)[0]
    return int(found)


class Lines(logging.Handler):
    """Keeps the library's last words, with the time of each."""

    def __init__(self) -> None:
        super().__init__()
        self.last: deque[tuple[float, str]] = deque(maxlen=LOG_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        self.last.append((time.monotonic(), record.getMessage()))


LOG = Lines()


class Few(Exception):
    """The job is to begin again: why."""


class Incarnation:
    def __init__(self, told: dict[str, Any]) -> None:
        self.size_min = told["size"] // 2 + 1
        self.pattern = (np.arange(told["count"]) % 7 + 1).astype(np.float64)
        self.step: int = told["step"]
        self.sums: int = told["sums"]
        self.state = self.pattern * self.sums
        os.environ["RDMARING_HOST_ID"] = f"stress-{told['address']}-{told['node']}"
        self.comm = rr.init(told["rank"], told["size"], told["address"], timeout_s=TIMEOUT_S)
        # operation that had ended -> step, sums, and whether the state was right then
        self.kept = {0: (self.step, self.sums)}
        self.told_at = 0.0

    def weight(self) -> int:
        """Of this step: what a rank's contribution is multiplied with."""
        return self.step % 97 + 1

    def one_step(self) -> None:
        comm = self.comm
        total = self.weight() * comm.size * (comm.size + 1) // 2
        found = comm.all_reduce(self.pattern * (self.weight() * (comm.rank + 1)), out=np.empty_like(self.pattern))
        if not (found == self.pattern * total).all():
            say(wrong=f"step {self.step} of {comm.size} ranks: {found[:4]}, expected {self.pattern[:4] * total}")
        self.state += found
        self.step, self.sums = self.step + 1, self.sums + total
        if not (self.state == self.pattern * self.sums).all():
            say(wrong=f"state at step {self.step}: {self.state[:4]}, expected {self.pattern[:4] * self.sums}")
        self.kept[comm.last.op] = (self.step, self.sums)
        self.kept.pop(min(self.kept) if len(self.kept) > KEPT else -1, None)
        if time.monotonic() > self.told_at + TELL_S:
            self.told_at = time.monotonic()
            say(step=self.step)

    def shrink(self) -> None:
        begin = time.monotonic()
        rank, size = self.comm.rank, self.comm.size
        while True:
            try:
                self.comm = self.comm.shrink(timeout_s=SHRINK_S)
                break
            except rr.NoQuorumError as error:
                raise Few("no quorum") from error
            except (rr.CommunicatorError, rr.LinkError) as error:  # another has died meanwhile
                say(error=f"{type(error).__name__} in shrink")
                if time.monotonic() > begin + 2 * SHRINK_S:
                    raise
        recovered = self.comm.recovered
        assert recovered is not None
        seconds = time.monotonic() - begin
        if seconds > SLOW_S:
            lines = [f"{at - begin:.2f} s: {text}" for at, text in LOG.last if at > begin - 1]
            say(slow=f"shrink() of rank {rank} of {size} took {seconds:.1f} s", log=lines)
        before = self.step
        self.step, self.sums = self.kept[recovered.last_common_op]
        self.state = self.pattern * self.sums
        self.kept = {0: (self.step, self.sums)}
        say(shrunk=self.comm.size, replayed=before - self.step, seconds=seconds)
        if self.comm.size < self.size_min:
            raise Few("half or fewer are left")

    def run(self) -> str:
        """Why it ended."""
        say(stands=True)
        try:
            while True:
                try:
                    self.one_step()
                except (rr.CommunicatorError, rr.LinkError) as error:
                    say(error=type(error).__name__)
                    self.shrink()
        except Few as few:
            return str(few)
        finally:
            self.comm.close()


def main() -> None:
    logging.getLogger("rdmaring").setLevel(logging.INFO)
    logging.getLogger("rdmaring").addHandler(LOG)
    say(ready=True)
    for line in sys.stdin:
        told = json.loads(line)
        try:
            job = Incarnation(told)
        except rr.SetupError as error:
            say(not_begun=error.cause)
            continue
        try:
            why = job.run()
        except rr.RdmaringError as error:
            say(unexpected=f"{type(error).__name__}: {error}")
            return
        say(few=why, step=job.step, sums=job.sums, rss_kib=rss_kib(), descriptors=len(os.listdir("/proc/self/fd")))
        del job


if __name__ == "__main__":
    main()
