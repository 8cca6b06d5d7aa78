"""Ranks with simulated GPUs on several nodes, between which the host carries what streams give it."""

from __future__ import annotations

from typing import Any

# PER ranks are neighbours on a node.
NODES = """
import os
os.environ["RDMARING_HOST_ID"] = f"host{int(os.environ['RDMARING_RANK']) // PER}"
"""
ONE_SLOT = {"RDMARING_SLOT_BYTES": "4096", "RDMARING_SLOT_COUNT": "1"}
SMALL_SLOTS = {"RDMARING_SLOT_BYTES": "8192", "RDMARING_SLOT_COUNT": "2"}
SMALL_SLOT = {"RDMARING_SLOT_BYTES": "8192", "RDMARING_SLOT_COUNT": "1"}  # float32 in place of 16 bits fits


def nodes(per: int = 1) -> str:
    return f"PER = {per}" + NODES


def of(ran: Any, world: int, key: str) -> list[Any]:
    assert ran.code == 0, ran.output
    return [ran.of(rank, key) for rank in range(world)]


# Each communicator has streams, so delays, of its own.
DELAYS = """
with rr.init(device="cuda", timeout_s=60) as comm:
    p, n, me = ga.Producer(comm._ordinal("cuda")), comm.size, comm.rank
    bad = 0
    for turn in range(TURNS):
        other = comm.dup() if turn else comm  # with streams, so delays, of its own
        x = everyone(comm, 2003, np.int32)
        a, b = ga.Numba(p, x[me]), ga.Numba(p, np.zeros_like(x[me]))
        for algorithm in ("ring", "direct", None):
            other.all_reduce(a, out=b, algorithm=algorithm)
            other.all_reduce(b, op="max")
        bad += wrong(b, x.sum(0))
        part = ga.Numba(p, np.zeros_like(np.array_split(x[me], n)[me]))
        other.reduce_scatter(a, out=part)
        other.all_gather(part, out=b)
        bad += wrong(b, x.sum(0))
        other.broadcast(b, root=n - 1)
        other.reduce(b, root=0)
        bad += wrong(b, x.sum(0) * (n if me == 0 else 1))
        if other is not comm:
            other.close()
    comm.barrier()
    say(bad=bad)
"""
