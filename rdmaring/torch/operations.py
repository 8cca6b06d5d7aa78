"""The collectives of torch on the engine's: vectors, a plan, and what follows the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import torch

from rdmaring.buffers import Vector, as_vector
from rdmaring.chunks import by_pair, even
from rdmaring.chunks import given as given_offsets
from rdmaring.errors import ArgumentError, RdmaringError
from rdmaring.plan import NativePlan
from rdmaring.torch.errors import as_torch_error
from rdmaring.torch.group import Group
from rdmaring.torch.reductions import Reduction, moved, reduce_here, reduction
from rdmaring.torch.tensors import check_dense, is_plain, plain, room_for, vector
from rdmaring.torch.work import BaseWork

Tensors = Sequence[torch.Tensor]


class Part(NamedTuple):
    """One operation of the engine."""

    native: NativePlan
    given: Vector | None
    out: Vector | None
    then: Callable[[], None] | None = None


def timeout_of(opts: Any) -> float | None:
    """In seconds, of an options object or a timedelta; None: the group's."""
    limit = getattr(opts, "timeout", opts)
    if not isinstance(limit, timedelta):
        return None
    seconds = limit.total_seconds()
    return seconds if seconds > 0 else None


def _copies(made: Tensors, wanted: Tensors) -> Callable[[], None] | None:
    """Copy what was made in staging to where it is wanted; None: nothing was staged."""
    staged = [(want, have) for want, have in zip(wanted, made, strict=True) if want.data_ptr() != have.data_ptr()]
    if not staged:
        return None

    def copy() -> None:
        with torch.no_grad():
            for want, have in staged:
                want.detach().copy_(have)

    return copy


def _of_one_dtype(tensors: Tensors, name: str) -> torch.dtype:
    for index, tensor in enumerate(tensors):
        check_dense(tensor, f"{name}[{index}]")
        if tensor.dtype is not tensors[0].dtype:
            raise ArgumentError(
                f"{name}[{index}] has dtype {tensor.dtype}, {name}[0] has {tensors[0].dtype}; accepted is one dtype"
            )
    return tensors[0].dtype


class Operations:
    """Each makes the parts of a collective; :meth:`run` runs them."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.rank = group.rank
        self.size = group.size

    def run(self, parts: Sequence[Part], result: list[torch.Tensor], opts: Any) -> BaseWork:
        """Blocking where the caller said so.

        Raises:
            RingError: the group is lost.
        """
        limit_s = timeout_of(opts)
        group = self.group
        try:
            if getattr(opts, "asyncOp", True):
                steps = [group.start(part.native, part.given, part.out, limit_s, part.then) for part in parts]
                return group.work(steps, result, limit_s)
            for part in parts:
                group.call(part.native, part.given, part.out, limit_s)
                if part.then is not None:
                    part.then()
        except RdmaringError as error:
            raise as_torch_error(error) from error
        return BaseWork(result)

    # ---- reducing ----

    def all_reduce(self, tensors: Tensors, op: Any) -> list[Part]:
        """In place; tensors of one dtype count as one vector."""
        how = reduction(op, _of_one_dtype(tensors, "tensors"))
        if how.here is not None:
            return [self._gathered(tensor, how) for tensor in tensors]
        made = [plain(tensor) for tensor in tensors]
        whole = vector(made, how.element)
        native = self.group.plan("all_reduce", whole, whole.count, op=how.op)
        return [Part(native, whole, whole, _copies(made, tensors))]

    def _gathered(self, tensor: torch.Tensor, how: Reduction, root: int | None = None) -> Part:
        """Every rank, or the root, gets all ranks' tensors and reduces them itself."""
        mine = plain(tensor)
        every = torch.empty((self.size, *mine.shape), dtype=mine.dtype, device=mine.device)
        given, out = vector([mine], how.element), vector([every], how.element)
        if root is None:
            native = self.group.plan("all_gather", given, out.count, offsets=even(out.count, self.size))
        else:
            native = self.group.plan("gather", given, out.count, root=root, offsets=even(out.count, self.size))
        here = root is None or root == self.rank

        def then() -> None:
            with torch.no_grad():
                tensor.detach().copy_(reduce_here(how, list(every.unbind(0))))

        return Part(native, given, out if here else None, then if here else None)

    def reduce(self, tensor: torch.Tensor, root: int, op: Any) -> list[Part]:
        check_dense(tensor, "tensor")
        how = reduction(op, tensor.dtype)
        if how.here is not None:
            return [self._gathered(tensor, how, root)]
        made = plain(tensor)
        whole = vector([made], how.element)
        native = self.group.plan("reduce", whole, whole.count, op=how.op, root=root)
        here = self.rank == root
        return [Part(native, whole, whole if here else None, _copies([made], [tensor]) if here else None)]

    def reduce_scatter(self, out: torch.Tensor, inputs: Tensors, op: Any, sizes: Sequence[int]) -> list[Part]:
        """inputs: one or more tensors that are all ranks' parts, one after another; sizes: elements of each part."""
        how = reduction(op, _of_one_dtype([out, *inputs], "tensors"))
        if out.numel() != sizes[self.rank]:
            raise ArgumentError(
                f"the output has {out.numel()} elements; the input's part of rank {self.rank} has {sizes[self.rank]}"
            )
        if how.here is not None:
            return [self._scattered(out, inputs, how, sizes)]
        width = how.element.width
        made = room_for(out)
        given, part = vector([plain(each) for each in inputs], how.element), vector([made], how.element)
        offsets = given_offsets([size * width for size in sizes], self.size, given.count, "the parts' sizes")
        native = self.group.plan("reduce_scatter", given, given.count, op=how.op, offsets=offsets)
        return [Part(native, given, part, _copies([made], [out]))]

    def _scattered(self, out: torch.Tensor, inputs: Tensors, how: Reduction, sizes: Sequence[int]) -> Part:
        every = torch.empty((self.size, out.numel()), dtype=out.dtype, device=out.device)
        part = self._exchange([every], [plain(each) for each in inputs], [out.numel()] * self.size, sizes)

        def then() -> None:
            with torch.no_grad():
                out.detach().copy_(reduce_here(how, list(every.unbind(0))).reshape(out.shape))

        return part._replace(then=then)

    # ---- moving ----

    def broadcast(self, tensor: torch.Tensor, root: int) -> list[Part]:
        check_dense(tensor, "tensor")
        made = plain(tensor)
        whole = vector([made], moved(tensor.dtype))
        native = self.group.plan("broadcast", whole, whole.count, root=root)
        return [Part(native, whole, whole, _copies([made], [tensor]) if self.rank != root else None)]

    def all_gather(self, outs: Tensors, tensor: torch.Tensor, sizes: Sequence[int]) -> list[Part]:
        """outs: one or more tensors that are all ranks' parts, one after another; sizes: elements of each part."""
        element = moved(_of_one_dtype([tensor, *outs], "tensors"))
        if tensor.numel() != sizes[self.rank]:
            raise ArgumentError(
                f"the input has {tensor.numel()} elements; the output's part of rank {self.rank} has {sizes[self.rank]}"
            )
        made = [room_for(each) for each in outs]
        given, whole = vector([plain(tensor)], element), vector(made, element)
        offsets = given_offsets([size * element.width for size in sizes], self.size, whole.count, "the parts' sizes")
        native = self.group.plan("all_gather", given, whole.count, offsets=offsets)
        return [Part(native, given, whole, _copies(made, outs))]

    def gather(self, outs: Tensors, tensor: torch.Tensor, root: int) -> list[Part]:
        element = moved(_of_one_dtype([tensor, *outs], "tensors"))
        given = vector([plain(tensor)], element)
        whole, then = None, None
        if self.rank == root:
            self._check_equal(outs, tensor, "output")
            made = [room_for(each) for each in outs]
            whole, then = vector(made, element), _copies(made, outs)
        offsets = even(given.count * self.size, self.size)
        native = self.group.plan("gather", given, offsets[-1], root=root, offsets=offsets)
        return [Part(native, given, whole, then)]

    def scatter(self, out: torch.Tensor, inputs: Tensors, root: int) -> list[Part]:
        element = moved(_of_one_dtype([out, *inputs], "tensors"))
        made = room_for(out)
        part = vector([made], element)
        given = None
        if self.rank == root:
            self._check_equal(inputs, out, "input")
            given = vector([plain(each) for each in inputs], element)
        offsets = even(part.count * self.size, self.size)
        native = self.group.plan("scatter", part, offsets[-1], root=root, offsets=offsets)
        return [Part(native, given, part, _copies([made], [out]))]

    def _check_equal(self, tensors: Tensors, like: torch.Tensor, name: str) -> None:
        if len(tensors) != self.size or any(each.numel() != like.numel() for each in tensors):
            raise ArgumentError(
                f"the {name} list holds tensors of {[each.numel() for each in tensors]} elements; "
                f"accepted are {self.size} tensors of {like.numel()}"
            )

    def all_to_all(self, outs: Tensors, inputs: Tensors, get: Sequence[int], give: Sequence[int]) -> list[Part]:
        """get, give: elements from each rank, and to each, in the order of the tensors."""
        _of_one_dtype([*outs, *inputs], "tensors")
        made = [room_for(each) for each in outs]
        part = self._exchange(made, [plain(each) for each in inputs], get, give)
        return [part._replace(then=_copies(made, outs))]

    def _exchange(self, outs: Tensors, inputs: Tensors, get: Sequence[int], give: Sequence[int]) -> Part:
        if len(get) != self.size or len(give) != self.size:
            raise ArgumentError(f"{len(give)} parts go out and {len(get)} come in; accepted is one a rank, {self.size}")
        if give[self.rank] != get[self.rank]:
            raise ArgumentError(
                f"rank {self.rank} gives itself {give[self.rank]} elements and takes {get[self.rank]} from itself"
            )
        element = moved(inputs[0].dtype)
        given, out = vector(inputs, element), vector(outs, element)
        width = element.width
        offsets = by_pair([count * width for count in give], [count * width for count in get], self.rank)
        native = self.group.plan("all_to_all", given, offsets[-1], offsets=offsets, paired=True)
        return Part(native, given, out)

    def barrier(self) -> list[Part]:
        nothing = as_vector(np.empty(0, np.uint8), "x", writable=True)
        return [Part(self.group.plan("barrier", nothing, 0), nothing, nothing)]


def elements(tensor: torch.Tensor, splits: Sequence[int], size: int, name: str) -> list[int]:
    """Elements of each rank's part of ``tensor``, cut along dimension 0 by ``splits``, or evenly.

    Raises:
        ArgumentError: it cannot be cut so.
    """
    rows = tensor.size(0) if tensor.dim() else 1
    row = tensor.numel() // rows if rows else 0
    if not splits:
        if rows % size:
            raise ArgumentError(
                f"{name} has {rows} rows: tensor's dim 0 does not divide equally across group size {size}",
                hint="pass split sizes",
            )
        return [rows // size * row] * size
    if len(splits) != size or sum(splits) != rows:
        raise ArgumentError(
            f"{name}_split_sizes is {list(splits)}: accepted are {size} sizes that add up to its {rows} rows"
        )
    return [split * row for split in splits]


def plain_reduction(tensor: torch.Tensor, op: Any) -> Reduction | None:
    """For the fast path: how to reduce memory that is used as it is; None: it takes the long way."""
    if tensor.layout is not torch.strided or not is_plain(tensor) or not tensor.is_cpu:
        return None
    how = reduction(op, tensor.dtype)
    return how if how.here is None else None
