"""docs/API.md lists the public names, all of them and no other."""

from __future__ import annotations

import ast
import inspect
import re
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rdmaring as rr
from rdmaring.cuda.array import DeviceArray

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/API.md").read_text()
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))


def listed(section: str) -> set[str]:
    return set(re.findall(r"`([A-Za-z_]\w*)`", SECTIONS[section])) - {"__dlpack__", "__cuda_array_interface__"}


def public(thing: Any) -> set[str]:
    return {name for name in thing if not name.startswith("_")}


@pytest.mark.parametrize("module", ["rdmaring", "rdmaring.schedule", "rdmaring.transport"])
def test_modules(module: str) -> None:
    found = import_module(module)
    assert listed(module) == set(found.__all__)
    assert [name for name in found.__all__ if not hasattr(found, name)] == []


def test_torch() -> None:
    """Read, not imported: torch is in no environment of the checks."""
    tree = ast.parse((Path(rr.__file__).parent / "torch/__init__.py").read_text())
    (names,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    assert listed("rdmaring.torch") == set(names)


def test_communicator_and_plan() -> None:
    with rr.init(0, 1) as comm:
        assert listed("Communicator") == public({*dir(comm)})
        plan = comm.plan_all_reduce(np.ones(3))
        inherited = public(dir(partial)) if isinstance(plan, partial) else set()
        assert listed("Plan") == public(dir(plan)) - inherited


@pytest.mark.parametrize("name", ["Work", "RunStats", "Link"])
def test_classes(name: str) -> None:
    kind = getattr(rr, name)
    own = {*dir(kind), *getattr(kind, "__annotations__", {})}
    inherited = set(dir(tuple)) if issubclass(kind, tuple) else set()
    assert listed(name) == public(own - inherited)


def test_device_array() -> None:
    """Its attributes by its source: one is made on a GPU only."""
    attributes = set(re.findall(r"self\.([a-z]\w*) =", inspect.getsource(DeviceArray.__init__)))
    assert len(attributes) > 3
    assert listed("rdmaring.cuda.array.DeviceArray") == public(dir(DeviceArray)) | attributes
