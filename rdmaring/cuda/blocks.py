"""The block of GPU memory that ranks of a node share for a communicator's lists: slots and flags.

Each rank makes one and opens those of the others. An owner may free its block only when all have closed it, and they
close it when they like: so each owner has a page of one byte a rank beside it, a memfd that the others open by its
place in /proc, and set when they have closed. Blocks of communicators that are closed wait here until that is so, or
the others are gone.

The flags may lie in that memfd, too, behind the bytes: then the host can release a stream's waits by a store, where in
GPU memory another stream must, for which the driver may have no hardware queue that does not wait itself.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import mmap
import os
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass

from rdmaring._native import check, ffi, lib
from rdmaring.cuda.context import Device, PerDevice
from rdmaring.cuda.driver import bindings, call, is_loaded
from rdmaring.cuda.ipc import RECORD_BYTES, Opened, Place, export, start_time
from rdmaring.cuda.memory import BLOCK_BYTES
from rdmaring.errors import ArgumentError, CudaError
from rdmaring.single import Single

log = logging.getLogger("rdmaring")
BUDGET_BYTES = 64 << 20  # of one block: more ranks get fewer, then smaller slots
SLOT_BYTES_MIN = 64 << 10
LAST_WAIT_S = 1.0  # at the program's end, for ranks that are late to close

CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"  # the driver's: hardware queues of a process
PLACES = ("device", "host")

opened = PerDevice(Opened)


def choose_flags_place(channels: int) -> str:
    """Where this process puts its flags, of PLACES. Raises ArgumentError: RDMARING_CUDA_FLAGS is none of them."""
    chosen = os.environ.get("RDMARING_CUDA_FLAGS")
    if chosen:
        if chosen not in PLACES:
            raise ArgumentError(f"RDMARING_CUDA_FLAGS is {chosen!r}; accepted are 'device' and 'host'")
        return chosen
    queues = os.environ.get(CONNECTIONS, "")
    streams = 2 * channels + 2  # the lists', the one that releases their waits, and the caller's
    return "host" if queues.isdecimal() and 0 < int(queues) < streams else "device"


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

    @property
    def flag_bytes(self) -> int:
        return int(lib.rr_cuda_block_flag_bytes(self.native()))


def geometry(world: int, channels: int, slot_count: int, slot_bytes: int) -> Geometry:
    """What is wished for, made smaller until it fits."""
    found = Geometry(world, channels, slot_count, slot_bytes)
    while found.nbytes > BUDGET_BYTES and found.slot_count > 2:
        found = Geometry(world, channels, found.slot_count // 2, slot_bytes)
    while found.nbytes > BUDGET_BYTES and found.slot_bytes > SLOT_BYTES_MIN:
        found = Geometry(world, channels, found.slot_count, found.slot_bytes // 2 // 4096 * 4096)
    return found


def _round_up(nbytes: int) -> int:
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE


class Page(Single):
    """The memfd of a block as one process has it mapped: bytes of who has closed the block, and flags if they are here.

    flags, address: of the flags, for the host and for the GPU; 0: they are in GPU memory.
    """

    def __init__(self, device: Device, fd: int, sizes: Geometry, place: str) -> None:
        """Raises CudaError: the driver does not map it."""
        self._device = device
        self._map = mmap.mmap(fd, 0)
        self.flags = self.address = 0
        if place == "host":
            begin = ctypes.addressof(ctypes.c_char.from_buffer(self._map)) + _round_up(sizes.world)
            flags = bindings().CU_MEMHOSTREGISTER_PORTABLE | bindings().CU_MEMHOSTREGISTER_DEVICEMAP
            with device.current():
                call("cuMemHostRegister", begin, _round_up(sizes.flag_bytes), flags)
                self.flags = begin
                self.address = int(call("cuMemHostGetDevicePointer", begin, 0))

    @staticmethod
    def size(sizes: Geometry, place: str) -> int:
        """Bytes of the memfd."""
        return _round_up(sizes.world) + (_round_up(sizes.flag_bytes) if place == "host" else 0)

    def is_closed_by(self, rank: int) -> bool:
        return bool(self._map[rank])

    def set_closed(self, rank: int) -> None:
        self._map[rank] = 1

    def release(self) -> None:
        """No stream touches the flags any more."""
        if self.flags:
            with self._device.current():
                call("cuMemHostUnregister", self.flags)
            self.flags = self.address = 0


class Block(Single):
    """This rank's own. It is freed by ``bury``, not by the garbage collector: others may have it open."""

    def __init__(self, device: Device, sizes: Geometry, flags_place: str, table: object) -> None:
        """table: rr_cuda. Raises CudaError, DeviceError: there is no room, or it cannot be shared."""
        self.sizes = sizes
        self.flags_place = flags_place
        held = max(1, -(-sizes.nbytes // BLOCK_BYTES)) * BLOCK_BYTES
        with ExitStack() as undo:
            self._fd = os.memfd_create("rdmaring-closed", os.MFD_CLOEXEC)
            undo.callback(os.close, self._fd)
            os.ftruncate(self._fd, Page.size(sizes, flags_place))
            self.page = Page(device, self._fd, sizes, flags_place)
            undo.callback(self.page.release)
            with device.current():
                handle = call("cuMemAlloc", held)
            undo.callback(_free_memory, device, handle)
            self.address = int(handle)
            context = ffi.cast("void *", int(device.context))
            check(lib.rr_cuda_block_reset(table, context, sizes.native(), self.address))
            self.place = export(device, self.address, sizes.nbytes)
            self.free = undo.pop_all().close

    def told(self) -> str:
        """What the others open it by."""
        return f"{self._fd} {self.flags_place} {self.place.pack().hex()}"


def _free_memory(device: Device, handle: object) -> None:
    with device.current():
        call("cuMemFree", handle)


def told_flags_place(told: str) -> str:
    """Of PLACES."""
    return told.split(" ")[1]


class Theirs(Single):
    """A peer's block, open here. address: in this process."""

    def __init__(self, device: Device, told: str, rank: int, sizes: Geometry) -> None:
        """rank: ours. Raises CudaError, OSError: it cannot be opened; ValueError: ``told`` is none."""
        fd, where, raw = (*told.split(" "), "", "")[:3]
        if where not in PLACES or len(raw) != 2 * RECORD_BYTES:
            raise ValueError(f"no block: {told[:80]!r}")
        self.place = Place.unpack(bytes.fromhex(raw))
        self._device, self._rank = device, rank
        with open(f"/proc/{self.place.pid}/fd/{int(fd)}", "r+b") as file:
            self.page = Page(device, file.fileno(), sizes, where)
        try:
            self.address = opened(device).address_of(self.place)
        except CudaError:
            self.page.release()
            raise

    def close(self) -> None:
        """Nothing of ours touches it any more."""
        opened(self._device).close_place(self.place)
        self.page.release()
        self.page.set_closed(self._rank)


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
                if block.page.is_closed_by(rank) or not _lives(pid, start):
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
