"""Addresses, IPv6, host id, variables, secret, clock."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from unit.doctor.fake import BOOT_ID, FakeMachine, evidence

from rdmaring.diagnose.doctor import Roots, State
from rdmaring.diagnose.doctor.clock import ClockStatus
from rdmaring.diagnose.doctor.identity import check_clock, check_host_identity, check_secret, check_variables
from rdmaring.diagnose.doctor.interfaces import Address, addresses, interface_mtu
from rdmaring.diagnose.doctor.network import PRIVATE_BRIDGES, check_addresses, check_ipv6

LOOPBACK = Address("lo", "127.0.0.1", 8)
ETHERNET = Address("eth0", "192.0.2.7", 24)


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path)


def test_this_machines_addresses_are_listed_with_their_mtu() -> None:
    found = addresses()
    assert Address("lo", "127.0.0.1", 8) in found
    assert interface_mtu("lo") == int(Path("/sys/class/net/lo/mtu").read_text())
    assert interface_mtu("no-such-if") == 0


@pytest.mark.parametrize(
    ("address", "what"),
    [
        ("172.17.0.1", "docker"),
        ("192.168.122.1", "libvirt"),
        ("10.88.0.1", "podman"),
        ("169.254.3.4", "DHCP"),
    ],
)
def test_an_address_that_many_hosts_have_warns(machine: FakeMachine, address: str, what: str) -> None:
    machine.system.own_addresses = [LOOPBACK, ETHERNET, Address("br0", address, 16)]
    finding = check_addresses(machine.roots)
    assert finding.state is State.WARNING
    assert f"192.0.2.7 on eth0; and {address} on br0" in finding.found
    assert what in finding.found
    assert "many hosts" in finding.cause
    assert "rendezvous" in finding.fix


def test_the_bridges_that_are_known_are_networks_of_their_own() -> None:
    assert "172.17.0.0/16" in PRIVATE_BRIDGES
    assert len(set(PRIVATE_BRIDGES.values())) == len(PRIVATE_BRIDGES)


def test_an_address_of_its_own_is_fine_and_none_warns(machine: FakeMachine) -> None:
    assert check_addresses(machine.roots).state is State.OK
    machine.system.own_addresses = [LOOPBACK, Address("docker0", "172.17.0.1", 16)]
    finding = check_addresses(machine.roots)
    assert finding.state is State.WARNING
    assert "no address by which other hosts" in finding.found
    assert "docker" in finding.cause
    assert "ip addr add" in finding.fix


def test_ipv6_switched_off_by_sysctl_warns(machine: FakeMachine) -> None:
    machine.write("proc/sys/net/ipv6/conf/all/disable_ipv6", "1")
    finding = check_ipv6(machine.roots)
    assert finding.state is State.WARNING
    assert "net.ipv6.conf.all.disable_ipv6 is 1" in finding.cause
    assert "sysctl net.ipv6.conf.all.disable_ipv6=0" in finding.fix
    assert "conf/all/disable_ipv6: 1" in evidence(finding)


def test_ipv6_off_on_the_one_interface_is_named(machine: FakeMachine) -> None:
    machine.write("proc/sys/net/ipv6/conf/eth0/disable_ipv6", "1")
    machine.system.own_addresses.append(Address("lo", "::1", 128))
    finding = check_ipv6(machine.roots)
    assert finding.state is State.WARNING
    assert "switched off on eth0" in finding.cause


def test_no_ipv6_address_but_loopbacks_warns(machine: FakeMachine) -> None:
    machine.system.own_addresses.append(Address("lo", "::1", 128))
    finding = check_ipv6(machine.roots)
    assert finding.state is State.WARNING
    assert "no interface has an address" in finding.cause


def test_ipv6_link_local_and_global_are_fine(machine: FakeMachine) -> None:
    machine.system.own_addresses.append(Address("eth0", "fe80::7", 64))
    finding = check_ipv6(machine.roots)
    assert finding.state is State.OK
    assert "fe80::7%eth0" in finding.found
    machine.system.own_addresses.append(Address("eth0", "2001:db8::7", 64))
    assert check_ipv6(machine.roots).found == "2001:db8::7 on eth0"


def test_a_kernel_without_ipv6_warns(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    finding = check_ipv6(Roots(procfs=tmp_path / "proc"))
    assert finding.state is State.WARNING
    assert "ipv6.disable=1" in finding.cause


def test_the_boot_id_is_the_hosts_identity(machine: FakeMachine) -> None:
    finding = check_host_identity(machine.roots)
    assert finding.state is State.OK
    assert BOOT_ID in finding.found


def test_without_a_boot_id_it_fails_unless_the_host_has_a_name(machine: FakeMachine) -> None:
    machine.remove("proc/sys/kernel/random/boot_id")
    finding = check_host_identity(machine.roots)
    assert finding.state is State.FAILURE
    assert "/proc" in finding.cause
    assert "RDMARING_HOST_ID" in finding.fix
    machine.env["RDMARING_HOST_ID"] = "host-a"
    assert check_host_identity(machine.roots).state is State.OK


def test_a_misspelt_variable_warns_with_the_nearest(machine: FakeMachine) -> None:
    machine.env["RDMARING_ALGORITM"] = "ring"
    finding = check_variables(machine.roots)
    assert finding.state is State.WARNING
    assert "RDMARING_ALGORITM" in finding.found
    assert "has no effect" in finding.cause
    assert finding.fix == "write RDMARING_ALGORITHM instead of RDMARING_ALGORITM"


def test_a_value_that_init_refuses_fails(machine: FakeMachine) -> None:
    machine.env["RDMARING_SLOT_BYTES"] = "-1"
    finding = check_variables(machine.roots)
    assert finding.state is State.FAILURE
    assert "RDMARING_SLOT_BYTES is '-1'" in finding.found
    assert "init()" in finding.cause


def test_the_secret_is_never_shown(machine: FakeMachine) -> None:
    for check in (check_variables, check_secret):
        assert machine.env["RDMARING_SECRET"] not in str(check(machine.roots).as_dict())


def test_a_short_secret_warns(machine: FakeMachine) -> None:
    machine.env["RDMARING_SECRET"] = "hunter2"
    finding = check_secret(machine.roots)
    assert finding.state is State.WARNING
    assert "guessed" in finding.cause
    assert "openssl rand" in finding.fix


def secret_file(machine: FakeMachine, mode: int, text: str = "x" * 64) -> Path:
    del machine.env["RDMARING_SECRET"]
    machine.env["XDG_CONFIG_HOME"] = str(machine.root / "config")
    path = machine.write("config/rdmaring/secret", text)
    path.chmod(mode)
    return path


def test_a_secret_file_of_mode_0600_is_fine(machine: FakeMachine) -> None:
    secret_file(machine, 0o600)
    assert check_secret(machine.roots).state is State.OK


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o666])
def test_a_secret_file_that_others_may_read_fails(machine: FakeMachine, mode: int) -> None:
    path = secret_file(machine, mode)
    finding = check_secret(machine.roots)
    assert finding.state is State.FAILURE
    assert f"mode {mode:04o}" in finding.found
    assert "others may have read it" in finding.cause
    assert f"rm {path}" in finding.fix


def test_another_users_secret_file_and_an_empty_one_fail(machine: FakeMachine) -> None:
    path = secret_file(machine, 0o600)
    machine.system.own_user = os.geteuid() + 1
    finding = check_secret(machine.roots)
    assert finding.state is State.FAILURE
    assert f"belongs to user id {os.geteuid()}" in finding.found
    machine.system.own_user = None
    path.write_text("")
    assert "is empty" in check_secret(machine.roots).found


def test_no_secret_file_yet_is_fine_and_none_is_made(machine: FakeMachine) -> None:
    del machine.env["RDMARING_SECRET"]
    machine.env["XDG_CONFIG_HOME"] = str(machine.root / "config")
    finding = check_secret(machine.roots)
    assert finding.state is State.OK
    assert not (machine.root / "config").exists()


def test_a_clock_that_nobody_keeps_warns(machine: FakeMachine) -> None:
    assert check_clock(machine.roots).state is State.OK
    machine.system.clock_answer = ClockStatus(False, 0x40, 16_000_000)
    finding = check_clock(machine.roots)
    assert finding.state is State.WARNING
    assert "STA_UNSYNC" in finding.cause
    assert "set-ntp" in finding.fix
    assert "status 0x0040" in evidence(finding)


def test_a_sandbox_that_hides_the_clocks_state_is_not_a_fault(machine: FakeMachine) -> None:
    machine.system.clock_answer = OSError(errno.ENOSYS, "Function not implemented")
    assert check_clock(machine.roots).state is State.NOT_APPLICABLE


def test_this_machines_clock_can_be_asked() -> None:
    finding = check_clock(Roots())
    assert "adjtimex" in evidence(finding)
