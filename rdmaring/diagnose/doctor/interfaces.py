"""The addresses of this machine, by getifaddrs(3)."""

from __future__ import annotations

import ctypes
import fcntl
import ipaddress
import os
import socket
import struct
from dataclasses import dataclass

IFF_UP = 0x1
SIOCGIFMTU = 0x8921
IFREQ = "16si20x"  # struct ifreq: a name, and here a number
SOCKADDR_ADDRESS = {socket.AF_INET: (4, 4), socket.AF_INET6: (8, 16)}  # family: offset, bytes


class _Ifaddrs(ctypes.Structure):
    pass


_Ifaddrs._fields_ = (
    ("next", ctypes.POINTER(_Ifaddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
    ("netmask", ctypes.c_void_p),
    ("other", ctypes.c_void_p),
    ("data", ctypes.c_void_p),
)


@dataclass(frozen=True, slots=True)
class Address:
    """One address of one interface that is up. address: without scope."""

    interface: str
    address: str
    prefix_bits: int

    @property
    def ip(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
        return ipaddress.ip_address(self.address)

    @property
    def is_link_local(self) -> bool:
        return self.ip.version == 6 and self.ip.is_link_local

    @property
    def scoped(self) -> str:
        """As a socket wants it: a link-local IPv6 address with its interface."""
        return f"{self.address}%{self.interface}" if self.is_link_local else self.address

    @property
    def network(self) -> str:
        return str(ipaddress.ip_network(f"{self.address}/{self.prefix_bits}", strict=False))

    def __str__(self) -> str:
        return f"{self.address}/{self.prefix_bits} on {self.interface}"


def addresses() -> list[Address]:
    """All IPv4 and IPv6 addresses of interfaces that are up, loopback too. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.freeifaddrs.argtypes = [ctypes.POINTER(_Ifaddrs)]
    first = ctypes.POINTER(_Ifaddrs)()
    if libc.getifaddrs(ctypes.byref(first)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    found: list[Address] = []
    try:
        entry = first
        while entry:
            each = entry.contents
            packed = _packed(each.address)
            if packed is not None and each.flags & IFF_UP:
                mask = _packed(each.netmask)
                bits = 8 * len(packed) if mask is None else sum(byte.bit_count() for byte in mask)
                found.append(Address(each.name.decode(), str(ipaddress.ip_address(packed)), bits))
            entry = each.next
    finally:
        libc.freeifaddrs(first)
    return found


def interface_mtu(name: str) -> int:
    """Bytes, IP header included; 0 where there is no such interface.

    Asked of the socket layer: /sys shows the interfaces of the network namespace that it was mounted in.
    """
    request = struct.pack(IFREQ, name.encode(), 0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket, SIOCGIFMTU, request)
        except OSError:
            return 0
    return int(struct.unpack(IFREQ, answer)[1])


def _packed(sockaddr: int | None) -> bytes | None:
    """The address in a struct sockaddr, or None for another family."""
    if not sockaddr:
        return None
    family = ctypes.c_ushort.from_address(sockaddr).value
    if family not in SOCKADDR_ADDRESS:
        return None
    offset, count = SOCKADDR_ADDRESS[socket.AddressFamily(family)]
    return ctypes.string_at(sockaddr + offset, count)
