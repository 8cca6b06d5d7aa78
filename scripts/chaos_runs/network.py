"""What the root of a host of scripts/hosts does to that host's own device."""

from __future__ import annotations

import subprocess

from beds.addresses import ipv4, ipv6, link_local, mac

NOBODY = "02:00:00:00:00:00"  # an Ethernet address that no device has
SLOW = "4mbit"
QUEUE = "128kb"  # a quarter of a second: what waits longer looks like a host that does not answer


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(argv)}: status {done.returncode}: {done.stderr.strip()}")


def cut_edge(host: int) -> None:
    """From now on nothing that this host sends to ``host`` arrives; all else does."""
    for address in (ipv4(host), ipv6(host), link_local(host).partition("%")[0]):
        _run("ip", "neigh", "replace", address, "lladdr", NOBODY, "nud", "permanent", "dev", "eth0")


def slow_edge(host: int) -> None:
    """What this host sends to ``host`` is held to SLOW."""
    for line in (
        "qdisc add dev eth0 root handle 1: htb",
        f"class add dev eth0 parent 1: classid 1:16 htb rate {SLOW}",
        f"qdisc add dev eth0 parent 1:16 handle 16: bfifo limit {QUEUE}",
        f"filter add dev eth0 parent 1: protocol all prio 1 u32 match ether dst {mac(host)} classid 1:16",
    ):
        _run("tc", *line.split())


def host_off() -> None:
    """This host's only device goes down."""
    _run("ip", "link", "set", "eth0", "down")
