"""GPU memory of our own, pinned host memory, and what can be done with a range of the caller's."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np

from rdmaring.cuda.context import Device, Event, PerDevice, quietly
from rdmaring.cuda.driver import bindings, call
from rdmaring.errors import CudaError
from rdmaring.single import Single

# IPC shares whole blocks of this size, and the driver puts smaller allocations into one block: a handle of such
# a one would show the peer its neighbours, too.
BLOCK_BYTES = 2 << 20
STAGE_BYTES = 1 << 20  # of a slice of pinned memory: large enough for a copy engine, small enough to overlap
STAGE_COUNT = 4


class Allocation(Single):
    """GPU memory, freed when nobody holds this any more; zeroed.

    nbytes: what was asked for; the driver holds a multiple of 2 MiB, so that it may be shared by IPC.
    """

    __slots__ = ("__weakref__", "address", "device", "nbytes")

    def __init__(self, device: Device, nbytes: int) -> None:
        """Raises CudaError: there is no room."""
        held = max(1, -(-nbytes // BLOCK_BYTES)) * BLOCK_BYTES
        with device.current():
            handle = call("cuMemAlloc", held)
            weakref.finalize(self, quietly, device, "cuMemFree", handle)
            call("cuMemsetD8Async", handle, 0, held, device.stream)
        device.synchronize()
        self.address = int(handle)
        self.device = device
        self.nbytes = nbytes


class Pinned(Single):
    """Host memory that a GPU reads and writes by itself.

    array: its bytes. It is freed with this object, not with the array.
    """

    __slots__ = ("__weakref__", "address", "array")

    def __init__(self, device: Device, nbytes: int) -> None:
        """Raises CudaError: the system has no such memory left."""
        with device.current():
            flags = bindings().CU_MEMHOSTALLOC_PORTABLE | bindings().CU_MEMHOSTALLOC_DEVICEMAP
            address = call("cuMemHostAlloc", nbytes, flags)
        self.address = int(address)
        self.array = bytes_at(self.address, nbytes)
        weakref.finalize(self, quietly, device, "cuMemFreeHost", address)


def bytes_at(address: int, nbytes: int) -> np.ndarray[Any, Any]:
    """Host memory as an array, which does not keep it."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


@dataclass(frozen=True, slots=True)
class Capability:
    """Whether peers can open an allocation by its handle; reason: why not."""

    ipc: bool
    reason: str = ""


def pointer_attribute(where: Device, address: int, name: str) -> Any:
    """An attribute of an address by its name, without CU_POINTER_ATTRIBUTE_; asked in that device's context.

    Raises:
        CudaError: CUDA_ERROR_INVALID_VALUE: the driver does not know the address.
    """
    key = getattr(bindings().CUpointer_attribute, f"CU_POINTER_ATTRIBUTE_{name}")
    with where.current():
        return call("cuPointerGetAttribute", key, address)


def range_of(device: Device, address: int) -> tuple[int, int]:
    """Address and bytes of the allocation that holds ``address``: what an IPC handle names."""
    with device.current():
        base, nbytes = call("cuMemGetAddressRange", address)
    return int(base), int(nbytes)


def device_capability(device: Device, attributes: dict[str, int] | None = None) -> Capability:
    """Of any memory of this GPU; attributes: for tests."""
    found = attributes if attributes is not None else {"INTEGRATED": device.attribute("INTEGRATED")}
    if os.environ.get("RDMARING_CUDA_IPC", "1") == "0":
        return Capability(False, "RDMARING_CUDA_IPC=0")
    if " MIG " in f" {device.name} ":
        return Capability(False, f"{device.name} is a MIG instance, which has no CUDA IPC")
    if found["INTEGRATED"]:
        return Capability(False, f"{device.name} is integrated: it has no CUDA IPC")
    return Capability(True)


def memory_capability(device: Device, address: int, nbytes: int) -> Capability:
    """Of the allocation that holds [address, address + nbytes)."""
    try:
        legacy = bool(pointer_attribute(device, address, "IS_LEGACY_CUDA_IPC_CAPABLE"))
    except CudaError as error:
        return Capability(False, str(error))
    if not legacy:
        return Capability(False, _unshared(device, address))
    base, held = range_of(device, address)
    if address + nbytes > base + held:
        return Capability(False, "it spans several allocations")
    if held % BLOCK_BYTES:
        return Capability(False, f"its allocation of {held} bytes shares a block of 2 MiB with others")
    return Capability(True)


def _unshared(device: Device, address: int) -> str:
    try:
        pool = int(pointer_attribute(device, address, "MEMPOOL_HANDLE") or 0)
    except CudaError:
        pool = 0
    if pool:
        return "it comes from a memory pool (cudaMallocAsync), which has no legacy IPC handles"
    return "it is virtual memory of cuMemCreate (in torch: expandable_segments:True), which has no legacy IPC handles"


class Staging:
    """Copies between host arrays and GPU memory through a few slices of pinned memory.

    While the GPU moves one slice, the processor copies the next. One object a device; any thread may use it.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._slices = [(Pinned(device, STAGE_BYTES), Event(device)) for _ in range(STAGE_COUNT)]

    def upload(self, address: int, source: np.ndarray[Any, Any]) -> None:
        """Copy bytes to GPU memory in our stream. ``source`` may be changed when this returns."""
        with self._lock, self._device.current():
            for turn, begin in enumerate(range(0, source.nbytes, STAGE_BYTES)):
                pinned, event = self._slices[turn % STAGE_COUNT]
                part = source[begin : begin + STAGE_BYTES]
                if turn >= STAGE_COUNT:
                    event.synchronize()
                pinned.array[: part.size] = part
                call("cuMemcpyHtoDAsync", address + begin, pinned.address, part.size, self._device.stream)
                call("cuEventRecord", event.handle, self._device.stream)
            call("cuStreamSynchronize", self._device.stream)  # the slices are the next caller's

    def download(self, target: np.ndarray[Any, Any], address: int) -> None:
        """Copy bytes from GPU memory, behind what our stream holds; they are there when this returns."""
        begins = list(range(0, target.nbytes, STAGE_BYTES))
        with self._lock, self._device.current():
            for turn in range(len(begins) + STAGE_COUNT - 1):
                if turn < len(begins):
                    pinned, event = self._slices[turn % STAGE_COUNT]
                    size = min(STAGE_BYTES, target.nbytes - begins[turn])
                    call("cuMemcpyDtoHAsync", pinned.address, address + begins[turn], size, self._device.stream)
                    call("cuEventRecord", event.handle, self._device.stream)
                done = turn - (STAGE_COUNT - 1)
                if 0 <= done:
                    pinned, event = self._slices[done % STAGE_COUNT]
                    event.synchronize()
                    part = target[begins[done] : begins[done] + STAGE_BYTES]
                    part[:] = pinned.array[: part.size]


staging = PerDevice(Staging)
