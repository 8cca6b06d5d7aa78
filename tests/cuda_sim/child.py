"""Tests that run in a child process, whose driver is the simulated one: this process may have none, or a real one."""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
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


def in_child(**settings: Any) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Make a test of a function without arguments: it runs in a child, with these settings of environment()."""

    def decorate(case: Callable[[], None]) -> Callable[[], None]:
        @functools.wraps(case)
        def test() -> None:
            line = command(case.__code__.co_filename, case.__name__)
            result = subprocess.run(
                line, env=child_environment(**settings), capture_output=True, text=True, timeout=TIMEOUT_S
            )
            assert result.returncode == 0, f"status {result.returncode}\n{result.stdout}{result.stderr}"

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


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    sys.path.pop(0)  # this folder: its modules have names of their own package
    function = getattr(load(sys.argv[1]), sys.argv[2])
    getattr(function, "__wrapped__", function)(*sys.argv[3:])
