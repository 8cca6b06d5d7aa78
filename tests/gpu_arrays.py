"""Arrays in GPU memory as other packages give them, made of the driver alone: neither torch nor cupy is needed.

For programs that ranks run under the simulated driver. Each kind follows the protocol of the package that it stands
for, with a stream of its own, on which its work is late: whoever does not wait for it reads what was there before.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rdmaring.cuda import dlpack
from rdmaring.cuda.array import DeviceArray
from rdmaring.cuda.context import Device, device
from rdmaring.cuda.driver import bindings, call
from rdmaring.cuda.memory import Pinned

LATE_STEPS = 12  # small copies before the one that counts: the simulated driver delays some of them


class Producer:
    """A stream of a user's, and pinned memory that its copies read."""

    def __init__(self, ordinal: int = 0) -> None:
        self.device: Device = device(ordinal)
        with self.device.current():
            self.stream = call("cuStreamCreate", bindings().CUstream_flags.CU_STREAM_NON_BLOCKING.value)
        self.keep: list[Any] = []

    def fill(self, address: int, value: np.ndarray[Any, Any]) -> None:
        """Have `value` there some time later."""
        raw = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        pinned = Pinned(self.device, max(1, raw.nbytes))
        pinned.array[: raw.nbytes] = raw
        self.keep.append(pinned)
        with self.device.current():
            for _ in range(LATE_STEPS):
                call("cuMemcpyHtoDAsync", address, pinned.address, min(64, raw.nbytes), self.stream)
            call("cuMemcpyHtoDAsync", address, pinned.address, raw.nbytes, self.stream)


class Array:
    """Base of the kinds: memory of the library, filled late by the producer's stream."""

    def __init__(self, producer: Producer, value: Any) -> None:
        value = np.asarray(value)
        self.producer, self.shape, self.dtype = producer, value.shape, value.dtype
        self.memory = DeviceArray(producer.device, value.shape, value.dtype)
        if value.size:
            producer.fill(self.memory.address, value)

    def get(self) -> np.ndarray[Any, Any]:
        """On the host, behind the producer's work."""
        return self.memory.copy_to_host(stream=int(self.producer.stream))


class Numba(Array):
    """``__cuda_array_interface__`` with the stream; stream: what it tells of it; None: nothing, as torch."""

    tells: Any = True
    readonly = False

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        stream = int(self.producer.stream) if self.tells is True else self.tells
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.memory.address, self.readonly),
            "strides": None,
            "stream": stream,
        }


class Untold(Numba):
    """Does not tell of the stream, which is a bug of its user."""

    tells = None


class Torch(Array):
    """DLPack with versions; the current stream is the producer's."""

    old = False

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self.producer.device.ordinal

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, **more: Any) -> Any:
        assert stream is not None and not more
        if stream != -1:
            order(self.producer, int(stream))
        at, where = self.memory.address, self.producer.device.ordinal
        return dlpack.give(at, self.shape, self.dtype, where, self.memory, versioned=max_version is not None)


class Cupy(Torch):
    """DLPack from before max_version, beside ``__cuda_array_interface__``."""

    __cuda_array_interface__ = Numba.__cuda_array_interface__
    tells: Any = True
    readonly = False

    def __dlpack__(self, stream: Any = None) -> Any:  # type: ignore[override]
        return super().__dlpack__(stream=stream)


class Strided(Numba):
    """Every second element."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        facts = super().__cuda_array_interface__
        return {**facts, "shape": (self.shape[0] // 2,), "strides": (2 * self.dtype.itemsize,)}


KINDS = {kind.__name__: kind for kind in (Numba, Torch, Cupy)}


def order(producer: Producer, stream: int) -> None:
    """What is put into `stream` from now on waits for the producer's work."""
    with producer.device.current():
        event = call("cuEventCreate", bindings().CUevent_flags.CU_EVENT_DISABLE_TIMING.value)
        call("cuEventRecord", event, producer.stream)
        call("cuStreamWaitEvent", bindings().CUstream(stream), event, 0)
        producer.keep.append(event)
