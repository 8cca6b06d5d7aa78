"""RDMA devices, their files, libibverbs, the state and rate of ports, on machines made of files."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from unit.doctor.fake import FakeMachine, evidence

from rdmaring.diagnose.doctor import Finding, State, run_checks
from rdmaring.diagnose.doctor.verbs import (
    check_port_rate,
    check_port_state,
    check_rdma_devices,
    check_verbs_access,
    check_verbs_library,
)
from rdmaring.diagnose.doctor.verbs_library import VerbsLibrary, open_verbs_library


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path)


@pytest.fixture
def rdma(machine: FakeMachine) -> FakeMachine:
    """With one InfiniBand device and one active port."""
    machine.device()
    machine.port()
    return machine


def test_without_rdma_nothing_of_rdma_applies(machine: FakeMachine) -> None:
    machine.system.library = VerbsLibrary(error="libibverbs.so.1: cannot open shared object file")
    names = (
        "rdma-devices verbs-access verbs-library port-state port-rate gid-table roce-mtu port-counters nic-numa pcie"
    )
    findings = run_checks(machine.roots, names.split())
    assert [finding.state for finding in findings] == [State.NOT_APPLICABLE] * 10


def test_a_healthy_infiniband_port_is_well_in_every_check(rdma: FakeMachine) -> None:
    rdma.write("sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error", "0")
    wanted = "rdma-devices verbs-access verbs-library port-state port-rate gid-table port-counters nic-numa pcie"
    findings = run_checks(rdma.roots, wanted.split())
    assert [finding.state for finding in findings] == [State.OK] * 9
    assert findings[0].found == "mlx5_0/1 InfiniBand 100 Gb/sec (4X EDR)"
    assert "ports/1/state: 4: ACTIVE" in evidence(findings[0])


def test_an_adapter_that_no_module_drives_fails(machine: FakeMachine) -> None:
    machine.write("sys/bus/pci/devices/0000:17:00.0/vendor", "0x15b3")
    machine.write("sys/bus/pci/devices/0000:17:00.0/class", "0x020000")
    machine.write("proc/modules", "mlx5_core 1 0 - Live 0x0")
    finding = check_rdma_devices(machine.roots)
    assert finding.state is State.FAILURE
    assert "0000:17:00.0" in finding.found
    assert "mlx5_ib is not loaded, nor is ib_uverbs" in finding.cause
    assert "modprobe -a mlx5_ib ib_uverbs" in finding.fix


def test_an_ordinary_adapter_is_no_rdma_adapter(machine: FakeMachine) -> None:
    machine.write("sys/bus/pci/devices/0000:17:00.0/vendor", "0x8086")
    machine.write("sys/bus/pci/devices/0000:17:00.0/class", "0x020000")
    assert check_rdma_devices(machine.roots).state is State.NOT_APPLICABLE


def test_without_ib_uverbs_nothing_can_be_opened(rdma: FakeMachine) -> None:
    rdma.remove("sys/class/infiniband_verbs/uverbs0/ibdev")
    finding = check_verbs_access(rdma.roots)
    assert finding.state is State.FAILURE
    assert "ib_uverbs" in finding.cause
    assert "modprobe ib_uverbs" in finding.fix


def test_a_container_without_the_device_file_fails(rdma: FakeMachine) -> None:
    rdma.remove("dev/infiniband/uverbs0")
    finding = check_verbs_access(rdma.roots)
    assert finding.state is State.FAILURE
    assert "container" in finding.cause
    assert "--device=/dev/infiniband" in finding.fix
    assert "ENOENT" in evidence(finding)


@pytest.mark.parametrize(("number", "cause"), [(errno.EACCES, "may not open it"), (errno.EPERM, "device cgroup")])
def test_a_device_file_that_may_not_be_opened_fails(rdma: FakeMachine, number: int, cause: str) -> None:
    rdma.system.device_error = OSError(number, os.strerror(number))
    finding = check_verbs_access(rdma.roots)
    assert finding.state is State.FAILURE
    assert cause in finding.cause
    assert finding.fix
    assert f"{errno.errorcode[number]}" in evidence(finding)


def test_rdma_cm_is_not_needed_and_it_is_said(rdma: FakeMachine) -> None:
    finding = check_verbs_access(rdma.roots)
    assert finding.state is State.OK
    assert "rdma_cm: absent; not needed" in evidence(finding)


def test_libibverbs_that_cannot_be_opened_fails_where_there_is_a_device(rdma: FakeMachine) -> None:
    rdma.system.library = VerbsLibrary(error="libibverbs.so.1: cannot open shared object file")
    finding = check_verbs_library(rdma.roots)
    assert finding.state is State.FAILURE
    assert "cannot open shared object file" in finding.cause
    assert "apt install libibverbs1" in finding.fix


def test_a_missing_provider_is_named(rdma: FakeMachine) -> None:
    rdma.device("rxe0", pci=False)
    rdma.system.library = VerbsLibrary("/lib/libibverbs.so.1.14", "1.14", ("mlx5_0",))
    finding = check_verbs_library(rdma.roots)
    assert finding.state is State.FAILURE
    assert "rxe0" in finding.found
    assert "provider" in finding.cause
    assert "ibverbs-providers" in finding.fix


def test_libibverbs_of_this_machine_is_opened_or_says_why_not() -> None:
    library = open_verbs_library()
    if library.path:
        assert Path(library.path).name == f"libibverbs.so.{library.version}"
        assert set(library.devices) == set(os.listdir("/sys/class/infiniband")) if library.devices else True
    else:
        assert "libibverbs" in library.error


def state_of(machine: FakeMachine, **texts: str) -> Finding:
    machine.device()
    machine.port(**texts)
    return check_port_state(machine.roots)


@pytest.mark.parametrize(
    ("texts", "cause", "fix"),
    [
        ({"state": "1: DOWN", "phys_state": "2: Polling"}, "nothing answers", "cable"),
        ({"state": "1: DOWN", "phys_state": "3: Disabled"}, "disabled", "enable"),
        ({"state": "2: INIT", "sm_lid": "0x0"}, "no subnet manager", "opensm"),
        ({"state": "3: ARMED"}, "subnet manager 0x1", "log"),
        ({"link_layer": "Ethernet", "state": "1: DOWN", "phys_state": "3: Disabled"}, "interface is down", "ip link"),
        ({"link_layer": "Ethernet", "state": "1: DOWN", "phys_state": "2: Polling"}, "no carrier", "cable"),
    ],
)
def test_no_active_port_fails_with_the_cause(machine: FakeMachine, texts: dict[str, str], cause: str, fix: str) -> None:
    finding = state_of(machine, **texts)
    assert finding.state is State.FAILURE
    assert cause in finding.cause
    assert fix in finding.fix
    assert f"state: {texts['state']}" in evidence(finding)


def test_one_port_of_two_down_warns(rdma: FakeMachine) -> None:
    rdma.port(number=2, state="1: DOWN", phys_state="2: Polling")
    finding = check_port_state(rdma.roots)
    assert finding.state is State.WARNING
    assert "mlx5_0/2 is DOWN, Polling" in finding.found


@pytest.mark.parametrize(
    ("texts", "state"),
    [
        ({"rate": "25 Gb/sec (1X EDR)"}, State.WARNING),
        ({"rate": "50 Gb/sec (2X EDR)"}, State.WARNING),
        ({"rate": "100 Gb/sec (4X EDR)"}, State.OK),
        ({"rate": "25 Gb/sec (1X EDR)", "link_layer": "Ethernet"}, State.OK),  # 25 Gb/s Ethernet has one lane
    ],
)
def test_an_infiniband_port_with_lanes_missing_warns(machine: FakeMachine, texts: dict[str, str], state: State) -> None:
    machine.device()
    machine.port(**texts)
    finding = check_port_rate(machine.roots)
    assert finding.state is state
    if state is State.WARNING:
        assert texts["rate"] in finding.found
        assert "cable" in finding.cause
        assert "cable" in finding.fix


def test_a_port_slower_than_its_twin_warns(rdma: FakeMachine) -> None:
    rdma.device("mlx5_1")
    rdma.port("mlx5_1", rate="56 Gb/sec (4X FDR)")
    finding = check_port_rate(rdma.roots)
    assert finding.state is State.WARNING
    assert "mlx5_1/1: 56 Gb/sec (4X FDR), where a port of the same model runs at 100 Gb/sec" in finding.found


def test_a_port_of_another_model_is_no_twin(rdma: FakeMachine) -> None:
    rdma.device("mlx5_1")
    rdma.write("sys/class/infiniband/mlx5_1/board_id", "MT_0000000001")
    rdma.port("mlx5_1", rate="56 Gb/sec (4X FDR)")
    assert check_port_rate(rdma.roots).state is State.OK


def test_soft_roce_has_no_lanes_to_lose(machine: FakeMachine) -> None:
    machine.device("rxe0", pci=False)
    machine.port("rxe0", rate="2.5 Gb/sec (1X SDR)")
    assert check_port_rate(machine.roots).state is State.OK
