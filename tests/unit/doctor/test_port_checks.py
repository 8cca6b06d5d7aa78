"""RoCE's MTU, error counters, NUMA and PCIe of RDMA devices, on machines made of files."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit.doctor.fake import FakeMachine, evidence

from rdmaring.diagnose.doctor import State
from rdmaring.diagnose.doctor.port_checks import (
    COUNTERS,
    check_nic_numa,
    check_pcie,
    check_port_counters,
    check_roce_mtu,
)
from rdmaring.diagnose.doctor.ports import roce_mtu


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path)


@pytest.mark.parametrize(
    ("netdev", "roce"),
    [(9000, 4096), (4192, 4096), (4191, 2048), (1500, 1024), (1120, 1024), (1119, 512), (352, 256), (351, 0), (0, 0)],
)
def test_roce_takes_the_largest_mtu_that_leaves_96_bytes(netdev: int, roce: int) -> None:
    assert roce_mtu(netdev) == roce


@pytest.mark.parametrize(("mtu", "state"), [(9000, State.OK), (1500, State.WARNING), (300, State.FAILURE)])
def test_the_mtu_under_a_roce_port(machine: FakeMachine, mtu: int, state: State) -> None:
    machine.device(netdev="eth2")
    machine.roce_port(netdev="eth2", mtu=mtu)
    finding = check_roce_mtu(machine.roots)
    assert finding.state is state
    assert f"interface eth2 has MTU {mtu}" in finding.found
    assert f"RoCE MTU {roce_mtu(mtu)}" in finding.found
    if state is not State.OK:
        assert "MTU" in finding.cause
        assert "ip link set INTERFACE mtu 9000" in finding.fix


def test_the_interface_is_found_by_the_gid_table_and_for_soft_roce_by_its_parent(machine: FakeMachine) -> None:
    machine.device()
    port = machine.roce_port(netdev="eth7", mtu=1500)
    machine.gid(port, 0, "fe80::1", "RoCE v2", "eth7")
    machine.device("rxe0", pci=False)
    machine.write("sys/class/infiniband/rxe0/parent", "eth8")
    machine.roce_port("rxe0", netdev="eth8", mtu=4200)
    found = check_roce_mtu(machine.roots).found
    assert "mlx5_0/1: RoCE MTU 1024 (interface eth7" in found
    assert "rxe0/1: RoCE MTU 4096 (interface eth8" in found


@pytest.mark.parametrize("name", COUNTERS)
def test_each_raised_counter_is_named_with_its_meaning(machine: FakeMachine, name: str) -> None:
    machine.device()
    port = machine.port()
    folder = "counters" if "_errors" in name or name in ("symbol_error", "link_downed") else "hw_counters"
    machine.write(f"{port}/{folder}/{name}", "12")
    finding = check_port_counters(machine.roots)
    assert finding.state is State.WARNING
    assert finding.found == f"mlx5_0/1 {name} = 12"
    assert finding.cause == f"{name}: {COUNTERS[name]}"
    assert finding.data["counters"] == {f"mlx5_0/1 {name}": 12}
    assert f"{folder}/{name}: 12" in evidence(finding)
    assert "again" in finding.fix


def test_counters_at_zero_and_counters_of_traffic_are_fine(machine: FakeMachine) -> None:
    machine.device()
    port = machine.port()
    machine.write(f"{port}/counters/symbol_error", "0")
    machine.write(f"{port}/counters/port_rcv_data", "123456")
    finding = check_port_counters(machine.roots)
    assert finding.state is State.OK
    assert finding.found == "1 error counter at 0"


def test_a_device_on_another_numa_node_than_all_allowed_cpus_warns(machine: FakeMachine) -> None:
    machine.write("sys/devices/system/node/node1/cpulist", "4-7")
    machine.write("sys/devices/system/node/node1/distance", "21 10")
    machine.device(numa_node=1)
    machine.port()
    finding = check_nic_numa(machine.roots)
    assert finding.state is State.WARNING
    assert "mlx5_0 is on NUMA node 1 (CPUs 4-7), no allowed CPU is; allowed are 0-3" in finding.found
    assert "between the processors" in finding.cause
    assert "numactl --cpunodebind" in finding.fix
    assert "node1/distance: 21 10" in evidence(finding)
    machine.system.cpus = {3, 4}
    assert check_nic_numa(machine.roots).state is State.OK


def test_a_device_without_a_numa_node_is_fine(machine: FakeMachine) -> None:
    machine.device(numa_node=-1)
    machine.port()
    assert check_nic_numa(machine.roots).state is State.OK


@pytest.mark.parametrize(
    ("attribute", "value", "found"),
    [
        ("current_link_speed", "8.0 GT/s PCIe", "8 GT/s x16 of 16 GT/s x16"),
        ("current_link_width", "8", "16 GT/s x8 of 16 GT/s x16"),
    ],
)
def test_a_pcie_link_below_the_device_warns(machine: FakeMachine, attribute: str, value: str, found: str) -> None:
    machine.device()
    machine.port()
    machine.write(f"sys/class/infiniband/mlx5_0/device/{attribute}", value)
    finding = check_pcie(machine.roots)
    assert finding.state is State.WARNING
    assert finding.found == f"mlx5_0: {found}"
    assert "slot" in finding.cause
    assert "lspci -vv" in finding.fix
    assert f"{attribute}: {value}" in evidence(finding)


def test_the_slot_that_is_too_narrow_is_named(machine: FakeMachine) -> None:
    machine.device()
    machine.port()
    machine.write("sys/class/infiniband/mlx5_0/device/current_link_width", "8")
    machine.write("sys/class/infiniband/mlx5_0/max_link_width", "8")  # the folder above the function: its slot
    assert "the slot of mlx5_0 has no more lanes" in check_pcie(machine.roots).cause


def test_a_virtual_function_shows_no_pcie_link(machine: FakeMachine) -> None:
    machine.device()
    machine.port()
    machine.write("sys/class/infiniband/mlx5_0/device/current_link_speed", "Unknown")
    assert check_pcie(machine.roots).state is State.OK
