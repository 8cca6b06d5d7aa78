"""What there is one of refuses to be copied, in words."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rdmaring as rr


@pytest.fixture
def comm() -> Any:
    with rr.init(0, 1) as made:
        yield made


MADE: dict[str, Callable[[Any], Any]] = {
    "Communicator": lambda comm: comm,
    "Plan": lambda comm: comm.plan_all_reduce(np.ones(4)),
    "NativePlan": lambda comm: comm.plan_all_reduce(np.ones(4))._native,
    "Work": lambda comm: comm.all_reduce(np.ones(4), async_op=True),
    "Tracing": lambda comm: comm.trace(),
}
WAYS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "inside": lambda given: copy.deepcopy({"a": [given]}),
    "pickle": pickle.dumps,
    "pickle 0": lambda given: pickle.dumps(given, 0),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", MADE)
def test_a_copy_is_refused_and_names_what_to_do(kind: str, way: str, comm: Any) -> None:
    made = MADE[kind](comm)
    with pytest.raises(TypeError, match=rf"a rdmaring\.{kind} cannot be copied or pickled") as caught:
        WAYS[way](made)
    assert isinstance(caught.value, rr.ArgumentTypeError)
    assert len(caught.value.hint) > 20
    assert comm.all_reduce(np.ones(4)).tolist() == [1.0] * 4


def test_all_that_own_something_refuse() -> None:
    """Every class that keeps a handle of C's, or gives something back when it is collected."""
    import importlib
    import inspect
    import pkgutil

    from rdmaring.single import Single

    owners = []
    for module in pkgutil.walk_packages(rr.__path__, "rdmaring."):
        if module.name.split(".")[1] in ("cli", "torch", "bench", "launch") or module.name.endswith("__main__"):
            continue
        found = importlib.import_module(module.name)
        for _, kind in inspect.getmembers(found, inspect.isclass):
            if kind.__module__ != module.name:
                continue
            source = inspect.getsource(kind)
            if "weakref.finalize(self" in source or "ffi.gc(" in source or "rr_comm_close" in source:
                owners.append(kind)
    names = {kind.__name__ for kind in owners}
    assert {"Communicator", "NativePlan", "NativeDevice", "Allocation"} <= names
    assert [kind for kind in owners if not issubclass(kind, Single)] == []
