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
