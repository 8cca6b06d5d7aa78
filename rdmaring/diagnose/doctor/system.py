"""The calls of the operating system that checks make; a test overrides the one that it fakes."""

from __future__ import annotations

import ctypes
import os
import resource
from functools import cached_property
from pathlib import Path

from rdmaring.diagnose.doctor.clock import ClockStatus, clock_status
from rdmaring.diagnose.doctor.cross_memory import CrossMemory, probe_cross_memory
from rdmaring.diagnose.doctor.gpu_facts import GpuFacts, ask_driver
from rdmaring.diagnose.doctor.interfaces import Address, addresses, interface_mtu
from rdmaring.diagnose.doctor.texts import UNLIMITED
from rdmaring.diagnose.doctor.verbs_library import VerbsLibrary, open_verbs_library

PR_GET_DUMPABLE = 3


class System:
    """The machine as it is."""

    def rlimit(self, name: str) -> tuple[int, int]:
        """Soft and hard limit, such as of "RLIMIT_MEMLOCK"; infinity is UNLIMITED."""
        soft, hard = resource.getrlimit(getattr(resource, name))
        return (
            UNLIMITED if soft == resource.RLIM_INFINITY else soft,
            UNLIMITED if hard == resource.RLIM_INFINITY else hard,
        )

    def affinity(self) -> set[int]:
        """The CPUs this process may run on."""
        return set(os.sched_getaffinity(0))

    def open_device(self, path: Path) -> None:
        """Open for reading and writing, and close again. Raises OSError; only opening meets a device cgroup."""
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))

    def make_memfd(self, count: int) -> None:
        """Make a memfd, allocate ``count`` bytes in it, and let it go. Raises OSError."""
        descriptor = os.memfd_create("rdmaring-doctor", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(descriptor, 0, count)
        finally:
            os.close(descriptor)

    def is_dumpable(self) -> bool:
        """Whether processes of the same user may read this one's memory at all."""
        return bool(ctypes.CDLL(None).prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) == 1)

    def cross_memory(self) -> CrossMemory:
        return probe_cross_memory()

    def clock(self) -> ClockStatus:
        return clock_status()

    def verbs_library(self, name: str) -> VerbsLibrary:
        return open_verbs_library(name)

    @cached_property
    def _gpu(self) -> GpuFacts:
        return ask_driver()

    def gpu(self) -> GpuFacts:
        """What CUDA's driver says, and what came of trying it, in a child process; asked once."""
        return self._gpu

    def addresses(self) -> list[Address]:
        return addresses()

    def mtu(self, interface: str) -> int:
        return interface_mtu(interface)

    def user(self) -> int:
        return os.geteuid()
