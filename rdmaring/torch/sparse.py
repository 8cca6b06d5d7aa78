"""All-reduce of sparse tensors: indices and values of all ranks are gathered, and added on each."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import torch

from rdmaring.errors import ArgumentError
from rdmaring.torch.operations import Operations
from rdmaring.torch.reductions import ReduceOp, kind_of
from rdmaring.torch.work import BaseWork


class _Blocking:
    """Options of a call inside a call."""

    asyncOp = False

    def __init__(self, opts: Any) -> None:
        self.timeout = getattr(opts, "timeout", None)


def all_reduce(operations: Operations, tensor: torch.Tensor, opts: Any) -> BaseWork:
    """In place; it has ended when this returns. Every rank's tensor has the same shape and dtype.

    Raises:
        ArgumentError: another layout than torch.sparse_coo, or another reduction than SUM.
    """
    if tensor.layout is not torch.sparse_coo:
        raise ArgumentError(f"the tensor has layout {tensor.layout}; accepted of sparse ones is torch.sparse_coo")
    if kind_of(opts.reduceOp) != ReduceOp.SUM:
        raise ArgumentError(f"the reduction of a sparse tensor is {opts.reduceOp}; accepted is SUM")
    blocking = _Blocking(opts)
    mine = tensor.detach().coalesce()
    counts = _gathered(operations, torch.tensor([mine._nnz()]), [1] * operations.size, blocking)
    each = [int(count) for count in counts]
    dims = mine.sparse_dim()
    indices = mine.indices().t().contiguous()
    width = math.prod(mine.values().shape[1:])
    flat = _gathered(operations, indices.reshape(-1), [count * dims for count in each], blocking)
    values = _gathered(operations, mine.values().reshape(-1), [count * width for count in each], blocking)
    parts = []
    dense = mine.values().shape[1:]
    cut = zip(
        flat.split([count * dims for count in each]), values.split([count * width for count in each]), strict=True
    )
    for places, amounts in cut:
        at, amount = places.reshape(-1, dims).t(), amounts.reshape(-1, *dense)
        parts.append(torch.sparse_coo_tensor(at, amount, mine.shape, check_invariants=False))
    total = reduce(torch.add, parts).coalesce()
    with torch.no_grad():
        tensor.copy_(total)  # not of detach(), which has indices and values of its own
    return BaseWork([tensor])


def _gathered(operations: Operations, part: torch.Tensor, sizes: list[int], opts: Any) -> torch.Tensor:
    whole = torch.empty(sum(sizes), dtype=part.dtype)
    operations.run(operations.all_gather([whole], part, sizes), [whole], opts)
    return whole
