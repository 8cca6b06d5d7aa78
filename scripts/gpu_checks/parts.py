"""The parts of the check: each returns data for the report and says whether all held."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from gpu_checks.drivers import RDMARING, ROOT, Driver, PartError

ALL_DTYPES = "float32,float64,float16,bfloat16,int8,int16,int32,int64,uint8,uint16,uint32,uint64"
FEW_DTYPES = "float32,bfloat16,int64"
WORLD_LIMIT_S = 150.0


@dataclass(frozen=True)
class Wanted:
    """How much is looked at. quick: few dtypes and small sizes, as on the simulated driver in tests."""

    worlds: tuple[int, ...] = (2, 3, 4)
    quick: bool = False
    cases: str = ""

    @property
    def dtypes(self) -> str:
        return FEW_DTYPES if self.quick else ALL_DTYPES


Part = Callable[[Driver, Wanted], tuple[bool, Any]]


def doctor(driver: Driver, wanted: Wanted) -> tuple[bool, Any]:
    """The findings of ``rdmaring doctor`` about GPUs."""
    out = driver.run([RDMARING, "doctor", "--json", *_only()], 150.0, accepted=(0, 1))
    document = json.loads(out)
    return document["worst"] != "failure", document["findings"]


def _only() -> list[str]:
    from rdmaring.diagnose.doctor import CHECKS

    ids = [check.id for check in CHECKS if check.id.startswith("gpu-") or check.id in ("cuda-python", "nvrtc")]
    return [word for name in ids for word in ("--only", name)]


def attributes(driver: Driver, wanted: Wanted) -> tuple[bool, Any]:
    """Every attribute of device 0."""
    return True, driver.module("gpu_checks.attributes")


def conformance(driver: Driver, wanted: Wanted) -> tuple[bool, Any]:
    """Every case of tests/gpu, in a process each, a few at a time; all must hold."""
    from gpu import conformance as suite

    for path in sorted((ROOT / "tests" / "gpu").glob("test_conformance_*.py")):
        _load(path)
    cases = [each for each in suite.CASES if re.search(wanted.cases, each.__name__)]

    def run(function: suite.Case) -> dict[str, Any]:
        begin = time.monotonic()
        settings = suite.SETTINGS[function] if driver.simulated else {}
        done = suite.run_case(function, driver.environment(**settings))
        state = {0: "held", suite.LACKING: "lacking"}.get(done.returncode, "differs")
        words = "" if state == "held" else (done.stdout + done.stderr).strip()[-2000:]
        return {"case": function.__name__, "state": state, "seconds": time.monotonic() - begin, "output": words}

    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        rows = list(pool.map(run, cases))
    counts = {state: sum(row["state"] == state for row in rows) for state in ("held", "lacking", "differs")}
    return bool(rows) and not counts["differs"], {**counts, "cases": rows}


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def bugs(driver: Driver, wanted: Wanted) -> tuple[bool, Any]:
    """Deliberate bugs in a list of stream operations: each must be seen in the result."""
    rows = driver.module("gpu_checks.bugs")
    return all(row["caught"] for row in rows), rows


def collectives(driver: Driver, wanted: Wanted) -> tuple[bool, Any]:
    """rdmaring itself: dtypes and reductions against numpy, 2 to 4 processes on one device."""
    worlds = [_world(driver, world, wanted.dtypes) for world in wanted.worlds]
    return all(each["ok"] for each in worlds), worlds


def one_queue(driver: Driver, wanted: Wanted) -> tuple[bool, Any]:
    """The same with all streams of a process in one hardware queue."""
    row = _world(driver, min(wanted.worlds), FEW_DTYPES, one_queue=True)
    return row["ok"], row


def _world(driver: Driver, world: int, dtypes: str, **settings: Any) -> dict[str, Any]:
    script = ROOT / "scripts" / "gpu_checks" / "ranks.py"
    begin = time.monotonic()
    command = [RDMARING, "run", "-n", str(world), sys.executable, str(script), dtypes]
    try:
        out = driver.run(command, WORLD_LIMIT_S, **settings)
    except PartError as error:
        return {"ranks": world, "ok": False, "reason": str(error)}
    said = [json.loads(text) for text in re.findall(r"ROWS (\{.*\})$", out, re.MULTILINE)]
    wrong = [{"rank": one["rank"], **row} for one in said for row in one["rows"] if row["wrong"]]
    return {
        "ranks": world,
        "ok": len(said) == world and not wrong,
        "compared": sum(len(one["rows"]) for one in said),
        "wrong": wrong,
        "links": said[0]["links"] if said else [],
        "seconds": time.monotonic() - begin,
    }


def replays(driver: Driver, wanted: Wanted) -> tuple[bool, Any]:
    """A list captured in a graph and launched 100 times, each on new data, by two processes on one device."""
    row = driver.module("gpu_checks.replays", "10" if wanted.quick else "100")
    return bool(row["ok"]), row


def rates(driver: Driver, wanted: Wanted) -> tuple[bool, Any]:
    """Copies and flags. On the simulated driver they say nothing of any GPU."""
    return True, driver.module("gpu_checks.rates", *(("4", "3") if wanted.quick else ("256", "20")))


PARTS: tuple[Part, ...] = (doctor, attributes, conformance, bugs, collectives, one_queue, replays, rates)
