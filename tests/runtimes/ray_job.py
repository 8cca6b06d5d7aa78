"""Two actors whose collectives are those of the module in docs/RUNTIMES.md; argv: the folder with ring_for_ray.py."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import ray
from ray.util import collective


@ray.remote(num_cpus=0)
class Worker:
    def run(self, rank: int, size: int, folder: str) -> list[Any]:
        sys.path.insert(0, folder)
        import ring_for_ray  # noqa: F401 - registers itself

        collective.init_collective_group(size, rank, "RDMARING", "ours")
        x = np.full(1000, rank + 1.0, np.float32)
        collective.allreduce(x, "ours")
        largest = np.full(3, rank, np.int64)
        collective.allreduce(largest, "ours", collective.types.ReduceOp.MAX)
        told = np.full(4, float(rank))
        collective.broadcast(told, 1, "ours")
        parts = [np.zeros(2), np.zeros(2)]
        collective.allgather(parts, np.full(2, 10.0 + rank), "ours")
        part = np.zeros(2)
        collective.reducescatter(part, [np.full(2, 1.0 + rank), np.full(2, 5.0 + rank)], "ours")
        message = np.arange(5.0)
        if rank == 0:
            collective.send(message, 1, "ours")
        else:
            message[:] = 0
            collective.recv(message, 0, "ours")
        collective.barrier("ours")
        collective.destroy_collective_group("ours")
        return [each.tolist() for each in (x[::999], largest, told, *parts, part, message)]


ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
workers = [Worker.remote() for _ in range(2)]
found = ray.get([worker.run.remote(rank, 2, sys.argv[1]) for rank, worker in enumerate(workers)], timeout=120)
for rank, each in enumerate(found):
    scattered = [[3.0] * 2, [11.0] * 2][rank]
    expected = [[3.0] * 2, [1] * 3, [1.0] * 4, [10.0] * 2, [11.0] * 2, scattered, [0.0, 1.0, 2.0, 3.0, 4.0]]
    assert each == expected, (rank, each, expected)
ray.shutdown()
print("RIGHT")
