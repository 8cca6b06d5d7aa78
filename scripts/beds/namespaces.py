"""Hosts as namespaces: each with network, name, mounts and process numbers of its own, joined by one bridge.

No namespace has a name: each lives as long as the processes in it, and these die with the bed, however it ends.
The bridge stands in a namespace of its own, so the machine's network is left as it is.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from beds import packages
from beds.addresses import Family, address_lines, hosts_file, mac
from beds.frames import HEADER
from beds.job import BedError, Host, LackingError
from beds.shaping import shape

SCRIPTS = Path(__file__).resolve().parents[1]
END_S = 5.0
DIE_WITH_US = ("setpriv", "--pdeathsig", "KILL")
HOST_NAMESPACES = ("--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc")


@dataclass(frozen=True)
class Network:
    """rates_bit_s: of each host's link, in both directions, None for unshaped. edges_bit_s: (from, to) → rate."""

    family: Family
    mtu: int
    rates_bit_s: Sequence[int | None]
    edges_bit_s: dict[tuple[int, int], int]

    @property
    def hosts(self) -> int:
        return len(self.rates_bit_s)


class Namespaces:
    """Makes the hosts when entered, ends them when left."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._processes: list[subprocess.Popen[bytes]] = []
        self._bridge: subprocess.Popen[bytes] | None = None
        self.channels: list[socket.socket] = []

    def __enter__(self) -> Namespaces:
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def _start(self) -> None:
        self._bridge = _start_bridge()
        for _ in range(self._network.hosts):
            ours, theirs = socket.socketpair()
            self.channels.append(ours)
            self._processes.append(_start_agent(theirs))
        for process, channel in zip(self._processes, self.channels, strict=True):
            if not channel.recv(HEADER.size, socket.MSG_PEEK | socket.MSG_WAITALL):
                raise LackingError(f"{' '.join(map(str, process.args))}: {_said(process)}")  # type: ignore[arg-type]
        self._join()

    def _join(self) -> None:
        mtu = self._network.mtu
        lines = ["link add br0 type bridge stp_state 0 forward_delay 0 mcast_snooping 0", "link set br0 up"]
        rates: list[str] = []
        for host, process in enumerate(self._processes):
            lines.append(
                f"link add port{host} mtu {mtu} type veth "
                f"peer name eth0 address {mac(host)} mtu {mtu} netns {process.pid}"
            )
            lines.append(f"link set port{host} master br0 up")
            rates += shape(f"port{host}", self._network.rates_bit_s[host])
        assert self._bridge is not None
        inside = ["nsenter", f"--net=/proc/{self._bridge.pid}/ns/net"]
        quiet = "for each in /proc/sys/net/ipv6/conf/*/disable_ipv6; do echo 1 >$each; done"
        _run([*inside, "sh", "-c", quiet])
        _run([*inside, "ip", "-batch", "-"], lines)
        if rates:
            _run([*inside, "tc", "-batch", "-"], rates)

    def _end(self) -> None:
        for channel in self.channels:
            channel.close()
        for process in self._processes:
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stderr is not None:
                process.stderr.close()
        if self._bridge is not None:
            self._bridge.communicate()


def set_up(network: Network, host: int, names: list[str]) -> list[dict[str, Any]]:
    """What the agent of a host runs before its ranks."""
    edges = {mac(to): rate for (source, to), rate in network.edges_bit_s.items() if source == host}
    rates = shape("eth0", network.rates_bit_s[host], edges)
    # Addresses serve at once, without a search for others that have them.
    no_search = "for each in /proc/sys/net/ipv6/conf/*/accept_dad; do echo 0 >$each; done"
    # A name of a host must lead to its address, as some launchers and libraries ask for it.
    own_hosts_file = "cat >/dev/shm/hosts && mount --bind /dev/shm/hosts /etc/hosts && rm /dev/shm/hosts"
    steps: list[dict[str, Any]] = [
        {"argv": ["mount", "-t", "sysfs", "sysfs", "/sys"]},  # shows the devices of this namespace
        {"argv": ["mount", "-t", "tmpfs", "tmpfs", "/dev/shm"]},
        {"argv": ["hostname", names[host]]},
        {"argv": ["sh", "-c", own_hosts_file], "input": hosts_file(network.family, names)},
        {"argv": ["sh", "-c", no_search]},
        {
            "argv": ["ip", "-batch", "-"],
            "input": batch(["link set lo up", *address_lines(network.family, host), "link set eth0 up"]),
        },
    ]
    if rates:
        steps.append({"argv": ["tc", "-batch", "-"], "input": batch(rates)})
    return steps


def hosts(beds: Namespaces, network: Network, names: list[str], ranks: list[list[dict[str, Any]]]) -> list[Host]:
    """What a Job runs."""
    return [
        Host(
            names[host],
            channel,
            {"cwd": os.getcwd(), "setup": set_up(network, host, names), "limits": {}, "ranks": ranks[host]},
        )
        for host, channel in enumerate(beds.channels)
    ]


def _start_bridge() -> subprocess.Popen[bytes]:
    line = [*DIE_WITH_US, "unshare", "--net", "cat"]
    process = subprocess.Popen(
        line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, env=_env()
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(b"\n")
        process.stdin.flush()
    except BrokenPipeError:
        pass  # told below
    if not process.stdout.read(1):  # what cat says back: the namespace is there
        _, errors = process.communicate()
        raise LackingError(f"no network namespace can be made here: {' '.join(line)}: {errors.decode().strip()}")
    return process


def _start_agent(channel: socket.socket) -> subprocess.Popen[bytes]:
    agent = [sys.executable, "-S", "-E", "-m", "beds.agent", str(channel.fileno())]
    process = subprocess.Popen(
        [*DIE_WITH_US, "unshare", *HOST_NAMESPACES, *agent],
        cwd=SCRIPTS,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=[channel.fileno()],
        start_new_session=True,
        env=_env(),
    )
    channel.close()
    return process


def _env() -> dict[str, str]:
    return {**os.environ, "PATH": packages.PATH}


def _said(process: subprocess.Popen[bytes]) -> str:
    _, errors = process.communicate()
    return f"status {process.returncode}: {errors.decode(errors='replace').strip()}"


def batch(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _run(argv: list[str], lines: Sequence[str] = ()) -> None:
    done = subprocess.run(
        argv,
        input=batch(lines),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env=_env(),
    )
    if done.returncode != 0:
        raise BedError(f"{' '.join(argv)}: status {done.returncode}\n{batch(lines)}{done.stdout}")
