"""Every collective, with expected values from formulas. A script of a rank."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist

import rdmaring.torch as ours

dist.init_process_group("rdmaring", timeout=timedelta(seconds=60))
rank, size = dist.get_rank(), dist.get_world_size()
total = size * (size + 1) // 2
Op = dist.ReduceOp


def reduced(dtype: torch.dtype, op: object, mine: torch.Tensor, expected: object) -> None:
    for async_op in (False, False, True):  # the second takes the fast path
        tensor = mine.to(dtype, copy=True)
        work = dist.all_reduce(tensor, op, async_op=async_op)
        if work is not None:
            work.wait()
        assert (tensor == torch.tensor(expected).to(dtype)).all(), (dtype, op, tensor)


def refused(kind: type[Exception], words: str, call: object) -> None:
    try:
        call()  # type: ignore[operator]
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"not refused: {words}")


REAL = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
WHOLE = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64]
for dtype in [*REAL, *WHOLE, torch.complex64, torch.complex128]:
    reduced(dtype, Op.SUM, torch.full((7,), rank + 1), total)
for dtype in [*REAL, *WHOLE]:
    reduced(dtype, Op.MAX, torch.full((7,), rank + 1), size)
    reduced(dtype, Op.MIN, torch.full((7,), rank + 1), 1)
for dtype in REAL:
    reduced(dtype, Op.AVG, torch.full((7,), rank + 1), total / size)
reduced(torch.int32, Op.PRODUCT, torch.full((3,), rank + 2), torch.arange(2, size + 2).prod().item())
reduced(torch.bool, Op.SUM, torch.full((5,), rank == 0), True)
reduced(torch.bool, Op.PRODUCT, torch.full((5,), rank == 0), False)
reduced(torch.int32, Op.BAND, torch.full((5,), 4 + rank % 2), 4)
reduced(torch.int32, Op.BOR, torch.full((5,), 1 << rank), (1 << size) - 1)
reduced(torch.int64, Op.BXOR, torch.full((5,), 1 << rank), (1 << size) - 1)

refused(TypeError, "only moved", lambda: dist.all_reduce(torch.ones(2).to(torch.float8_e4m3fn)))
refused(ValueError, "AVG of torch.int32", lambda: dist.all_reduce(torch.ones(2, dtype=torch.int32), Op.AVG))

# not contiguous: the elements, not the gaps
base = torch.zeros(6, 8)
view = base.t()[::2, ::2]
view.fill_(rank + 1)
dist.all_reduce(view)
assert (view == total).all() and base.sum() == total * view.numel()
conjugated = torch.full((3,), complex(1, rank), dtype=torch.complex64).conj()
dist.group.WORLD.allreduce([conjugated]).wait()  # dist.all_reduce refuses it
assert (conjugated == complex(size, -(total - size))).all()

# moved, by any dtype; uneven
for dtype in (torch.float32, torch.bool, torch.float8_e4m3fn, torch.bfloat16, torch.complex128):
    outs = [torch.empty(3, 2).to(dtype).t() for _ in range(size)]
    dist.all_gather(outs, torch.full((2, 3), rank).to(dtype))
    assert all(
        (out.to(torch.complex128) == torch.tensor(index).to(dtype).to(torch.complex128)).all()
        for index, out in enumerate(outs)
    )
outs = [torch.empty(index + 1) for index in range(size)]
dist.all_gather(outs, torch.full((rank + 1,), float(rank)))
assert all((out == index).all() for index, out in enumerate(outs))
part = torch.empty(rank + 1)
dist.reduce_scatter(part, [torch.full((index + 1,), float(index + rank)) for index in range(size)])
assert (part == rank * size + total - size).all()
whole = torch.empty(size * 2)
dist.all_gather_into_tensor(whole, torch.full((2,), float(rank)))
assert whole.tolist() == [float(index // 2) for index in range(size * 2)]
part = torch.empty(2)
dist.reduce_scatter_tensor(part, torch.arange(2.0 * size))
assert part.tolist() == [size * 2.0 * rank, size * (2.0 * rank + 1)]
mine = torch.cat([torch.full((index + 1, 2), 10.0 * rank + index) for index in range(size)])
got = torch.empty(size * (rank + 1), 2)
dist.all_to_all_single(got, mine, [rank + 1] * size, [index + 1 for index in range(size)])
assert got[:, 0].tolist() == [10.0 * (index // (rank + 1)) + rank for index in range(size * (rank + 1))]
tensor = torch.full((4,), float(rank))
dist.broadcast(tensor, 1)
assert (tensor == 1).all()
tensor = torch.full((4,), float(rank + 1))
dist.reduce(tensor, 1)
assert (tensor == (total if rank == 1 else rank + 1)).all()
gathered = [torch.empty(2) for _ in range(size)] if rank == 1 else None
dist.gather(torch.full((2,), float(rank)), gathered, 1)
assert gathered is None or all((each == index).all() for index, each in enumerate(gathered))
scattered = torch.empty(2)
dist.scatter(scattered, [torch.full((2,), float(index)) for index in range(size)] if rank == 0 else None, 0)
assert (scattered == rank).all()
sparse = torch.sparse_coo_tensor([[rank, size]], [1.0, 2.0], (size + 1,))
dist.all_reduce(sparse)
assert sparse.to_dense().tolist() == [1.0] * size + [2.0 * size]

# tags, sizes beyond the head, any source
if rank == 0:
    for tag, count in ((5, 3), (6, 100_000), (7, 3)):
        dist.send(torch.full((count,), float(tag)), 1, tag=tag)
    late = torch.empty(3)
    assert dist.recv(late) == 1 and (late == 9).all()
elif rank == 1:
    for tag, count in ((7, 3), (6, 100_000), (5, 3)):
        tensor = torch.empty(count)
        dist.recv(tensor, 0, tag=tag)
        assert (tensor == tag).all()
    dist.send(torch.full((3,), 9.0), 0)

work = dist.all_reduce(torch.ones(3), async_op=True)
assert work.get_future().wait()[0].tolist() == [size] * 3
registered = ours.empty(1000, 1000)
registered.fill_(rank + 1)
dist.all_reduce(registered)
assert (registered == total).all()
dist.group.WORLD.monitored_barrier(timedelta(seconds=30))

# a timeout says so, in torch's type and words, and names who did not come
group = dist.new_group(timeout=timedelta(seconds=1))
if rank == 0:
    refused(dist.DistBackendError, " Timed out ", lambda: dist.all_reduce(torch.ones(3), group=group))
dist.barrier()
dist.destroy_process_group()
print("ALL GOOD", flush=True)
