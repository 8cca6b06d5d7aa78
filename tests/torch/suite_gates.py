"""Which tests of PyTorch's DistributedTest pass, gate after gate; a script that records them.

suite_gates.py WORLD        run all, write those that pass to expected.json (needs torch and expecttest)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
EXPECTED = HERE / "expected.json"
# One after another: a gate opens tests that those before it have left shut. Without a gate no other is opened.
GATES = ("gloo", "mpi")
TIMEOUT_S = 1500


def expected(world: int) -> dict[str, list[str]]:
    """For each gate the tests that pass behind it."""
    found: dict[str, list[str]] = json.loads(EXPECTED.read_text())[str(world)]
    return found


def worlds() -> list[int]:
    """Of which there is a list."""
    return [int(world) for world in json.loads(EXPECTED.read_text())]


def run(backend: str, world: int, gate: str, choice: str = "*", env: dict[str, str] | None = None) -> dict[str, Any]:
    """What suite.py found. choice: its PATTERN or @FILE.

    Raises:
        AssertionError: it did not come to its end.
    """
    own = {**(os.environ if env is None else env), "SUITE": f"{backend} {world} {gate}", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        out, said = Path(folder, "out.json"), Path(folder, "said")
        with said.open("w") as stream:
            command = [sys.executable, str(HERE / "suite.py"), str(out), choice]
            done = subprocess.run(
                command,
                env=own,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                timeout=TIMEOUT_S,
                check=False,
            )
        assert done.returncode == 0, said.read_text(errors="replace")[-4000:]
        found: dict[str, Any] = json.loads(out.read_text())
    return found


def run_some(world: int, names: dict[str, list[str]], env: dict[str, str] | None = None) -> dict[str, dict[str, Any]]:
    """Only these tests of each gate."""
    found = {}
    for gate, wanted in names.items():
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as choice:
            choice.write("\n".join(wanted))
            choice.flush()
            found[gate] = run("rdmaring", world, gate, f"@{choice.name}", env)
    return found


def run_all(world: int, env: dict[str, str] | None = None) -> dict[str, dict[str, Any]]:
    """Every test, behind the first gate that opens it."""
    found = {GATES[0]: run("rdmaring", world, GATES[0], "*", env)}
    for gate in GATES[1:]:
        # what failed before may pass behind its own gate
        shut = set.intersection(*({*each["skipped"], *each["failed"]} for each in found.values()))
        found |= run_some(world, {gate: sorted(shut)}, env)
    return found


def main(world: str) -> int:
    found = run_all(int(world))
    lists = json.loads(EXPECTED.read_text()) if EXPECTED.exists() else {}
    lists[world] = {gate: each["passed"] for gate, each in found.items()}
    EXPECTED.write_text(json.dumps(lists, indent=1) + "\n")
    for gate, each in found.items():
        print(f"{gate}: {len(each['passed'])} passed, {len(each['failed'])} failed, {len(each['skipped'])} skipped")
        for name, text in each["failed"].items():
            print(f"  {name}: {text.strip().splitlines()[-1] if text.strip() else ''}\n{text[-1500:]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
