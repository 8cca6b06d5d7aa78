"""What limits an RDMA port though it is up: its MTU, its error counters, its place on PCI and NUMA."""

from __future__ import annotations

from pathlib import Path

from rdmaring.diagnose.doctor.findings import Finding
from rdmaring.diagnose.doctor.ports import (
    IB_MTUS,
    ROCE_HEADER_BYTES,
    netdev_mtu,
    netdev_of,
    ports,
    roce_mtu,
)
from rdmaring.diagnose.doctor.roots import Look, Roots, names, peek
from rdmaring.diagnose.doctor.texts import count_text, cpu_list, listing, parse_cpu_list
from rdmaring.diagnose.doctor.verbs import NO_DEVICE

# Counters whose growth means trouble, and of what kind.
COUNTERS = {
    "symbol_error": "bits damaged on the wire: cable, transceiver or connector",
    "link_error_recovery": "the link retrained after errors: cable or transceiver",
    "link_downed": "the link went down: cable, the other end restarted, or it was set down",
    "port_rcv_errors": "packets damaged on arrival: cable, or the sender's side",
    "port_rcv_remote_physical_errors": "packets damaged on another link of the way",
    "local_link_integrity_errors": "errors above the link's threshold: cable or transceiver",
    "excessive_buffer_overrun_errors": "buffers overran: flow control between port and switch",
    "port_xmit_discards": "packets thrown away before sending: congestion or the other end stopped",
    "out_of_sequence": "packets lost or reordered on the way: RoCE without working flow control (PFC, ECN)",
    "packet_seq_err": "the peer missed packets of ours: loss on the way (PFC, ECN)",
    "local_ack_timeout_err": "no acknowledgement in time: loss, a dead peer, or a wrong GID",
    "rx_icrc_encapsulated": "RoCE packets with a wrong checksum: a damaged link or a faulty device",
    "out_of_buffer": "packets came when nothing was posted to receive them",
    "rcvd_seq_err": "packets lost or reordered on the way",
    "retry_exceeded_err": "a peer never acknowledged: loss, a dead peer, or a wrong GID",
}


def check_roce_mtu(roots: Roots) -> Finding:
    """The network interface's MTU under each RoCE port, and the RoCE MTU that fits into it."""
    look = Look("roce-mtu")
    roce = [port for port in ports(roots) if port.is_roce and port.is_active]
    if not roce:
        return look.not_applicable("no active RoCE port; InfiniBand ports have no network interface's MTU")
    found: list[str] = []
    small: list[str] = []
    broken: list[str] = []
    for port in roce:
        netdev = netdev_of(roots, port)
        if not netdev:
            look.note(str(port.path), "no network interface is named for it")
            continue
        look.text(roots.sysfs / "class" / "net" / netdev / "mtu")
        outer = netdev_mtu(roots, netdev)
        inner = roce_mtu(outer)
        look.note(f"RoCE MTU of {port.name}", f"largest of {IB_MTUS} that is <= {outer} - {ROCE_HEADER_BYTES}: {inner}")
        words = f"{port.name}: RoCE MTU {inner} (interface {netdev} has MTU {outer})"
        (broken if inner == 0 else small if inner < IB_MTUS[0] else found).append(words)
    needed = IB_MTUS[0] + ROCE_HEADER_BYTES
    fix = (
        f"ip link set INTERFACE mtu 9000 ({needed} is the least for RoCE's {IB_MTUS[0]}), on every host and on the "
        "switches between them; then rdmaring doctor --peer HOST shows whether such packets arrive"
    )
    if broken:
        return look.failure("; ".join(broken), "no InfiniBand MTU fits into the interface's MTU", fix)
    if small:
        return look.warning(
            "; ".join(small + found),
            f"RoCE's packets hold 256 to {IB_MTUS[0]} bytes, and the headers take {ROCE_HEADER_BYTES} more: a small "
            "interface MTU means more packets for the same bytes",
            fix,
        )
    return look.ok("; ".join(found) or "no network interface is named for the RoCE ports")


def check_port_counters(roots: Roots) -> Finding:
    """Error counters of ports, since they were last reset (the driver's load, or perfquery -R)."""
    look = Look("port-counters")
    every = ports(roots)
    if not every:
        return look.not_applicable(NO_DEVICE)
    raised: dict[str, int] = {}
    read = 0
    for port in every:
        for folder in ("counters", "hw_counters"):
            for name in names(port.path / folder):
                path = port.path / folder / name
                if name not in COUNTERS:
                    continue
                value = peek(path)
                read += value.isdigit()
                if value.isdigit() and int(value) > 0:
                    look.note(str(path), value)
                    raised[f"{port.name} {name}"] = int(value)
    look.note("error counters read", f"{read}, of {count_text(len(every), 'port')}")
    if raised:
        kinds = dict.fromkeys(name.split(" ")[1] for name in raised)
        return look.warning(
            listing(f"{name} = {value}" for name, value in raised.items()),
            "; ".join(f"{kind}: {COUNTERS[kind]}" for kind in kinds),
            "they count since the driver was loaded: run this again after a job; what still grows is a fault of now. "
            "Then reseat or change the cable and transceiver, and look at the switch port's counters and its flow "
            "control",
            counters=raised,
        )
    return look.ok(f"{count_text(read, 'error counter')} at 0" if read else "the ports have no error counters")


def _device_folders(roots: Roots) -> dict[str, Path]:
    """PCI functions of the RDMA devices; those made in software have none."""
    return {port.device: port.device_path for port in ports(roots) if not port.is_software}


def check_nic_numa(roots: Roots) -> Finding:
    """The NUMA node of each RDMA device against the CPUs that the process may run on."""
    look = Look("nic-numa")
    folders = _device_folders(roots)
    if not folders:
        return look.not_applicable("no RDMA device on the PCI bus")
    nodes = roots.sysfs / "devices" / "system" / "node"
    allowed = roots.system.affinity()
    look.note("sched_getaffinity", cpu_list(allowed))
    near, far = [], []
    for device, folder in folders.items():
        node = look.number(folder / "numa_node")
        if node is None or node < 0:
            continue
        local = parse_cpu_list(look.text(nodes / f"node{node}" / "cpulist") or "")
        if local and not allowed & local:
            look.text(nodes / f"node{node}" / "distance")
            far.append(f"{device} is on NUMA node {node} (CPUs {cpu_list(local)}), no allowed CPU is")
        else:
            near.append(f"{device}: node {node}")
    if far:
        return look.warning(
            f"{'; '.join(far)}; allowed are {cpu_list(allowed)}",
            "every byte between memory and device crosses the link between the processors, which others use too",
            "run the ranks on the device's node: numactl --cpunodebind=NODE --membind=NODE, srun --cpu-bind, "
            "or widen the container's cpuset",
        )
    return look.ok(listing(near) or "the devices have no NUMA node")


def check_pcie(roots: Roots) -> Finding:
    """PCIe speed and width of each RDMA device, now and at most."""
    look = Look("pcie")
    folders = _device_folders(roots)
    if not folders:
        return look.not_applicable("no RDMA device on the PCI bus")
    fine: list[str] = []
    slow: list[str] = []
    slots: list[str] = []
    for device, folder in folders.items():
        values = {
            name: look.text(folder / name)
            for name in ("current_link_speed", "max_link_speed", "current_link_width", "max_link_width")
        }
        speed, speed_max, width, width_max = (_leading_number(value) for value in values.values())
        if 0 in (speed, speed_max, width, width_max):
            continue  # a virtual function shows "Unknown"
        words = f"{device}: {speed:g} GT/s x{width:g} of {speed_max:g} GT/s x{width_max:g}"
        slot = folder.resolve().parent / "max_link_width"
        if slot.exists() and _leading_number(peek(slot)) < width_max:
            look.text(slot)
            slots.append(device)
        (slow if speed < speed_max or width < width_max else fine).append(words)
    if slow:
        why = f" (the slot of {listing(slots)} has no more lanes)" if slots else ""
        return look.warning(
            "; ".join(slow),
            f"the device's PCIe link runs below what the device can: a narrow or old slot{why}, a riser, a setting "
            "of the firmware, or a link that was trained badly",
            "move the adapter to a slot with the full width and generation, or reseat it; check the slot's setting "
            "in the firmware; lspci -vv shows LnkCap against LnkSta (some adapters lower the speed while idle: look "
            "under load)",
        )
    return look.ok(listing(fine) or "the devices do not show their PCIe link")


def _leading_number(text: str | None) -> float:
    """8 of "8.0 GT/s PCIe"; 0 where there is none."""
    try:
        return float((text or "").split(" ")[0])
    except ValueError:
        return 0.0
