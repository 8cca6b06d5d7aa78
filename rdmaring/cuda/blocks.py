"""The block of GPU memory that ranks of a node share for a communicator's lists: slots and flags.

Each rank makes one and opens those of the others. An owner may free its block only when all have closed it, and they
close it when they like: so each owner has a page of one byte a rank beside it, a memfd that the others open by its
place in /proc, and set when they have closed. Blocks of communicators that are closed wait here until that is so, or
the others are gone.
"""

from __future__ import annotations

import atexit
import logging
import mmap
import os
import threading
import time
from dataclasses import dataclass

from rdmaring._native import check, ffi, lib
from rdmaring.cuda.context import Device, PerDevice
from rdmaring.cuda.driver import call, is_loaded
from rdmaring.cuda.ipc import RECORD_BYTES, Opened, Place, export, start_time
from rdmaring.cuda.memory import BLOCK_BYTES
from rdmaring.errors import CudaError

log = logging.getLogger("rdmaring")
BUDGET_BYTES = 64 << 20  # of one block: more ranks get fewer, then smaller slots
SLOT_BYTES_MIN = 64 << 10
LAST_WAIT_S = 1.0  # at the program's end, for ranks that are late to close

opened = PerDevice(Opened)


@dataclass(frozen=True, slots=True)
class Geometry:
    """As of rr_cuda_block; equal on all ranks."""

    world: int
    channels: int
    slot_count: int
    slot_bytes: int

    def native(self) -> object:
        """rr_cuda_block."""
        sizes = {"world": self.world, "channels": self.channels}
        return ffi.new("rr_cuda_block *", {**sizes, "slot_count": self.slot_count, "slot_bytes": self.slot_bytes})

    @property
    def nbytes(self) -> int:
        return int(lib.rr_cuda_block_bytes(self.native()))


def geometry(world: int, channels: int, slot_count: int, slot_bytes: int) -> Geometry:
    """What is wished for, made smaller until it fits."""
    found = Geometry(world, channels, slot_count, slot_bytes)
    while found.nbytes > BUDGET_BYTES and found.slot_count > 2:
        found = Geometry(world, channels, found.slot_count // 2, slot_bytes)
    while found.nbytes > BUDGET_BYTES and found.slot_bytes > SLOT_BYTES_MIN:
        found = Geometry(world, channels, found.slot_count, found.slot_bytes // 2 // 4096 * 4096)
    return found


class Block:
    """This rank's own. It is freed by ``bury``, not by the garbage collector: others may have it open."""

    def __init__(self, device: Device, sizes: Geometry, table: object) -> None:
        """table: rr_cuda. Raises CudaError, DeviceError: there is no room, or it cannot be shared."""
        self.device = device
        self.sizes = sizes
        held = max(1, -(-sizes.nbytes // BLOCK_BYTES)) * BLOCK_BYTES
        with device.current():
            self._handle = call("cuMemAlloc", held)
        self.address = int(self._handle)
        self._fd = os.memfd_create("rdmaring-closed", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self._fd, sizes.world)
            self._closed = mmap.mmap(self._fd, sizes.world)
            context = ffi.cast("void *", int(device.context))
            check(lib.rr_cuda_block_reset(table, context, sizes.native(), self.address))
            self.place = export(device, self.address, sizes.nbytes)
        except BaseException:
            self.free()
            raise

    def told(self) -> str:
        """What the others open it by."""
        return f"{self._fd} {self.place.pack().hex()}"

    def is_closed_by(self, rank: int) -> bool:
        return bool(self._closed[rank])

    def free(self) -> None:
        with self.device.current():
            call("cuMemFree", self._handle)
        os.close(self._fd)


class Theirs:
    """A peer's block, open here. address: in this process."""

    def __init__(self, device: Device, told: str, rank: int) -> None:
        """rank: ours. Raises CudaError, OSError: it cannot be opened; ValueError: ``told`` is none."""
        fd, _, raw = told.partition(" ")
        if len(raw) != 2 * RECORD_BYTES:
            raise ValueError(f"no block: {told[:80]!r}")
        self.place = Place.unpack(bytes.fromhex(raw))
        self._device, self._rank = device, rank
        with open(f"/proc/{self.place.pid}/fd/{int(fd)}", "r+b") as file:
            self._closed = mmap.mmap(file.fileno(), 0)
        self.address = opened(device).address_of(self.place)

    def close(self) -> None:
        """Nothing of ours touches it any more."""
        opened(self._device).close_place(self.place)
        self._closed[self._rank] = 1


# ---- blocks that wait for others ----

_buried: list[tuple[Block, dict[int, tuple[int, int]]]] = []  # and who has not closed it: rank -> pid, start time
_buried_lock = threading.Lock()


def bury(block: Block, others: dict[int, tuple[int, int]]) -> None:
    """Free a block that is of no more use here, once the others have closed it. others: rank -> pid, start time."""
    with _buried_lock:
        _buried.append((block, others))
    sweep()


def sweep() -> int:
    """Free what can be freed; how many blocks are left."""
    with _buried_lock:
        for entry in list(_buried):
            block, others = entry
            for rank, (pid, start) in list(others.items()):
                if block.is_closed_by(rank) or not _lives(pid, start):
                    del others[rank]
            if not others:
                _buried.remove(entry)
                _free(block)
        return len(_buried)


def _free(block: Block) -> None:
    try:
        block.free()
    except CudaError as error:
        log.warning("a block of GPU memory could not be freed: %s", error)


def _lives(pid: int, start: int) -> bool:
    try:
        return start_time(pid) == start
    except OSError:
        return False


def _last_sweep() -> None:
    end = time.monotonic() + LAST_WAIT_S
    while is_loaded() and sweep() and time.monotonic() < end:
        time.sleep(0.005)


atexit.register(_last_sweep)
