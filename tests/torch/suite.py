"""PyTorch's own DistributedTest, of the installed wheel, run against a backend; a script of its own.

SUITE="BACKEND WORLD GATE" suite.py OUT [PATTERN | @FILE]

GATE: the backend for which the suite's decorators take us when they choose tests: "none" for BACKEND itself, "gloo" or
"mpi" for the tests of those. FILE: names, one a line. OUT: a JSON document, {"passed": [...], "failed": {name: text},
"skipped": {name: why}}.

torch is imported once. The ranks are forked from the process that has done so, and run test after test, each in a
process group of its own as torch's launcher makes it; after a test that did not end well they are replaced.
"""

from __future__ import annotations

import fnmatch
import gc
import json
import os
import sys
import tempfile
import time
import traceback
import unittest
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any, NamedTuple

BACKEND, WORLD, GATE = os.environ.get("SUITE", "rdmaring 2 none").split()
FEATURES = ("gpu", "cuda", "ddp", "subgroup", "plugin")  # what the suite asks of a backend that it does not know
TEST_TIMEOUT_S = 120
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
os.environ["WORLD_SIZE"] = WORLD
os.environ["MASTER_ADDR"] = "127.0.0.1"
os.environ["TEMP_DIR"] = tempfile.mkdtemp()  # read at import; each test has its own
os.environ["BACKEND"] = BACKEND if GATE == "none" else GATE
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.testing._internal import common_distributed, common_utils  # noqa: E402

for feature in FEATURES:
    common_distributed.DistTestCases.backend_feature[feature].add(BACKEND)
from torch.testing._internal.distributed import distributed_test  # noqa: E402

os.environ["BACKEND"] = distributed_test.BACKEND = BACKEND
torch.set_num_threads(1)
WHY = {skip.exit_code: skip.message for skip in common_distributed.TEST_SKIPS.values()}


# They make their model only for a backend of a name they know, so their bodies see the gate's.
BODIES_SEE_GATE = "test_accumulate_gradients_no_sync*"


def monitored_barrier(group: Any = None, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
    """torch's own asks for the name gloo before it does the same."""
    if group is not dist.GroupMember.NON_GROUP_MEMBER:
        (group or dist.group.WORLD).monitored_barrier(timeout or timedelta(seconds=60), wait_all_ranks)


if BACKEND == "rdmaring":
    dist.monitored_barrier = monitored_barrier


class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    """The tests."""


class Ended(NamedTuple):
    """How a test ended on a rank."""

    how: str
    text: str = ""


# ---- a rank ----


def run_test(name: str, rank: int, store: str) -> Ended:
    """As TestDistBackend._run() does, without its end of the process."""
    seen = fnmatch.fnmatch(name, BODIES_SEE_GATE) and GATE != "none"
    distributed_test.BACKEND = GATE if seen else BACKEND
    test = Suite(name)
    test.rank, test.file_name = rank, store
    timeout_s = distributed_test.CUSTOM_PG_TIMEOUT.get(name, distributed_test.default_pg_timeout)
    try:
        dist.init_process_group(
            BACKEND,
            init_method=test.init_method,
            world_size=int(WORLD),
            rank=rank,
            timeout=timedelta(seconds=timeout_s),
        )
        test._barrier()  # a test may end at once: the others have met before
        common_utils.set_rng_seed()
        getattr(test, name)()
        test._barrier()
        if dist.is_initialized():
            dist.destroy_process_group()
    except unittest.SkipTest as skip:
        return Ended(SKIPPED, str(skip))
    except SystemExit as end:  # how the suite's decorators skip
        return Ended(SKIPPED, WHY[end.code]) if end.code in WHY else Ended(FAILED, f"it ended with code {end.code}")
    except Exception:
        return Ended(FAILED, traceback.format_exc())
    return Ended(PASSED)


def serve(rank: int, orders: Connection) -> None:
    """Run tests until the pipe closes."""
    while True:
        try:
            name, env = orders.recv()
        except EOFError:
            return
        os.environ.clear()
        os.environ.update(env)
        distributed_test.Barrier.barrier_id = 0
        ended = run_test(name, rank, str(Path(env["TEMP_DIR"], "store")))
        if ended.how == SKIPPED and dist.is_initialized():
            dist.destroy_process_group()
        gc.collect()
        orders.send(ended)


# ---- all ranks ----


class Crew:
    """The ranks' processes; made again after a test that failed."""

    def __init__(self) -> None:
        self._pipes: list[Connection] = []
        self._processes: list[ForkProcess] = []

    def _start(self) -> None:
        context = torch.multiprocessing.get_context("fork")
        for rank in range(int(WORLD)):
            here, there = context.Pipe()
            process = context.Process(target=self._serve, args=(rank, there, here))
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def _serve(self, rank: int, orders: Connection, *parents: Connection) -> None:
        for pipe in (*self._pipes, *parents):  # or the end of the parent would not be seen
            pipe.close()
        serve(rank, orders)

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._pipes, self._processes = [], []

    def run(self, name: str) -> Ended:
        """One test on all ranks."""
        if not self._processes:
            self._start()
        with tempfile.TemporaryDirectory() as folder:
            for each in ("barrier", "test_dir", "init_dir"):
                Path(folder, each).mkdir()
            own = {"TEMP_DIR": folder, "INIT_METHOD": f"file://{Path(folder, 'init_dir', 'shared_init_file')}"}
            for pipe in self._pipes:
                pipe.send((name, {**os.environ, **own}))
            ended = self._ends()
        bad = [f"rank {rank}: {each.text}" for rank, each in enumerate(ended) if each is None or each.how == FAILED]
        if bad or len({each.how for each in ended}) > 1:
            self.end()
            return Ended(FAILED, "\n".join(bad) or f"ranks disagree: {ended}")
        return ended[0]

    def _ends(self) -> list[Ended]:
        """Of each rank; when one has failed the others have a moment left."""
        ended: dict[int, Ended] = {}
        deadline = time.monotonic() + TEST_TIMEOUT_S
        while len(ended) < len(self._pipes):
            missing = [pipe for rank, pipe in enumerate(self._pipes) if rank not in ended]
            ready = wait(missing, max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for pipe in ready:
                rank = self._pipes.index(pipe)
                try:
                    ended[rank] = pipe.recv()
                except (EOFError, ConnectionResetError):
                    ended[rank] = Ended(FAILED, "its process died")
                if ended[rank].how == FAILED:
                    deadline = min(deadline, time.monotonic() + 2)
        silent = Ended(FAILED, "it did not end in time")
        return [ended.get(rank, silent) for rank in range(len(self._pipes))]


def skipped_here(name: str) -> str | None:
    """Why a decorator skips it before any rank is asked."""
    method: Callable[..., Any] = getattr(Suite, name)
    return getattr(method, "__unittest_skip_why__", "") if getattr(method, "__unittest_skip__", False) else None


def main(out: str, pattern: str = "*") -> int:
    names = unittest.TestLoader().getTestCaseNames(Suite)
    if pattern.startswith("@"):
        wanted = set(Path(pattern[1:]).read_text().split())
        names = [name for name in names if name in wanted]
    else:
        names = fnmatch.filter(names, pattern)
    crew = Crew()
    results: dict[str, dict[str, str]] = {PASSED: {}, FAILED: {}, SKIPPED: {}}
    for name in names:
        why = skipped_here(name)
        began = time.monotonic()
        ended = crew.run(name) if why is None else Ended(SKIPPED, why)
        results[ended.how][name] = ended.text[-3000:]
        print(f"{time.monotonic() - began:7.2f} s {ended.how} {name}", file=sys.stderr, flush=True)
    crew.end()
    document = {**results, PASSED: sorted(results[PASSED])}
    Path(out).write_text(json.dumps(document, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
