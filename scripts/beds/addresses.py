"""Names and addresses of the hosts of a bed, alike for namespaces and guests."""

from __future__ import annotations

import enum

HOSTS_MAX = 200  # the last part of an address


class Family(enum.Enum):
    """Which addresses the hosts have beside loopback's; link-local ones of IPv6 they have always."""

    BOTH = "IPv4 and IPv6"
    IPV6 = "IPv6"
    LINK_LOCAL = "link-local IPv6"


def mac(host: int) -> str:
    return f"02:77:00:00:00:{host + 1:02x}"


def ipv4(host: int) -> str:
    return f"10.77.0.{host + 1}"


def ipv6(host: int) -> str:
    return f"fd77::{host + 1:x}"


def link_local(host: int) -> str:
    """With its scope: the device has one name on all hosts."""
    return f"fe80::77:ff:fe00:{host + 1:x}%eth0"


def first_address(family: Family, host: int) -> str:
    return {Family.BOTH: ipv4, Family.IPV6: ipv6, Family.LINK_LOCAL: link_local}[family](host)


def address_lines(family: Family, host: int) -> list[str]:
    """Lines for `ip -batch`; the link-local address comes by itself when the device goes up."""
    lines = []
    if family == Family.BOTH:
        lines.append(f"addr add {ipv4(host)}/24 dev eth0")
    if family != Family.LINK_LOCAL:
        lines.append(f"addr add {ipv6(host)}/64 dev eth0 nodad")
    return lines


def hosts_file(family: Family, names: list[str]) -> str:
    """/etc/hosts of every host: the names of all of them."""
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    lines += [f"{first_address(family, host).partition('%')[0]} {name}" for host, name in enumerate(names)]
    return "\n".join(lines) + "\n"
