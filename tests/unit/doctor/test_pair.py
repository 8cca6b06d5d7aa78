"""Two machines compared by their documents alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from unit.doctor.fake import BOOT_ID, FakeMachine, evidence

from rdmaring.diagnose.doctor import Finding, State, examine, pair_findings
from rdmaring.diagnose.doctor.gids import V1, V2
from rdmaring.diagnose.doctor.interfaces import Address
from rdmaring.diagnose.doctor.machine import ADDRESSES_MAX, Interface, Machine, Rail
from rdmaring.diagnose.doctor.pair_probes import check_offset, check_path_mtu, check_reach
from rdmaring.diagnose.doctor.probes import ClockOffset, PathMtu, Probes, Reach, decode_probes
from rdmaring.diagnose.doctor.reach import candidates
from rdmaring.rendezvous.protocol import ProtocolError

OTHER_BOOT_ID = "b1a5ed00-0000-4000-8000-000000000002"
FIELDS = ("net", "pid", "user", "ipc")


def mapped(last: int, third: int = 4) -> str:
    """The GID of 192.0.THIRD.LAST."""
    return f"0000:0000:0000:0000:0000:ffff:c000:{third:02x}{last:02x}"


@pytest.fixture
def ends(tmp_path: Path) -> tuple[FakeMachine, FakeMachine]:
    """Two hosts, 192.0.2.7 and 192.0.2.8, without RDMA."""
    here, there = FakeMachine(tmp_path / "here"), FakeMachine(tmp_path / "there")
    there.write("proc/sys/kernel/random/boot_id", OTHER_BOOT_ID)
    there.system.own_addresses = [Address("lo", "127.0.0.1", 8), Address("eth0", "192.0.2.8", 24)]
    return here, there


def roce(machine: FakeMachine, last: int, *, mtu: int = 9000, third: int = 4, kind: str = V2, **texts: str) -> str:
    """A RoCE rail on eth2 with the address 192.0.THIRD.LAST."""
    machine.device()
    port = machine.roce_port(netdev="eth2", mtu=mtu, **texts)
    machine.gid(port, 0, f"fe80::{last}", kind)
    machine.gid(port, 1, mapped(last, third), kind)
    machine.system.own_addresses.append(Address("eth2", f"192.0.{third}.{last}", 24))
    machine.system.mtus["eth2"] = mtu
    return port


def document(machine: FakeMachine) -> dict[str, Any]:
    """As it comes over the wire."""
    fields = json.loads(json.dumps(examine(machine.roots).as_dict()))
    assert isinstance(fields, dict)
    return fields


def findings(ends: tuple[FakeMachine, FakeMachine]) -> dict[str, Finding]:
    return {finding.id: finding for finding in pair_findings(document(ends[0]), document(ends[1]))}


def test_two_hosts_without_rdma(ends: tuple[FakeMachine, FakeMachine]) -> None:
    found = findings(ends)
    assert found["pair-host"].found == "two hosts: edges use RDMA or TCP"
    assert {finding.state for finding in found.values()} == {State.OK, State.NOT_APPLICABLE}
    assert found["pair-rails"].state is State.NOT_APPLICABLE


def test_two_roce_hosts_that_are_alike_are_well(ends: tuple[FakeMachine, FakeMachine]) -> None:
    roce(ends[0], 17)
    roce(ends[1], 18)
    found = findings(ends)
    assert [name for name, finding in found.items() if finding.state in (State.WARNING, State.FAILURE)] == []
    assert "192.0.4.17 (index 1) and 192.0.4.18 (index 1), RoCE v2" in found["pair-gid"].found
    assert found["pair-rdma-mtu"].found == "mlx5_0/1 and mlx5_0/1: 4096"


@pytest.mark.parametrize(("field", "value"), [("version", "0.0.1"), ("wire", "another")])
def test_versions_that_differ(ends: tuple[FakeMachine, FakeMachine], field: str, value: str) -> None:
    mine, theirs = document(ends[0]), document(ends[1])
    theirs["machine"][field] = value
    (finding,) = [each for each in pair_findings(mine, theirs) if each.id == "pair-version"]
    assert finding.state is State.FAILURE
    assert f"{value} there" in finding.found
    assert "refuse each other" in finding.cause
    assert "same version" in finding.fix


def test_one_host_id_on_two_machines_fails(ends: tuple[FakeMachine, FakeMachine]) -> None:
    for machine in ends:
        machine.env["RDMARING_HOST_ID"] = "node"
    finding = findings(ends)["pair-host"]
    assert finding.state is State.FAILURE
    assert "boot ids differ" in finding.cause
    assert "unset RDMARING_HOST_ID" in finding.fix


def test_one_machine_that_plays_two_hosts_is_fine(ends: tuple[FakeMachine, FakeMachine]) -> None:
    ends[1].write("proc/sys/kernel/random/boot_id", BOOT_ID)
    for number, machine in enumerate(ends):
        machine.env["RDMARING_HOST_ID"] = f"host{number}"
    finding = findings(ends)["pair-host"]
    assert finding.state is State.OK
    assert "plays two hosts" in finding.found


@pytest.mark.parametrize(
    ("kind", "cause", "fix"),
    [
        ("net", "unix sockets", "--network=host"),
        ("pid", "CMA", "--pid=host"),
        ("user", "CMA", "same user"),
    ],
)
def test_containers_of_one_host(ends: tuple[FakeMachine, FakeMachine], kind: str, cause: str, fix: str) -> None:
    ends[1].write("proc/sys/kernel/random/boot_id", BOOT_ID)
    path = ends[1].root / "proc/self/ns" / kind
    path.unlink()
    path.symlink_to(f"{kind}:[4026532999]")
    finding = findings(ends)["pair-namespaces"]
    assert finding.state is State.WARNING
    assert cause in finding.cause
    assert fix in finding.fix
    assert f"{kind}:[4026532999]" in evidence(finding)


def test_two_users_on_one_host_warn(ends: tuple[FakeMachine, FakeMachine]) -> None:
    ends[1].write("proc/sys/kernel/random/boot_id", BOOT_ID)
    ends[1].system.own_user = 4711
    finding = findings(ends)["pair-namespaces"]
    assert finding.state is State.WARNING
    assert "users" in finding.found


def test_an_address_on_both_fails_and_a_bridges_warns(ends: tuple[FakeMachine, FakeMachine]) -> None:
    for machine in ends:
        machine.system.own_addresses.append(Address("docker0", "172.17.0.1", 16))
    finding = findings(ends)["pair-addresses"]
    assert finding.state is State.WARNING
    assert "172.17.0.1 on docker0, docker's default bridge" in finding.found
    assert "meets itself" in finding.cause
    for machine in ends:
        machine.system.own_addresses.append(Address("eth1", "198.51.100.5", 24))
    finding = findings(ends)["pair-addresses"]
    assert finding.state is State.FAILURE
    assert "198.51.100.5" in finding.found
    assert "image" in finding.cause


def test_interfaces_of_one_subnet_with_unequal_mtu_warn(ends: tuple[FakeMachine, FakeMachine]) -> None:
    ends[1].system.mtus["eth0"] = 9000
    finding = findings(ends)["pair-mtu"]
    assert finding.state is State.WARNING
    assert "eth0 here 1500, eth0 there 9000 in 192.0.2.0/24" in finding.found
    assert "dropped" in finding.cause
    assert "ip link set INTERFACE mtu" in finding.fix


def no_rdma_there(here: FakeMachine, there: FakeMachine) -> None:
    roce(here, 17)


def fewer_rails(here: FakeMachine, there: FakeMachine) -> None:
    roce(here, 17)
    roce(there, 18)
    here.device("mlx5_1")
    here.port("mlx5_1")


def crossed(here: FakeMachine, there: FakeMachine) -> None:
    roce(here, 17)
    there.device()
    there.port()


def slower(here: FakeMachine, there: FakeMachine) -> None:
    roce(here, 17)
    roce(there, 18, rate="50 Gb/sec (2X EDR)")


def smaller(here: FakeMachine, there: FakeMachine) -> None:
    roce(here, 17)
    roce(there, 18, mtu=1500)


def v1_only(here: FakeMachine, there: FakeMachine) -> None:
    roce(here, 17)
    roce(there, 18, kind=V1)


def two_subnets(here: FakeMachine, there: FakeMachine) -> None:
    roce(here, 17)
    roce(there, 18, third=3)


def link_local(here: FakeMachine, there: FakeMachine) -> None:
    for last, machine in ((17, here), (18, there)):
        machine.device()
        machine.gid(machine.roce_port(), 0, f"fe80::{last}", V2)


def two_fabrics(here: FakeMachine, there: FakeMachine) -> None:
    for prefix, machine in (("fe80", here), ("fec0", there)):
        machine.device()
        machine.gid(machine.port(), 0, f"{prefix}::b8ce:f603:12:3456", V1, None)


@pytest.mark.parametrize(
    ("arrange", "id", "state", "found", "cause", "fix"),
    [
        (no_rdma_there, "pair-rails", State.WARNING, "no active RDMA port", "it uses TCP", "bring up"),
        (fewer_rails, "pair-rails", State.WARNING, "2 rails here, 1 there", "as many as", "bring up"),
        (crossed, "pair-link-layer", State.FAILURE, "mlx5_0/1 is Ethernet", "cannot speak", "LINK_TYPE"),
        (slower, "pair-rate", State.WARNING, "100 Gb/s, mlx5_0/1 there 50 Gb/s", "slower", "cable"),
        (smaller, "pair-rdma-mtu", State.WARNING, "4096, mlx5_0/1 there 1024", "different MTUs", "mtu 9000"),
        (v1_only, "pair-gid", State.FAILURE, "no GIDs of one type", "RoCE v1 only", "one family"),
        (two_subnets, "pair-gid", State.WARNING, "two subnets", "routed", "ip route get"),
        (link_local, "pair-gid", State.WARNING, "fe80::11", "same wire", "ip addr add"),
        (two_fabrics, "pair-gid", State.FAILURE, "not one InfiniBand subnet", "fabrics", "gid-table"),
    ],
    ids=lambda value: getattr(value, "__name__", None) if callable(value) else None,
)
def test_rails_that_do_not_fit(
    ends: tuple[FakeMachine, FakeMachine],
    arrange: Callable[[FakeMachine, FakeMachine], None],
    id: str,
    state: State,
    found: str,
    cause: str,
    fix: str,
) -> None:
    arrange(*ends)
    finding = findings(ends)[id]
    assert finding.state is state
    assert found.replace("fe80::11", "fe80::17") in finding.found
    assert cause in finding.cause
    assert fix in finding.fix


def test_the_gid_in_the_peers_subnet_goes_before_the_other(ends: tuple[FakeMachine, FakeMachine]) -> None:
    port = roce(ends[0], 17, third=9)
    ends[0].gid(port, 2, mapped(17), V2)
    ends[0].system.own_addresses.append(Address("eth2", "192.0.4.17", 24))
    roce(ends[1], 18)
    finding = findings(ends)["pair-gid"]
    assert finding.state is State.OK
    assert "192.0.4.17 (index 2) and 192.0.4.18 (index 1)" in finding.found


@pytest.mark.parametrize(
    "damage",
    [
        lambda fields: fields.pop("machine"),
        lambda fields: fields["machine"].pop("version"),
        lambda fields: fields["machine"].update(wire=-1),
        lambda fields: fields["machine"].update(user="root"),
        lambda fields: fields["machine"].update(namespaces=[]),
        lambda fields: fields["machine"].update(rails=[{}]),
        lambda fields: fields["machine"]["interfaces"][0]["address"].update(address="../../etc"),
        lambda fields: fields["machine"]["interfaces"][0]["address"].update(prefix_bits=33),
        lambda fields: fields["machine"].update(interfaces=fields["machine"]["interfaces"] * ADDRESSES_MAX),
        lambda fields: fields.update(findings={}),
        lambda fields: fields.update(findings=[7]),
    ],
)
def test_a_damaged_document_is_refused(
    ends: tuple[FakeMachine, FakeMachine], damage: Callable[[dict[str, Any]], object]
) -> None:
    theirs = document(ends[1])
    damage(theirs)
    with pytest.raises(ProtocolError):
        pair_findings(document(ends[0]), theirs)


# ---- what was measured ----


def machine(last: int, mtu: int = 1500, rails: tuple[Rail, ...] = ()) -> Machine:
    own = (Address("eth0", f"192.0.2.{last}", 24), Address("eth0", f"fe80::{last}", 64))
    interfaces = tuple(Interface(address, mtu) for address in own)
    namespaces = dict.fromkeys(FIELDS, "")
    return Machine("1", "wire", f"host{last}", f"boot{last}", f"host{last}", 0, namespaces, interfaces, rails, ())


HERE, THERE = machine(7), machine(8)
WORKS = Reach("192.0.2.7", "192.0.2.8", 120, "")
BACK = Reach("192.0.2.8", "192.0.2.7", 130, "")
DROPPED = Reach("192.0.2.8", "192.0.2.7", 2_000_000, "no answer within 2 s: dropped on the way")


def test_reach_is_fine_if_every_pair_connects() -> None:
    finding = check_reach(HERE, THERE, (WORKS,), (BACK,))
    assert finding.state is State.OK
    assert "2 of 2 pairs of addresses connect (IPv4), both ways" in finding.found
    assert "fastest 192.0.2.7 -> 192.0.2.8: 0.12 ms" in finding.found


def test_one_direction_without_any_connection_fails_and_names_it() -> None:
    finding = check_reach(HERE, THERE, (WORKS,), (DROPPED,))
    assert finding.state is State.FAILURE
    assert finding.found == "no address of host7 can be reached from host8"
    assert "dropped on the way" in finding.cause
    assert "firewall" in finding.fix


def test_neighbours_that_do_not_connect_warn() -> None:
    local = Reach("fe80::8%eth0", "fe80::7%eth0", 90, "")
    finding = check_reach(HERE, THERE, (WORKS,), (local, DROPPED))
    assert finding.state is State.WARNING
    assert "in one subnet these do not: 192.0.2.8 -> 192.0.2.7" in finding.found
    assert "VLAN" in finding.cause


def test_no_pair_of_one_family_fails() -> None:
    assert "no address of one family" in check_reach(HERE, THERE, (), ()).cause


def test_candidates_are_of_one_family_and_without_loopback() -> None:
    assert [(a.address, b.address) for a, b in candidates(HERE, THERE)] == [
        ("192.0.2.7", "192.0.2.8"),
        ("fe80::7", "fe80::8"),
    ]


def path(arrived: int, source_mtu: int = 9000, target_mtu: int = 9000, reported: int = 0) -> PathMtu:
    return PathMtu(
        "192.0.2.7", "192.0.2.8", source_mtu, target_mtu, arrived, reported, "router 192.0.2.1" if reported else ""
    )


@pytest.mark.parametrize(
    ("measured", "state", "found", "cause"),
    [
        (path(9000), State.OK, "full size arrives", ""),
        (path(1500), State.FAILURE, "black hole: 192.0.2.7 -> 192.0.2.8: 1500 bytes of 9000", "ICMP"),
        (path(0), State.FAILURE, "0 bytes of 9000", "drops"),
        (path(1400, 1500, 1500, reported=1400), State.WARNING, "router 192.0.2.1 says 1400", "TCP adapts"),
        (path(1500, 9000, 1500), State.WARNING, "1500 bytes of 9000", "receiving interface"),
        (path(1400, 9000, 1500), State.FAILURE, "1400 bytes of 1500", "drops"),
    ],
)
def test_path_mtu_is_judged(measured: PathMtu, state: State, found: str, cause: str) -> None:
    finding = check_path_mtu((measured,))
    assert finding.state is state
    assert found in finding.found
    assert cause in finding.cause
    assert state is State.OK or "ip link set INTERFACE mtu" in finding.fix


@pytest.mark.parametrize(
    ("offset_us", "error_us", "state"),
    [
        (50_000, 100, State.OK),
        (-150_000, 100, State.WARNING),
        (150_000, 60_000, State.OK),
        (3_600_000_000, 1, State.WARNING),
    ],
)
def test_clocks_that_surely_differ_by_more_than_a_tenth_of_a_second_warn(
    offset_us: int, error_us: int, state: State
) -> None:
    finding = check_offset(ClockOffset(offset_us, error_us))
    assert finding.state is state
    assert f"{offset_us} us" in evidence(finding)
    assert state is State.OK or "set-ntp" in finding.fix


def test_probes_survive_json_and_damaged_ones_are_refused() -> None:
    probes = Probes((WORKS, DROPPED), (path(1400, reported=1400),))
    fields = json.loads(json.dumps(probes.as_dict()))
    assert decode_probes(fields) == probes
    for damage in ({"reach": 7}, {"paths": [7]}, {"reach": [{}]}, {"reach": [fields["reach"][0]] * 65}):
        with pytest.raises(ProtocolError):
            decode_probes(fields | damage)
