"""What an edge could carry at most, by what the system says of its devices: port speed, and PCIe behind it.

Roots are arguments: ``sys`` is where sysfs is mounted.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from pathlib import Path

from rdmaring.diagnose.links.records import Expected

BITS = 8
GIGA = 1e9
# Per lane: transfers a second as the kernel writes them, and the part of the bits that is left for data.
PCIE_DATA = {2.5: 0.8, 5.0: 0.8, 8.0: 128 / 130, 16.0: 128 / 130, 32.0: 128 / 130, 64.0: 242 / 256}


def least(*parts: Expected) -> Expected:
    """The slowest of several things in a row; what is not known does not count."""
    known = [part for part in parts if part.gb_s is not None]
    if known:
        return min(known, key=lambda part: part.gb_s or 0.0)
    return parts[0] if parts else Expected(None, "nothing is known")


def rdma_port(device: str, sys: Path = Path("/sys")) -> Expected:
    """Of ``device`` "mlx5_0/1": the port's rate, which is that of its lanes together, or PCIe if that is less."""
    name, _, port = device.partition("/")
    folder = sys / "class" / "infiniband" / name
    if folder.resolve().parts[-3:-1] == ("virtual", "infiniband"):
        return Expected(None, f"{device} is made by software: its rate says nothing")
    text = _text(folder / "ports" / (port or "1") / "rate")
    found = re.match(r"([\d.]+) Gb/sec", text)
    if not found or float(found[1]) <= 0:
        return Expected(None, f"{device}: no rate in sysfs")
    return least(Expected(float(found[1]) / BITS, f"port {device} runs at {text}"), pcie(folder / "device", device))


def interface(name: str, sys: Path = Path("/sys"), index: int | None = None) -> Expected:
    """Of a network interface: the speed that its driver states, or PCIe if that is less.

    index: the interface's number. Where sysfs has another one, it shows another network namespace's device of that
    name, and nothing is known.
    """
    folder = sys / "class" / "net" / name
    if not folder.exists():
        return Expected(None, f"{name}: sysfs does not show it")
    if index is not None and _text(folder / "ifindex") not in ("", str(index)):
        return Expected(None, f"{name}: sysfs shows another network namespace")
    if folder.resolve().parts[-3:-1] == ("virtual", "net"):
        return Expected(None, f"{name} is a virtual device: it has no speed of its own")
    speed = _text(folder / "speed")  # Mbit/s; -1 or an error where the driver does not know
    if not re.fullmatch(r"[1-9]\d*", speed):
        return Expected(None, f"{name}: the driver states no speed")
    rate = Expected(int(speed) * 1e6 / BITS / GIGA, f"{name} runs at {speed} Mbit/s")
    return least(rate, pcie(folder / "device", name))


def pcie(folder: Path, name: str) -> Expected:
    """Of the PCIe link in front of a device, one direction, without the headers of its packets."""
    speed, width = _text(folder / "current_link_speed"), _text(folder / "current_link_width")
    found = re.match(r"([\d.]+) GT/s", speed)
    if not found or not width.isdigit() or int(width) == 0 or float(found[1]) not in PCIE_DATA:
        return Expected(None, f"{name}: PCIe is not known")
    transfers = float(found[1])
    gb_s = transfers * PCIE_DATA[transfers] * int(width) / BITS
    return Expected(gb_s, f"PCIe of {name}: {transfers:g} GT/s x{width}")


def local_end(path: str, interfaces: Mapping[str, str]) -> str | None:
    """The interface at our end of a link's path "10.0.0.1:5000 -> 10.0.0.2:4711".

    interfaces: address -> interface. None: no path, or nobody has that address.
    """
    text = path.partition(" -> ")[0]
    host = text[1:].partition("]")[0] if text.startswith("[") else text.rpartition(":")[0]
    address, _, scope = host.partition("%")
    if scope:
        return scope
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return None
    mapped = getattr(ip, "ipv4_mapped", None)
    return interfaces.get(str(mapped or ip))


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
