"""Two doctors in network namespaces: paths that carry less than the interfaces promise, and one-way firewalls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from unit.doctor.namespaces import Namespace, join, namespaces

COMMAND = str(Path(sys.executable).parent / "rdmaring")
PORT = 29480
VLAN_TAG_BYTES = 4  # a veth interface takes a frame that is larger than its MTU by a VLAN tag
ENV = {name: value for name, value in os.environ.items() if not name.startswith("RDMARING_")} | {
    "RDMARING_SECRET": "a secret of the tests, long enough"
}


def examine(here: Namespace, there: Namespace, address: str) -> dict[str, Any]:
    """What `rdmaring doctor --peer` says in ``here`` about the pair, by id."""
    with subprocess.Popen(
        there.command(COMMAND, "doctor", "--serve", "--once"),
        env=ENV | {"RDMARING_HOST_ID": there.name},
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stderr is not None
            line = server.stderr.readline()
            assert f"listening on port {PORT}" in line, line + server.stderr.read()
            result = subprocess.run(
                here.command(COMMAND, "doctor", "--peer", address, "--json"),
                env=ENV | {"RDMARING_HOST_ID": here.name},
                capture_output=True,
                text=True,
                timeout=100,
            )
        finally:
            server.kill()
    assert result.stdout, result.stderr
    return {finding["id"]: finding for finding in json.loads(result.stdout)["pair"]}


def arrived(pair: dict[str, Any]) -> dict[tuple[str, str], int]:
    rows = pair["pair-path-mtu"]["data"]["paths"]
    return {(row["source"], row["target"]): row["arrived"] for row in rows}


@pytest.mark.parametrize("mtu", [1500, 9000])
def test_a_wire_with_equal_mtu_carries_full_size(mtu: int) -> None:
    with namespaces(("a", "b")) as (a, b):
        join(a, b, "w0", "w0")
        a.address("w0", "192.0.2.1/24", mtu)
        b.address("w0", "192.0.2.2/24", mtu)
        pair = examine(a, b, "192.0.2.2")
    assert pair["pair-path-mtu"]["state"] == pair["pair-mtu"]["state"] == pair["pair-reach"]["state"] == "ok"
    assert arrived(pair) == {("192.0.2.1", "192.0.2.2"): mtu, ("192.0.2.2", "192.0.2.1"): mtu}
    assert pair["pair-host"]["found"].startswith("one machine that plays two hosts")
    assert pair["pair-namespaces"]["state"] == "not-applicable"


def test_ends_with_unequal_mtu_are_named_with_the_size_that_arrives() -> None:
    with namespaces(("a", "b")) as (a, b):
        join(a, b, "w0", "w0")
        a.address("w0", "192.0.2.1/24", 9000)
        b.address("w0", "192.0.2.2/24", 2000)
        pair = examine(a, b, "192.0.2.2")
    assert pair["pair-mtu"]["state"] == pair["pair-path-mtu"]["state"] == "warning"
    assert "w0 here 9000, w0 there 2000 in 192.0.2.0/24" in pair["pair-mtu"]["found"]
    assert arrived(pair) == {("192.0.2.1", "192.0.2.2"): 2000 + VLAN_TAG_BYTES, ("192.0.2.2", "192.0.2.1"): 2000}
    assert "2004 bytes of 9000" in pair["pair-path-mtu"]["found"]
    assert "receiving interface" in pair["pair-path-mtu"]["cause"]


@pytest.mark.parametrize("prefix", ["192.0.2.{}/24", "fd00::{}/64"])
def test_a_black_hole_between_two_large_ends_is_found_to_the_byte(prefix: str) -> None:
    """A bridge whose ports take 1700 bytes, between hosts that send 9000: nothing says so."""
    with namespaces(("a", "b", "switch")) as (a, b, switch):
        switch.run("ip", "link", "add", "br0", "type", "bridge")
        for host, port in ((a, "pa"), (b, "pb")):
            join(host, switch, "w0", port)
            switch.run("ip", "link", "set", port, "mtu", "1700", "master", "br0", "up")
        switch.run("ip", "link", "set", "br0", "up")
        one, two = prefix.format(1), prefix.format(2)
        a.address("w0", one, 9000)
        b.address("w0", two, 9000)
        first, second = one.split("/")[0], two.split("/")[0]
        pair = examine(a, b, second)
    finding = pair["pair-path-mtu"]
    assert finding["state"] == "failure"
    assert "black hole" in finding["found"]
    assert "ICMP" in finding["cause"]
    assert "ip link set INTERFACE mtu" in finding["fix"]
    measured = arrived(pair)
    assert measured[first, second] == measured[second, first] == 1700
    assert pair["pair-mtu"]["state"] == "ok"  # both ends say 9000: comparing what they say finds nothing


def test_a_router_that_says_what_it_carries_is_named() -> None:
    with namespaces(("a", "b", "router")) as (a, b, router):
        join(a, router, "w0", "ra")
        join(b, router, "w0", "rb")
        router.address("ra", "192.0.2.254/24", 1500)
        router.address("rb", "198.51.100.254/24", 1300)
        router.run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        a.address("w0", "192.0.2.1/24", 1500)
        b.address("w0", "198.51.100.1/24", 1500)
        a.run("ip", "route", "add", "default", "via", "192.0.2.254")
        b.run("ip", "route", "add", "default", "via", "198.51.100.254")
        pair = examine(a, b, "198.51.100.1")
    rows = {row["source"]: row for row in pair["pair-path-mtu"]["data"]["paths"]}
    towards = rows["192.0.2.1"]
    assert (towards["arrived"], towards["reported"], towards["reporter"]) == (1300, 1300, "router 192.0.2.254")
    # The other way the router's own port drops what is larger, before any router could speak.
    assert rows["198.51.100.1"]["arrived"] == 1300 + VLAN_TAG_BYTES
    assert pair["pair-mtu"]["state"] == "not-applicable"


def test_an_address_that_both_have_and_a_second_network_without_a_wire() -> None:
    with namespaces(("a", "b")) as (a, b):
        join(a, b, "w0", "w0")
        for number, host in enumerate((a, b), 1):
            host.address("w0", f"192.0.2.{number}/24", 1500)
            host.run("ip", "link", "add", "docker0", "type", "bridge")
            host.address("docker0", "172.17.0.1/16", 1500)
            host.run("ip", "link", "add", "x0", "type", "bridge")  # one network by its numbers, two by its wires
            host.address("x0", f"203.0.113.{number}/24", 1500)
        pair = examine(a, b, "192.0.2.2")
    assert pair["pair-addresses"]["state"] == "warning"
    assert "172.17.0.1 on docker0" in pair["pair-addresses"]["found"]
    rows = {(row["source"], row["target"]): row["error"] for row in pair["pair-reach"]["data"]["there"]}
    assert rows["192.0.2.1", "192.0.2.2"] == ""
    # Who connects to docker0's address stays at home, where another doctor, or none, answers.
    assert rows["172.17.0.1", "172.17.0.1"] != ""
    assert rows["203.0.113.1", "203.0.113.2"] != ""
    assert pair["pair-reach"]["state"] == "warning"
    assert "203.0.113.1 -> 203.0.113.2" in pair["pair-reach"]["found"]
    assert "VLAN" in pair["pair-reach"]["cause"]
