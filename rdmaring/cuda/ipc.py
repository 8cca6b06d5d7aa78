"""Memory of one process used by another: legacy IPC handles.

A handle names the allocation's base, so what travels is handle and offset. A process opens an allocation once: what is
open is known by the owner's pid and start time (a pid may come again) and the driver's buffer id (an address may come
again). Rules of closing, as the driver leaves it open what happens otherwise: the importer closes before the owner
frees; so memory of ours is freed behind a barrier after all have closed, and an allocation that its owner has replaced
by another at the same place is closed when the other is opened.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from dataclasses import dataclass

from rdmaring.cuda.context import Device
from rdmaring.cuda.driver import bindings, call
from rdmaring.cuda.memory import pointer_attribute, range_of
from rdmaring.errors import CudaError

HANDLE_BYTES = 64
_LAYOUT = struct.Struct("<qQQQQQ")  # pid, start, buffer id, base, offset, bytes
RECORD_BYTES = _LAYOUT.size + HANDLE_BYTES


def start_time(pid: int | str = "self") -> int:
    """When a process began, in ticks since the boot."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


def pid_namespace() -> str:
    """Of this process; handles do not pass between different ones. "" where it cannot be read."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class Place:
    """A range of GPU memory as its owner tells it. base: the allocation's address there; offset: of the range in it."""

    pid: int
    start: int
    buffer_id: int
    base: int
    offset: int
    nbytes: int
    handle: bytes

    def pack(self) -> bytes:
        numbers = _LAYOUT.pack(self.pid, self.start, self.buffer_id, self.base, self.offset, self.nbytes)
        return numbers + self.handle

    @classmethod
    def unpack(cls, record: bytes) -> Place:
        """Raises ValueError: it has another length."""
        if len(record) != RECORD_BYTES:
            raise ValueError(f"a place has {RECORD_BYTES} bytes, not {len(record)}")
        pid, start, buffer_id, base, offset, nbytes = _LAYOUT.unpack_from(record)
        return cls(pid, start, buffer_id, base, offset, nbytes, record[_LAYOUT.size :])


def export(device: Device, address: int, nbytes: int) -> Place:
    """Raises CudaError: the memory cannot be shared; see memory.memory_capability() for why."""
    base, held = range_of(device, address)
    if address + nbytes > base + held:
        raise CudaError(
            f"{nbytes} bytes at {address:#x} span several allocations, of which a handle names one",
            hint="give an array inside one allocation: comm.empty() makes one",
        )
    with device.current():
        handle = call("cuIpcGetMemHandle", base)
    raw = ctypes.string_at(handle.getPtr(), HANDLE_BYTES)  # the bindings show no other way to its bytes
    buffer_id = int(pointer_attribute(device, base, "BUFFER_ID"))
    return Place(os.getpid(), start_time(), buffer_id, base, address - base, nbytes, raw)


class Opened:
    """What this process has open on one device. Any thread may use it."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._open: dict[tuple[int, int, int], tuple[int, int]] = {}  # pid, start, base -> buffer id, address here
        self._self = (os.getpid(), start_time())

    def address_of(self, place: Place) -> int:
        """Where the range lies in this process; opens its allocation if it is not open.

        Raises:
            CudaError: the driver refuses: no peer access, too many peers, another PID namespace, the owner is gone.
        """
        if (place.pid, place.start) == self._self:  # the driver does not open a process's own handles
            return place.base + place.offset
        key = (place.pid, place.start, place.base)
        with self._lock:
            buffer_id, address = self._open.get(key, (None, 0))
            if buffer_id != place.buffer_id:
                if buffer_id is not None:  # the owner has freed it, and got the address again
                    del self._open[key]
                    self._close(address)
                address = self._call_open(place)
                self._open[key] = (place.buffer_id, address)
        return address + place.offset

    def _call_open(self, place: Place) -> int:
        handle = bindings().CUipcMemHandle()
        ctypes.memmove(handle.getPtr(), place.handle, HANDLE_BYTES)
        flags = bindings().CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS.value
        with self._device.current():
            return int(call("cuIpcOpenMemHandle", handle, flags))

    def _close(self, address: int) -> None:
        with self._device.current():
            call("cuIpcCloseMemHandle", address)

    def close_place(self, place: Place) -> None:
        """Close the allocation of a range, if it is open: no other range of it is in use."""
        with self._lock:
            buffer_id, address = self._open.get((place.pid, place.start, place.base), (None, 0))
            if buffer_id == place.buffer_id:
                del self._open[place.pid, place.start, place.base]
                self._close(address)

    def close_process(self, pid: int, start: int) -> None:
        """Close all of one owner: before it is told that it may free."""
        with self._lock:
            for key in [key for key in self._open if key[:2] == (pid, start)]:
                self._close(self._open.pop(key)[1])

    def close(self) -> None:
        """Close all."""
        with self._lock:
            while self._open:
                self._close(self._open.popitem()[1][1])

    def __len__(self) -> int:
        return len(self._open)
