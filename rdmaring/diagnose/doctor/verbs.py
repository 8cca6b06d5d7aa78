"""RDMA: the device files, libibverbs, the devices, and the state and rate of their ports."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from rdmaring.diagnose.doctor.findings import Finding
from rdmaring.diagnose.doctor.ports import Port, device_names, ports
from rdmaring.diagnose.doctor.roots import Look, Roots, names, peek
from rdmaring.diagnose.doctor.texts import listing
from rdmaring.diagnose.doctor.verbs_library import LIBRARY

# PCI vendors of RDMA adapters, and the module that drives them.
RDMA_VENDORS = {
    "0x15b3": "mlx5_ib",  # NVIDIA (Mellanox)
    "0x14e4": "bnxt_re",  # Broadcom
    "0x1425": "iw_cxgb4",  # Chelsio
    "0x1d0f": "efa",  # Amazon
    "0x1dd8": "ionic_rdma",  # AMD Pensando
}
PCI_NETWORK_CLASS = "0x02"
IB_LANES_EXPECTED = 4  # of an InfiniBand port; 25 and 50 Gb/s Ethernet have one lane by design
NO_DEVICE = "no RDMA device: edges between hosts use TCP"


def check_rdma_devices(roots: Roots) -> Finding:
    """/sys/class/infiniband, the modules that make it, and adapters on the PCI bus that nothing drives."""
    look = Look("rdma-devices")
    found = device_names(roots)
    look.note(str(roots.sysfs / "class" / "infiniband"), " ".join(found) or "no device")
    if found:
        every = ports(roots)
        for port in every:
            for name in ("link_layer", "state", "phys_state", "rate", "lid", "sm_lid"):
                look.text(port.path / name)
        words = listing(f"{port.name} {port.link_layer or '?'} {port.rate}" for port in every)
        return look.ok(words or f"{listing(found)}, without ports")
    loaded = {line.split(" ")[0] for line in peek(roots.procfs / "modules").splitlines()}
    rdma_modules = sorted({"ib_core", "ib_uverbs", "mlx5_ib", "rdma_rxe", "siw", "bnxt_re", "irdma", "efa"} & loaded)
    look.note(str(roots.procfs / "modules"), " ".join(rdma_modules) or "none of RDMA's modules")
    for adapter, module in _adapters(roots):
        look.note(str(adapter), f"vendor {peek(adapter / 'vendor')}, device {peek(adapter / 'device')}")
        return look.failure(
            f"PCI adapter {adapter.name} is there, but no RDMA device",
            f"no module offers its RDMA device: {module} is {'loaded' if module in loaded else 'not loaded'}"
            + ("" if "ib_uverbs" in loaded else ", nor is ib_uverbs"),
            f"modprobe -a {module} ib_uverbs; for good: a file in /etc/modules-load.d/. In a container the host must "
            "do it. If the port is set to another protocol, see mlxconfig's LINK_TYPE",
        )
    return look.not_applicable(NO_DEVICE)


def _adapters(roots: Roots) -> list[tuple[Path, str]]:
    bus = roots.sysfs / "bus" / "pci" / "devices"
    found = []
    for name in names(bus):
        module = RDMA_VENDORS.get(peek(bus / name / "vendor"))
        # Broadcom and Amazon make network adapters without RDMA, too: theirs are not reported by vendor alone.
        if module in ("mlx5_ib",) and peek(bus / name / "class").startswith(PCI_NETWORK_CLASS):
            found.append((bus / name, module))
    return found


def check_verbs_access(roots: Roots) -> Finding:
    """/dev/infiniband/uverbs* of every device can be opened. rdma_cm is looked at, but not needed."""
    look = Look("verbs-access")
    devices = device_names(roots)
    folder = roots.dev / "infiniband"
    look.note(str(folder), " ".join(names(folder)) or "nothing")
    if not devices:
        return look.not_applicable(NO_DEVICE)
    if "rdma_cm" not in names(folder):
        look.note(str(folder / "rdma_cm"), "absent; not needed: queue pairs meet over the rendezvous")
    verbs = roots.sysfs / "class" / "infiniband_verbs"
    files = {peek(verbs / name / "ibdev"): name for name in names(verbs) if name.startswith("uverbs")}
    for device in devices:
        name = files.get(device)
        if name is None:
            look.note(str(verbs), f"no uverbs of {device}")
            return look.failure(
                f"{device} has no uverbs device",
                "the kernel module ib_uverbs, which gives programs access to RDMA devices, is not loaded",
                "modprobe ib_uverbs; for good: ib_uverbs in /etc/modules-load.d/rdma.conf",
            )
        try:
            roots.system.open_device(folder / name)
        except OSError as error:
            look.note(str(folder / name), f"open: {errno.errorcode.get(error.errno or 0, '?')} {error.strerror}")
            return _no_access(look, folder / name, device, error)
        look.note(str(folder / name), f"{device}: opened")
    return look.ok(f"{listing(devices)}: uverbs can be opened")


def _no_access(look: Look, path: Path, device: str, error: OSError) -> Finding:
    found = f"{path} of {device} cannot be opened: {error.strerror}"
    if error.errno == errno.ENOENT:
        return look.failure(
            found,
            "the kernel has the device, but this file tree has no file for it: a container that was not given "
            "/dev/infiniband, or udev did not run",
            "docker run --device=/dev/infiniband (a pod: the RDMA device plugin); on the host: udevadm trigger",
        )
    if error.errno == errno.EPERM:
        return look.failure(
            found,
            "the device cgroup of the container forbids it",
            "docker run --device=/dev/infiniband/... or --device-cgroup-rule='c 231:* rmw'",
        )
    return look.failure(
        found,
        f"user id {os.geteuid()} may not open it",
        'chmod 666, by a udev rule: KERNEL=="uverbs*", MODE="0666" in /etc/udev/rules.d/; or join the group that '
        "owns it",
    )


def check_verbs_library(roots: Roots) -> Finding:
    """libibverbs can be opened, and has a driver for every device of the kernel."""
    look = Look("verbs-library")
    devices = device_names(roots)
    name = roots.env.get("RDMARING_LIBIBVERBS") or LIBRARY
    library = roots.system.verbs_library(name)
    if not library.path and library.error:
        look.note(f"dlopen {name}", library.error)
        if not devices:
            return look.not_applicable("libibverbs is not installed; not needed, as there is no RDMA device")
        return look.failure(
            "libibverbs cannot be opened, though there are RDMA devices",
            f"rdmaring opens {name} at run time; the loader says: {library.error}",
            "apt install libibverbs1 ibverbs-providers, or dnf install libibverbs; inside the container too",
        )
    look.note(f"dlopen {name}", f"{library.path}, version {library.version}")
    look.note("ibv_get_device_list", library.error or " ".join(library.devices) or "no device")
    if not devices:
        return look.ok(f"version {library.version}; no RDMA device to use it with")
    missing = [name for name in devices if name not in library.devices]
    if missing:
        return look.failure(
            f"libibverbs {library.version} has no driver for {listing(missing)}",
            "the kernel has the device; libibverbs lacks the provider (lib*-rdmav*.so) that drives it, or one of "
            "another version is installed, or /dev/infiniband is not accessible (see verbs-access)",
            "apt install ibverbs-providers of the same version as libibverbs1, or dnf install libibverbs; "
            "ibv_devices must then list it",
        )
    return look.ok(f"version {library.version}, drives {listing(library.devices)}")


def check_port_state(roots: Roots) -> Finding:
    """Every port is ACTIVE."""
    look = Look("port-state")
    every = ports(roots)
    if not every:
        return look.not_applicable(NO_DEVICE)
    for port in every:
        for name in ("state", "phys_state", "link_layer", "lid", "sm_lid"):
            look.text(port.path / name)
    down = [port for port in every if not port.is_active]
    if not down:
        return look.ok(listing(f"{port.name} ACTIVE" for port in every))
    found = listing(f"{port.name} is {port.state or 'unreadable'}, {port.phys_state or '?'}" for port in down)
    causes = [f"{port.name}: {_why_down(port)[0]}" for port in down]
    fixes = [f"{port.name}: {_why_down(port)[1]}" for port in down]
    if len(down) == len(every):
        return look.failure(f"no port is active: {found}", "; ".join(causes), "; ".join(fixes))
    return look.warning(found, "; ".join(causes), "; ".join(fixes))


def _why_down(port: Port) -> tuple[str, str]:
    """Cause and fix."""
    if port.is_roce:
        if port.phys_state == "Disabled":
            return "its network interface is down", "ip link set INTERFACE up; ip -br link shows which"
        return "its network interface has no carrier", "look at the cable and the switch port; ethtool INTERFACE"
    if port.phys_state == "LinkUp":
        if port.sm_lid in ("", "0x0", "0"):
            return "the cable is up, but no subnet manager has given it a LID", "start opensm on a host or the switch"
        return f"subnet manager {port.sm_lid} has not made it active", "see the subnet manager's log"
    if port.phys_state == "Disabled":
        return "the port is disabled", "ibportstate -D 0 PORT enable"
    if port.phys_state == "Polling":
        return "nothing answers at the other end of the cable", "plug the cable in at both ends; try another"
    return f"its physical state is {port.phys_state or 'unknown'}", "ibstat, and the kernel's log, say more"


def check_port_rate(roots: Roots) -> Finding:
    """Rate and width of active ports: an InfiniBand port of less than four lanes, or a port slower than its twin."""
    look = Look("port-rate")
    active = [port for port in ports(roots) if port.is_active]
    if not active:
        return look.not_applicable("no active RDMA port")
    for port in active:
        look.text(port.path / "rate")
    slow = []
    for port in active:
        twins = [other.rate_gbit_s for other in active if _kind(other) == _kind(port) and not other.is_software]
        if not port.is_roce and not port.is_software and 0 < port.lanes < IB_LANES_EXPECTED:
            slow.append(f"{port.name}: {port.rate}, {port.lanes} lanes of {IB_LANES_EXPECTED}")
        elif not port.is_software and 0 < port.rate_gbit_s < max(twins):
            slow.append(f"{port.name}: {port.rate}, where a port of the same model runs at {max(twins):g} Gb/sec")
    if slow:
        return look.warning(
            "; ".join(slow),
            "the port came up with fewer lanes or a lower speed than it can: a damaged or wrong cable or "
            "transceiver, a switch port set to less, or a link that was trained in haste",
            "reseat or change the cable; compare with the port at the other end (iblinkinfo, mlxlink, ethtool); then "
            "bring the link down and up",
        )
    return look.ok(listing(f"{port.name} {port.rate}" for port in active))


def _kind(port: Port) -> tuple[str, str]:
    """Ports that should be alike: same model of board, same link layer."""
    folder = port.path.parent.parent
    return peek(folder / "board_id") or peek(folder / "hca_type"), port.link_layer
