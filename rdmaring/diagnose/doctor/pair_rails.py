"""The RDMA ports of two machines compared, rail by rail."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable

from rdmaring.diagnose.doctor.findings import Finding
from rdmaring.diagnose.doctor.gids import Gid, preference
from rdmaring.diagnose.doctor.machine import Machine, Rail
from rdmaring.diagnose.doctor.roots import Look
from rdmaring.diagnose.doctor.texts import listing

Pairs = list[tuple[Rail, Rail]]
ROCE, INFINIBAND = "Ethernet", "InfiniBand"


def check_rails(mine: Machine, theirs: Machine) -> list[Finding]:
    """All checks of rails; those that need rails on both ends are not applicable without."""
    checks: dict[str, Callable[[Look, Machine, Machine, Pairs], Finding]] = {
        "pair-link-layer": _link_layer,
        "pair-rate": _rate,
        "pair-rdma-mtu": _mtu,
        "pair-gid": _gid,
    }
    findings = [check_rail_count(mine, theirs)]
    pairs = list(zip(mine.rails, theirs.rails, strict=False))
    for name, check in checks.items():
        look = Look(name)
        if pairs:
            findings.append(check(look, mine, theirs, pairs))
        else:
            findings.append(look.not_applicable("not both ends have an active RDMA port"))
    return findings


def check_rail_count(mine: Machine, theirs: Machine) -> Finding:
    """Both ends have as many active RDMA ports."""
    look = Look("pair-rails")
    for machine in (mine, theirs):
        words = listing((f"{rail.name} {rail.link_layer}" for rail in machine.rails), shown_max=64)
        look.note(machine.label, words or "no active RDMA port")
    here, there = len(mine.rails), len(theirs.rails)
    if here == there == 0:
        return look.not_applicable("no active RDMA port on either end: the edge uses TCP")
    if 0 in (here, there):
        lacking, other = (mine, theirs) if here == 0 else (theirs, mine)
        return look.warning(
            f"{lacking.label} has no active RDMA port, {other.label} has {max(here, there)}",
            "an edge needs RDMA at both ends: between these two it uses TCP; require='rdma' raises. See the "
            f"findings of {lacking.label} alone: rdma-devices, port-state",
            f"bring up the RDMA ports of {lacking.label}",
        )
    if here != there:
        return look.warning(
            f"{here} rails here, {there} there",
            "rails are numbered alike on both hosts, and an edge has as many as the end with fewer",
            "bring up the missing ports, or give both hosts the same number",
        )
    return look.ok(f"{here} on each end")


def _link_layer(look: Look, mine: Machine, theirs: Machine, pairs: Pairs) -> Finding:
    """Rail by rail the same link layer."""
    for a, b in pairs:
        look.note(f"{a.name} and {b.name}", f"{a.link_layer} and {b.link_layer}")
    differ = [
        f"{a.name} is {a.link_layer}, {b.name} there {b.link_layer}" for a, b in pairs if a.link_layer != b.link_layer
    ]
    if differ:
        return look.failure(
            listing(differ),
            "an InfiniBand port cannot speak with a RoCE port: the rails are numbered crosswise, or a port is set to "
            "the other protocol",
            "set both ports alike (mlxconfig LINK_TYPE), or cable so that the n-th active port of each host is of "
            "one kind",
        )
    return look.ok(listing(f"{a.name} and {b.name}: {a.link_layer}" for a, b in pairs))


def _rate(look: Look, mine: Machine, theirs: Machine, pairs: Pairs) -> Finding:
    """Rail by rail the same rate."""
    words = [f"{a.name} {a.rate_mbit_s / 1000:g} Gb/s, {b.name} there {b.rate_mbit_s / 1000:g} Gb/s" for a, b in pairs]
    for (a, b), line in zip(pairs, words, strict=True):
        look.note(f"{a.name} and {b.name}", line)
    differ = [line for (a, b), line in zip(pairs, words, strict=True) if a.rate_mbit_s != b.rate_mbit_s]
    if differ:
        return look.warning(
            listing(differ),
            "the edge runs at the slower port's rate, and a ring at that of its slowest edge: a port trained low, or "
            "adapters of different models",
            "see port-rate of the slower host; reseat or change its cable",
        )
    return look.ok(listing(words))


def _mtu(look: Look, mine: Machine, theirs: Machine, pairs: Pairs) -> Finding:
    """The RoCE MTU that both ends reach."""
    roce = [(a, b) for a, b in pairs if a.link_layer == b.link_layer == ROCE]
    if not roce:
        return look.not_applicable("InfiniBand: the subnet manager sets the MTU")
    for a, b in roce:
        look.note(f"{a.name} and {b.name}", f"RoCE MTU {a.mtu} here, {b.mtu} there: {min(a.mtu, b.mtu)} is used")
    differ = [f"{a.name} {a.mtu}, {b.name} there {b.mtu}" for a, b in roce if a.mtu != b.mtu]
    if differ:
        return look.warning(
            f"{listing(differ)}: the smaller is used",
            "the network interfaces under the ports have different MTUs",
            "ip link set INTERFACE mtu 9000 on both hosts and on the switch between them",
        )
    return look.ok(listing(f"{a.name} and {b.name}: {a.mtu}" for a, b in roce))


def best_gids(mine: Rail, theirs: Rail, machines: tuple[Machine, Machine]) -> tuple[Gid, Gid, bool] | None:
    """The GID of each end that a queue pair would get, and whether they are in one subnet; None: there is no pair.

    Both must be of one type, one family and one scope; which of several is the rule of ``gids.preference``.
    """
    pairs = [
        (a, b, _in_one_subnet(a, b, machines))
        for a in mine.gids
        for b in theirs.gids
        if a.type == b.type and a.scope == b.scope
    ]
    return min(pairs, key=lambda pair: preference(pair[0], pair[1]), default=None)


def _in_one_subnet(a: Gid, b: Gid, machines: tuple[Machine, Machine]) -> bool:
    if a.scope == "link-local":
        return True
    networks = [
        each.address.network for each in machines[0].interfaces if each.address.ip == a.ip
    ]  # of the interface that has this very address
    return any(b.ip in ipaddress.ip_network(network) for network in networks)


def _gid(look: Look, mine: Machine, theirs: Machine, pairs: Pairs) -> Finding:
    """The GID pair of each RoCE rail; the subnet of each InfiniBand rail."""
    fine: list[str] = []
    lost: list[str] = []
    routed: list[str] = []
    local: list[str] = []
    for a, b in pairs:
        names = f"{a.name} and {b.name}"
        if a.link_layer != b.link_layer:
            continue
        if a.link_layer == INFINIBAND:
            same = _subnet_prefix(a) == _subnet_prefix(b)
            look.note(names, f"subnet prefixes {_subnet_prefix(a)} and {_subnet_prefix(b)}")
            (fine if same else lost).append(f"{names}: {'one' if same else 'not one'} InfiniBand subnet")
            continue
        best = best_gids(a, b, (mine, theirs))
        if best is None:
            here, there = (listing((f"{gid.ip} {gid.type}" for gid in rail.gids), 16) or "no GID" for rail in (a, b))
            look.note(names, f"{here} against {there}")
            lost.append(f"{names}: no GIDs of one type and family")
            continue
        gid, other, in_subnet = best
        words = f"{names}: {gid.ip} (index {gid.index}) and {other.ip} (index {other.index}), {gid.type}"
        look.note(names, f"{words}, {'one subnet' if in_subnet else 'two subnets'}")
        (local if gid.scope == "link-local" else fine if in_subnet else routed).append(words)
    if lost:
        return look.failure(
            listing(lost),
            "queue pairs need addresses of one kind at both ends: one host lacks an IPv4 or IPv6 address on the port's "
            "interface, or has RoCE v1 only, or the ports are on different InfiniBand fabrics",
            "give the interfaces under both ports addresses of one family and subnet; gid-table of each host shows "
            "the rows",
        )
    if local:
        return look.warning(
            listing(local),
            "only link-local addresses are on both ends: they serve hosts on the same wire only",
            "ip addr add an address of one subnet on the interface of each port",
        )
    if routed:
        return look.warning(
            f"{listing(routed)}: two subnets",
            "RoCE v2 packets must be routed between these subnets; RoCE v1 cannot be",
            "put rail n of all hosts into one subnet, or make sure that the route exists: ip route get ADDRESS",
        )
    return look.ok(listing(fine))


def _subnet_prefix(rail: Rail) -> str:
    """The upper half of the port's first GID."""
    if not rail.gids:
        return "none"
    return str(ipaddress.IPv6Address(int(ipaddress.IPv6Address(rail.gids[0].gid)) >> 64 << 64))
