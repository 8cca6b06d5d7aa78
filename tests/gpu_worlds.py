"""Ranks with simulated GPUs, through the public face: what tests run."""

from __future__ import annotations

import functools
import textwrap
from pathlib import Path
from typing import Any

from cuda_sim import build, build_shim
from cuda_sim.environment import environment
from worlds import Ran, run_world

TESTS = str(Path(__file__).resolve().parent)

GPU = """
import gpu_arrays as ga

def values(rank, count, dtype):
    # Small integers: sums and products are exact in every dtype, in any order.
    return ((np.arange(count) * 7 + 3 * rank) % 5).astype(dtype)

def everyone(comm, count, dtype):
    return np.stack([values(r, count, dtype) for r in range(comm.size)])

def host(x):
    return x.copy_to_host() if hasattr(x, "copy_to_host") else x.get() if hasattr(x, "get") else np.asarray(x)

def wrong(got, expected):
    got = host(got)
    return int((got.shape != expected.shape) or (got.astype(np.float64) != expected.astype(np.float64)).sum())
"""


STREAMS = """
from rdmaring.cuda.driver import bindings, call
import ctypes

class Gate:
    # What is put into the stream from now on waits until it is opened.
    def __init__(self, producer):
        self.page = ga.Pinned(producer.device, 64)
        self.page.array[:] = 0
        with producer.device.current():
            call("cuStreamWaitValue32", producer.stream, self.page.address, 1, 1)

    def open(self):
        self.page.array[0] = 1

def sync(producer):
    with producer.device.current():
        call("cuStreamSynchronize", producer.stream)

def idle(producer):
    with producer.device.current():
        return int(bindings().cuStreamQuery(producer.stream)[0]) == 0

def drained(producer, seconds=20):
    end = time.monotonic() + seconds
    while not idle(producer) and time.monotonic() < end:
        time.sleep(0.01)
    say(drained=idle(producer))

sim = ctypes.CDLL("libcuda.so.1")
sim.cs_calls.restype = ctypes.c_uint64
def called(*names):
    return sum(int(sim.cs_calls(name.encode())) for name in names)
SYNCHRONIZING = ("cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize", "cuMemFree")
"""

CAPTURE = """
GLOBAL = bindings().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL

def capture(p, function):
    with p.device.current():
        call("cuStreamBeginCapture", p.stream, GLOBAL)
        try:
            function()
        finally:
            status, graph = bindings().cuStreamEndCapture(p.stream)
        assert int(status) == 0, status
        return call("cuGraphInstantiate", graph, 0)

def launch(p, graph):
    with p.device.current():
        call("cuGraphLaunch", graph, p.stream)
"""


# All collectives, TURNS times; each communicator has streams, so delays, of its own.
COLLECTIVES = """
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
        parts = [ga.Numba(p, part) for part in np.array_split(x[me], 3)]
        other.all_reduce(parts)
        bad += sum(wrong(part, want) for part, want in zip(parts, np.array_split(x.sum(0), 3)))
        part = ga.Numba(p, np.zeros_like(np.array_split(x[me], n)[me]))
        other.reduce_scatter(a, out=part)
        bad += wrong(part, np.array_split(x.sum(0), n)[me])
        other.all_gather(part, out=b)
        bad += wrong(b, x.sum(0))
        other.broadcast(b, root=n - 1)
        other.reduce(b, root=0)
        bad += wrong(b, x.sum(0) * (n if me == 0 else 1))
        each = everyone(comm, 601 * n, np.int32)
        whole, mine = ga.Numba(p, each[me]), ga.Numba(p, np.zeros(601 * n, np.int32))
        other.all_to_all(whole, out=mine)
        bad += wrong(mine, each[:, me * 601:(me + 1) * 601].reshape(-1))
        piece = ga.Numba(p, np.zeros(601, np.int32))
        other.scatter(whole if me == 0 else None, out=piece)
        bad += wrong(piece, each[0][me * 601:(me + 1) * 601])
        other.gather(piece, out=mine if me == 0 else None)
        bad += wrong(mine, each[0]) if me == 0 else 0
        say(lists=sum(native.listed for native in other._plans.values()), plans=len(other._plans))
        if other is not comm:
            other.close()
    comm.barrier()
    say(bad=bad)
"""


@functools.cache
def kernel_cache() -> Path:
    """Compiled kernels of all tests of this run: each dtype costs a second on a busy machine."""
    return build.cache_folder() / "kernels"


def run_gpus(
    world: int, source: str, tmp_path: Path, *options: str, env: dict[str, str] | None = None, **settings: Any
) -> Ran:
    """``source`` on ranks with simulated GPUs; settings: environment()'s."""
    own = {**environment(**settings), "PYTHONPATH": TESTS, "RR_CUDA_SIM_KERNELS": str(build_shim.library())}
    own |= {"XDG_CACHE_HOME": str(kernel_cache()), **(env or {})}
    return run_world(world, GPU + textwrap.dedent(source), tmp_path, *options, env=own, timeout_s=110)
