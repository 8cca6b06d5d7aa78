"""Driver, cuda-python, compiler and devices: every state that can fail, on machines made of files and answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from unit.doctor.fake import FakeMachine, evidence
from unit.doctor.fake_gpu import CLOSED, NONE_OFFERED, facts, gpu, pci_gpu, with_gpus

from rdmaring.diagnose.doctor import CHECKS, State, run_checks
from rdmaring.diagnose.doctor.gpu_driver import (
    INIT_ERRORS,
    check_cuda_python,
    check_gpu_devices,
    check_gpu_driver,
    check_nvrtc,
)
from rdmaring.diagnose.doctor.gpu_facts import GpuFacts, Nvrtc

GPU_CHECKS = [check.id for check in CHECKS if check.id.startswith("gpu-") or check.id in ("cuda-python", "nvrtc")]
NO_DEVICE = "cuInit: CUDA_ERROR_NO_DEVICE (100)"


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path)


@pytest.mark.parametrize("answer", [NONE_OFFERED, GpuFacts(binding="13.5.0", init_error=NO_DEVICE)])
def test_a_machine_without_gpu_is_told_so_and_nothing_fails(machine: FakeMachine, answer: GpuFacts) -> None:
    machine.system.gpu_facts = answer
    found = run_checks(machine.roots, GPU_CHECKS)
    assert len(found) == 12
    assert {(finding.state, finding.found) for finding in found} == {(State.NOT_APPLICABLE, "no GPU here")}


def test_a_machine_with_gpus_where_all_is_well(machine: FakeMachine) -> None:
    with_gpus(machine, 2)
    found = {finding.id: finding for finding in run_checks(machine.roots, GPU_CHECKS)}
    assert {finding.state for finding in found.values()} <= {State.OK, State.NOT_APPLICABLE}
    assert found["gpu-driver"].found == "CUDA 13.0, kernel module 580.65.06, open"
    assert found["cuda-python"].found == "cuda-bindings 13.5.0"
    assert found["nvrtc"].found == "version 13.0, knows sm_90"
    assert found["gpu-devices"].found == (
        "0: NVIDIA H100 80GB HBM3, sm_90, 80 GiB, 1: NVIDIA H100 80GB HBM3, sm_90, 80 GiB"
    )
    assert "GPU-00000001, at 0000:18:00.0, compute capability 9.0" in evidence(found["gpu-devices"])
    assert [each["uuid"] for each in found["gpu-devices"].data["gpus"]] == ["GPU-00000000", "GPU-00000001"]


def test_a_gpu_on_the_bus_without_driver(machine: FakeMachine) -> None:
    pci_gpu(machine, "pci0000:15/0000:15:01.0/0000:17:00.0")
    finding = check_gpu_driver(machine.roots)
    assert finding.state is State.FAILURE
    assert finding.found == "GPU 0000:17:00.0 is there, but not NVIDIA's driver"
    assert "no module of the kernel drives it" in finding.cause
    assert "modprobe nvidia nvidia_uvm" in finding.fix
    machine.write("proc/modules", "nouveau 1 0 - Live 0x0\n")
    assert "nouveau, which knows no CUDA" in check_gpu_driver(machine.roots).cause
    assert check_cuda_python(machine.roots).found == "no CUDA driver: see gpu-driver"


@pytest.mark.parametrize("hint", ["proc/driver/nvidia/version", "dev/nvidia0"])
def test_a_container_without_the_drivers_libraries(machine: FakeMachine, hint: str) -> None:
    machine.write(hint, CLOSED)
    finding = check_gpu_driver(machine.roots)
    assert finding.state is State.FAILURE
    assert "container" in finding.cause
    assert "--gpus all" in finding.fix
    assert "dlopen libcuda.so.1: libcuda.so.1: cannot open" in evidence(finding)


@pytest.mark.parametrize("number", INIT_ERRORS)
def test_each_error_of_cuinit_has_its_cause(machine: FakeMachine, number: int) -> None:
    with_gpus(machine)
    machine.system.gpu_facts = GpuFacts(binding="13.5.0", init_error=f"cuInit: CUDA_ERROR_X ({number})")
    finding = check_gpu_driver(machine.roots)
    assert finding.state is State.FAILURE
    assert (finding.cause, finding.fix) == INIT_ERRORS[number]
    assert check_gpu_devices(machine.roots).state is State.NOT_APPLICABLE


def test_an_error_of_cuinit_that_is_not_known(machine: FakeMachine) -> None:
    machine.system.gpu_facts = GpuFacts(binding="13.5.0", init_error="cuInit: CUDA_ERROR_ECC_UNCORRECTABLE (214)")
    finding = check_gpu_driver(machine.roots)
    assert finding.state is State.FAILURE
    assert finding.found == "cuInit: CUDA_ERROR_ECC_UNCORRECTABLE (214)"
    assert "Xid" in finding.fix


def test_a_driver_that_hangs_in_cuinit(machine: FakeMachine) -> None:
    with_gpus(machine)
    machine.system.gpu_facts = GpuFacts(binding="13.5.0", stuck="cuInit did not end within 60 s")
    finding = check_gpu_driver(machine.roots)
    assert finding.state is State.FAILURE
    assert finding.found == "the driver does not answer: cuInit did not end within 60 s"


def test_an_old_driver(machine: FakeMachine) -> None:
    with_gpus(machine, driver_version=11040)
    finding = check_gpu_driver(machine.roots)
    assert finding.state is State.FAILURE
    assert finding.found == "the driver serves CUDA 11.4"
    assert "CUDA 11.8" in finding.cause


def test_the_kind_of_kernel_module_is_told(machine: FakeMachine) -> None:
    with_gpus(machine)
    machine.write("proc/driver/nvidia/version", CLOSED)
    assert check_gpu_driver(machine.roots).found == "CUDA 13.0, kernel module 580.65.06"


def test_cuda_python_is_missing(machine: FakeMachine) -> None:
    with_gpus(machine)
    machine.system.gpu_facts = GpuFacts(binding_error="No module named 'cuda'")
    assert check_gpu_driver(machine.roots).state is State.OK
    finding = check_cuda_python(machine.roots)
    assert finding.state is State.FAILURE
    assert "No module named 'cuda'" in finding.cause
    assert finding.fix == "pip install 'rdmaring[cuda]'"


@pytest.mark.parametrize(
    ("nvrtc", "driver", "state", "words"),
    [
        (Nvrtc(error="libnvrtc.so not found"), 13000, State.FAILURE, "NVRTC cannot be used"),
        (Nvrtc((13, 0), (75, 80)), 13000, State.FAILURE, "NVRTC 13.0 has no code for GPU 0 (sm_90)"),
        (Nvrtc((13, 0), (100, 120)), 13000, State.FAILURE, "no code for GPU 0"),
        (Nvrtc((13, 0), (90,)), 12040, State.WARNING, "NVRTC 13.0 on a driver for CUDA 12.4"),
        (Nvrtc((12, 9), (90,)), 12040, State.OK, "version 12.9"),
        (Nvrtc((12, 9), (90,)), 13000, State.OK, "version 12.9"),
    ],
)
def test_the_compiler(machine: FakeMachine, nvrtc: Nvrtc, driver: int, state: State, words: str) -> None:
    with_gpus(machine, nvrtc=nvrtc, driver_version=driver)
    finding = check_nvrtc(machine.roots)
    assert finding.state is state
    assert words in finding.found


def test_the_compilers_age_is_told_from_its_list(machine: FakeMachine) -> None:
    with_gpus(machine, nvrtc=Nvrtc((12, 0), (50, 80)))
    assert "newer than this compiler" in check_nvrtc(machine.roots).cause
    with_gpus(machine, nvrtc=Nvrtc((14, 0), (100, 120)))
    assert "dropped the GPU's generation" in check_nvrtc(machine.roots).cause


def attributes(**changes: int) -> dict[str, Any]:
    return {"attributes": {**gpu().attributes, **changes}}


@pytest.mark.parametrize(
    ("changes", "ranks", "state", "words"),
    [
        (attributes(compute_mode=2), 1, State.FAILURE, "GPU 0 may not be used: compute mode prohibited"),
        (attributes(compute_mode=3), 2, State.WARNING, "exclusive process, for 2 ranks on 1 GPU"),
        (attributes(compute_mode=3), 1, State.OK, "0: NVIDIA H100"),
        ({"name": "NVIDIA A100-SXM4-40GB MIG 1g.5gb"}, 1, State.WARNING, "MIG: 0: NVIDIA A100"),
    ],
)
def test_modes_of_devices(machine: FakeMachine, changes: dict[str, Any], ranks: int, state: State, words: str) -> None:
    with_gpus(machine, gpus=(gpu(**changes),))
    machine.ranks = ranks
    finding = check_gpu_devices(machine.roots)
    assert finding.state is state
    assert words in finding.found


def test_what_hides_devices_is_evidence(machine: FakeMachine) -> None:
    with_gpus(machine)
    machine.env["CUDA_VISIBLE_DEVICES"] = "1"
    assert "CUDA_VISIBLE_DEVICES: 1" in evidence(check_gpu_devices(machine.roots))


def test_every_gpu_check_says_where_the_driver_was_stuck(machine: FakeMachine) -> None:
    """What was found before a hang stands; what came behind it was not tried."""
    with_gpus(machine, 2)
    stuck = "ipc of GPU 0 did not end within 60 s"
    machine.system.gpu_facts = replace(facts(2), ipc={}, memops={0: ""}, dma_buf={}, peers=(), stuck=stuck)
    found = {finding.id: finding for finding in run_checks(machine.roots, GPU_CHECKS)}
    assert found["gpu-ipc"].state is State.FAILURE
    assert found["gpu-ipc"].found == stuck
    for name in ("gpu-peers", "gpu-memops", "gpu-direct-rdma"):
        assert found[name].found == f"not tried: {stuck}"
    assert found["gpu-driver"].state is found["gpu-devices"].state is State.OK
