"""GPUs, adapters and the bridges above them, as files below a fake machine's root; and what a driver says of them."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

from unit.doctor.fake import FakeMachine

from rdmaring.diagnose.doctor.gpu_facts import Gpu, GpuFacts, Nvrtc, PeerPath

MODULE = "NVRM version: NVIDIA UNIX {kind}  {version}  Release Build  (dvs-builder@U22)\nGCC version: gcc 12"
OPEN = MODULE.format(kind="Open Kernel Module for x86_64", version="580.65.06")
CLOSED = MODULE.format(kind="x86_64 Kernel Module", version="580.65.06")
NONE_OFFERED = GpuFacts(library_error="libcuda.so.1: cannot open shared object file")
ATTRIBUTES = {"memops_64": 1, "dma_buf": 1, "gpu_direct_rdma": 1, "gpu_direct_rdma_ordering": 200, "compute_mode": 0}


def gpu(ordinal: int = 0, **fields: Any) -> Gpu:
    """A device of an H100's kind at 0000:NN:00.0."""
    good = Gpu(
        ordinal, "NVIDIA H100 80GB HBM3", f"GPU-{ordinal:08x}", f"0000:{0x17 + ordinal:02x}:00.0", (9, 0), 80 << 30,
        ATTRIBUTES,
    )  # fmt: skip
    return replace(good, **fields)


def facts(count: int = 1, **fields: Any) -> GpuFacts:
    """A driver under which all works."""
    ordinals = range(count)
    peers = tuple(PeerPath(a, b, True, "") for a in ordinals for b in ordinals if a != b)
    good = GpuFacts(
        binding="13.5.0",
        driver_version=13000,
        nvrtc=Nvrtc((13, 0), (75, 80, 90, 100)),
        gpus=tuple(gpu(ordinal) for ordinal in ordinals),
        peers=peers,
        ipc=dict.fromkeys(ordinals, ""),
        memops=dict.fromkeys(ordinals, ""),
        dma_buf=dict.fromkeys(ordinals, ""),
    )
    return replace(good, **fields)


def with_gpus(machine: FakeMachine, count: int = 1, **fields: Any) -> None:
    """Everything of the driver is there; GPU n hangs below a switch of its own."""
    machine.system.gpu_facts = facts(count, **fields)
    machine.write("proc/driver/nvidia/version", OPEN)
    for ordinal in range(count):
        machine.write(f"dev/nvidia{ordinal}", "")
        bus = 0x10 + ordinal
        pci_gpu(machine, f"pci0000:{bus:02x}/0000:{bus:02x}:01.0/0000:{0x17 + ordinal:02x}:00.0")


def pci_function(machine: FakeMachine, place: str, numa_node: int = 0, **texts: str) -> Path:
    """A function and its bridges; place: pci0000:15/BRIDGE/.../ADDRESS. Returns its folder."""
    tree = machine.root / "sys/devices"
    bus = machine.root / "sys/bus/pci/devices"
    bus.mkdir(parents=True, exist_ok=True)
    folder = tree
    for part in place.split("/"):
        folder = folder / part
        folder.mkdir(parents=True, exist_ok=True)
        if not part.startswith("pci") and not (bus / part).is_symlink():
            (bus / part).symlink_to(folder)
    for name, text in {"numa_node": str(numa_node), **texts}.items():
        (folder / name).write_text(text + "\n")
    return folder


def pci_gpu(machine: FakeMachine, place: str, numa_node: int = 0) -> Path:
    return pci_function(machine, place, numa_node, vendor="0x10de", **{"class": "0x030200"})


def pci_nic(machine: FakeMachine, place: str, name: str = "mlx5_0", numa_node: int = 0) -> Path:
    """An RDMA adapter with an active port, whose device is a link into the tree, as sysfs has it."""
    folder = pci_function(machine, place, numa_node, vendor="0x15b3", **{"class": "0x020700"})
    machine.port(name)
    (machine.root / "sys/class/infiniband" / name / "device").symlink_to(folder)
    return folder


def configuration(control: int | None) -> bytes:
    """A configuration space as root reads it: an extended capability of another kind, then ACS with that register."""
    config = bytearray(4096)
    if control is not None:
        struct.pack_into("<I", config, 0x100, 0x0001 | 1 << 16 | 0x148 << 20)  # advanced error reporting; next: 0x148
        struct.pack_into("<IHH", config, 0x148, 0x000D | 1 << 16, 0x007F, control)
    return bytes(config)
