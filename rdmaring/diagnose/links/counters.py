"""Counters of devices and of the network's software, read before and after: what moved tells where a fault is.

Roots are arguments: ``sys`` is where sysfs is mounted, ``proc`` procfs. What cannot be read is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

# /proc/net/dev shows the devices of the caller's network namespace, whatever is mounted at /sys.
NET_DEV_FIELDS = (
    "rx_bytes", "rx_packets", "rx_errors", "rx_dropped", "rx_fifo", "rx_frame", "rx_compressed", "rx_multicast",
    "tx_bytes", "tx_packets", "tx_errors", "tx_dropped", "tx_fifo", "tx_collisions", "tx_carrier", "tx_compressed",
)  # fmt: skip
TCP_FIELDS = {"RetransSegs": "retransmitted_segments", "InErrs": "received_in_error", "OutRsts": "resets_sent"}
LOOPBACK = "lo"
# Their growth is traffic; that of all others is trouble, or at least worth a look.
TRAFFIC = frozenset(
    {
        "rx_bytes", "rx_packets", "tx_bytes", "tx_packets", "rx_multicast", "rx_compressed", "tx_compressed",
        "port_xmit_data", "port_rcv_data", "port_xmit_packets", "port_rcv_packets", "unicast_xmit_packets",
        "unicast_rcv_packets", "multicast_xmit_packets", "multicast_rcv_packets", "rx_write_requests",
        "rx_read_requests", "sent_pkts", "rcvd_pkts", "lifespan", "rdma_sends", "rdma_recvs", "port_xmit_wait",
    }
)  # fmt: skip


def read_counters(sys: Path = Path("/sys"), proc: Path = Path("/proc")) -> dict[str, int]:
    """All of them: "net/eth0/tx_errors", "tcp/retransmitted_segments", "rdma/mlx5_0/1/symbol_error".

    port_xmit_data and port_rcv_data of InfiniBand count 4 bytes at a time, as the kernel shows them.
    """
    return {**_net(proc), **_tcp(proc), **_rdma(sys)}


def moved(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """How far each counter went; without those that stood still, and those that are not in both."""
    return {name: after[name] - value for name, value in before.items() if after.get(name, value) != value}


def troubles(changed: Mapping[str, int]) -> dict[str, int]:
    """Those of ``moved`` that are not traffic."""
    return {name: by for name, by in changed.items() if name.rpartition("/")[2] not in TRAFFIC}


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _net(proc: Path) -> dict[str, int]:
    found = {}
    for line in _lines(proc / "net" / "dev"):
        name, colon, numbers = line.partition(":")
        values = numbers.split()
        if not colon or name.strip() == LOOPBACK or len(values) < len(NET_DEV_FIELDS):
            continue
        for field, value in zip(NET_DEV_FIELDS, values, strict=False):
            found[f"net/{name.strip()}/{field}"] = int(value)
    return found


def _tcp(proc: Path) -> dict[str, int]:
    rows = [line.split() for line in _lines(proc / "net" / "snmp") if line.startswith("Tcp:")]
    if len(rows) != 2:
        return {}
    values = dict(zip(rows[0][1:], rows[1][1:], strict=False))
    return {f"tcp/{ours}": int(values[theirs]) for theirs, ours in TCP_FIELDS.items() if theirs in values}


def _rdma(sys: Path) -> dict[str, int]:
    found = {}
    for folder in ("counters", "hw_counters"):
        for path in (sys / "class" / "infiniband").glob(f"*/ports/*/{folder}/*"):
            text = "".join(_lines(path)[:1]).strip()
            if text.isdigit():
                found[f"rdma/{path.parts[-5]}/{path.parts[-3]}/{path.name}"] = int(text)
    return found
