"""Run the real kernels on arrays of the host, without a driver: addresses are invented, translated and checked."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from cuda_sim import build_shim

Array = npt.NDArray[Any]

SOURCES_MAX = TARGETS_MAX = 9
POST, WIDE = 1, 2
FIRST_ADDRESS = 0x7F00_0000_0000
GAP_BYTES = 1 << 21


class Combine(ctypes.Structure):
    """struct rr_cuda_combine."""

    _fields_ = (
        ("src", ctypes.c_uint64 * SOURCES_MAX),
        ("dst", ctypes.c_uint64 * TARGETS_MAX),
        ("count", ctypes.c_uint64),
        ("factor", ctypes.c_double),
        ("src_count", ctypes.c_uint32),
        ("dst_count", ctypes.c_uint32),
        ("wide_sources", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
    )


class View(ctypes.Structure):
    _fields_ = (("begin", ctypes.c_uint64), ("end", ctypes.c_uint64), ("host", ctypes.c_void_p))


class Fault(ctypes.Structure):
    _fields_ = (
        ("address", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("writes", ctypes.c_bool),
        ("block", ctypes.c_uint),
        ("thread", ctypes.c_uint),
    )


NOTE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_bool)


class Memory(ctypes.Structure):
    _fields_ = (("view", ctypes.c_void_p), ("note", NOTE), ("user", ctypes.c_void_p))


class Kernel(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("parameter_bytes", ctypes.c_size_t))


class GpuFault(Exception):
    """What a launch died of: 700 (nobody has the address), 716 (no multiple of the access's size)."""

    def __init__(self, number: int, fault: Fault) -> None:
        super().__init__(f"{number} at {fault.address:#x}, {fault.bytes} bytes, writes: {fault.writes}")
        self.number, self.address, self.bytes, self.writes = number, fault.address, fault.bytes, fault.writes


@dataclass
class Launch:
    """What one launch did: ranges [begin, end) of invented addresses, and where each array lay."""

    address_of: dict[int, int]
    reads: list[tuple[int, int]] = field(default_factory=list)
    writes: list[tuple[int, int]] = field(default_factory=list)


class Library:
    """The kernels, compiled for the CPU."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(str(build_shim.library()))
        self.library.shim_find.restype = ctypes.POINTER(Kernel)
        self.view = ctypes.cast(self.library.shim_view_listed, ctypes.c_void_p)

    def parameter_bytes(self, name: str) -> int | None:
        """None: there is no such kernel."""
        kernel = self.library.shim_find(name.encode())
        return int(kernel.contents.parameter_bytes) if kernel else None

    def run(
        self,
        name: str,
        destinations: Sequence[Array],
        sources: Sequence[Array],
        count: int,
        *,
        factor: float | None = None,
        wide_sources: int = 0,
        wide: bool = False,
        grid: int = 2,
        block: int = 4,
        note: bool = False,
    ) -> Launch:
        """One launch. An array's place below a multiple of 16 bytes is that of its memory.

        Raises:
            GpuFault: an access outside of all arrays, or one that is not aligned.
        """
        combine = Combine(count=count, src_count=len(sources), dst_count=len(destinations), wide_sources=wide_sources)
        combine.flags = (WIDE if wide else 0) | (0 if factor is None else POST)
        combine.factor = float("nan") if factor is None else factor  # without POST nobody looks at it
        launch = Launch({})
        views: list[View] = []
        for array in [*sources, *destinations]:
            host = array.ctypes.data
            if host not in launch.address_of:
                address = FIRST_ADDRESS + len(views) * GAP_BYTES + host % 16
                launch.address_of[host] = address
                views.append(View(address, address + array.nbytes, host))
        for index, array in enumerate(sources):
            combine.src[index] = launch.address_of[array.ctypes.data]
        for index, array in enumerate(destinations):
            combine.dst[index] = launch.address_of[array.ctypes.data]
        self._launch(name, combine, views, launch if note else None, grid, block)
        return launch

    def _launch(
        self, name: str, combine: Combine, views: list[View], launch: Launch | None, grid: int, block: int
    ) -> None:
        def noted(_user: int, address: int, nbytes: int, writes: bool) -> None:
            assert launch is not None
            (launch.writes if writes else launch.reads).append((address, address + nbytes))

        table = (View * (len(views) + 1))(*views)
        memory = Memory(self.view, NOTE(noted) if launch else NOTE(), ctypes.cast(table, ctypes.c_void_p))
        fault = Fault()
        kernel = self.library.shim_find(name.encode())
        assert kernel, f"no kernel {name}"
        grids, blocks = ((ctypes.c_uint * 3)(size, 1, 1) for size in (grid, block))
        pointers = map(ctypes.byref, (combine, memory, fault))
        outcome = self.library.shim_run(kernel, grids, blocks, *pointers)
        if outcome:
            raise GpuFault(outcome, fault)


EDGE_BYTES = 64
EDGE = 0xA5


def placed(values: Array, offset_bytes: int = 0) -> Array:
    """A copy of ``values`` that begins ``offset_bytes`` beyond a multiple of 16, with EDGE_BYTES of EDGE around it."""
    around = np.full(values.nbytes + 2 * EDGE_BYTES + 16, EDGE, np.uint8)
    begin = EDGE_BYTES + (offset_bytes - around.ctypes.data - EDGE_BYTES) % 16
    array = around[begin : begin + values.nbytes].view(values.dtype)
    array[...] = values
    return array


def edges_are_intact(array: Array) -> bool:
    """Whether the bytes around an array of placed() are as they were."""
    around = array
    while isinstance(around.base, np.ndarray):
        around = around.base
    begin = array.ctypes.data - around.ctypes.data
    return bool(np.all(around[:begin] == EDGE) and np.all(around[begin + array.nbytes :] == EDGE))
