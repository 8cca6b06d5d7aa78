"""What training uses of torch.distributed, each with figures that must not depend on the backend. A script of a rank.

matrix.py BACKEND OUT NAMES...: rank 0 writes a JSON document {name: figures} to OUT; a failure is the figure's text.
"""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

STEPS = 6
Figures = list[float]
FEATURES: dict[str, Callable[[], Figures]] = {}


def feature(call: Callable[[], Figures]) -> Callable[[], Figures]:
    FEATURES[call.__name__] = call
    return call


def network() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))


def batches(steps: int = STEPS) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Of this rank."""
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    for _ in range(steps):
        x = torch.randn(16, 8, generator=generator)
        yield x, x.roll(1, 1)


def descend(optimizer: torch.optim.Optimizer, losses: Iterator[torch.Tensor]) -> Figures:
    """One step for each loss, which is computed when the step before it is done; their values."""
    figures = []
    for loss in losses:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        figures.append(loss.item())
    return figures


def train(model: nn.Module, optimizer: torch.optim.Optimizer | None = None, steps: int = STEPS) -> Figures:
    """Losses of this rank."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.05)
    return descend(optimizer, (((model(x) - y) ** 2).mean() for x, y in batches(steps)))


def mesh() -> Any:
    return init_device_mesh("cpu", (dist.get_world_size(),))


# ---- data parallel ----


@feature
def ddp() -> Figures:
    return train(DistributedDataParallel(network()))


@feature
def ddp_small_buckets() -> Figures:
    return train(DistributedDataParallel(network(), bucket_cap_mb=1e-4, gradient_as_bucket_view=True))


@feature
def ddp_uneven_inputs() -> Figures:
    model = DistributedDataParallel(network())
    with model.join():
        return train(model, steps=3 + dist.get_rank())[:3]


@feature
def ddp_powersgd() -> Figures:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    model = DistributedDataParallel(network())
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return train(model)


@feature
def ddp_fp16_hook() -> Figures:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    model = DistributedDataParallel(network())
    model.register_comm_hook(None, fp16_compress_hook)
    return train(model)


@feature
def ddp_sparse() -> Figures:
    torch.manual_seed(3)
    model = DistributedDataParallel(nn.Embedding(20, 4, sparse=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = (torch.tensor([dist.get_rank(), step, 5]) for step in range(3))
    return descend(optimizer, (model(row).pow(2).sum() for row in rows))


@feature
def zero() -> Figures:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(network())
    return train(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-2))


# ---- sharded ----


@feature
def fsdp1() -> Figures:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return train(FullyShardedDataParallel(network(), device_id=torch.device("cpu")))


def fsdp2_model() -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    model, own = network(), mesh()
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=own)
    fully_shard(model, mesh=own)
    return model


@feature
def fsdp2() -> Figures:
    return train(fsdp2_model())


@feature
def dtensor() -> Figures:
    from torch.distributed.tensor import Shard, distribute_tensor

    whole = torch.arange(64.0).reshape(8, 8)
    rows = distribute_tensor(whole, mesh(), [Shard(0)])
    columns = rows.redistribute(placements=[Shard(1)])
    product = (rows @ columns).full_tensor()
    assert torch.equal(product, whole @ whole)
    return product.flatten().tolist()


@feature
def tensor_parallel() -> Figures:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = parallelize_module(network(), mesh(), {"0": ColwiseParallel(), "2": RowwiseParallel()})
    generator = torch.Generator().manual_seed(5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    inputs = (torch.randn(16, 8, generator=generator) for _ in range(STEPS))
    return descend(optimizer, (((model(x) - x) ** 2).mean() for x in inputs))


# ---- collectives ----


@feature
def functional_collectives() -> Figures:
    world, rank, size = dist.group.WORLD, dist.get_rank(), dist.get_world_size()
    one = torch.ones(2 * size) * (rank + 1)
    found = [
        functional.all_reduce(one, "sum", world),
        functional.all_gather_tensor(one, 0, world),
        functional.reduce_scatter_tensor(one, "sum", 0, world),
        functional.all_to_all_single(torch.arange(2.0 * size) + 10 * rank, None, None, world),
        functional.broadcast(one, size - 1, world),
        *functional.all_gather_into_tensor_coalesced([one, one * 2], world),
        *functional.reduce_scatter_tensor_coalesced([one, one * 3], "sum", [0, 0], world),
        *functional.all_reduce_coalesced([one, one * 4], "sum", world),
    ]
    return [value for each in found for value in each.flatten().tolist()]


@feature
def coalescing() -> Figures:
    one, two = torch.ones(2), torch.ones(3) * dist.get_rank()
    with dist._coalescing_manager():
        dist.all_reduce(one)
        dist.all_reduce(two)
    return [*one.tolist(), *two.tolist()]


@feature
def batched_messages() -> Figures:
    rank, size = dist.get_rank(), dist.get_world_size()
    sent, got = torch.ones(70_000) * rank, torch.empty(70_000)
    left, right = (rank - 1) % size, (rank + 1) % size
    ops = [dist.P2POp(dist.isend, sent, right), dist.P2POp(dist.irecv, got, left)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert got[0] == got[-1] == left
    return [got.sum().item()]


@feature
def objects_and_groups() -> Figures:
    rank, size = dist.get_rank(), dist.get_world_size()
    everyone: list[Any] = [None] * size
    dist.all_gather_object(everyone, {"rank": rank})
    told = [rank]
    dist.broadcast_object_list(told, size - 1)
    pair = dist.new_group([0, 1])
    value = torch.ones(1) * (rank + 1)
    if rank < 2:
        dist.all_reduce(value, group=pair)
        dist.barrier(pair)
    return [*(float(each["rank"]) for each in everyone), float(told[0]), value.item()]


@feature
def checkpoint() -> Figures:
    import torch.distributed.checkpoint as checkpoints

    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder, 0)
    model = fsdp2_model()
    before = train(model)
    checkpoints.save({"model": model.state_dict()}, checkpoint_id=folder[0])
    again = fsdp2_model()
    state = {"model": again.state_dict()}
    checkpoints.load(state, checkpoint_id=folder[0])
    again.load_state_dict(state["model"])
    return before + train(again)


@feature
def compiled_step() -> Figures:
    return train(DistributedDataParallel(torch.compile(network(), backend="aot_eager")))


# ---- ours: of the other backend it is the plain form ----


def on_ours() -> bool:
    return dist.get_backend() == "rdmaring"


@feature
def ddp_plan_hook() -> Figures:
    model = DistributedDataParallel(network(), bucket_cap_mb=1e-4)
    if on_ours():
        import rdmaring.torch as ours

        model.register_comm_hook(ours.Buckets(), ours.plan_hook)
    return train(model)


@feature
def ddp_bf16_hook() -> Figures:
    model = DistributedDataParallel(network())
    if on_ours():
        import rdmaring.torch as ours

        model.register_comm_hook(None, ours.bf16_hook)
    return train(model)


@feature
def fsdp2_registered() -> Figures:
    model = fsdp2_model()
    if on_ours():
        import rdmaring.torch as ours

        ours.register(model)
    return train(model)


def main(backend: str, out: str, names: list[str]) -> int:
    torch.set_num_threads(1)
    dist.init_process_group(backend)
    figures: dict[str, Any] = {}
    for name in names:
        try:
            figures[name] = FEATURES[name]()
        except Exception:
            figures[name] = traceback.format_exc()[-2000:]
            break  # the others wait in the feature: the group is of no use any more
        dist.barrier()
    Path(f"{out}.{dist.get_rank()}").write_text(json.dumps(figures))
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:] or list(FEATURES)))
