"""One machine as its peer needs to know it, and the document that carries it: facts and findings."""

from __future__ import annotations

import ipaddress
import json
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rdmaring._native import ffi, lib
from rdmaring._version import __version__
from rdmaring.diagnose.doctor.findings import FINDINGS_MAX, Finding, from_dict, worst
from rdmaring.diagnose.doctor.gids import Gid, read_gids
from rdmaring.diagnose.doctor.interfaces import Address
from rdmaring.diagnose.doctor.ports import netdev_mtu, netdev_of, ports, roce_mtu
from rdmaring.diagnose.doctor.registry import run_checks
from rdmaring.diagnose.doctor.roots import Roots, peek
from rdmaring.rendezvous.environment import host_identity
from rdmaring.rendezvous.protocol import ProtocolError, integer, string

DOCUMENT_BYTES_MAX = 1 << 20
ADDRESSES_MAX = 256
RAILS_MAX = 64
GIDS_MAX = 256
GPUS_MAX = 64
NAMESPACE_KINDS = ("net", "pid", "user", "ipc")
INT_MAX = (1 << 62) - 1


@dataclass(frozen=True, slots=True)
class Interface:
    """An address and the MTU of the interface that has it; 0 where it is not known."""

    address: Address
    mtu: int


@dataclass(frozen=True, slots=True)
class Rail:
    """An active RDMA port. mtu: bytes of the largest RoCE packet; 0 for InfiniBand, whose MTU sysfs does not show."""

    name: str
    link_layer: str
    rate_mbit_s: int
    netdev: str
    mtu: int
    sm_lid: str
    gids: tuple[Gid, ...]


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts of one end of a pair.

    wire: what its links speak. namespaces: of the process, by kind, "" where /proc hides them. gpus: UUIDs of those
    that the process sees.
    """

    version: str
    wire: str
    host: str
    boot_id: str
    hostname: str
    user: int
    namespaces: Mapping[str, str]
    interfaces: tuple[Interface, ...]
    rails: tuple[Rail, ...]
    gpus: tuple[str, ...]

    @property
    def label(self) -> str:
        """What it is called in a sentence."""
        return self.hostname if self.host == self.boot_id else self.host


@dataclass(frozen=True, slots=True)
class Document:
    """What one end tells the other."""

    machine: Machine
    findings: tuple[Finding, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "rdmaring": self.machine.version,
            "worst": worst(self.findings).value,
            "machine": asdict(self.machine),
            "findings": [finding.as_dict() for finding in self.findings],
        }


def machine_facts(roots: Roots) -> Machine:
    """The facts of this machine."""
    boot_id = peek(roots.procfs / "sys" / "kernel" / "random" / "boot_id")
    found = roots.system.addresses()
    return Machine(
        version=__version__,
        wire=ffi.string(lib.rr_wire_name()).decode(),
        host=roots.env.get("RDMARING_HOST_ID") or boot_id or host_identity(roots.env),
        boot_id=boot_id,
        hostname=socket.gethostname(),
        user=roots.system.user(),
        namespaces={kind: _namespace(roots, kind) for kind in NAMESPACE_KINDS},
        interfaces=tuple(Interface(each, roots.system.mtu(each.interface)) for each in found[:ADDRESSES_MAX]),
        rails=_rails(roots),
        gpus=tuple(gpu.uuid for gpu in roots.system.gpu().gpus[:GPUS_MAX]),
    )


def _namespace(roots: Roots, kind: str) -> str:
    try:
        return os.readlink(roots.procfs / "self" / "ns" / kind)
    except OSError:
        return ""


def _rails(roots: Roots) -> tuple[Rail, ...]:
    rails = []
    for port in [port for port in ports(roots) if port.is_active][:RAILS_MAX]:
        netdev = netdev_of(roots, port) if port.is_roce else ""
        mtu = roce_mtu(netdev_mtu(roots, netdev)) if port.is_roce else 0
        gids = tuple(gid for gid in read_gids(port) if gid.is_usable)[:GIDS_MAX]
        rate = round(port.rate_gbit_s * 1000)
        rails.append(Rail(port.name, port.link_layer, rate, netdev, mtu, port.sm_lid, gids))
    return tuple(rails)


def examine(roots: Roots | None = None, only: Iterable[str] | None = None) -> Document:
    """All checks of this machine, and its facts. Raises ValueError: no such check in ``only``."""
    where = roots or Roots()
    return Document(machine_facts(where), tuple(run_checks(where, only)))


def bounded_dict(document: Document) -> dict[str, Any]:
    """For sending: evidence is left out where it would be more than DOCUMENT_BYTES_MAX bytes of JSON."""
    fields = document.as_dict()
    if len(json.dumps(fields)) > DOCUMENT_BYTES_MAX:
        for finding in fields["findings"]:
            finding["evidence"], finding["data"] = [{"source": "left out", "value": "too long to send"}], {}
    return fields


def decode(fields: Any) -> Document:
    """A document out of JSON that came from elsewhere, every field of the right type and within bounds.

    Raises ProtocolError.
    """
    if not isinstance(fields, dict) or not isinstance(fields.get("machine"), dict):
        raise ProtocolError("the document holds no machine")
    findings = _list(fields, "findings", FINDINGS_MAX)
    return Document(_machine(fields["machine"]), tuple(from_dict(each) for each in findings))


def _machine(fields: dict[str, Any]) -> Machine:
    namespaces = fields.get("namespaces")
    if not isinstance(namespaces, dict):
        raise ProtocolError("namespaces is not a JSON object")
    return Machine(
        version=string(fields, "version"),
        wire=string(fields, "wire"),
        host=string(fields, "host"),
        boot_id=string(fields, "boot_id"),
        hostname=string(fields, "hostname"),
        user=integer(fields, "user", 0, 1 << 32),
        namespaces={kind: string(namespaces, kind) for kind in NAMESPACE_KINDS},
        interfaces=tuple(_interface(each) for each in _list(fields, "interfaces", ADDRESSES_MAX)),
        rails=tuple(_rail(each) for each in _list(fields, "rails", RAILS_MAX)),
        gpus=_texts(fields, "gpus", GPUS_MAX),
    )


def _interface(fields: dict[str, Any]) -> Interface:
    address = fields.get("address")
    if not isinstance(address, dict):
        raise ProtocolError("address is not a JSON object")
    text = string(address, "address")
    try:
        version = ipaddress.ip_address(text).version
    except ValueError as error:
        raise ProtocolError(str(error)) from None
    bits = integer(address, "prefix_bits", 0, 32 if version == 4 else 128)
    return Interface(Address(string(address, "interface"), text, bits), integer(fields, "mtu", 0, INT_MAX))


def _rail(fields: dict[str, Any]) -> Rail:
    return Rail(
        name=string(fields, "name"),
        link_layer=string(fields, "link_layer"),
        rate_mbit_s=integer(fields, "rate_mbit_s", 0, INT_MAX),
        netdev=string(fields, "netdev"),
        mtu=integer(fields, "mtu", 0, INT_MAX),
        sm_lid=string(fields, "sm_lid"),
        gids=tuple(_gid(each) for each in _list(fields, "gids", GIDS_MAX)),
    )


def _gid(fields: dict[str, Any]) -> Gid:
    text = string(fields, "gid")
    try:
        ipaddress.IPv6Address(text)
    except ValueError as error:
        raise ProtocolError(str(error)) from None
    return Gid(
        index=integer(fields, "index", 0, INT_MAX),
        gid=text,
        type=string(fields, "type"),
        netdev=string(fields, "netdev"),
        scope=string(fields, "scope"),
    )


def _texts(fields: dict[str, Any], name: str, count_max: int) -> tuple[str, ...]:
    value = fields.get(name)
    if not isinstance(value, list | tuple) or len(value) > count_max:
        raise ProtocolError(f"{name} is not a list of at most {count_max}")
    return tuple(string({name: each}, name) for each in value)


def _list(fields: dict[str, Any], name: str, count_max: int) -> Sequence[dict[str, Any]]:
    value = fields.get(name)
    if not isinstance(value, list | tuple) or len(value) > count_max:
        raise ProtocolError(f"{name} is not a list of at most {count_max}")
    if not all(isinstance(each, dict) for each in value):
        raise ProtocolError(f"{name} holds something else than objects")
    return value
