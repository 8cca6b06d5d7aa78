"""Guests: small virtual machines that boot Debian's kernel, joined by one wire, ended with the bed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from beds import packages
from beds.addresses import Family, address_lines, hosts_file, mac
from beds.job import Host
from beds.kernel import GUEST_MODULES, Kernel
from beds.namespaces import DIE_WITH_US, SCRIPTS, batch

MTU = 9000
NOFILE = 65536
# Without what costs an emulated CPU time: mitigations, moved addresses, security modules, tests of ciphers.
KERNEL_OPTIONS = (
    "console=ttyS0 panic=-1 quiet mitigations=off nokaslr audit=0 lsm=integrity cryptomgr.notests "
    "no_timer_check"  # on a busy machine no tick may come in the moment in which the kernel counts some, and it panics
)
CONSOLE_LINES = 30
QUEUE_PACKETS = 100_000  # netem holds what it delays; its default of 1000 would lose much more than was asked for


@dataclass(frozen=True)
class Machine:
    """Of each guest. loss, delay: as netem takes them ('1%', '1ms'), None for neither. memlock_kb: None, no limit."""

    kernel: Kernel
    family: Family
    cpus: int
    memory_mb: int
    loss: str | None = None
    delay: str | None = None
    memlock_kb: int | None = None
    share: Path | None = None


class Guests:
    """Starts them when entered, ends them when left."""

    def __init__(self, machine: Machine, guests: int, initramfs: bytes) -> None:
        self._machine = machine
        self._guests = guests
        self._initramfs = initramfs
        self._processes: list[subprocess.Popen[bytes]] = []
        self.consoles: list[IO[bytes]] = []
        self.channels: list[socket.socket] = []

    def __enter__(self) -> Guests:
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def _start(self) -> None:
        initramfs = os.memfd_create("initramfs")
        with os.fdopen(initramfs, "wb") as file:
            file.write(self._initramfs)
            file.flush()
            wires = self._lay_wires()
            for guest in range(self._guests):
                ours, theirs = socket.socketpair()
                self.channels.append(ours)
                console = tempfile.TemporaryFile()
                self.consoles.append(console)
                line = self._line(guest, initramfs, theirs, wires)
                inherited = [initramfs, theirs.fileno(), *(wire.fileno() for wire in wires[guest : guest + 1])]
                self._processes.append(_start([*DIE_WITH_US, *line], inherited, console))
                theirs.close()
            for wire in wires:
                wire.close()

    def _lay_wires(self) -> list[socket.socket]:
        """For each guest its end: none for one guest, a pair for two, for more a switch."""
        if self._guests == 1:
            return []
        if self._guests == 2:
            return list(socket.socketpair())
        pairs = [socket.socketpair() for _ in range(self._guests)]
        line = [*DIE_WITH_US, sys.executable, "-m", "beds.switch", *(str(far.fileno()) for _, far in pairs)]
        self._processes.append(_start(line, [far.fileno() for _, far in pairs]))
        for _, far in pairs:
            far.close()
        return [near for near, _ in pairs]

    def _line(self, guest: int, initramfs: int, channel: socket.socket, wires: Sequence[socket.socket]) -> list[str]:
        wire = "hubport,hubid=0,id=wire"
        if wires:
            wire = f"stream,id=wire,server=off,addr.type=fd,addr.str={wires[guest].fileno()}"
        line = [
            "qemu-system-x86_64",
            *("-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max", "-smp", str(self._machine.cpus)),
            *(
                "-machine",
                "pc,hpet=off",
                "-m",
                str(self._machine.memory_mb),
                "-nodefaults",
                "-no-user-config",
                "-no-reboot",
                "-display",
                "none",
            ),
            *("-serial", "stdio", "-kernel", str(self._machine.kernel.image), "-initrd", f"/proc/self/fd/{initramfs}"),
            *("-append", KERNEL_OPTIONS),
            *("-virtfs", _share("root", Path("/"), "on")),
            *("-netdev", wire, "-device", f"virtio-net-pci,netdev=wire,mac={mac(guest)},romfile="),
            *("-chardev", f"socket,id=agent,fd={channel.fileno()}", "-device", "virtio-serial-pci"),
            *("-device", "virtserialport,chardev=agent,name=agent"),
        ]
        if self._machine.share is not None:
            line += ["-virtfs", _share("share", self._machine.share, "off")]
        return line

    def _end(self) -> None:
        for process in self._processes:
            process.kill()  # there is nothing in a guest that must be saved
            process.wait()
        for channel in self.channels:
            channel.close()
        for console in self.consoles:
            console.close()


def set_up(machine: Machine, guest: int, names: list[str]) -> list[dict[str, Any]]:
    """What the agent of a guest runs before its ranks."""
    modules = machine.kernel.modules
    first = [
        "mkdir -p /dev/shm /dev/pts /run",
        "mount -t tmpfs tmpfs /dev/shm",
        "mount -t tmpfs tmpfs /run",
        "mount -t devpts devpts /dev/pts",
        "mkdir -p /lib/modules",
        f'ln -sfn "$0" /lib/modules/{modules.name}',
        f"hostname {names[guest]}",
        "for each in /proc/sys/net/ipv6/conf/*/accept_dad; do echo 0 >$each; done",
        f"modprobe -a {' '.join(GUEST_MODULES)}",
    ]
    addresses = [
        "link set lo up",
        f"link set eth0 mtu {MTU}",
        *address_lines(machine.family, guest),
        "link set eth0 up",
    ]
    steps: list[dict[str, Any]] = [
        {"argv": ["sh", "-ec", "\n".join(first), str(modules)]},
        {"argv": ["tee", "/etc/hosts"], "input": hosts_file(machine.family, names)},
        {"argv": ["ip", "-batch", "-"], "input": batch(addresses)},
        {"argv": ["rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "eth0"]},
        {"argv": ["sh", "-c", WAIT_FOR_PORT]},
    ]
    if machine.share is not None:
        mount = ["mount", "-t", "9p", "-o", "trans=virtio,version=9p2000.L,cache=none,msize=524288", "share"]
        steps.append({"argv": [*mount, str(machine.share)]})
    if machine.loss or machine.delay:
        netem = ["tc", "qdisc", "add", "dev", "eth0", "root", "netem", "limit", str(QUEUE_PACKETS)]
        netem += ["loss", machine.loss] if machine.loss else []
        netem += ["delay", machine.delay] if machine.delay else []
        steps.append({"argv": netem})
    return steps


WAIT_FOR_PORT = """\
for each in $(seq 100); do
    grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state &&
        ip -6 addr show dev eth0 scope link | grep -q fe80 && exit 0
    sleep 0.1
done
echo the port of rxe0 is "$(cat /sys/class/infiniband/rxe0/ports/1/state)" after 10 s
ip addr show dev eth0
exit 1
"""


def hosts(guests: Guests, machine: Machine, names: list[str], ranks: list[list[dict[str, Any]]]) -> list[Host]:
    """What a Job runs."""
    memlock = -1 if machine.memlock_kb is None else machine.memlock_kb * 1024
    if machine.memlock_kb is not None:
        for rank in (rank for each in ranks for rank in each):
            # Root may lock what it likes, whatever the limit says, unless this power is taken away.
            rank["argv"] = ["setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock", *rank["argv"]]
    return [
        Host(
            names[guest],
            channel,
            {
                "cwd": os.getcwd(),
                "setup": set_up(machine, guest, names),
                "limits": {"memlock": memlock, "nofile": NOFILE},
                "ranks": ranks[guest],
            },
            lambda console=guests.consoles[guest]: _last_lines(console),  # type: ignore[misc]
        )
        for guest, channel in enumerate(guests.channels)
    ]


def _share(tag: str, path: Path, read_only: str) -> str:
    comma = str(path).replace(",", ",,")
    return f"local,path={comma},mount_tag={tag},security_model=none,readonly={read_only},multidevs=remap"


def _start(line: list[str], inherited: list[int], output: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        line,
        cwd=SCRIPTS,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=inherited,
        start_new_session=True,
        env={**os.environ, "PATH": packages.PATH},
    )


def _last_lines(console: IO[bytes]) -> str:
    console.seek(0)
    text = console.read().decode(errors="replace").replace("\r", "")
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(["the last lines of its console:", *lines[-CONSOLE_LINES:]]) if lines else ""
