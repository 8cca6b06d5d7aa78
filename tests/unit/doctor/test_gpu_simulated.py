"""The doctor's own questions to a driver, answered by the simulated one: the whole way, child processes included."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cuda_sim.child import child_environment

HERE = Path(__file__).parent
CHECKS = "gpu-driver cuda-python nvrtc gpu-devices gpu-peers gpu-ipc gpu-memops gpu-direct-rdma".split()
LOOK = f"""
import json
from rdmaring.diagnose.doctor import Roots, run_checks
print(json.dumps([finding.as_dict() for finding in run_checks(Roots(), {CHECKS})]))
"""


def examined(**settings: Any) -> dict[str, dict[str, Any]]:
    """Findings by id, of a process on the simulated driver."""
    env = child_environment(**settings)
    command = [sys.executable, "-c", LOOK]  # which looks for modules where it stands first: not in the source tree
    done = subprocess.run(command, env=env, cwd=HERE, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return {finding["id"]: finding for finding in json.loads(done.stdout)}


def test_two_devices_where_all_works() -> None:
    found = examined(devices=2)
    assert {name: found[name]["state"] for name in CHECKS[:-1]} == dict.fromkeys(CHECKS[:-1], "ok")
    assert found["gpu-driver"]["found"] == "CUDA 13.0"
    assert found["gpu-peers"]["found"] == "2 GPUs, each reads and writes every other"
    first, second = found["gpu-devices"]["data"]["gpus"]
    assert (first["pci"], second["pci"]) == ("0000:10:00.0", "0000:11:00.0")
    assert first["uuid"] != second["uuid"]
    exported = [line["value"] for line in found["gpu-direct-rdma"]["evidence"] if line["source"].startswith("GPU")]
    assert all("dma-buf exported; GPUDirect RDMA 1; flush not needed (200)" in value for value in exported)


@pytest.mark.parametrize(
    ("settings", "states"),
    [
        ({"devices": 0}, dict.fromkeys(CHECKS, ("not-applicable", "no GPU here"))),
        (
            {"fail": ["cuInit:1+:CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"]},
            {"gpu-driver": ("failure", "cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)")},
        ),
        ({"others": {"DRIVER_VERSION": 11040}}, {"gpu-driver": ("failure", "the driver serves CUDA 11.4")}),
        (
            {"devices": 2, "others": {"PEER": 0}},
            {"gpu-peers": ("warning", "no peer access between GPUs 0 and 1"), "gpu-ipc": ("ok", "CUDA IPC works")},
        ),
        (
            {"others": {"MIG": 1}},
            {"gpu-devices": ("warning", "MIG: 0: Simulated GPU MIG"), "gpu-ipc": ("warning", "GPU 0: cuIpcGet")},
        ),
        (
            {"fail": ["cuIpcOpenMemHandle:1+:201"], "attributes": {"COMPUTE_MODE": 2}},
            {
                "gpu-devices": ("failure", "GPU 0 may not be used: compute mode prohibited"),
                "gpu-ipc": ("warning", "GPU 0: in the second process: cuIpcOpenMemHandle: CUDA_ERROR_INVALID_CONTEXT"),
            },
        ),
        (
            {"fail": ["cuStreamWaitValue32:1+:801", "cuMemcpyDtoD:1:700"], "devices": 2},
            {
                "gpu-memops": ("warning", "GPU 0: cuStreamWaitValue32: CUDA_ERROR_NOT_SUPPORTED (801)"),
                "gpu-peers": ("failure", "GPU 0 and GPU 1: cuMemcpyDtoD: CUDA_ERROR_ILLEGAL_ADDRESS (700)"),
            },
        ),
    ],
    ids=["no device", "driver mismatch", "old driver", "no peers", "mig", "no ipc", "no memops, peer fault"],
)
def test_what_the_driver_refuses_is_found(settings: dict[str, Any], states: dict[str, tuple[str, str]]) -> None:
    found = examined(**settings)
    for name, (state, words) in states.items():
        assert found[name]["state"] == state, found[name]
        assert words in found[name]["found"]
