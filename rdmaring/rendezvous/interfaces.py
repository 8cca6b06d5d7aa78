"""Addresses of this host that others may reach."""

from __future__ import annotations

import ctypes
import ipaddress
import os
import socket
from collections.abc import Iterable

_AF_INET, _AF_INET6 = int(socket.AF_INET), int(socket.AF_INET6)
_IFF_UP = 1


class _Entry(ctypes.Structure):
    """struct ifaddrs, as far as it is read here."""


_Entry._fields_ = [
    ("next", ctypes.POINTER(_Entry)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
]


def own_addresses() -> list[str]:
    """The addresses of all interfaces that are up, IPv4 first; without loopback and link-local ones.

    A link-local address names an interface of the host that uses it, so it cannot be passed on.

    Raises OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    first = ctypes.POINTER(_Entry)()
    if libc.getifaddrs(ctypes.byref(first)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    found: list[tuple[int, str]] = []
    try:
        entry = first
        while entry:
            if entry.contents.address and entry.contents.flags & _IFF_UP:
                found += _address(entry.contents.address)
            entry = entry.contents.next
    finally:
        libc.freeifaddrs(first)
    return [text for _, text in sorted(found, key=lambda each: each[0])]


def nearest_first(hosts: Iterable[str], own: Iterable[str]) -> list[str]:
    """``hosts`` as they are to be tried: addresses by the length of prefix shared with one of ours, then names.

    An address that leads nowhere costs a time-out, and those of our own networks lead somewhere.
    """
    ours = [ipaddress.ip_address(each) for each in own]

    def distance(host: str) -> int:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return 129
        unlike = (int(address) ^ int(each) for each in ours if each.version == address.version)
        return min((bits.bit_length() for bits in unlike), default=128)

    return sorted(hosts, key=distance)


def _address(pointer: int) -> list[tuple[int, str]]:
    """Family and text of a struct sockaddr that is of use elsewhere; else nothing."""
    family = ctypes.c_ushort.from_address(pointer).value
    if family == _AF_INET:
        raw = ctypes.string_at(pointer + 4, 4)  # behind family and port
        useless = raw[0] in (0, 127) or raw[:2] == b"\xa9\xfe"
    elif family == _AF_INET6:
        raw = ctypes.string_at(pointer + 8, 16)  # behind family, port and flow label
        useless = raw == bytes(15) + b"\x01" or (raw[0] == 0xFE and raw[1] & 0xC0 == 0x80)
    else:
        return []
    return [] if useless else [(family, socket.inet_ntop(family, raw))]
