"""Many small tensors: one call for each, against one call for the list of them, and a plan of the list.

    rdmaring run -n 2 scripts/many_tensors.py
    rdmaring run -n 2 scripts/many_tensors.py --tensors 1000 --bytes 64,256,1024,4096,16384
    scripts/hosts --hosts 2 -- python scripts/many_tensors.py

A time is the least, over the samples, of the slowest rank's. Results are checked.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import rdmaring


def least_us(comm: rdmaring.Communicator, call: Callable[[], Any], samples: int) -> float:
    """The least time of a call, in us: ranks begin together, the slowest one counts."""
    taken_s = np.zeros(samples)
    call()
    for sample in range(samples):
        comm.barrier()
        begin = time.perf_counter()
        call()
        taken_s[sample] = time.perf_counter() - begin
    comm.all_reduce(taken_s, op="max")
    return float(taken_s.min() * 1e6)


def measured(comm: rdmaring.Communicator, count: int, nbytes: int, samples: int) -> dict[str, Any]:
    """Times for ``count`` tensors of ``nbytes`` each."""
    tensors = [np.full(nbytes // 4, comm.rank + 1.0, np.float32) for _ in range(count)]
    comm.all_reduce(tensors)
    right = comm.size * (comm.size + 1) / 2
    if not all((tensor == right).all() for tensor in tensors):
        raise SystemExit("many_tensors: a sum is wrong")
    for tensor in tensors:
        tensor[:] = 0
    whole = np.zeros(count * (nbytes // 4), np.float32)
    one_by_one_us = least_us(comm, lambda: [comm.all_reduce(tensor) for tensor in tensors], samples)
    list_us = least_us(comm, lambda: comm.all_reduce(tensors), samples)
    fresh_us = least_us(comm, lambda: comm.all_reduce(list(tensors)), samples)
    return {
        "tensors": count,
        "bytes": nbytes,
        "one_by_one_us": round(one_by_one_us, 1),
        "list_us": round(list_us, 1),
        "new_list_us": round(fresh_us, 1),  # the same arrays in a list not seen before
        "plan_us": round(least_us(comm, comm.plan_all_reduce(tensors), samples), 1),
        "one_array_us": round(least_us(comm, lambda: comm.all_reduce(whole), samples), 1),
        "list_faster": round(one_by_one_us / list_us, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensors", type=int, default=1000)
    parser.add_argument("--bytes", default="1024", help="of a tensor; several between commas")
    parser.add_argument("--samples", type=int, default=15)
    arguments = parser.parse_args()
    with rdmaring.init() as comm:
        for nbytes in map(int, arguments.bytes.split(",")):
            found = measured(comm, arguments.tensors, nbytes, arguments.samples)
            if comm.rank == 0:
                print(json.dumps(found | {"transport": sorted({link.transport for link in comm.links})}), flush=True)


if __name__ == "__main__":
    main()
