"""Addresses of this machine: IPv6, and addresses that many machines have alike."""

from __future__ import annotations

import ipaddress

from rdmaring.diagnose.doctor.findings import Finding
from rdmaring.diagnose.doctor.roots import Look, Roots, names, peek
from rdmaring.diagnose.doctor.texts import listing

# Networks that software gives to every machine alike, behind which other hosts cannot be told apart.
PRIVATE_BRIDGES = {
    "172.17.0.0/16": "docker's default bridge",
    "192.168.122.0/24": "libvirt's default bridge",
    "10.88.0.0/16": "podman's default bridge",
    "10.0.3.0/24": "LXC's default bridge",
    "10.0.2.0/24": "QEMU's user network",
    "169.254.0.0/16": "self-assigned: no DHCP server answered",
}


def check_addresses(roots: Roots) -> Finding:
    """Addresses by which other hosts may reach this one, and those that many hosts have alike."""
    look = Look("addresses")
    try:
        every = roots.system.addresses()
    except OSError as error:
        look.note("getifaddrs", error.strerror or str(error))
        return look.not_applicable("the addresses cannot be listed")
    usable, alike = [], []
    for address in every:
        ip = address.ip
        if ip.is_loopback:
            look.note(address.interface, f"{address}: loopback, not for other hosts")
            continue
        origin = origin_of(ip)
        look.note(address.interface, f"{address}{': ' + origin if origin else ''}")
        if origin:
            alike.append(f"{address.address} on {address.interface} ({origin})")
        elif not address.is_link_local:
            usable.append(address)
    if not usable:
        return look.warning(
            "no address by which other hosts reach this one",
            "every interface that is up has loopback, link-local or bridge addresses only"
            + (f": {listing(alike)}" if alike else ""),
            "give an interface an address (ip addr add), or bring it up; in a container use the host's network. "
            "Ranks of this machine alone need none",
        )
    words = listing(f"{address.address} on {address.interface}" for address in usable)
    if alike:
        return look.warning(
            f"{words}; and {listing(alike)}",
            "many hosts have these same addresses: a peer that tries one meets its own machine or nobody. rdmaring "
            "tests each by connecting, but launchers and other libraries may take the first",
            "nothing, if ranks meet by another address: give rank 0's routable address as the rendezvous, never a "
            "bridge's",
        )
    return look.ok(words)


def origin_of(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """What makes such an address on every machine; "" for an address of this machine's own."""
    if ip.version == 6:
        return ""
    return next((what for network, what in PRIVATE_BRIDGES.items() if ip in ipaddress.ip_network(network)), "")


def check_ipv6(roots: Roots) -> Finding:
    """IPv6: switched off, or without an address."""
    look = Look("ipv6")
    conf = roots.procfs / "sys" / "net" / "ipv6" / "conf"
    if not conf.is_dir():
        look.note(str(conf), "absent")
        return look.warning(
            "the kernel has no IPv6",
            "it was built or booted without IPv6 (ipv6.disable=1)",
            "nothing, if all hosts have IPv4; else boot without ipv6.disable=1",
        )
    off = [name for name in names(conf) if peek(conf / name / "disable_ipv6") == "1"]
    for name in off:
        look.note(str(conf / name / "disable_ipv6"), "1")
    real = [name for name in off if name not in ("all", "default", "lo")]
    if "all" in off:
        return look.warning(
            "IPv6 is switched off",
            "net.ipv6.conf.all.disable_ipv6 is 1 (docker's default for a container's network)",
            "nothing, if all hosts have IPv4; else sysctl net.ipv6.conf.all.disable_ipv6=0, "
            "docker run --sysctl net.ipv6.conf.all.disable_ipv6=0",
        )
    addresses = [address for address in roots.system.addresses() if address.ip.version == 6]
    for address in addresses:
        look.note(address.interface, address)
    outer = [address for address in addresses if not address.ip.is_loopback]
    if not outer:
        return look.warning(
            "no IPv6 address but loopback's",
            f"IPv6 is on, but {'it is switched off on ' + listing(real) if real else 'no interface has an address'}",
            "nothing, if all hosts have IPv4; else sysctl net.ipv6.conf.INTERFACE.disable_ipv6=0, and an address by "
            "router advertisement, DHCPv6 or ip -6 addr add",
        )
    routable = [address for address in outer if not address.is_link_local]
    if not routable:
        return look.ok(
            f"link-local only: {listing(address.scoped for address in outer)}; it serves hosts on the same wire"
        )
    return look.ok(listing(f"{address.address} on {address.interface}" for address in routable))
