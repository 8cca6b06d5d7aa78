"""Tensors as the engine takes them: by address, or through staging where their memory cannot be used as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from rdmaring._native import ffi
from rdmaring.buffers import Vector, as_vector
from rdmaring.errors import ArgumentError, ArgumentTypeError
from rdmaring.torch.reductions import Element

cast = ffi.cast


def check_dense(tensor: Any, name: str) -> None:
    """Raise unless it is a dense tensor in memory that we reach."""
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentTypeError(f"{name} is a {type(tensor).__name__}; accepted are tensors")
    if tensor.layout is not torch.strided:
        raise ArgumentError(
            f"{name} is sparse ({tensor.layout}); accepted are dense tensors, and in all_reduce with SUM "
            "those of torch.sparse_coo",
            hint=f"pass {name}.to_dense()",
        )
    if tensor.device.type not in ("cpu", "cuda"):
        raise ArgumentError(f"{name} is on {tensor.device}; accepted are cpu and cuda")


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether its elements lie in memory as they are, one after another."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Itself, or a copy that is plain."""
    tensor = tensor.detach()
    return tensor if is_plain(tensor) else tensor.resolve_conj().resolve_neg().contiguous()


def room_for(tensor: torch.Tensor) -> torch.Tensor:
    """Itself, or plain memory of its shape whose contents are copied to it later."""
    tensor = tensor.detach()
    if is_plain(tensor):
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def vector(tensors: Sequence[torch.Tensor], element: Element) -> Vector:
    """Plain tensors of one dtype, one after another, as one vector."""
    dtype, code, width = element
    if tensors[0].device.type != "cpu":
        return _on_device(tensors, element)
    counts = [tensor.numel() * width for tensor in tensors]
    addresses = [tensor.data_ptr() for tensor in tensors]
    table = np.array([addresses, counts], np.uintp).T.copy()
    table[:, 1] *= dtype.itemsize
    pieces = [cast("char *", address) for address in addresses]
    return Vector(tensors, pieces, sum(counts), dtype, code, table, None, tensors)


def _on_device(tensors: Sequence[torch.Tensor], element: Element) -> Vector:
    """By DLPack, which orders the producer's stream before ours."""
    views = [tensor.reshape(-1).view(torch.uint8) if element.dtype.itemsize == 1 else tensor for tensor in tensors]
    found = as_vector(views if len(views) > 1 else views[0], "tensor", writable=True)
    if found.code != element.code:
        raise ArgumentTypeError(f"a tensor of {tensors[0].dtype} on {tensors[0].device}; accepted there are numbers")
    return found


def as_bytes(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A plain tensor of the CPU as bytes that share its memory."""
    if not tensor.numel():
        return np.empty(0, np.uint8)
    shared: np.ndarray[Any, Any] = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return shared
