"""What was measured between two machines, judged."""

from __future__ import annotations

from collections.abc import Iterator

from rdmaring.diagnose.doctor.findings import Finding
from rdmaring.diagnose.doctor.machine import Machine
from rdmaring.diagnose.doctor.probes import ClockOffset, PathMtu, Probes, Reach
from rdmaring.diagnose.doctor.roots import Look
from rdmaring.diagnose.doctor.texts import listing

CLOCK_OFFSET_MAX_US = 100_000  # beyond it log lines of two hosts cannot be put in order


def judge(mine: Machine, theirs: Machine, there: Probes, back: Probes, clock: ClockOffset) -> list[Finding]:
    """Findings of what was measured. there: from us to them; back: from them to us."""
    return [
        check_reach(mine, theirs, there.reach, back.reach),
        check_path_mtu(there.paths + back.paths),
        check_offset(clock),
    ]


def _words(each: Reach) -> str:
    return f"{each.source} -> {each.target}: " + (each.error or f"{each.time_us / 1000:.3g} ms")


def check_reach(mine: Machine, theirs: Machine, there: tuple[Reach, ...], back: tuple[Reach, ...]) -> Finding:
    """Each address of one end to each of the other, both ways: which connect, and how long it takes."""
    look = Look("pair-reach")
    for each in there + back:
        look.note(f"{each.source} -> {each.target}", _words(each).partition(": ")[2])
    data = {"there": [_row(each) for each in there], "back": [_row(each) for each in back]}
    for source, target, tried in ((mine, theirs, there), (theirs, mine, back)):
        if not any(each.works for each in tried):
            return look.failure(
                f"no address of {target.label} can be reached from {source.label}",
                "; ".join(dict.fromkeys(each.error for each in tried)) or "the two have no address of one family",
                f"allow TCP from {source.label} to {target.label} on all ports above 1024 (a firewall: nft list "
                "ruleset, cloud security groups; links use ports that the kernel hands out), and see the routes: ip "
                "route get ADDRESS",
                **data,
            )
    failed = [each for each in there + back if not each.works]
    near = list(_in_one_subnet(mine, theirs, failed))
    works = [each for each in there + back if each.works]
    families = listing(sorted({"IPv6" if ":" in each.source else "IPv4" for each in works}))
    found = f"{len(works)} of {len(works) + len(failed)} pairs of addresses connect ({families}), both ways"
    if near:
        return look.warning(
            f"{found}; in one subnet these do not: {listing(map(_words, near))}",
            "they look like neighbours, but do not reach each other: a firewall, a VLAN, or two separate networks "
            "with the same numbers",
            "see the addresses that connect; rdmaring takes those. Open the firewall for the others, or number them "
            "apart",
            **data,
        )
    return look.ok(f"{found}, fastest {_words(min(works, key=lambda each: each.time_us))}", **data)


def _row(each: Reach) -> dict[str, object]:
    return {"source": each.source, "target": each.target, "time_us": each.time_us, "error": each.error}


def _in_one_subnet(mine: Machine, theirs: Machine, failed: list[Reach]) -> Iterator[Reach]:
    networks = {each.address.address: each.address.network for machine in (mine, theirs) for each in machine.interfaces}
    for each in failed:
        a, b = networks.get(each.source), networks.get(each.target)  # link-local ones have a scope: not found
        if a is not None and a == b:
            yield each


def check_path_mtu(paths: tuple[PathMtu, ...]) -> Finding:
    """Datagrams of the interface's full size, unfragmented, both ways."""
    look = Look("pair-path-mtu")
    if not paths:
        return look.not_applicable("no two interfaces reach each other")
    holes: list[str] = []
    told: list[str] = []
    ends: list[str] = []
    fine: list[str] = []
    for path in paths:
        said = f"; {path.reporter} reported {path.reported}" if path.reported else ""
        words = f"{path.source} -> {path.target}: {path.arrived} bytes"
        look.note(
            f"{path.source} -> {path.target}",
            f"{path.arrived} of {path.source_mtu} bytes arrived{said}; MTU {path.source_mtu} here, {path.target_mtu} "
            "there",
        )
        if path.arrived >= path.source_mtu:
            fine.append(words)
        elif path.arrived >= path.expected:
            ends.append(f"{words} of {path.source_mtu}")
        elif path.reported:
            told.append(f"{words} of {path.expected}, {path.reporter} says {path.reported}")
        else:
            holes.append(f"{words} of {path.expected}, and nobody says so")
    data = {"paths": [_path_row(path) for path in paths]}
    if holes:
        return look.failure(
            f"black hole: {listing(holes)}",
            "a switch, router or tunnel on the way drops packets larger than it can carry, and no ICMP message comes "
            "back (filtered, or a layer 2 device): small messages pass, large transfers hang until they time out",
            "set the MTU of all interfaces and switches on the way alike, or the hosts' to what arrives: ip link set "
            "INTERFACE mtu N; let ICMP 'fragmentation needed' (IPv6: 'packet too big') pass; for TCP alone "
            "sysctl net.ipv4.tcp_mtu_probing=1 helps",
            **data,
        )
    if told:
        return look.warning(
            f"a router allows less: {listing(told)}",
            "a router or tunnel on the way has a smaller MTU than both ends; it says so, so TCP adapts, but RoCE "
            "does not",
            "set the hosts' MTU to what arrives, or the router's to that of the hosts: ip link set INTERFACE mtu N",
            **data,
        )
    if ends:
        return look.warning(
            f"the ends differ: {listing(ends)}",
            "the receiving interface has a smaller MTU than the sender's and drops larger packets: TCP agrees on the "
            "smaller one, and RoCE takes the smaller of both ports, other protocols hang",
            "ip link set INTERFACE mtu N, the same on both hosts and on the switch between them",
            **data,
        )
    return look.ok(f"full size arrives: {listing(fine)}", **data)


def _path_row(path: PathMtu) -> dict[str, object]:
    return {name: getattr(path, name) for name in PathMtu.__dataclass_fields__}


def check_offset(clock: ClockOffset) -> Finding:
    """CLOCK_REALTIME of both ends, by round trips."""
    look = Look("pair-clock")
    look.note("their clock - ours", f"{clock.offset_us} us, +- {clock.error_us} us (half of the fastest round trip)")
    found = f"{clock.offset_us / 1000:+.3f} ms (+- {clock.error_us / 1000:.3f} ms)"
    if abs(clock.offset_us) - clock.error_us > CLOCK_OFFSET_MAX_US:
        return look.warning(
            f"the clocks differ by {found}",
            "at least one of the two is not synchronized: see clock of each. Sums do not depend on it, but log lines "
            "do",
            "run chrony or systemd-timesyncd on both: timedatectl set-ntp true",
            offset_us=clock.offset_us,
            error_us=clock.error_us,
        )
    return look.ok(f"the clocks differ by {found}", offset_us=clock.offset_us, error_us=clock.error_us)
