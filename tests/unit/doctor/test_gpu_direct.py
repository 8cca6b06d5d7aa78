"""GPUDirect RDMA, the distance of GPU and adapter, ACS and IOMMU: every state that can fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit.doctor.fake import FakeMachine, evidence
from unit.doctor.fake_gpu import CLOSED, configuration, facts, gpu, pci_function, pci_gpu, pci_nic, with_gpus

from rdmaring.diagnose.doctor import State
from rdmaring.diagnose.doctor.gpu_direct import (
    check_gpu_acs,
    check_gpu_direct_rdma,
    check_gpu_iommu,
    check_gpu_nic,
)
from rdmaring.diagnose.doctor.pci import Distance, acs_control, distance, function_of

NOT_SUPPORTED = "cuMemGetHandleForAddressRange: CUDA_ERROR_NOT_SUPPORTED (801)"
GPU_PLACE = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0"


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    """One GPU below a switch, without an adapter."""
    made = FakeMachine(tmp_path)
    made.system.gpu_facts = facts(1, gpus=(gpu(pci="0000:18:00.0"),))
    pci_gpu(made, GPU_PLACE)
    return made


def test_no_adapter(machine: FakeMachine) -> None:
    assert check_gpu_direct_rdma(machine.roots).state is State.NOT_APPLICABLE
    machine.device("rxe0", pci=False)
    machine.roce_port("rxe0")
    assert check_gpu_direct_rdma(machine.roots).found.startswith("no RDMA adapter; slices between hosts are copied")


def with_nic(machine: FakeMachine) -> None:
    pci_nic(machine, "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0")
    machine.write("sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0")


def test_memory_is_registered_by_dma_buf(machine: FakeMachine) -> None:
    with_nic(machine)
    finding = check_gpu_direct_rdma(machine.roots)
    assert finding.state is State.OK
    assert finding.found == "GPU memory is registered by dma-buf"
    assert "flush not needed (200)" in evidence(finding)


def without_dma_buf(machine: FakeMachine, **attributes: int) -> None:
    changed = gpu(pci="0000:18:00.0", attributes={**gpu().attributes, "dma_buf": 0, **attributes})
    machine.system.gpu_facts = facts(1, gpus=(changed,), dma_buf={0: NOT_SUPPORTED})


@pytest.mark.parametrize("module", ["sys/module/nvidia_peermem/version", "sys/kernel/mm/memory_peers/nv_mem/version"])
def test_peer_memory_serves_where_dma_buf_does_not(machine: FakeMachine, module: str) -> None:
    with_nic(machine)
    without_dma_buf(machine)
    finding = check_gpu_direct_rdma(machine.roots)
    assert finding.state is State.WARNING
    assert finding.found == "GPU 0: neither dma-buf nor the peer memory module"
    assert "modprobe nvidia-peermem" in finding.fix
    assert f"dma-buf {NOT_SUPPORTED}" in evidence(finding)
    machine.write(module, "580.65.06")
    finding = check_gpu_direct_rdma(machine.roots)
    assert finding.state is State.OK
    assert finding.found == "GPU memory is registered by the peer memory module"


def test_the_closed_module_and_models_without_gpudirect(machine: FakeMachine) -> None:
    with_nic(machine)
    machine.write("proc/driver/nvidia/version", CLOSED)
    without_dma_buf(machine, gpu_direct_rdma=0)
    finding = check_gpu_direct_rdma(machine.roots)
    assert finding.state is State.WARNING
    assert finding.found == "GPU 0: the driver offers no GPUDirect RDMA"
    without_dma_buf(machine)
    assert "closed kernel module" in check_gpu_direct_rdma(machine.roots).cause


@pytest.mark.parametrize(
    ("ordering", "options", "words"),
    [(200, 0, "not needed"), (100, 0, "not needed"), (0, 1, "by the driver's call"), (0, 2, "by a read over the NIC")],
)
def test_the_flush_rule_is_shown(machine: FakeMachine, ordering: int, options: int, words: str) -> None:
    changes = {"gpu_direct_rdma_ordering": ordering, "gpu_direct_rdma_flush": options}
    machine.system.gpu_facts = facts(1, gpus=(gpu(attributes={**gpu().attributes, **changes}),))
    assert f"flush {words}" in evidence(check_gpu_direct_rdma(machine.roots))


SWITCH = "pci0000:15/0000:15:01.0/0000:16:00.0"


@pytest.mark.parametrize(
    ("place", "node", "expected"),
    [
        (f"{SWITCH}/0000:17:01.0/0000:19:00.0", 0, Distance.PIX),  # another port of the same switch
        (f"{SWITCH}/0000:17:01.0/0000:20:00.0/0000:21:00.0/0000:22:00.0", 0, Distance.PXB),  # a switch behind it
        ("pci0000:15/0000:15:02.0/0000:30:00.0", 0, Distance.PHB),  # another root port
        ("pci0000:40/0000:40:01.0/0000:41:00.0", 0, Distance.NODE),
        ("pci0000:80/0000:80:01.0/0000:81:00.0", 1, Distance.SYS),
    ],
)
def test_the_distance_is_told_by_the_bridges(machine: FakeMachine, place: str, node: int, expected: Distance) -> None:
    pci_nic(machine, place, numa_node=node)
    here, there = function_of(machine.roots, "0000:18:00.0"), function_of(machine.roots, place.rpartition("/")[2])
    assert here is not None
    assert there is not None
    assert distance(here, there) is distance(there, here) is expected
    finding = check_gpu_nic(machine.roots)
    assert finding.state is (State.OK if expected <= Distance.PXB else State.WARNING)
    assert finding.found == f"GPU 0: mlx5_0 ({expected.name})"
    assert finding.data["distances"] == {"GPU 0": {"mlx5_0": expected.name}}


def test_a_gpu_without_numa_node_is_far_from_another_root(machine: FakeMachine) -> None:
    pci_nic(machine, "pci0000:40/0000:40:01.0/0000:41:00.0", numa_node=-1)
    pci_function(machine, GPU_PLACE, numa_node=-1)
    assert check_gpu_nic(machine.roots).found == "GPU 0: mlx5_0 (SYS)"


def test_the_nearest_of_several_adapters_is_named(machine: FakeMachine) -> None:
    pci_nic(machine, "pci0000:80/0000:80:01.0/0000:81:00.0", "mlx5_0", numa_node=1)
    pci_nic(machine, f"{SWITCH}/0000:17:01.0/0000:19:00.0", "mlx5_1")
    assert check_gpu_nic(machine.roots).found == "GPU 0: mlx5_1 (PIX)"


def test_gpus_that_this_process_does_not_see_are_named_by_address(machine: FakeMachine) -> None:
    pci_gpu(machine, "pci0000:80/0000:80:01.0/0000:81:00.0", numa_node=1)
    pci_nic(machine, "pci0000:80/0000:80:02.0/0000:82:00.0", numa_node=1)
    assert check_gpu_nic(machine.roots).found == "GPU 0: mlx5_0 (SYS), GPU 0000:81:00.0: mlx5_0 (PHB)"


def test_a_sandbox_that_hides_the_bus(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.system.gpu_facts = facts(1)
    for check in (check_gpu_nic, check_gpu_acs, check_gpu_iommu):
        assert check(machine.roots).found == "sysfs does not show where the GPUs are"


def write_config(machine: FakeMachine, address: str, config: bytes) -> None:
    (machine.root / "sys/bus/pci/devices" / address / "config").write_bytes(config)


BRIDGES = ["0000:15:01.0", "0000:16:00.0", "0000:17:00.0", "0000:17:01.0"]


def test_acs_that_redirects_is_found_in_the_configuration_space(machine: FakeMachine) -> None:
    assert check_gpu_acs(machine.roots).found.startswith("one GPU and no RDMA adapter")
    with_nic(machine)
    for bridge in BRIDGES:
        write_config(machine, bridge, configuration(0))
    assert check_gpu_acs(machine.roots).found == "none of 4 bridges redirects"
    write_config(machine, "0000:17:01.0", configuration(0x1D))
    finding = check_gpu_acs(machine.roots)
    assert finding.state is State.WARNING
    assert finding.found == "ACS redirects at 0000:17:01.0"
    assert "ECAP_ACS+0x6.w=0000" in finding.fix
    assert "ACS control of 0000:17:01.0: 0x001d" in evidence(finding)


@pytest.mark.parametrize(("control", "state"), [(0x1, State.OK), (0x4, State.WARNING), (0x8, State.WARNING)])
def test_only_redirection_counts(machine: FakeMachine, control: int, state: State) -> None:
    with_nic(machine)
    for bridge in BRIDGES:
        write_config(machine, bridge, configuration(control))
    assert check_gpu_acs(machine.roots).state is state


def test_a_user_sees_no_acs(machine: FakeMachine) -> None:
    with_nic(machine)
    for bridge in BRIDGES[1:]:
        write_config(machine, bridge, configuration(0)[:64])
    finding = check_gpu_acs(machine.roots)
    assert finding.state is State.NOT_APPLICABLE
    assert finding.found.startswith("4 of 4 bridges show ACS to root alone")


def test_a_configuration_space_that_loops_or_ends_early(machine: FakeMachine) -> None:
    with_nic(machine)
    looped = bytearray(configuration(None))
    looped[0x100:0x104] = (0x0001 | 1 << 16 | 0x100 << 20).to_bytes(4, "little")
    write_config(machine, "0000:17:00.0", bytes(looped))
    assert acs_control(machine.roots, "0000:17:00.0") == 0
    write_config(machine, "0000:17:00.0", configuration(0x4)[:256])
    assert acs_control(machine.roots, "0000:17:00.0") == 0
    write_config(machine, "0000:17:00.0", configuration(0x4)[:0x14A])
    assert acs_control(machine.roots, "0000:17:00.0") == 0


@pytest.mark.parametrize(
    ("kind", "state", "found"),
    [
        ("DMA", State.WARNING, "an IOMMU translates for GPU 0"),
        ("DMA-FQ", State.WARNING, "an IOMMU translates for GPU 0"),
        ("identity", State.OK, "an IOMMU, which passes addresses through"),
        (None, State.OK, "no IOMMU"),
    ],
)
def test_the_iommu(machine: FakeMachine, kind: str | None, state: State, found: str) -> None:
    with_nic(machine)
    machine.write("proc/cmdline", "root=/dev/sda1 iommu=on")
    if kind is not None:
        group = machine.root / "sys/kernel/iommu_groups/7"
        machine.write("sys/kernel/iommu_groups/7/type", kind)
        (machine.root / "sys/devices" / GPU_PLACE / "iommu_group").symlink_to(group)
    finding = check_gpu_iommu(machine.roots)
    assert finding.state is state
    assert finding.found == found
    assert "iommu=on" in evidence(finding)


def test_every_gpu_of_a_pair_is_looked_at(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    with_gpus(machine, 2)
    for bridge in ("0000:10:01.0", "0000:11:01.0"):
        write_config(machine, bridge, configuration(0x4))
    assert check_gpu_acs(machine.roots).found == "ACS redirects at 0000:10:01.0, 0000:11:01.0"
