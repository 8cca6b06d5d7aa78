"""Lines for `tc -batch` that hold a link, or one edge of it, to a rate."""

from __future__ import annotations

from collections.abc import Mapping

# One segment that the kernel has yet to cut is up to 64 KiB: a bucket that holds less would shape by stops.
BURST_BYTES_MIN = 1 << 17
BURST_S = 0.002
# A switch's queue: long enough for a congestion window of TCP, short enough that nobody waits for long.
QUEUE_BYTES_MIN = 1 << 19
QUEUE_S = 0.02
SHARE_MIN = 100  # what a class of a shaped link is sure of: this part of the rate; it may borrow all of it


def _limits(rate_bit_s: int) -> str:
    burst = max(BURST_BYTES_MIN, int(rate_bit_s / 8 * BURST_S))
    return f"ceil {rate_bit_s}bit burst {burst}b cburst {burst}b quantum 65536"


def _leaf(device: str, number: str, parent: str, sure_bit_s: int, rate_bit_s: int) -> list[str]:
    queue = max(QUEUE_BYTES_MIN, int(rate_bit_s / 8 * QUEUE_S))
    return [
        f"class add dev {device} parent {parent} classid 1:{number} htb rate {sure_bit_s}bit {_limits(rate_bit_s)}",
        f"qdisc add dev {device} parent 1:{number} bfifo limit {queue}b",
    ]


def shape(device: str, rate_bit_s: int | None, edges: Mapping[str, int] | None = None) -> list[str]:
    """What leaves ``device`` in all, and what of it goes to each Ethernet address of ``edges``.

    Addresses of Ethernet, so that an edge is held to its rate over IPv4, IPv6 and link-local addresses alike.
    """
    if rate_bit_s is None and not edges:
        return []
    edges = edges or {}
    lines = [f"qdisc add dev {device} root handle 1: htb default {2 if rate_bit_s is not None else 0}"]
    parent = "1:"
    if rate_bit_s is not None:
        parent = "1:1"
        lines.append(f"class add dev {device} parent 1: classid 1:1 htb rate {rate_bit_s}bit {_limits(rate_bit_s)}")
        lines += _leaf(device, "2", parent, max(8, rate_bit_s // SHARE_MIN), rate_bit_s)
    for number, (address, edge_bit_s) in enumerate(edges.items(), 16):
        least = edge_bit_s if rate_bit_s is None else min(edge_bit_s, rate_bit_s)
        sure = least if rate_bit_s is None else max(8, least // SHARE_MIN)
        lines += _leaf(device, f"{number:x}", parent, sure, least)
        lines.append(
            f"filter add dev {device} parent 1: protocol all prio 1 u32 match ether dst {address} classid 1:{number:x}"
        )
    return lines
