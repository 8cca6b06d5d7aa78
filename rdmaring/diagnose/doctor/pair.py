"""Two machines compared: pure functions of what both ends say about themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rdmaring.diagnose.doctor.findings import Finding
from rdmaring.diagnose.doctor.interfaces import Address
from rdmaring.diagnose.doctor.machine import Interface, Machine, decode
from rdmaring.diagnose.doctor.network import origin_of
from rdmaring.diagnose.doctor.pair_rails import check_rails
from rdmaring.diagnose.doctor.roots import Look
from rdmaring.diagnose.doctor.texts import listing


def pair_findings(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[Finding]:
    """What two machines' documents (:meth:`Document.as_dict`, or the same out of JSON) say about the edge between.

    Raises ProtocolError: a document is damaged.
    """
    return compare(decode(dict(mine)).machine, decode(dict(theirs)).machine)


def compare(mine: Machine, theirs: Machine) -> list[Finding]:
    """The findings that need no packet between the two."""
    return [
        check_version(mine, theirs),
        check_host(mine, theirs),
        check_namespaces(mine, theirs),
        check_gpus(mine, theirs),
        check_duplicate_addresses(mine, theirs),
        check_interface_mtu(mine, theirs),
        *check_rails(mine, theirs),
    ]


def is_one_host(mine: Machine, theirs: Machine) -> bool:
    return mine.host == theirs.host


def check_version(mine: Machine, theirs: Machine) -> Finding:
    """Version and wire version of both ends."""
    look = Look("pair-version")
    for machine in (mine, theirs):
        look.note(machine.label, f"rdmaring {machine.version}, wire {machine.wire}")
    fix = "install the same version of rdmaring on both: python -c 'import rdmaring; print(rdmaring.__version__)'"
    if mine.wire != theirs.wire:
        return look.failure(
            f"wire {mine.wire} here, {theirs.wire} there",
            "the two builds exchange different messages: their ranks refuse each other",
            fix,
        )
    if mine.version != theirs.version:
        return look.failure(
            f"rdmaring {mine.version} here, {theirs.version} there",
            "ranks of different versions refuse each other: they need not choose the same algorithm",
            fix,
        )
    return look.ok(f"both rdmaring {mine.version}, wire {mine.wire}")


def check_host(mine: Machine, theirs: Machine) -> Finding:
    """Host ids and boot ids: one host or two."""
    look = Look("pair-host")
    for machine in (mine, theirs):
        look.note(machine.label, f"host id {machine.host}, boot id {machine.boot_id}, hostname {machine.hostname}")
    if is_one_host(mine, theirs):
        if mine.boot_id != theirs.boot_id:
            return look.failure(
                f"two machines have the same host id {mine.host}",
                "RDMARING_HOST_ID is equal on both, but their boot ids differ: ranks would try to share memory",
                "unset RDMARING_HOST_ID, or give each host a name of its own",
            )
        return look.ok("one host: edges use shared memory")
    if mine.boot_id == theirs.boot_id:
        return look.ok("one machine that plays two hosts (RDMARING_HOST_ID): edges use RDMA or TCP")
    return look.ok("two hosts: edges use RDMA or TCP")


def check_namespaces(mine: Machine, theirs: Machine) -> Finding:
    """On one host: the same network, PID and user namespace, and the same user."""
    look = Look("pair-namespaces")
    if not is_one_host(mine, theirs):
        return look.not_applicable("two hosts")
    for machine in (mine, theirs):
        words = ", ".join(f"{kind} {value or 'hidden'}" for kind, value in machine.namespaces.items())
        look.note(machine.label, f"{words}, user id {machine.user}")
    apart = [kind for kind in ("net", "pid", "user") if mine.namespaces[kind] != theirs.namespaces[kind]]
    if "net" in apart:
        return look.warning(
            "one host, but two network namespaces",
            "ranks hand each other shared memory over unix sockets, which end at the network namespace: containers "
            "without a common network; such ranks use TCP",
            "docker run --network=host for all of them (or --network=container:NAME; a pod shares one); or set "
            "RDMARING_HOST_ID apart, to say that they are meant as two hosts",
        )
    if apart or mine.user != theirs.user:
        what = listing([*(f"{kind} namespaces" for kind in apart), *(["users"] * (mine.user != theirs.user))])
        return look.warning(
            f"one host, but different {what}",
            "shared memory works, but the kernel lets no process read another's memory across them (CMA): ordinary "
            "arrays travel through slots",
            "docker run --pid=host (or --pid=container:NAME), and the same user for all ranks",
        )
    return look.ok("the same network, PID and user namespace, the same user")


def check_gpus(mine: Machine, theirs: Machine) -> Finding:
    """Both ends see GPUs or neither does; on one host, PID and IPC namespaces let them share GPU memory."""
    look = Look("pair-gpus")
    for machine in (mine, theirs):
        look.note(machine.label, listing(machine.gpus, shown_max=64) or "no GPU")
    if not mine.gpus and not theirs.gpus:
        return look.not_applicable("no GPU on either end")
    if not mine.gpus or not theirs.gpus:
        lacking, other = (mine, theirs) if not mine.gpus else (theirs, mine)
        return look.warning(
            f"{lacking.label} sees no GPU, {other.label} sees {len(other.gpus)}",
            "an operation takes vectors in GPU memory on all ranks or on none: a mixture is a mismatch",
            f"see the findings of {lacking.label} alone: gpu-driver, gpu-devices; a container: --gpus all",
        )
    counts = f"{len(mine.gpus)} here, {len(theirs.gpus)} there"
    if not is_one_host(mine, theirs):
        return look.ok(counts)
    apart = [kind for kind in ("pid", "ipc") if mine.namespaces[kind] != theirs.namespaces[kind]]
    for machine in (mine, theirs):
        look.note(machine.label, ", ".join(machine.namespaces[kind] or f"{kind} hidden" for kind in ("pid", "ipc")))
    if apart:
        return look.warning(
            f"one host, but different {' and '.join(f'{kind.upper()} namespaces' for kind in apart)}",
            "the driver opens no handle of GPU memory across them: vectors go through pinned host memory (staged)",
            "docker run --pid=host --ipc=host, or one container for all ranks of the host",
        )
    shared = len(set(mine.gpus) & set(theirs.gpus))
    return look.ok(f"{counts}, {shared} of them the same; one PID and one IPC namespace")


def _outer(machine: Machine) -> Iterator[Address]:
    """Addresses by which a peer could mean this machine."""
    for each in machine.interfaces:
        if not each.address.ip.is_loopback and not each.address.is_link_local:
            yield each.address


def check_duplicate_addresses(mine: Machine, theirs: Machine) -> Finding:
    """No address is on both hosts."""
    look = Look("pair-addresses")
    if mine.boot_id == theirs.boot_id and mine.namespaces.get("net") == theirs.namespaces.get("net"):
        return look.not_applicable("one machine and one network namespace")
    for machine in (mine, theirs):
        look.note(machine.label, listing((str(address) for address in _outer(machine)), shown_max=64) or "none")
    shared = {address.address: address for address in _outer(mine)}
    both = [(shared[other.address], other) for other in _outer(theirs) if other.address in shared]
    bridges = [pair for pair in both if origin_of(pair[0].ip)]
    real = [pair for pair in both if not origin_of(pair[0].ip)]
    if real:
        return look.failure(
            f"both have {listing(f'{a.address} ({a.interface} here, {b.interface} there)' for a, b in real)}",
            "two machines answer to one address (a copied configuration or image): packets go to either",
            "give each its own address: ip addr; and look at the image's network configuration",
        )
    if bridges:
        return look.warning(
            f"both have {listing(f'{a.address} on {a.interface}, {origin_of(a.ip)}' for a, _ in bridges)}",
            "bridges that software makes alike on every machine: who connects to such an address meets itself",
            "never give it as the rendezvous' address; rdmaring itself takes addresses that were tried",
        )
    return look.ok("no address is on both")


def _common_wire(mine: Machine, theirs: Machine) -> Iterator[tuple[Interface, Interface]]:
    """Interfaces with addresses in one subnet, each pair of interfaces once."""
    seen = set()
    for a in mine.interfaces:
        for b in theirs.interfaces:
            names = (a.address.interface, b.address.interface)
            loop = a.address.ip.is_loopback or b.address.ip.is_loopback or a.address.is_link_local
            known = a.mtu > 0 and b.mtu > 0
            if known and not loop and a.address.network == b.address.network and names not in seen:
                seen.add(names)
                yield a, b


def check_interface_mtu(mine: Machine, theirs: Machine) -> Finding:
    """Interfaces of one subnet have one MTU."""
    look = Look("pair-mtu")
    same: list[str] = []
    differ: list[str] = []
    for a, b in _common_wire(mine, theirs):
        names = f"{a.address.interface} here {a.mtu}, {b.address.interface} there {b.mtu}"
        look.note(f"MTU in {a.address.network}", names)
        (same if a.mtu == b.mtu else differ).append(f"{names} in {a.address.network}")
    if differ:
        return look.warning(
            f"MTU differs: {listing(differ)}",
            "packets larger than the smaller MTU are dropped without a word on a common wire; TCP agrees on the "
            "smaller one at its start, RoCE takes the smaller of both ports, but other protocols hang",
            "ip link set INTERFACE mtu N, the same on both hosts and on the switch; pair-path-mtu shows what arrives",
        )
    if not same:
        return look.not_applicable("no two interfaces are in one subnet: routers lie between; see pair-path-mtu")
    return look.ok(listing(same))
