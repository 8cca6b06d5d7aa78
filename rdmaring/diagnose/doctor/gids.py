"""The GID table of a port: which row RoCE would use, and why each other row is not used."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rdmaring.diagnose.doctor.findings import Finding
from rdmaring.diagnose.doctor.ports import Port, ports
from rdmaring.diagnose.doctor.roots import Look, Roots, names

ROWS_MAX = 1024
V2, V1 = "RoCE v2", "IB/RoCE v1"


@dataclass(frozen=True, slots=True)
class Gid:
    """One row. scope: ipv4 (mapped), global, link-local, empty or unreadable. reason: why chosen or not."""

    index: int
    gid: str
    type: str
    netdev: str
    scope: str
    reason: str = ""
    chosen: bool = False

    @property
    def is_usable(self) -> bool:
        return self.scope in ("ipv4", "global", "link-local")

    @property
    def ip(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
        """The address that the GID of a RoCE port is."""
        v6 = ipaddress.IPv6Address(self.gid)
        return v6.ipv4_mapped or v6

    def __str__(self) -> str:
        kind = " ".join(word for word in (self.type, self.scope, self.netdev) if word)
        return f"{self.gid or '-'} {kind}: {self.reason}"


def read_gids(port: Port) -> list[Gid]:
    """All rows of the table, the unreadable too: a container may show rows of other network namespaces."""
    found = []
    for name in names(port.path / "gids")[:ROWS_MAX]:
        if not name.isdigit():
            continue
        try:
            gid = (port.path / "gids" / name).read_text().strip()
        except OSError as error:
            found.append(Gid(int(name), "", "", "", "unreadable", f"skipped: unreadable ({error.strerror or error})"))
            continue
        found.append(_gid(port, int(name), gid))
    return found


def _gid(port: Port, index: int, gid: str) -> Gid:
    try:
        address = ipaddress.IPv6Address(gid)
    except ValueError:
        return Gid(index, "", "", "", "unreadable", f"skipped: {gid!r} is no GID")
    # An InfiniBand port without a GUID shows its subnet prefix alone: fe80::
    if int(address) & ((1 << 64) - 1) == 0:
        return Gid(index, gid, "", "", "empty", "skipped: empty")
    attributes = []
    for attribute in ("types", "ndevs"):
        try:
            attributes.append((port.path / "gid_attrs" / attribute / str(index)).read_text().strip())
        except OSError as error:
            if port.is_roce and attribute == "types":
                reason = f"skipped: its type is unreadable ({error.strerror or error})"
                return Gid(index, gid, "", "", "unreadable", reason)
            attributes.append("")
    scope = "ipv4" if address.ipv4_mapped else "link-local" if address.is_link_local else "global"
    return Gid(index, gid, attributes[0], attributes[1], scope)


def preference(gid: Gid, peer: Gid | None = None) -> tuple[bool, bool, int, bool, int, int]:
    """The rule, best first: RoCE v2 before v1; global before link-local; most leading bits in common with the peer's
    (its subnet); IPv4 before IPv6; the lowest indices.

    Equal from both ends. The engine chooses by the same rule; this one is for people to read.
    """
    other = peer or gid
    local = "link-local" in (gid.scope, other.scope)
    apart = 0 if local else (int(ipaddress.IPv6Address(gid.gid)) ^ int(ipaddress.IPv6Address(other.gid))).bit_length()
    indices = sorted((gid.index, other.index))
    return V2 not in (gid.type, other.type), local, apart, gid.scope != "ipv4", indices[1], indices[0]


def choose(rows: Sequence[Gid]) -> list[Gid]:
    """The same rows, each with the reason for its fate; at most one is chosen. Of a RoCE port."""
    usable = [row for row in rows if row.is_usable]
    if not usable:
        return list(rows)
    best = min(usable, key=preference)
    return [_judged(row, best) if row.is_usable else row for row in rows]


def _judged(row: Gid, best: Gid) -> Gid:
    if row is best:
        words = ", ".join((row.type, "IPv4" if row.scope == "ipv4" else row.scope))
        return replace(row, chosen=True, reason=f"chosen: {words}, lowest index of these")
    pairs = zip(preference(row), preference(best), strict=True)
    place = next(place for place, (mine, its) in enumerate(pairs) if mine != its)
    why = {
        0: f"{row.type}, where row {best.index} is RoCE v2",
        1: f"link-local, where row {best.index} is not",
        3: f"IPv6, where row {best.index} is IPv4",
        4: f"row {best.index} is as good and comes first",
    }[place]
    return replace(row, reason=f"not chosen: {why}")


def chosen(rows: Sequence[Gid]) -> Gid | None:
    return next((row for row in rows if row.chosen), None)


def check_gid_table(roots: Roots) -> Finding:
    """The GID table of every active port, row by row; a RoCE port needs a row that is not link-local."""
    look = Look("gid-table")
    active = [port for port in ports(roots) if port.is_active]
    if not active:
        return look.not_applicable("no active RDMA port")
    tables: dict[str, list[dict[str, object]]] = {}
    found, local_only, without = [], [], []
    for port in active:
        rows = read_gids(port)
        rows = choose(rows) if port.is_roce else [_by_lid(row) for row in rows]
        tables[port.name] = [{field: getattr(row, field) for field in Gid.__dataclass_fields__} for row in rows]
        for row in rows:
            if row.scope != "empty":  # tables have 128 rows or more, nearly all empty
                look.note(str(port.path / "gids" / str(row.index)), str(row))
        used = chosen(rows)
        if not port.is_roce:
            found.append(f"{port.name}: InfiniBand, addressed by LID {port.lid}")
        elif used is None:
            without.append(port.name)
        elif used.scope == "link-local":
            local_only.append(f"{port.name} index {used.index}")
        else:
            found.append(f"{port.name}: index {used.index}, {used.ip} {used.type}")
    if without:
        return look.failure(
            f"no usable row: {', '.join(without)}",
            "every row is empty or unreadable: the port's network interface is down, or it belongs to another network "
            "namespace, of which a container sees the device but not the GIDs",
            "ip link set INTERFACE up and give it an address; in a container use the host's network, or move the "
            "device: rdma system set netns exclusive; rdma dev set DEVICE netns NAME",
            tables=tables,
        )
    if local_only:
        return look.warning(
            f"only link-local rows: {', '.join(local_only)}",
            "the port's network interface has no address but its own fe80:: one, which no router forwards: it serves "
            "hosts on the same wire only, and RoCE across hosts often fails with 'transport retry counter exceeded'",
            "give the interface an address: ip addr add 192.168.N.M/24 dev INTERFACE (its GID row appears at once)",
            tables=tables,
        )
    return look.ok("; ".join(found), tables=tables)


def _by_lid(row: Gid) -> Gid:
    return replace(row, reason="not needed: InfiniBand is addressed by LID inside a subnet") if row.is_usable else row
