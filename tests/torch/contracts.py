"""Copies that are counted, callbacks that wait, timeouts, abort, refusals. A script of a rank."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

import rdmaring.torch as ours

LIMIT = timedelta(seconds=60)
COPIES = ("clone", "copy_", "_to_copy", "empty", "cat", "contiguous", "new_empty")
dist.init_process_group("rdmaring", timeout=LIMIT)
rank, size = dist.get_rank(), dist.get_world_size()
world = dist.group.WORLD


class Counting(TorchDispatchMode):
    """Operators that copy or allocate, of this thread."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.split(".")[0]
        if name in COPIES:
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


def copies_of(call: Callable[[], Any]) -> list[str]:
    with Counting() as counting:
        call()
    return counting.seen


def refused(kind: type[Exception], words: str, call: Callable[[], Any]) -> None:
    try:
        call()
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"not refused: {words}")


# ---- copies ----

n = 64 * size
for make in (torch.ones, ours.empty):
    one, whole, parts = make(n), make(n * size), make(n)
    plain = {
        "all_reduce": lambda one=one: dist.all_reduce(one),
        "all_reduce, asynchronous": lambda one=one: dist.all_reduce(one, async_op=True).wait(),
        "broadcast": lambda one=one: dist.broadcast(one, 0),
        "reduce": lambda one=one: dist.reduce(one, 0),
        "all_gather_into_tensor": lambda one=one, whole=whole: dist.all_gather_into_tensor(whole, one),
        "reduce_scatter_tensor": lambda one=one, whole=whole: dist.reduce_scatter_tensor(one, whole),
        "all_to_all_single": lambda one=one, parts=parts: dist.all_to_all_single(parts, one),
        "all_gather": lambda one=one, whole=whole: dist.all_gather(list(whole.split(n)), one),
    }
    for name, call in plain.items():
        assert copies_of(call) == [], (name, copies_of(call))
turned = torch.ones(8, 4).t()
assert copies_of(lambda: dist.all_reduce(turned)), "the count sees no copy where there must be one"


# ---- the hook: one plan a bucket, which reads the bucket where it lies ----

model = DistributedDataParallel(nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))), bucket_cap_mb=0.02)
state = ours.Buckets()
model.register_comm_hook(state, ours.plan_hook)
planned, begun = [], []
ring, plan, start = world.ring, world.ring.plan, world.ring.start


def counted_plan(*given: Any, **more: Any) -> Any:
    planned.append(given[0])
    return plan(*given, **more)


def counted_start(native: Any, given: Any, out: Any, *rest: Any) -> Any:
    begun.append((given.keep[0].data_ptr() if hasattr(given, "keep") else given[0][0].data_ptr(), native))
    return start(native, given, out, *rest)


ring.plan, ring.start = counted_plan, counted_start
per_step = []
for _ in range(6):
    begun.clear()
    planned_before = len(planned)
    model(torch.ones(2, 64) * (rank + 1)).sum().backward()
    per_step.append((len(begun), len(planned) - planned_before))
ring.plan, ring.start = plan, start
buckets, _ = per_step[-1]
assert buckets >= 2, per_step
# DDP rebuilds its buckets once; from then on nothing is planned any more, and the same addresses are read
assert [planned for _, planned in per_step[2:]] == [0] * 4, per_step
assert {address for address, _ in begun} == {state._kept[index].address for index in range(buckets)}


# ---- callbacks that wait for other collectives ----

groups = [dist.new_group(timeout=LIMIT) for _ in range(4)]
summed: dict[int, float] = {}


def add_again(index: int) -> Callable[[Any], None]:
    def callback(future: Any) -> None:
        value = future.value()[0].clone()
        dist.all_reduce(value, group=groups[index])
        summed[index] = value[0].item()

    return callback


works = [dist.all_reduce(torch.full((1000,), float(index + 1)), async_op=True) for index in range(len(groups))]
futures = [work.get_future().then(add_again(index)) for index, work in enumerate(works)]
here = torch.ones(3)
dist.all_reduce(here)  # of the group whose works' callbacks wait
for future in futures:
    future.wait()
assert summed == {index: float((index + 1) * size * size) for index in range(len(groups))}, summed
assert here[0] == size


# ---- time ----

late, store = groups[0], world.ring.store
if rank == 0:
    value = torch.ones(5)
    work = dist.all_reduce(value, group=late, async_op=True)
    refused(dist.DistBackendError, "it goes on", lambda: work.wait(timedelta(seconds=0.1)))
    assert not work.is_completed()
    store.set("rank 0 has waited in vain", "1")
    work.wait()
    assert (value == size).all() and work.is_completed() and work.is_success()
else:
    store.wait(["rank 0 has waited in vain"], LIMIT)
    dist.all_reduce(torch.ones(5), group=late)
refused(ValueError, "peer is", lambda: world.send([torch.ones(1)], rank, 0))


# ---- abort, from another thread; the other groups go on ----

lost = groups[1]
if rank == 0:
    threading.Timer(0.3, lost.abort).start()
    begin_s = time.monotonic()
    refused(dist.DistBackendError, "abort", lambda: dist.all_reduce(torch.ones(5), group=lost))
    assert time.monotonic() - begin_s < 20
    refused(dist.DistBackendError, "", lambda: dist.all_reduce(torch.ones(5), group=lost))
again = torch.ones(2)
dist.all_reduce(again)
assert again.tolist() == [size] * 2


# ---- uneven lists, and what is refused ----

mine = [torch.full((index + 1,), 10.0 * rank + index) for index in range(size)]
got = [torch.empty(rank + 1) for _ in range(size)]
dist.all_to_all(got, mine)
assert [each.tolist() for each in got] == [[10.0 * peer + rank] * (rank + 1) for peer in range(size)]
pair = torch.full((3,), complex(rank + 1, -rank))
dist.all_reduce(pair)
assert (pair == complex(size * (size + 1) / 2, -size * (size - 1) / 2)).all()
rows = torch.eye(3).to_sparse_csr()
refused(ValueError, "torch.sparse_csr", lambda: dist.all_reduce(rows))
refused(ValueError, "accepted is SUM", lambda: dist.all_reduce(torch.eye(3).to_sparse(), dist.ReduceOp.MAX))
refused(ValueError, "is sparse", lambda: dist.broadcast(torch.eye(3).to_sparse(), 0))
refused(ValueError, "is on meta", lambda: world.allreduce([torch.empty(3, device="meta")]))
dist.barrier()
dist.destroy_process_group()
print("ALL GOOD", flush=True)
