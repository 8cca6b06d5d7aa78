"""Which interface of this network namespace has which address."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

SIOCGIFADDR = 0x8915
IFREQ_BYTES = 40
ADDRESS_AT = 20  # in a struct ifreq with a struct sockaddr_in


def interface_of_address(proc: Path = Path("/proc")) -> dict[str, str]:
    """Address -> interface: every IPv6 address, and the first IPv4 address of each interface."""
    found = {}
    try:
        lines = (proc / "net" / "if_inet6").read_text().splitlines()
    except OSError:  # a kernel without IPv6
        lines = []
    for line in lines:
        digits, _, _, _, _, name = line.split()
        found[str(ipaddress.IPv6Address(int(digits, 16)))] = name
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = struct.pack(f"16s{IFREQ_BYTES - 16}x", name.encode())
            try:
                answer = fcntl.ioctl(any_socket, SIOCGIFADDR, request)
            except OSError:  # it has none
                continue
            found[socket.inet_ntoa(answer[ADDRESS_AT : ADDRESS_AT + 4])] = name
    return found
