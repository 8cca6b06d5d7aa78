"""Devices as this process uses them: the primary context, which it shares with torch, cupy and JAX, and streams."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from rdmaring.cuda.driver import bindings, call, is_loaded
from rdmaring.errors import ArgumentError, ArgumentTypeError, CudaError
from rdmaring.single import Single

T = TypeVar("T")

log = logging.getLogger("rdmaring")
GONE = frozenset(("CUDA_ERROR_DEINITIALIZED", "CUDA_ERROR_CONTEXT_IS_DESTROYED"))  # at the program's end

_devices: dict[int, Device] = {}
_devices_lock = threading.Lock()


class Event(Single):
    """A mark in a stream, without a time."""

    __slots__ = ("__weakref__", "handle")

    def __init__(self, device: Device, flags: int = 0) -> None:
        """flags: beside CU_EVENT_DISABLE_TIMING. The device's context is current in what follows, as in streams."""
        timeless = bindings().CUevent_flags.CU_EVENT_DISABLE_TIMING.value
        with device.current():
            self.handle = call("cuEventCreate", timeless | flags)
        weakref.finalize(self, quietly, device, "cuEventDestroy", self.handle)

    def synchronize(self) -> None:
        """Wait on the host."""
        call("cuEventSynchronize", self.handle)


class Device(Single):
    """One GPU, its primary context retained until the program ends, and a stream of the library's own.

    stream: what orders the caller's arrays and copies of the library; it does not wait for the legacy stream.
    """

    def __init__(self, ordinal: int) -> None:
        """Raises CudaError: there is no such device, or no context on it."""
        count = call("cuDeviceGetCount")
        if not 0 <= ordinal < count:
            raise CudaError(
                f"there is no GPU {ordinal}: {count} are visible, counted from 0",
                hint="look at CUDA_VISIBLE_DEVICES, RDMARING_DEVICE and device=",
            )
        self.ordinal = ordinal
        self.handle = call("cuDeviceGet", ordinal)
        self.context = call("cuDevicePrimaryCtxRetain", self.handle)
        weakref.finalize(self, quietly, None, "cuDevicePrimaryCtxRelease", self.handle)
        with self.current():
            self.stream = call("cuStreamCreate", bindings().CUstream_flags.CU_STREAM_NON_BLOCKING.value)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Its context is the calling thread's inside; what was current before is so again behind it."""
        call("cuCtxPushCurrent", self.context)
        try:
            yield
        finally:
            call("cuCtxPopCurrent")

    def attribute(self, name: str) -> int:
        """A device attribute by its name, without CU_DEVICE_ATTRIBUTE_."""
        key = getattr(bindings().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(call("cuDeviceGetAttribute", key, self.handle))

    @property
    def name(self) -> str:
        return bytes(call("cuDeviceGetName", 256, self.handle)).split(b"\0")[0].decode("utf-8", "replace")

    @property
    def uuid(self) -> str:
        """32 hexadecimal digits."""
        return bytes(call("cuDeviceGetUuid", self.handle).bytes).hex()

    @property
    def compute_capability(self) -> tuple[int, int]:
        return self.attribute("COMPUTE_CAPABILITY_MAJOR"), self.attribute("COMPUTE_CAPABILITY_MINOR")

    def wait_for(self, stream: int) -> None:
        """What is put into our stream from now on runs behind what ``stream`` holds now. The host does not wait."""
        mark = Event(self)
        with self.current():
            call("cuEventRecord", mark.handle, bindings().CUstream(stream))
            call("cuStreamWaitEvent", self.stream, mark.handle, 0)

    def release_to(self, stream: int) -> None:
        """What is put into ``stream`` from now on runs behind what ours holds now. The host does not wait."""
        mark = Event(self)
        with self.current():
            call("cuEventRecord", mark.handle, self.stream)
            call("cuStreamWaitEvent", bindings().CUstream(stream), mark.handle, 0)

    def is_captured(self) -> bool:
        """Whether our stream is in a capture: it waits for a stream that a user captures."""
        with self.current():
            return bool(int(call("cuStreamIsCapturing", self.stream)))

    def synchronize(self) -> None:
        """Wait on the host for our stream."""
        with self.current():
            call("cuStreamSynchronize", self.stream)


def device(ordinal: int) -> Device:
    """The one object of that GPU in this process."""
    with _devices_lock:
        found = _devices.get(ordinal)
        if found is None:
            bindings()  # says what is missing, or that this is a fork's child
            found = _devices[ordinal] = Device(ordinal)
        return found


class PerDevice(Generic[T]):
    """One object of a kind for each GPU of this process, made when it is first asked for; any thread may ask."""

    def __init__(self, make: Callable[[Device], T]) -> None:
        self._make = make
        self._found: dict[int, T] = {}
        self._lock = threading.Lock()

    def __call__(self, device: Device) -> T:
        with self._lock:
            if device.ordinal not in self._found:
                self._found[device.ordinal] = self._make(device)
            return self._found[device.ordinal]


def any_device() -> Device:
    """In whose context to ask what depends on none: one in use, else the thread's current one, else the first."""
    with _devices_lock:
        found = next(iter(_devices.values()), None)
    if found is not None:
        return found
    bindings()
    return device(int(call("cuCtxGetDevice")) if int(call("cuCtxGetCurrent")) else 0)


def quietly(device: Device | None, name: str, *arguments: Any) -> None:
    """A call that gives something back, from a finalizer, which nobody could catch an error of: it is logged."""
    if not is_loaded():  # a child of the process that has it
        return
    try:
        if device is None:
            call(name, *arguments)
            return
        with device.current():
            call(name, *arguments)
    except CudaError as error:
        if error.driver_error not in GONE:
            log.warning("%s", error)


def ordinal_of(given: object, local_rank: int, wished: int | None) -> int:
    """Which GPU ``device=`` names.

    given: "cuda", "cuda:1", 1, or an object with ``index`` or ``id`` as torch and cupy have it. "cuda" is the GPU
        ``wished`` (RDMARING_DEVICE), else the one of the rank's number on its node, modulo the number of GPUs.

    Raises:
        ArgumentError, ArgumentTypeError: it names none.
    """
    if isinstance(given, bool) or given is None:
        raise ArgumentTypeError(f"device is {given!r}; accepted are 'cuda', 'cuda:0' and so on, or a number")
    for attribute in ("index", "id"):
        number = getattr(given, attribute, None)
        if not isinstance(given, (int, str)) and isinstance(number, int):
            return number
    text = str(given)
    if text == "cuda":
        return wished if wished is not None else local_rank % max(1, int(call("cuDeviceGetCount")))
    number_text = text.removeprefix("cuda:")
    if not number_text.isascii() or not number_text.isdigit():
        raise ArgumentError(f"device is {given!r}; accepted are 'cuda', 'cuda:0' and so on, or a number")
    return int(number_text)
