"""Kernels on the simulated driver, by the driver's own calls: for programs of tests that run in children."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Any

import cuda.bindings.driver as driver
from cuda_sim import build
from cuda_sim.child import check
from cuda_sim.cpu_kernels import Combine


def image(dtype: str = "float32", capability: tuple[int, int] = (9, 0)) -> bytes:
    """A real cubin, kept between tests."""
    from rdmaring.cuda import kernels

    os.environ["XDG_CACHE_HOME"] = str(build.cache_folder() / "cubins")
    return kernels.cubin(dtype, capability)


def function(module: Any, name: str = "rr_sum_float32") -> Any:
    return check(driver.cuModuleGetFunction(module, name.encode()))


def launch(kernel: Any, combine: Combine, stream: Any, block: int = 32) -> tuple[Any, ...]:
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(combine))
    return driver.cuLaunchKernel(kernel, 3, 1, 1, block, 1, 1, 0, stream, ctypes.addressof(parameters), 0)


def combine_of(sources: Sequence[int], targets: Sequence[int], count: int) -> Combine:
    combine = Combine(count=count, src_count=len(sources), dst_count=len(targets))
    combine.src[: len(sources)] = sources
    combine.dst[: len(targets)] = targets
    return combine
