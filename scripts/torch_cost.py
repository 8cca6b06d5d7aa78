"""What torch.distributed adds to rdmaring, and how it stands beside gloo.

    python scripts/torch_cost.py
    python scripts/torch_cost.py -n 4 --json cost.json

Two measurements, each of calls that take turns in one process tree, so that what else the machine does meets all
alike; figures are medians over the turns, of the slowest rank:

8 bytes: `dist.all_reduce(tensor)` beside `comm.all_reduce` of the tensor, and of an array, on the same communicator;
and `dist.all_reduce` of a group that does nothing, which is what torch's own Python takes.
bucket: `dist.all_reduce` of --bucket-mib over rdmaring and over gloo; of ordinary memory, and of registered.

Exit code: 0; with --check 1 if the call of torch costs more than 5 us more, or gloo is not 3 times slower.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch_world

ADDED_US = 5.0
FASTER = 3.0


def in_turns(calls: dict[str, Callable[[], Any]], turns: int, repeats: int) -> dict[str, list[float]]:
    """Seconds of one call, for each turn; all ranks begin a turn together."""
    import torch.distributed as dist

    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():  # connections, plans, pages
        for _ in range(3):
            call()
    for _ in range(turns):
        for name, call in calls.items():
            dist.barrier()
            begin_s = time.perf_counter()
            for _ in range(repeats):
                call()
            times[name].append((time.perf_counter() - begin_s) / repeats)
    return times


def medians_us(times: dict[str, list[float]]) -> dict[str, float]:
    """Over the turns, of the slowest rank."""
    import torch.distributed as dist

    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, times)
    return {
        name: 1e6 * statistics.median(map(max, zip(*(each[name] for each in every), strict=True))) for name in times
    }


def measured(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Microseconds by measurement and call."""
    import numpy as np
    import torch
    import torch.distributed as dist

    import rdmaring.torch as ours
    from rdmaring.torch.process_group import DONE

    class Nothing(dist.ProcessGroup):  # type: ignore[misc]
        def allreduce(self, tensors: Any, opts: Any = None) -> Any:
            return DONE

    nothing = Nothing(dist.get_rank(), dist.get_world_size())
    comm = dist.group.WORLD.comm
    small, array = torch.ones(2), np.ones(2, np.float32)
    small_calls = {
        "dist.all_reduce(tensor)": lambda: dist.all_reduce(small),
        "comm.all_reduce(tensor)": lambda: comm.all_reduce(small),
        "comm.all_reduce(array)": lambda: comm.all_reduce(array),
        "dist.all_reduce, nothing": lambda: dist.all_reduce(small, group=nothing),
    }
    gloo = dist.new_group(backend="gloo")
    count = int(options.bucket_mib * 2**20) // 4
    plain, other, registered = torch.zeros(count), torch.zeros(count), ours.empty(count).zero_()
    large_calls = {
        "gloo": lambda: dist.all_reduce(other, group=gloo),
        "rdmaring": lambda: dist.all_reduce(plain),
        "rdmaring, registered": lambda: dist.all_reduce(registered),
    }
    return {
        "8 bytes": medians_us(in_turns(small_calls, options.turns, options.repeats)),
        "bucket": medians_us(in_turns(large_calls, options.turns, 1)),
    }


def verdict(found: dict[str, dict[str, float]]) -> tuple[float, float]:
    """What torch adds to a call, in microseconds; how much faster than gloo a bucket of ordinary memory is."""
    small, bucket = found["8 bytes"], found["bucket"]
    added = small["dist.all_reduce(tensor)"] - small["comm.all_reduce(array)"]
    return added, bucket["gloo"] / bucket["rdmaring"]


def rank_main(options: argparse.Namespace) -> int:
    """What a rank does."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("rdmaring")
    found = measured(options)
    added_us, faster = verdict(found)
    if dist.get_rank() == 0:
        print(f"world size {dist.get_world_size()}; medians of {options.turns} turns, of the slowest rank")
        for title, times in found.items():
            print(title if title != "bucket" else f"bucket of {options.bucket_mib:g} MiB")
            for name, us in times.items():
                print(f"  {name:<26} {us:>12.2f} us")
        print(
            f"torch adds {added_us:.2f} us to a call of 8 bytes, {found['8 bytes']['dist.all_reduce, nothing']:.2f} of "
            f"them torch's own; a bucket is {faster:.2f} times faster than with gloo"
        )
        if options.json is not None:
            document = {"world": dist.get_world_size(), "added_us": added_us, "faster": faster, "us": found}
            options.json.write_text(json.dumps(document))
    dist.barrier()
    dist.destroy_process_group()
    return 1 if options.check and (added_us > ADDED_US or faster < FASTER) else 0


def arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What torch.distributed adds to rdmaring; a bucket beside gloo.")
    add = parser.add_argument
    add("-n", type=int, default=2, help="ranks, where no launcher has made this process one (default: 2)")
    add("--turns", type=int, default=31, help="of each call (default: 31)")
    add("--repeats", type=int, default=300, help="calls of 8 bytes in a turn (default: 300)")
    add("--bucket-mib", type=float, default=25.0, help="of the large call (default: 25, as DDP's)")
    add("--check", action="store_true", help=f"exit code 1 above {ADDED_US:g} us, or below {FASTER:g} times gloo")
    add("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    options = parser.parse_args(given)
    if min(options.n, options.turns, options.repeats) < 1 or options.bucket_mib <= 0:
        parser.error("-n, --turns and --repeats take integers > 0, --bucket-mib numbers > 0")
    return torch_world.check(parser, options, {"torch": "torch"})


if __name__ == "__main__":
    sys.exit(torch_world.main(arguments(None), rank_main))
