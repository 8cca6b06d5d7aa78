"""Tests that run in a child process, whose driver is the simulated one: this process may have none, or a real one.

Children are forked by a server that has imported the bindings, which takes longer than most tests; what makes a
driver (cuInit, its settings, its threads) happens in the child alone.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
TIMEOUT_S = 60


def command(path: str, name: str, *arguments: str) -> list[str]:
    """What runs the function `name` of the test file `path` in a process of its own."""
    return [sys.executable, __file__, path, name, *arguments]


def child_environment(**settings: Any) -> dict[str, str]:
    from cuda_sim.environment import environment

    own = {name: value for name, value in os.environ.items() if not name.startswith(("RR_CUDA_SIM_", "CUDA_VISIBLE"))}
    others = settings.pop("variables", {})
    return {**own, "PYTHONPATH": str(TESTS), **environment(**settings), **others}


@functools.cache
def _server() -> subprocess.Popen[str]:
    """Ends when this process closes its end of the pipe."""
    return subprocess.Popen(
        command("--serve", ""), env=child_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def run(path: str, name: str, **settings: Any) -> tuple[int, str]:
    """Status and output of a function that ran in a child with these settings of environment()."""
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(json.dumps([path, name, child_environment(**settings)]) + "\n")
    server.stdin.flush()
    status, output = json.loads(server.stdout.readline())
    return status, output


def in_child(**settings: Any) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Make a test of a function without arguments: it runs in a child, with these settings of environment()."""

    def decorate(case: Callable[[], None]) -> Callable[[], None]:
        @functools.wraps(case)
        def test() -> None:
            status, output = run(case.__code__.co_filename, case.__name__, **settings)
            assert status == 0, f"status {status}\n{output}"

        return test

    return decorate


def check(answer: tuple[Any, ...]) -> Any:
    """The values of a call of cuda.bindings.driver that must have succeeded."""
    result, *values = answer
    if int(result) != 0:
        raise AssertionError(f"{result!r}")
    return None if not values else values[0] if len(values) == 1 else tuple(values)


def refused(answer: tuple[Any, ...]) -> int:
    """The number of the error that a call must have returned."""
    if int(answer[0]) == 0:
        raise AssertionError("the call succeeded")
    return int(answer[0])


def context(device: int = 0) -> Any:
    """cuInit, and the primary context of a device made current."""
    import cuda.bindings.driver as driver

    check(driver.cuInit(0))
    made = check(driver.cuDevicePrimaryCtxRetain(check(driver.cuDeviceGet(device))))
    check(driver.cuCtxSetCurrent(made))
    return made


class Beside:
    """Another process, forked before this one has a driver: runs function(connection) with one of its own."""

    def __init__(self, function: Callable[[Connection], None]) -> None:
        here, there = Pipe()
        self.pid = os.fork()
        if not self.pid:
            status = 1
            try:
                function(there)
                status = 0
            except BaseException:
                traceback.print_exc()
            sys.stderr.flush()
            os._exit(status)
        there.close()
        self.send, self.recv = here.send, here.recv

    def join(self) -> None:
        """Wait for its end, which must be a good one."""
        assert os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]) == 0


def handle_bytes(handle: Any) -> bytes:
    """What is sent of a CUipcMemHandle or CUipcEventHandle."""
    return ctypes.string_at(handle.getPtr(), 64)


def handle_from(kind: Callable[[], Any], data: bytes) -> Any:
    handle = kind()
    ctypes.memmove(handle.getPtr(), data, 64)
    return handle


def _load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _call(path: str, name: str, arguments: list[str]) -> None:
    function = getattr(_load(path), name)
    getattr(function, "__wrapped__", function)(*arguments)


def _forked(path: str, name: str, environment: dict[str, str], output: int) -> int:
    """The pid of a child that runs a function, its output in the file."""
    child = os.fork()
    if child:
        return child
    os.setsid()  # its own children go with it
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.clear()
    os.environ.update(environment)
    status = 1
    try:
        _call(path, name, [])
        status = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _serve() -> None:
    import cuda.bindings.driver  # noqa: F401 - what takes long is done before the forks
    import numpy  # noqa: F401
    import pytest  # noqa: F401

    for line in sys.stdin:
        path, name, environment = json.loads(line)
        with tempfile.TemporaryFile() as output:
            child = _forked(path, name, environment, output.fileno())
            end = time.monotonic() + TIMEOUT_S
            ended, status = os.waitpid(child, os.WNOHANG)
            while not ended:
                if time.monotonic() > end:
                    os.kill(child, signal.SIGKILL)
                time.sleep(0.002)
                ended, status = os.waitpid(child, os.WNOHANG)
            output.seek(0)
            text = output.read().decode(errors="replace")
        print(json.dumps([os.waitstatus_to_exitcode(status), text]), flush=True)


if __name__ == "__main__":
    sys.path.pop(0)  # this folder: its modules have names of their own package
    if sys.argv[1] == "--serve":
        _serve()
    else:
        _call(sys.argv[1], sys.argv[2], sys.argv[3:])
