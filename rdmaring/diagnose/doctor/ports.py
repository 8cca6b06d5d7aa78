"""RDMA devices and their ports, as sysfs shows them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rdmaring.diagnose.doctor.roots import Roots, names, peek

IB_MTUS = (4096, 2048, 1024, 512, 256)
# What the kernel keeps free in a frame for RoCE: GRH 40, UDP 8, BTH 12, XRC 4, atomic 28, ICRC 4 bytes.
ROCE_HEADER_BYTES = 96


@dataclass(frozen=True, slots=True)
class Port:
    """One port of one device. Texts are those of sysfs, "" where it has none; state without its number."""

    device: str
    number: int
    path: Path
    link_layer: str
    state: str
    phys_state: str
    rate: str
    lid: str
    sm_lid: str

    @property
    def name(self) -> str:
        return f"{self.device}/{self.number}"

    @property
    def is_roce(self) -> bool:
        return self.link_layer == "Ethernet"

    @property
    def is_active(self) -> bool:
        return self.state == "ACTIVE"

    @property
    def device_path(self) -> Path:
        """The PCI function, if there is one."""
        return self.path.parent.parent / "device"

    @property
    def is_software(self) -> bool:
        """soft-RoCE and its like: no PCI function behind it."""
        return not (self.device_path / "vendor").exists()

    @property
    def rate_gbit_s(self) -> float:
        """10^9 bits a second of the link; 0 where sysfs does not say."""
        first = self.rate.split(" ")[0]
        try:
            return float(first)
        except ValueError:
            return 0.0

    @property
    def lanes(self) -> int:
        """4 of "100 Gb/sec (4X EDR)"; 0 where sysfs does not say."""
        _, _, inside = self.rate.partition("(")
        number, x, _ = inside.partition("X")
        return int(number) if x and number.isdigit() else 0


def device_names(roots: Roots) -> list[str]:
    return names(roots.sysfs / "class" / "infiniband")


def ports(roots: Roots) -> list[Port]:
    """All ports of all devices, by device name and port number."""
    found: list[Port] = []
    for device in device_names(roots):
        folder = roots.sysfs / "class" / "infiniband" / device / "ports"
        for number in names(folder):
            if number.isdigit():
                path = folder / number
                texts = {name: peek(path / name) for name in ("link_layer", "rate", "lid", "sm_lid")}
                state, phys_state = (_after_number(peek(path / name)) for name in ("state", "phys_state"))
                found.append(Port(device, int(number), path, state=state, phys_state=phys_state, **texts))
    return found


def _after_number(text: str) -> str:
    """ACTIVE of "4: ACTIVE"."""
    return text.partition(":")[2].strip() or text


def netdev_of(roots: Roots, port: Port) -> str:
    """The network interface under a RoCE port; "" where there is none."""
    ndevs = port.path / "gid_attrs" / "ndevs"
    for index in names(ndevs):
        if name := peek(ndevs / index):
            return name
    beside = names(port.device_path / "net")
    if beside:
        return beside[0]
    return peek(port.path.parent.parent / "parent")  # soft-RoCE


def netdev_mtu(roots: Roots, netdev: str) -> int:
    """0 where it cannot be read."""
    text = peek(roots.sysfs / "class" / "net" / netdev / "mtu") if netdev else ""
    return int(text) if text.isdigit() else 0


def roce_mtu(netdev_mtu_bytes: int) -> int:
    """The path MTU in bytes that RoCE reaches over a netdev: the largest InfiniBand MTU that fits; 0 if none."""
    room = netdev_mtu_bytes - ROCE_HEADER_BYTES
    return next((mtu for mtu in IB_MTUS if mtu <= room), 0)
