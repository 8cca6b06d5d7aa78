"""An array in GPU memory for those who have neither torch nor cupy: memory, the two protocols, copies."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rdmaring.cuda import dlpack
from rdmaring.cuda.context import Device
from rdmaring.cuda.inputs import stream_handle
from rdmaring.cuda.memory import Allocation, staging
from rdmaring.errors import ArgumentError
from rdmaring.single import Single


class DeviceArray(Single):
    """A C-contiguous array in GPU memory that the library allocated. It does no arithmetic.

    ``torch.from_dlpack(a)``, ``cupy.asarray(a)`` and ``jax.dlpack.from_dlpack(a)`` share its memory, which lives as
    long as one of them. shape, dtype, size, nbytes: as numpy's. ordinal: the GPU's number in this process.
    """

    _instead = "copy its elements by torch or cupy, which take it without a copy"

    def __init__(self, device: Device, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """Zeroed. Raises CudaError: there is no room."""
        self.shape = shape
        self.dtype = dtype
        self.size = math.prod(shape)
        self.nbytes = self.size * dtype.itemsize
        self.ordinal = device.ordinal
        self._device = device
        self._memory = Allocation(device, self.nbytes)

    @property
    def address(self) -> int:
        """Of its first byte, as the GPU sees it."""
        return self._memory.address

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "strides": None,
            "stream": int(self._device.stream),
        }

    @property
    def _library_stream(self) -> int:
        """On which it is copied to and from the host."""
        return int(self._device.stream)

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self.ordinal

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """As the protocol says: work of ``stream`` from now on runs behind what the library put into its own."""
        if dl_device not in (None, self.__dlpack_device__()) or copy:
            raise BufferError(f"accepted are dl_device {self.__dlpack_device__()} and no copy")
        handle = 1 if stream is None else int(stream)
        if handle != -1:
            self._device.release_to(handle)
        versioned = max_version is not None and max_version[0] >= 1
        return dlpack.give(self.address, self.shape, self.dtype, self.ordinal, self._memory, versioned)

    def copy_from_host(self, source: Any, stream: Any = None) -> DeviceArray:
        """Copy a host array of equal shape, converted to this dtype; returns this array.

        stream: of yours, whose work until now may use the array; the copy runs behind it. The host waits for the copy.

        Raises:
            ArgumentError: another shape.
        """
        array = np.ascontiguousarray(source, self.dtype)
        if array.shape != self.shape:
            raise ArgumentError(f"source has shape {array.shape}; accepted is this array's, {self.shape}")
        if stream is not None:
            self._device.wait_for(stream_handle(stream, "stream"))
        if self.nbytes:
            staging(self._device).upload(self.address, array.reshape(-1).view(np.uint8))
        return self

    def copy_to_host(self, out: np.ndarray[Any, Any] | None = None, stream: Any = None) -> np.ndarray[Any, Any]:
        """Copy to a host array of equal shape and dtype (default: a new one), which is returned when it is there.

        stream: of yours, whose work until now may write the array; the copy runs behind it.

        Raises:
            ArgumentError: ``out`` is of another shape or dtype, or not contiguous.
        """
        target = np.empty(self.shape, self.dtype) if out is None else out
        if target.shape != self.shape or target.dtype != self.dtype or not target.flags.c_contiguous:
            raise ArgumentError(
                f"out has shape {target.shape}, dtype {target.dtype}, C-contiguous: {target.flags.c_contiguous}; "
                f"accepted is {self.shape} of {self.dtype}, contiguous"
            )
        if stream is not None:
            self._device.wait_for(stream_handle(stream, "stream"))
        if self.nbytes:
            staging(self._device).download(target.reshape(-1).view(np.uint8), self.address)
        return target

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without dimensions")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<rdmaring.cuda.DeviceArray {self.shape} {self.dtype} on cuda:{self.ordinal}>"
