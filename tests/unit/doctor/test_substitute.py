"""The doctor and the engine look at the same devices: those of the substitute libibverbs, opened for real."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from verbs_sim import build

COMMAND = str(Path(sys.executable).parent / "rdmaring")


def examine(tmp_path: Path, spec: str, *arguments: str) -> dict[str, dict[str, Any]]:
    """`rdmaring doctor` on a machine whose devices ``spec`` describes: findings by id."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("RDMARING_")}
    env = own | build.environment(spec, fabric=str(tmp_path / "fabric"), sysfs_root=tmp_path / "sys")
    command = [COMMAND, "doctor", "--json", *arguments]
    result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert result.returncode in (0, 1), result.stderr
    return {finding["id"]: finding for finding in json.loads(result.stdout)["findings"]}


def test_the_library_that_the_engine_would_open_is_opened_and_drives_all_devices(tmp_path: Path) -> None:
    found = examine(tmp_path, "devices=2")
    assert found["variables"]["state"] == "ok"
    assert found["verbs-library"]["state"] == "ok"
    assert "drives sim0, sim1" in found["verbs-library"]["found"]
    assert str(build.library()) in found["verbs-library"]["evidence"][0]["value"]
    assert "sim0/1 Ethernet 100 Gb/sec (4X), sim1/1" in found["rdma-devices"]["found"]
    assert found["port-state"]["state"] == found["port-rate"]["state"] == "ok"
    # It has no /dev/infiniband: on a machine this is a failure, and here as well.
    assert found["verbs-access"]["state"] == "failure"


@pytest.mark.parametrize(
    ("rows", "chosen"),
    [
        ("v1:fe80::7;v2:fe80::7;v1:10.0.0.7;v2:10.0.0.7", 3),
        ("v2:fe80::7;v2:fd00::7", 1),
        ("-;v2:fe80::7", 1),
        ("v1:10.0.0.7;v2:fd00::7", 1),
    ],
)
def test_rows_as_the_substitute_writes_them_are_read(tmp_path: Path, rows: str, chosen: int) -> None:
    found = examine(tmp_path, f"gids={rows}", "--only", "gid-table")
    (table,) = found["gid-table"]["data"]["tables"].values()
    assert [row["index"] for row in table if row["chosen"]] == [chosen]
    assert all(row["reason"] for row in table)


def test_a_library_that_cannot_be_opened_is_a_failure(tmp_path: Path) -> None:
    own = build.environment(fabric=str(tmp_path), sysfs_root=tmp_path / "sys")
    env = {**os.environ, **own, "RDMARING_LIBIBVERBS": str(tmp_path / "absent.so")}
    command = [COMMAND, "doctor", "--json", "--only", "verbs-library"]
    result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    (finding,) = json.loads(result.stdout)["findings"]
    assert "absent.so" in finding["cause"]
    assert "cannot open shared object file" in finding["cause"]
