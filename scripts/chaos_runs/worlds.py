"""Starts the ranks of one run as a user does, waits for them within a bound, and collects what they say."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos_runs.faults import PATIENCE
from chaos_runs.plan import Plan

SCRIPTS = Path(__file__).resolve().parents[1]
TESTS = SCRIPTS.parent / "tests"
RANK = str(SCRIPTS / "chaos_runs" / "rank.py")
RDMARING = str(Path(sys.executable).with_name("rdmaring"))
MARK = "CHAOS_RUN"
START_S = {"local": 30.0, "namespaces": 40.0, "guests": 240.0}
RUN_S = 40.0 * max(1.0, PATIENCE)  # all faults show long before
END_S = 10.0
RECONNECT_S = "2"  # of verbs: so long a cut edge is tried again, else for 10 s
LINE = re.compile(r"^\[(\d+)\] CHAOS (\{.*\})$", re.MULTILINE)


@dataclass
class Ran:
    """hung: it was still there when its time was over. ranks: rank -> what it said, merged."""

    mark: str
    hung: bool
    code: int
    output: str
    seconds: float
    ranks: dict[int, dict[str, Any]] = field(default_factory=dict)


def command_of(plan: Plan) -> list[str]:
    ranks = [RANK, json.dumps(plan.as_dict())]
    if plan.bed == "local":
        return [RDMARING, "run", "--keep-going", "-n", str(plan.ranks), *ranks]
    # Grace: the others report their verdict after the first has failed.
    options = ["--ranks", str(plan.ranks_per_node), "--grace", "30", "--", sys.executable, *ranks]
    if plan.bed == "namespaces":
        return [sys.executable, str(SCRIPTS / "hosts"), "--hosts", str(plan.nodes), *options]
    return [sys.executable, str(SCRIPTS / "softroce"), "--guests", str(plan.nodes), *options]


def environment_of(plan: Plan, mark: str, folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RDMARING_")}
    # One thread a rank; the path of the Python under test for guests and hosts.
    env = {**kept, MARK: mark, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    env["PATH"] = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
    if plan.transport == "tcp":
        env["RDMARING_TRANSPORT"] = "tcp"
    if plan.transport in ("verbs", "softroce"):
        env["RDMARING_TRANSPORT"] = "verbs"
        env["RDMARING_VERBS_RECONNECT_S"] = RECONNECT_S
    if plan.transport == "verbs":
        from verbs_sim import build  # tests/ is on the path

        env |= build.environment("", fabric=mark, report=folder / "report", sysfs_root=folder / "sysfs")
        env["PYTHONPATH"] = str(TESTS)
    return env


def collect(output: str) -> dict[int, dict[str, Any]]:
    ranks: dict[int, dict[str, Any]] = {}
    for rank, text in LINE.findall(output):
        ranks.setdefault(int(rank), {}).update(json.loads(text))
    return ranks


def run(plan: Plan) -> Ran:
    mark = secrets.token_hex(8)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        process = subprocess.Popen(
            command_of(plan),
            env=environment_of(plan, mark, Path(folder)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        hung = False
        try:
            output, _ = process.communicate(timeout=START_S[plan.bed] + RUN_S)
        except subprocess.TimeoutExpired:
            hung = True
            process.send_signal(signal.SIGTERM)
            try:
                output, _ = process.communicate(timeout=END_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                output, _ = process.communicate()
    return Ran(mark, hung, process.returncode, output, time.monotonic() - begin, collect(output))
