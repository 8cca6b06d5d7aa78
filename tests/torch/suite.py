"""PyTorch's own DistributedTest, of the installed wheel, run against a backend; a script of its own.

suite.py BACKEND WORLD GATE OUT [PATTERN]

GATE: the backend for which the suite's decorators take us when they choose tests: "none" for BACKEND itself, "gloo" or
"mpi" for the tests of those. OUT: a JSON document, {"passed": [...], "failed": {name: text}, "skipped": {name: why}}.
"""

from __future__ import annotations

import fnmatch
import json
import os
import sys
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

BACKEND, WORLD, GATE = os.environ.get("SUITE", "rdmaring 2 none").split()
FEATURES = ("gpu", "cuda", "ddp", "subgroup", "plugin")  # what the suite asks of a backend that it does not know


def prepare() -> None:
    """What the suite reads when it is imported; children of the fork server, too."""
    os.environ["WORLD_SIZE"] = WORLD
    if "TEMP_DIR" not in os.environ:
        os.environ["TEMP_DIR"] = tempfile.mkdtemp()
        Path(os.environ["TEMP_DIR"], "barrier").mkdir()
    os.environ["BACKEND"] = BACKEND if GATE == "none" else GATE


prepare()
import torch  # noqa: E402
from torch.testing._internal.common_distributed import DistTestCases  # noqa: E402

for feature in FEATURES:
    DistTestCases.backend_feature[feature].add(BACKEND)
from torch.testing._internal.distributed import distributed_test  # noqa: E402

os.environ["BACKEND"] = distributed_test.BACKEND = BACKEND
torch.set_num_threads(1)


def child(env: dict[str, str], target: Callable[..., None], args: Any, kwargs: Any) -> None:
    """In a process forked from the server, whose environment is the first test's."""
    os.environ.clear()
    os.environ.update(env)
    target(*args, **kwargs)


class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    """The tests, in processes that come from a fork server: torch is imported once."""

    def setUp(self) -> None:
        super().setUp()
        context = torch.multiprocessing.get_context("forkserver")

        def start(target: Any, name: str, args: Any, kwargs: Any) -> Any:
            return context.Process(target=child, name=name, args=(dict(os.environ), target, args, kwargs))

        self._start_processes(start)


class Kept(unittest.TextTestResult):
    """Keeps what ended how."""

    passed: list[str]

    def startTestRun(self) -> None:
        self.passed = []

    def addSuccess(self, test: unittest.TestCase) -> None:
        super().addSuccess(test)
        self.passed.append(test._testMethodName)


def main(out: str, pattern: str = "*") -> int:
    loader = unittest.TestLoader()
    names = fnmatch.filter(loader.getTestCaseNames(Suite), pattern)
    runner = unittest.TextTestRunner(stream=sys.stderr, verbosity=2, resultclass=Kept)
    result = runner.run(unittest.TestSuite(Suite(name) for name in names))
    assert isinstance(result, Kept)
    failed = {test._testMethodName: text[-3000:] for test, text in [*result.failures, *result.errors]}
    skipped = {test._testMethodName: why for test, why in result.skipped}
    Path(out).write_text(json.dumps({"passed": sorted(result.passed), "failed": failed, "skipped": skipped}, indent=1))
    return 0


if __name__ == "__main__":
    # As a module of a name, so that the fork server's children find what they are to run.
    sys.path.insert(0, str(Path(__file__).parent))
    torch.multiprocessing.get_context("forkserver").set_forkserver_preload(["suite"])
    import suite

    sys.exit(suite.main(*sys.argv[1:]))
