"""Communication hooks of DistributedDataParallel."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from rdmaring.buffers import Vector
from rdmaring.errors import ArgumentError, RdmaringError
from rdmaring.plan import NativePlan
from rdmaring.torch.errors import as_torch_error
from rdmaring.torch.memory import empty
from rdmaring.torch.process_group import RingProcessGroup
from rdmaring.torch.reductions import NUMBERS, ReduceOp, reduction
from rdmaring.torch.tensors import vector
from rdmaring.torch.work import Step


def _group(given: Any) -> RingProcessGroup:
    found = dist.group.WORLD if given is None else given
    if not isinstance(found, RingProcessGroup):
        raise ArgumentError(f"the process group is {found!r}; accepted are those of rdmaring, or None for the world's")
    return found


def _future(group: RingProcessGroup, step: Step, result: torch.Tensor) -> Any:
    """Of one tensor, as DDP wants it."""
    return group.ring.work([step], [result], None).get_future().then(lambda done: done.value()[0])


class _Kept(NamedTuple):
    """A bucket's persistent operation."""

    address: int
    plan: NativePlan
    given: Vector
    out: Vector
    result: torch.Tensor


class Buckets:
    """State of :func:`plan_hook`: a plan, and a result in registered memory, for each bucket of one model.

    group: of rdmaring; default: the world's.
    """

    def __init__(self, group: Any = None) -> None:
        self.group = _group(group)
        self._kept: dict[int, _Kept] = {}

    def of(self, index: int, buffer: torch.Tensor) -> _Kept:
        """The bucket's; made anew when DDP has rebuilt its buckets."""
        kept = self._kept.get(index)
        same = kept is not None and kept.address == buffer.data_ptr() and kept.result.numel() == buffer.numel()
        if kept is None or not same or kept.result.dtype is not buffer.dtype:
            how = reduction(ReduceOp.AVG, buffer.dtype)
            result = empty(buffer.shape, dtype=buffer.dtype)
            given, out = vector([buffer], how.element), vector([result], how.element)
            plan = self.group.ring.plan("all_reduce", given, given.count, op=how.op)
            kept = self._kept[index] = _Kept(buffer.data_ptr(), plan, given, out, result)
        return kept


def plan_hook(state: Buckets, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """``model.register_comm_hook(Buckets(), plan_hook)``: averages gradients by one persistent plan a bucket.

    The result stands in registered memory, which peers write in place, and the average is part of the last step:
    no pass over memory for the division, none for copying back.
    """
    kept = state.of(bucket.index(), bucket.buffer())
    ring = state.group.ring
    try:
        step = ring.start(kept.plan, kept.given, kept.out, None)
    except RdmaringError as error:
        raise as_torch_error(error) from error
    return _future(state.group, step, kept.result)


def bf16_hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """``model.register_comm_hook(None, bf16_hook)``: gradients travel as bfloat16, and are added in float32.

    state: a process group of rdmaring, or None for the world's. Each hop rounds once to bfloat16 (docs/NUMBERS.md); the
    average is taken in float32 before the last rounding. Half the bytes of float32 gradients.
    """
    group = _group(state)
    buffer = bucket.buffer()
    sent = empty(buffer.shape, dtype=torch.bfloat16).copy_(buffer)
    whole = vector([sent], NUMBERS[torch.bfloat16])

    def then() -> None:
        buffer.copy_(sent)

    try:
        plan = group.ring.plan("all_reduce", whole, whole.count, op="avg")
        step = group.ring.start(plan, whole, whole, None, then)
    except RdmaringError as error:
        raise as_torch_error(error) from error
    return _future(group, step, buffer)


for hook in (plan_hook, bf16_hook):  # torch compares the annotations themselves with the types
    hook.__annotations__.update({"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]})
