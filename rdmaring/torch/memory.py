"""Tensors in registered memory: peers of this node read and write it in place."""

from __future__ import annotations

import math
import threading
import weakref
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from rdmaring import memory
from rdmaring.errors import ArgumentError, UnsupportedError

KEPT_BYTES_MAX = 1 << 30  # of memory given back and not used again yet


class Pool:
    """Regions by their size, used again: peers keep their mappings of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: dict[int, list[np.ndarray[Any, Any]]] = defaultdict(list)
        self._kept_bytes = 0

    def take(self, nbytes: int) -> np.ndarray[Any, Any]:
        """Bytes that come back when no array or tensor is on them any more. Not zeroed."""
        with self._lock:
            free = self._free[nbytes]
            region = free.pop() if free else None
            if region is not None:
                self._kept_bytes -= nbytes
        if region is None:
            region = memory.empty(nbytes, np.uint8)
        shown = region[:]
        weakref.finalize(shown, self._give_back, region).atexit = False
        return shown

    def _give_back(self, region: np.ndarray[Any, Any]) -> None:
        with self._lock:
            if self._kept_bytes + region.nbytes <= KEPT_BYTES_MAX:
                self._kept_bytes += region.nbytes
                self._free[region.nbytes].append(region)


_pool = Pool()


def empty(*size: int | Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor on the CPU whose memory peers of this node use in place. Local; contents as torch.empty's.

    The memory is kept for the next tensor of as many bytes, up to 1 GiB in all.

    Raises:
        OutOfMemoryError: no room for it.
    """
    dims = torch.Size(size[0] if len(size) == 1 and isinstance(size[0], Sequence) else size)  # type: ignore[arg-type]
    nbytes = math.prod(dims) * dtype.itemsize
    if nbytes == 0:
        return torch.empty(dims, dtype=dtype)
    return torch.from_numpy(_pool.take(nbytes)).view(dtype).reshape(dims)


class _Registered:
    """How FSDP2 allocates what it gathers and scatters."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        if device.type != "cpu":
            return torch.empty(*size, dtype=dtype, device=device)
        return empty(*size, dtype=dtype)


class _AllGather(_Registered):
    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, async_op: bool = False
    ) -> Any:
        return dist.all_gather_into_tensor(output_tensor, input_tensor, group=group, async_op=async_op)


class _ReduceScatter(_Registered):
    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, op: Any, async_op: bool = False
    ) -> Any:
        return dist.reduce_scatter_tensor(output_tensor, input_tensor, op=op, group=group, async_op=async_op)


def register(model: torch.nn.Module) -> torch.nn.Module:
    """Have FSDP2 (``fully_shard``) gather and scatter in registered memory; returns ``model``.

    For DDP see :func:`rdmaring.torch.plan_hook`: its results are in registered memory.

    Raises:
        ArgumentError: no module of it is sharded by ``fully_shard``.
        UnsupportedError: this torch has no custom collectives of FSDP2.
    """
    sharded = [module for module in model.modules() if hasattr(module, "set_reshard_after_forward")]
    if not sharded:
        raise ArgumentError("no module of the model is sharded; accepted are models after fully_shard()")
    for module in sharded:
        if not hasattr(module, "set_custom_all_gather"):
            raise UnsupportedError(
                f"torch {torch.__version__} has no FSDPModule.set_custom_all_gather", hint="use torch 2.9 or newer"
            )
        module.set_custom_all_gather(_AllGather())
        module.set_custom_reduce_scatter(_ReduceScatter())
    return model
