"""What the system says of devices: rates that an edge could reach, and counters. All from faked trees."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from rdmaring.diagnose.links.addresses import interface_of_address
from rdmaring.diagnose.links.counters import moved, read_counters, troubles
from rdmaring.diagnose.links.expected import interface, least, local_end, rdma_port
from rdmaring.diagnose.links.records import Expected


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def device(root: Path, kind: str, name: str, at: str, files: dict[str, str]) -> None:
    """A device as sysfs shows it: /sys/class/KIND/NAME is a link to where it hangs."""
    write(root / at / kind / name, files)
    link = root / "class" / kind / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(root / at / kind / name)


@pytest.mark.parametrize(
    ("rate", "speed", "width", "gb_s", "text"),
    [
        ("100 Gb/sec (4X EDR)", "8.0 GT/s PCIe", "16", 12.5, "port mlx5_0/1 runs at 100 Gb/sec (4X EDR)"),
        ("400 Gb/sec (4X NDR)", "32.0 GT/s PCIe", "16", 50.0, "port mlx5_0/1 runs at 400 Gb/sec (4X NDR)"),
        ("200 Gb/sec (4X HDR)", "8.0 GT/s PCIe", "16", 8 * 128 / 130 * 16 / 8, "PCIe of mlx5_0/1: 8 GT/s x16"),
        ("25 Gb/sec (1X EDR)", "2.5 GT/s PCIe", "8", 2.5 * 0.8 * 8 / 8, "PCIe of mlx5_0/1: 2.5 GT/s x8"),
        ("100 Gb/sec (4X EDR)", "Unknown", "0", 12.5, "port mlx5_0/1 runs at 100 Gb/sec (4X EDR)"),
    ],
)
def test_an_rdma_port_is_as_fast_as_its_lanes_or_pcie(
    rate: str, speed: str, width: str, gb_s: float, text: str, tmp_path: Path
) -> None:
    files = {"ports/1/rate": rate, "device/current_link_speed": speed, "device/current_link_width": width}
    device(tmp_path, "infiniband", "mlx5_0", "devices/pci0000:00/0000:00:01.0", files)
    found = rdma_port("mlx5_0/1", tmp_path)
    assert found.gb_s == pytest.approx(gb_s)
    assert found.text == text


def test_software_devices_have_no_rate(tmp_path: Path) -> None:
    device(tmp_path, "infiniband", "rxe0", "devices/virtual", {"ports/1/rate": "2.5 Gb/sec (1X SDR)"})
    assert rdma_port("rxe0/1", tmp_path) == Expected(None, "rxe0/1 is made by software: its rate says nothing")
    device(tmp_path, "net", "veth0", "devices/virtual", {"speed": "10000"})
    assert interface("veth0", tmp_path) == Expected(None, "veth0 is a virtual device: it has no speed of its own")


@pytest.mark.parametrize(
    ("speed", "gb_s", "text"),
    [
        ("25000", 3.125, "eth0 runs at 25000 Mbit/s"),
        ("-1", None, "eth0: the driver states no speed"),
        ("", None, "eth0: the driver states no speed"),
    ],
)
def test_an_interface_is_as_fast_as_its_driver_says(speed: str, gb_s: float | None, text: str, tmp_path: Path) -> None:
    device(tmp_path, "net", "eth0", "devices/pci0000:00/0000:00:02.0", {"speed": speed, "ifindex": "3"})
    assert interface("eth0", tmp_path, 3) == Expected(gb_s, text)
    assert interface("eth0", tmp_path, 4).gb_s is None
    assert "another network namespace" in interface("eth0", tmp_path, 4).text
    assert interface("eth1", tmp_path) == Expected(None, "eth1: sysfs does not show it")


def test_an_interface_behind_a_narrow_slot(tmp_path: Path) -> None:
    files = {"speed": "100000", "device/current_link_speed": "8.0 GT/s PCIe", "device/current_link_width": "4"}
    device(tmp_path, "net", "eth0", "devices/pci0000:00/0000:00:02.0", files)
    found = interface("eth0", tmp_path)
    assert found.gb_s == pytest.approx(8 * 128 / 130 * 4 / 8)
    assert found.text == "PCIe of eth0: 8 GT/s x4"


def test_the_slowest_of_what_is_known_counts() -> None:
    unknown, slow, fast = Expected(None, "?"), Expected(1.0, "slow"), Expected(2.0, "fast")
    assert least(fast, unknown, slow) is slow
    assert least(unknown) is unknown


@pytest.mark.parametrize(
    ("path", "interface_name"),
    [
        ("10.0.0.1:5000 -> 10.0.0.2:4711", "eth0"),
        ("[fd00::1]:5000 -> [fd00::2]:4711", "eth1"),
        ("[::ffff:10.0.0.1]:5000 -> [::ffff:10.0.0.2]:4711", "eth0"),
        ("[fe80::1%eth7]:5000 -> [fe80::2%eth7]:4711", "eth7"),
        ("10.0.0.9:5000 -> 10.0.0.2:4711", None),
        ("", None),
    ],
)
def test_our_end_of_a_path(path: str, interface_name: str | None) -> None:
    assert local_end(path, {"10.0.0.1": "eth0", "fd00::1": "eth1"}) == interface_name


def test_addresses_of_this_machine_and_faked_ones(tmp_path: Path) -> None:
    line = "fd00000000000000000000000000abcd 02 40 00 80     eth9"
    found = interface_of_address(write(tmp_path, {"net/if_inet6": line}))
    assert found["fd00::abcd"] == "eth9"
    assert found["127.0.0.1"] == "lo"
    assert set(found.values()) <= {name for _, name in socket.if_nameindex()} | {"eth9"}


NET_DEV = """\
Inter-|   Receive                        |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: 999  9 0 0 0 0 0 0  999  9 0 0 0 0 0 0
  eth0: {rx} 20 {errors} 4 0 0 0 0  5000 30 7 0 0 0 0 0"""
SNMP = """\
Ip: Forwarding DefaultTTL
Ip: 1 64
Tcp: RtoAlgorithm RetransSegs InErrs OutRsts
Tcp: 1 {retransmitted} 0 5"""


def test_counters_and_how_far_they_moved(tmp_path: Path) -> None:
    proc, sys = tmp_path / "proc", tmp_path / "sys"
    port = "class/infiniband/mlx5_0/ports/1"
    write(sys, {f"{port}/counters/symbol_error": "3", f"{port}/counters/port_xmit_data": "100"})
    write(sys, {f"{port}/hw_counters/out_of_sequence": "0", f"{port}/hw_counters/odd": "N/A (no PMA)"})
    write(proc, {"net/dev": NET_DEV.format(rx=1000, errors=2), "net/snmp": SNMP.format(retransmitted=10)})
    before = read_counters(sys, proc)
    assert before["net/eth0/rx_errors"] == 2 and before["net/eth0/tx_errors"] == 7
    assert before["net/eth0/rx_dropped"] == 4
    assert before["tcp/retransmitted_segments"] == 10
    assert before["rdma/mlx5_0/1/symbol_error"] == 3
    assert not [name for name in before if "/lo/" in name or "odd" in name]
    write(sys, {f"{port}/counters/port_xmit_data": "900", f"{port}/hw_counters/out_of_sequence": "6"})
    write(proc, {"net/dev": NET_DEV.format(rx=5000, errors=5), "net/snmp": SNMP.format(retransmitted=12)})
    changed = moved(before, read_counters(sys, proc))
    assert changed == {
        "net/eth0/rx_bytes": 4000,
        "net/eth0/rx_errors": 3,
        "tcp/retransmitted_segments": 2,
        "rdma/mlx5_0/1/port_xmit_data": 800,
        "rdma/mlx5_0/1/out_of_sequence": 6,
    }
    assert troubles(changed) == {
        "net/eth0/rx_errors": 3,
        "tcp/retransmitted_segments": 2,
        "rdma/mlx5_0/1/out_of_sequence": 6,
    }


def test_a_machine_without_any_of_it(tmp_path: Path) -> None:
    assert read_counters(tmp_path, tmp_path) == {}
    assert rdma_port("mlx5_0/1", tmp_path) == Expected(None, "mlx5_0/1: no rate in sysfs")
