"""PyTorch's DistributedTest passes, test by test, as expected.json says; see suite.py and suite_gates.py."""

from __future__ import annotations

import importlib.util
import os
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from launchers import environment
from torches import HERE, packages

PASSES_MIN = 93  # distinct ones; of the feasibility study, ours and gloo's together


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("suite_gates", HERE / "suite_gates.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


gates = load()


def env() -> dict[str, str]:
    path = os.pathsep.join(filter(None, (packages(), os.environ.get("PYTHONPATH", ""))))
    return environment({"PYTHONPATH": path})


def left_the_list(world: int, found: dict[str, dict[str, Any]]) -> list[str]:
    """Tests that are expected to pass and did not, with what they said."""
    lost = []
    for gate, names in gates.expected(world).items():
        for name in sorted(set(names) - set(found[gate]["passed"])):
            said = found[gate]["failed"].get(name) or found[gate]["skipped"].get(name) or "it did not run"
            lost.append(f"{gate}: {name}: {said[-1500:]}")
    return lost


def passed(found: dict[str, dict[str, Any]]) -> set[str]:
    return {name for each in found.values() for name in each["passed"]}


def test_lists_hold_what_is_claimed() -> None:
    lists = {world: gates.expected(world) for world in gates.worlds()}
    assert 2 in lists
    assert all(tuple(each) == gates.GATES for each in lists.values())
    distinct = {name for each in lists.values() for names in each.values() for name in names}
    assert len(distinct) >= PASSES_MIN


def test_a_test_that_leaves_the_list_is_seen() -> None:
    found: dict[str, dict[str, Any]] = {
        gate: {"passed": list(names), "failed": {}, "skipped": {}} for gate, names in gates.expected(2).items()
    }
    assert left_the_list(2, found) == []
    found["gloo"]["passed"].remove("test_broadcast")
    found["gloo"]["failed"]["test_broadcast"] = "1 != 2"
    assert left_the_list(2, found) == ["gloo: test_broadcast: 1 != 2"]


@pytest.mark.timeout(900)
def test_two_ranks_pass_what_is_expected() -> None:
    found = gates.run_some(2, gates.expected(2), env())
    assert left_the_list(2, found) == []


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("world", gates.worlds())
def test_all_of_it_beside_gloo(world: int) -> None:
    """Every test is run: none fails that gloo passes here; one that newly passes is told."""
    found = gates.run_all(world, env())
    assert left_the_list(world, found) == []
    theirs = gates.run("gloo", world, "none", "*", env())
    print(f"world size {world}: {len(passed(found))} pass; of gloo's {len(theirs['passed'])}")
    assert sorted(set(theirs["passed"]) - passed(found)) == []
    listed = {name for names in gates.expected(world).values() for name in names}
    new = sorted(passed(found) - listed)
    if new:
        warnings.warn(f"these pass now, and belong into {Path(gates.EXPECTED).name}: {', '.join(new)}", stacklevel=1)
