"""scripts/gpu_check on the simulated driver: it runs to the end, finds what differs, and says so by its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gpu.conformance import has_gpu

ROOT = Path(__file__).resolve().parents[2]
CASES = "names_its_allocation|own_handle|waits_and_resets|captured_and_replayed"
OF_THE_DRIVER = ("doctor", "attributes", "conformance", "bugs", "replays", "rates")


def gpu_check(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "gpu_check"), *arguments]
    env = {**os.environ, **variables}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)


def parts(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["kind"] == "gpu_check"
    assert document["driver"] == "simulated"
    return dict(document["parts"])


@pytest.mark.timeout(300)
def test_what_is_said_of_the_driver_holds_to_the_end() -> None:
    chosen = [word for part in OF_THE_DRIVER for word in ("--part", part)]
    done = gpu_check("--simulated", "--quick", "--cases", CASES, *chosen)
    found = parts(done)
    assert done.returncode == 0, done.stderr + done.stdout[-3000:]
    assert tuple(found) == OF_THE_DRIVER
    assert {finding["state"] for finding in found["doctor"]["found"]} <= {"ok", "warning", "not-applicable"}
    assert found["attributes"]["found"]["attributes"]["COMPUTE_CAPABILITY_MAJOR"] == 9
    assert found["conformance"]["found"]["held"] == len(CASES.split("|"))
    assert all(row["wrong_bytes"] > 0 and row["wrong_bytes_without"] == 0 for row in found["bugs"]["found"])
    assert found["replays"]["found"]["states"] == [0, 0]
    assert all(value > 0 for value in found["rates"]["found"].values())


@pytest.mark.timeout(300)
def test_rdmaring_itself_is_compared_with_numpy() -> None:
    done = gpu_check("--simulated", "--quick", "--ranks", "2", "--part", "collectives", "--part", "one_queue")
    found = parts(done)
    assert done.returncode == 0, done.stderr + done.stdout[-3000:]
    (world,) = found["collectives"]["found"]
    # Of every rank: 3 dtypes of 5, 5 and 4 reductions in 3 sizes, and sums of fractions of both floats.
    assert world["compared"] == found["one_queue"]["found"]["compared"] == 2 * ((5 + 5 + 4) * 3 + 2)
    assert world["wrong"] == found["one_queue"]["found"]["wrong"] == []


@pytest.mark.timeout(300)
def test_what_differs_is_named_and_gives_exit_code_1() -> None:
    fails = {"RR_CUDA_SIM_FAIL": "cuMemGetAddressRange:2+:CUDA_ERROR_INVALID_VALUE"}
    done = gpu_check("--simulated", "--part", "conformance", "--cases", "names_its_allocation|own_handle", **fails)
    assert done.returncode == 1, done.stderr
    found = parts(done)["conformance"]["found"]
    states = {row["case"]: row["state"] for row in found["cases"]}
    assert states == {
        "test_a_process_does_not_open_its_own_handle": "held",
        "test_an_address_names_its_allocation_with_the_bytes_that_were_asked_for": "differs",
    }
    assert any("CUDA_ERROR_INVALID_VALUE" in row["output"] for row in found["cases"])


def test_a_machine_without_gpu_is_told_so() -> None:
    if has_gpu():
        pytest.skip("no gpu must be here for this, and there is one")
    done = gpu_check()
    assert (done.returncode, done.stdout) == (3, "")
    assert "no GPU here" in done.stderr


@pytest.mark.parametrize("arguments", [["--ranks", "two"], ["--part", "luck"], ["--limit-s", "1"]])
def test_wrong_usage(arguments: list[str]) -> None:
    done = gpu_check(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert arguments[0] in done.stderr
