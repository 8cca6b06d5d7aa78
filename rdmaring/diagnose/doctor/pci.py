"""Functions on the PCI bus as sysfs shows them: their bridges, how far apart they are, and what redirects them.

The folder of a function is a link into the tree of bridges: /sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/...
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from rdmaring.diagnose.doctor.roots import Roots, names, peek

NVIDIA = "0x10de"
DISPLAY_CLASS = "0x03"  # 0x030000: VGA, 0x030200: a GPU without display
FUNCTION = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
ROOT_COMPLEX = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")
CONFIG_BYTES_SHOWN_TO_ALL = 64  # the rest of the configuration space is shown to root alone
EXTENDED_BEGIN, CONFIG_BYTES = 0x100, 4096
ACS_CAPABILITY = 0x000D
ACS_CONTROL_OFFSET = 6
ACS_REQUEST_REDIRECT, ACS_COMPLETION_REDIRECT = 1 << 2, 1 << 3


class Distance(IntEnum):
    """What lies between two functions, as nvidia-smi topo and NCCL name it; the larger, the farther."""

    PIX = 1  # at most one switch
    PXB = 2  # several switches
    PHB = 3  # the host bridge of a processor
    NODE = 4  # several host bridges of one NUMA node
    SYS = 5  # the link between processors


WORDS = {
    Distance.PIX: "one PCIe switch",
    Distance.PXB: "several PCIe switches",
    Distance.PHB: "the processor's host bridge",
    Distance.NODE: "two host bridges of one NUMA node",
    Distance.SYS: "the link between processors",
}


@dataclass(frozen=True, slots=True)
class Function:
    """address: 0000:17:00.0. folder: its place in the tree of bridges. numa_node: -1 where there is none."""

    address: str
    folder: Path
    numa_node: int

    @property
    def root_complex(self) -> str:
        return next((part for part in self.folder.parts if ROOT_COMPLEX.fullmatch(part)), "")

    @property
    def bridges(self) -> tuple[str, ...]:
        """Addresses of the bridges above, from the root port down."""
        return tuple(part for part in self.folder.parts if FUNCTION.fullmatch(part))[:-1]


def function_at(roots: Roots, folder: Path) -> Function | None:
    """The function that a sysfs folder such as /sys/class/infiniband/NAME/device stands for; None: it is none."""
    place = folder.resolve()
    while not FUNCTION.fullmatch(place.name):
        if place == place.parent:
            return None
        place = place.parent
    node = peek(place / "numa_node")
    return Function(place.name, place, int(node) if node.lstrip("-").isdigit() else -1)


def function_of(roots: Roots, address: str) -> Function | None:
    """The function with an address such as 0000:17:00.0; None: sysfs does not show it."""
    folder = roots.sysfs / "bus" / "pci" / "devices" / address.lower()
    return function_at(roots, folder) if folder.exists() else None


def gpu_functions(roots: Roots) -> list[Function]:
    """NVIDIA's GPUs on the bus, whether a driver has them or not."""
    bus = roots.sysfs / "bus" / "pci" / "devices"
    found = []
    for name in names(bus):
        if peek(bus / name / "vendor") == NVIDIA and peek(bus / name / "class").startswith(DISPLAY_CLASS):
            function = function_at(roots, bus / name)
            if function is not None:
                found.append(function)
    return found


def distance(a: Function, b: Function) -> Distance:
    """What a transfer between two functions passes."""
    if a.root_complex != b.root_complex:
        one_node = a.numa_node == b.numa_node and a.numa_node >= 0
        return Distance.NODE if one_node else Distance.SYS
    common = 0
    for mine, theirs in zip(a.bridges, b.bridges, strict=False):
        if mine != theirs:
            break
        common += 1
    if common == 0:
        return Distance.PHB
    # Below the common bridge, a switch shows its downstream port: one bridge on either way. More are more switches.
    return Distance.PIX if max(len(a.bridges), len(b.bridges)) - common <= 1 else Distance.PXB


def acs_control(roots: Roots, address: str) -> int | None:
    """A bridge's register of Access Control Services; 0: it has none. None: not shown (not root, or a sandbox)."""
    path = roots.sysfs / "bus" / "pci" / "devices" / address / "config"
    try:
        config = path.read_bytes()
    except OSError:
        return None
    if len(config) <= CONFIG_BYTES_SHOWN_TO_ALL:
        return None
    offset = EXTENDED_BEGIN
    for _ in range(CONFIG_BYTES // 8):  # more links than fit are a loop
        if offset + 8 > len(config):
            return 0
        (header,) = struct.unpack_from("<I", config, offset)
        if header & 0xFFFF == ACS_CAPABILITY:
            (control,) = struct.unpack_from("<H", config, offset + ACS_CONTROL_OFFSET)
            return int(control)
        offset = header >> 20
        if offset < EXTENDED_BEGIN:
            return 0
    return 0


def redirects(control: int) -> bool:
    """Whether a bridge with this register sends traffic between its own ports up to the root complex."""
    return bool(control & (ACS_REQUEST_REDIRECT | ACS_COMPLETION_REDIRECT))


def iommu_type(function: Function) -> str:
    """The translation of a function's addresses: "identity", "DMA", "DMA-FQ"; "": no IOMMU has it."""
    return peek(function.folder / "iommu_group" / "type")
