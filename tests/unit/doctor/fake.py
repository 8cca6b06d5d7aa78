"""Machines that are made of files: roots below a folder, and a system whose answers are given."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rdmaring.diagnose.doctor.clock import ClockStatus
from rdmaring.diagnose.doctor.cross_memory import CrossMemory
from rdmaring.diagnose.doctor.findings import Finding, from_dict
from rdmaring.diagnose.doctor.gpu_facts import GpuFacts
from rdmaring.diagnose.doctor.interfaces import Address
from rdmaring.diagnose.doctor.roots import Roots
from rdmaring.diagnose.doctor.system import System
from rdmaring.diagnose.doctor.texts import UNLIMITED
from rdmaring.diagnose.doctor.verbs_library import VerbsLibrary

BOOT_ID = "b1a5ed00-0000-4000-8000-000000000001"
# What an unprivileged process in the first user namespace shows.
STATUS = "Name:\tpython\nCapEff:\t0000000000000000\nSeccomp:\t0\nMems_allowed_list:\t0-1\n"


class FakeSystem(System):
    """Calls that answer what they were told; the rest is the machine's own."""

    def __init__(self) -> None:
        self.limits = {"RLIMIT_MEMLOCK": (UNLIMITED, UNLIMITED), "RLIMIT_NOFILE": (65536, 65536)}
        self.cpus = {0, 1, 2, 3}
        self.memfd_error: OSError | None = None
        self.memory = CrossMemory(0, 0)
        self.dumpable = True
        self.clock_answer: ClockStatus | OSError = ClockStatus(True, 0x2001, 500)
        self.library = VerbsLibrary("/usr/lib/libibverbs.so.1.14.44.0", "1.14.44.0", ("mlx5_0",))
        self.own_addresses = [Address("lo", "127.0.0.1", 8), Address("eth0", "192.0.2.7", 24)]
        self.mtus = {"lo": 65536, "eth0": 1500}
        self.device_error: OSError | None = None
        self.own_user: int | None = None
        self.gpu_facts = GpuFacts(library_error="libcuda.so.1: cannot open shared object file")

    def rlimit(self, name: str) -> tuple[int, int]:
        return self.limits[name]

    def affinity(self) -> set[int]:
        return set(self.cpus)

    def open_device(self, path: Path) -> None:
        if self.device_error is not None:
            raise self.device_error
        super().open_device(path)

    def make_memfd(self, count: int) -> None:
        if self.memfd_error is not None:
            raise self.memfd_error

    def is_dumpable(self) -> bool:
        return self.dumpable

    def cross_memory(self) -> CrossMemory:
        return self.memory

    def clock(self) -> ClockStatus:
        if isinstance(self.clock_answer, OSError):
            raise self.clock_answer
        return self.clock_answer

    def verbs_library(self, name: str) -> VerbsLibrary:
        return self.library

    def gpu(self) -> GpuFacts:
        return self.gpu_facts

    def addresses(self) -> list[Address]:
        return list(self.own_addresses)

    def mtu(self, interface: str) -> int:
        return self.mtus.get(interface, 0)

    def user(self) -> int:
        return super().user() if self.own_user is None else self.own_user


class FakeMachine:
    """Folders for /sys, /proc and /dev below ``root``, of a machine where all is well, without RDMA."""

    def __init__(self, root: Path, ranks: int = 2) -> None:
        self.root = root
        self.system = FakeSystem()
        self.env: dict[str, str] = {"RDMARING_SECRET": "0123456789abcdef0123456789abcdef"}
        self.ranks = ranks
        self.write("proc/self/status", STATUS)
        self.write("proc/self/uid_map", "0 0 4294967295")
        self.write("proc/self/cgroup", "0::/")
        self.write("proc/meminfo", "MemTotal: 16000000 kB\nMemAvailable:    8000000 kB\n")
        self.write("proc/modules", "ext4 1 0 - Live 0x0\n")
        self.write("proc/sys/kernel/random/boot_id", BOOT_ID)
        self.write("proc/sys/kernel/yama/ptrace_scope", "0")
        for name in ("all", "default", "lo", "eth0"):
            self.write(f"proc/sys/net/ipv6/conf/{name}/disable_ipv6", "0")
        self.write("sys/kernel/mm/transparent_hugepage/shmem_enabled", "always within_size [advise] never deny force")
        self.write("sys/devices/system/node/node0/cpulist", "0-3")
        self.write("sys/devices/system/node/node0/distance", "10")
        for kind in ("net", "pid", "user", "ipc"):
            (root / "proc/self/ns").mkdir(exist_ok=True)
            (root / "proc/self/ns" / kind).symlink_to(f"{kind}:[4026531{len(kind)}]")
        (root / "dev").mkdir()

    def write(self, path: str, text: str) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
        return file

    def remove(self, path: str) -> None:
        (self.root / path).unlink()

    @property
    def roots(self) -> Roots:
        return Roots(
            sysfs=self.root / "sys",
            procfs=self.root / "proc",
            dev=self.root / "dev",
            env=dict(self.env),
            ranks=self.ranks,
            system=self.system,
        )

    def device(self, name: str = "mlx5_0", *, numa_node: int = 0, pci: bool = True, netdev: str = "") -> None:
        """An RDMA device with its uverbs file, and the PCI function behind it."""
        number = len(list((self.root / "sys/class/infiniband").glob("*")))
        folder = f"sys/class/infiniband/{name}"
        self.write(f"{folder}/board_id", "MT_0000000223")
        if pci:
            self.write(f"{folder}/device/vendor", "0x15b3")
            self.write(f"{folder}/device/numa_node", str(numa_node))
            for attribute, value in (("speed", "16.0 GT/s PCIe"), ("width", "16")):
                self.write(f"{folder}/device/current_link_{attribute}", value)
                self.write(f"{folder}/device/max_link_{attribute}", value)
            if netdev:
                (self.root / folder / "device/net" / netdev).mkdir(parents=True)
        self.write(f"sys/class/infiniband_verbs/uverbs{number}/ibdev", name)
        self.write(f"dev/infiniband/uverbs{number}", "")
        self.system.library = VerbsLibrary(
            self.system.library.path, self.system.library.version, tuple({*self.system.library.devices, name})
        )

    def port(self, device: str = "mlx5_0", number: int = 1, **texts: str) -> str:
        """A port; texts override what an active InfiniBand port shows. Returns its path below the root."""
        folder = f"sys/class/infiniband/{device}/ports/{number}"
        shown = {
            "link_layer": "InfiniBand",
            "state": "4: ACTIVE",
            "phys_state": "5: LinkUp",
            "rate": "100 Gb/sec (4X EDR)",
            "lid": "0x3",
            "sm_lid": "0x1",
        } | texts
        for name, text in shown.items():
            self.write(f"{folder}/{name}", text)
        return folder

    def roce_port(self, device: str = "mlx5_0", *, netdev: str = "eth2", mtu: int = 9000, **texts: str) -> str:
        """A RoCE port on a network interface, without GIDs."""
        folder = self.port(device, **({"link_layer": "Ethernet", "lid": "0x0", "sm_lid": "0x0"} | texts))
        self.write(f"sys/class/net/{netdev}/mtu", str(mtu))
        return folder

    def gid(self, port: str, index: int, gid: str, kind: str | None, netdev: str | None = "eth2") -> None:
        """A row of a port's GID table; kind None: its type cannot be read."""
        self.write(f"{port}/gids/{index}", gid)
        for attribute, text in (("types", kind), ("ndevs", netdev)):
            if text is None:
                # Reading a folder fails with EISDIR, as a real row does with EINVAL, for root, too.
                (self.root / port / "gid_attrs" / attribute / str(index)).mkdir(parents=True)
            else:
                self.write(f"{port}/gid_attrs/{attribute}/{index}", text)


def evidence(finding: Finding) -> str:
    """All lines of evidence as one text."""
    return "\n".join(f"{line.source}: {line.value}" for line in finding.evidence)


def in_child(body: Callable[[], Finding]) -> Finding:
    """Run ``body`` in a forked process, which may lower its limits or filter its calls; its finding."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answer: Mapping[str, Any] = body().as_dict()
        except BaseException:
            answer = {"raised": traceback.format_exc()}
        with os.fdopen(writer, "w") as file:
            json.dump(answer, file)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        answer = json.load(file)
    os.waitpid(pid, 0)
    assert "raised" not in answer, answer["raised"]
    return from_dict(answer)
