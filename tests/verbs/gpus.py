"""Ranks on nodes of their own whose vectors are in GPU memory, joined by verbs: both simulators in one process."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cuda_sim.environment import environment
from gpu_worlds import GPU, TESTS, kernel_cache
from verbs.simulated import Verbs, run_verbs

ORDERING = "GPU_DIRECT_RDMA_WRITES_ORDERING"
OPTIONS = "GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS"
UNORDERED: Mapping[str, int] = {ORDERING: 0}  # kernels see a NIC's writes after the driver's call
BY_READ: Mapping[str, int] = {ORDERING: 0, OPTIONS: 0}  # and where the driver has none, after a READ
LATE = {"RDMA_LATE": 1}  # whatever the attributes say, writes are late: what a missing flush would do

# Each collective whose rows land in place, in place and out of place, over uneven chunks, several slices and a list.
SUMS = """
with rr.init(device="cuda", timeout_s=60) as comm:
    producer = ga.Producer(comm._ordinal("cuda"))
    n, me = comm.size, comm.rank
    bad = {}
    for count, dtype in ((37, np.int64), (5, np.uint8), (COUNT, np.float32)):
        x = everyone(comm, count, dtype)
        for algorithm in (None, "ring"):
            here = ga.Torch(producer, x[me])
            comm.all_reduce(here, algorithm=algorithm)
            bad[f"all_reduce {algorithm}"] = wrong(here, x.sum(0).astype(dtype))
            out = ga.Torch(producer, np.zeros(count, dtype))
            comm.all_reduce(ga.Numba(producer, x[me]), out=out, op="max", algorithm=algorithm)
            bad[f"all_reduce out {algorithm}"] = wrong(out, x.max(0))
        for root in range(n):
            here = ga.Numba(producer, x[me])
            comm.broadcast(here, root=root)
            bad[f"broadcast {root}"] = wrong(here, x[root])
        whole = comm.all_gather(ga.Torch(producer, x[me]))
        bad["all_gather"] = wrong(whole, x.reshape(-1))
        parts = np.array_split(x.sum(0).astype(dtype), n)
        bad["reduce_scatter"] = wrong(comm.reduce_scatter(ga.Torch(producer, x[me])), parts[me])
        each = everyone(comm, count * n, dtype)
        got = comm.all_to_all(ga.Torch(producer, each[me]))
        bad["all_to_all"] = wrong(got, each[:, me * count:(me + 1) * count].reshape(-1))
        pieces = [ga.Torch(producer, part) for part in np.array_split(x[me], 3)]
        comm.all_reduce(pieces)
        bad["list"] = sum(wrong(a, b) for a, b in zip(pieces, np.array_split(x.sum(0).astype(dtype), 3)))
        for name, found in bad.items():
            if found:
                say(wrong=f"{name} of {count} {np.dtype(dtype)}: {found} elements")
    say(links=[[link.transport, link.gpu, link.gpu_reason] for link in comm.links])
"""


def run_gpu_verbs(
    world: int,
    source: str,
    tmp_path: Path,
    spec: str = "dmabuf=1",
    *,
    env: dict[str, str] | None = None,
    count: int = 150_001,
    timeout_s: float = 110,
    **settings: Any,
) -> Verbs:
    """``source`` on ``world`` ranks; spec: VERBS_SIM; settings: those of the simulated driver's environment()."""
    own = {**environment(**settings), "PYTHONPATH": TESTS, "XDG_CACHE_HOME": str(kernel_cache()), **(env or {})}
    text = f"COUNT = {count}\n" + GPU + textwrap.dedent(source)
    return run_verbs(world, text, tmp_path, spec, env=own, timeout_s=timeout_s)


def wrongs(done: Verbs, world: int) -> list[str]:
    """What the ranks found wrong."""
    return [said["wrong"] for rank in range(world) for said in done.ran.said.get(rank, []) if "wrong" in said]
