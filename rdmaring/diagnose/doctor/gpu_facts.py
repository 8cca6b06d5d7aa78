"""What CUDA's driver says of this machine, and what came of trying it: plain data, made in a child process.

The driver is asked in a process of its own: a peer copy through a faulty bridge can hang for ever, and an error
of a kernel stays with the process. Its answers are lines of JSON, so that what came before a hang is kept.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

LIBRARY = "libcuda.so.1"
PROBE_TIMEOUT_S = 60.0
PROBE_MODULE = "rdmaring.diagnose.doctor.gpu_probe"

# Attributes that are asked for: our name, and the driver's without CU_DEVICE_ATTRIBUTE_.
ATTRIBUTES = {
    "compute_mode": "COMPUTE_MODE",
    "unified_addressing": "UNIFIED_ADDRESSING",
    "memops_64": "CAN_USE_64_BIT_STREAM_MEM_OPS",
    "memops_nor": "CAN_USE_STREAM_WAIT_VALUE_NOR",
    "flush_remote_writes": "CAN_FLUSH_REMOTE_WRITES",
    "memory_pools": "MEMORY_POOLS_SUPPORTED",
    "gpu_direct_rdma": "GPU_DIRECT_RDMA_SUPPORTED",
    "gpu_direct_rdma_flush": "GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS",
    "gpu_direct_rdma_ordering": "GPU_DIRECT_RDMA_WRITES_ORDERING",
    "dma_buf": "DMA_BUF_SUPPORTED",
    "ipc_event": "IPC_EVENT_SUPPORTED",
}


@dataclass(frozen=True, slots=True)
class Gpu:
    """A device as the driver numbers it. pci: lower case, with domain. attributes: by the names of ATTRIBUTES."""

    ordinal: int
    name: str
    uuid: str
    pci: str
    capability: tuple[int, int]
    memory_bytes: int
    attributes: Mapping[str, int]

    @property
    def is_mig(self) -> bool:
        """A part of a device (multi-instance GPU); the driver says so in the name."""
        return " MIG " in f" {self.name} "

    @property
    def arch(self) -> int:
        """90 of compute capability 9.0."""
        return self.capability[0] * 10 + self.capability[1]

    def has(self, attribute: str) -> bool:
        return self.attributes.get(attribute, 0) > 0


@dataclass(frozen=True, slots=True)
class PeerPath:
    """Bytes written in one device's memory, copied by the other, read back. error: "" where they were the same.

    offered: cuDeviceCanAccessPeer; nothing is tried without.
    """

    reader: int
    owner: int
    offered: bool
    error: str


@dataclass(frozen=True, slots=True)
class Nvrtc:
    """The run-time compiler. archs: the compute capabilities it has code for, 90 for 9.0."""

    version: tuple[int, int] = (0, 0)
    archs: tuple[int, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """All of it; what was never reached is empty.

    library_error: why libcuda cannot be opened; "" where it can.
    binding, binding_error: version of cuda-python's bindings, or why they cannot be imported.
    driver_version: 13000 for 13.0, the newest CUDA that the driver serves.
    init_error: cuInit's, as "CUDA_ERROR_NO_DEVICE (100)"; "" where it worked.
    ipc, memops, dma_buf: by ordinal, the error of the attempt; "" where it worked.
    stuck: the step that did not end, and how; "" where all did.
    """

    library_error: str = ""
    binding: str = ""
    binding_error: str = ""
    driver_version: int = 0
    init_error: str = ""
    nvrtc: Nvrtc = field(default_factory=Nvrtc)
    gpus: tuple[Gpu, ...] = ()
    peers: tuple[PeerPath, ...] = ()
    ipc: Mapping[int, str] = field(default_factory=dict)
    memops: Mapping[int, str] = field(default_factory=dict)
    dma_buf: Mapping[int, str] = field(default_factory=dict)
    stuck: str = ""


def ask_driver(timeout_s: float = PROBE_TIMEOUT_S, module: str = PROBE_MODULE, library: str = LIBRARY) -> GpuFacts:
    """Ask the driver in a child process, which is ended if it takes longer than ``timeout_s``.

    Returns at once where there is no libcuda (``library``); ``module`` is what the child runs. Never
    raises for what the driver does.
    """
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return GpuFacts(library_error=str(error))
    child = subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # its own child goes with it
    )
    try:
        out, errors = child.communicate(timeout=timeout_s)
        end = _how_it_ended(child.returncode, errors)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        out, _ = child.communicate()
        end = f"did not end within {timeout_s:g} s"
    return decode_lines(out.splitlines(), end)


def _how_it_ended(code: int, errors: str) -> str:
    if code == 0:
        return ""
    last = errors.strip().splitlines()[-1:] or ["without a word"]
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}: {last[0]}"


def decode_lines(lines: Iterable[str], end: str) -> GpuFacts:
    """Facts out of the child's lines, each {"at": step} or {name: value}; ``end``: how it ended, "" for well."""
    values: dict[str, Any] = {}
    step = "start"
    for line in lines:
        try:
            fields = json.loads(line)
        except ValueError:
            continue  # the driver's own words on standard output, or a line that the end cut off
        if isinstance(fields, dict):
            step = fields.pop("at", step)
            for name, value in fields.items():
                _add(values, name, value)
    facts = GpuFacts(**values)
    return replace(facts, stuck=f"{step} {end}") if end else facts


def _add(values: dict[str, Any], name: str, value: Any) -> None:
    if name == "gpu":
        gpu = Gpu(**value | {"capability": tuple(value["capability"])})
        values["gpus"] = (*values.get("gpus", ()), gpu)
    elif name == "peer":
        values["peers"] = (*values.get("peers", ()), PeerPath(**value))
    elif name == "nvrtc":
        version, archs = tuple(value.pop("version", (0, 0))), tuple(value.pop("archs", ()))
        values["nvrtc"] = Nvrtc(version, archs, **value)
    elif name in ("ipc", "memops", "dma_buf"):
        ordinal, error = value
        values.setdefault(name, {})[ordinal] = error
    else:
        values[name] = value
