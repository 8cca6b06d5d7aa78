"""Kernels: rdmaring's own, loaded as cubins of the device at hand; launches, and faults that stay."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from cuda_sim.cpu_kernels import Combine
from gpu.conformance import Gate, attribute, case, check, context, driver, filled, non_blocking, read, refused, write

from rdmaring.cuda import kernels

ERROR = driver.CUresult
COUNT = 4099
THREADS_MAX = 1024


def function(name: str = "rr_sum_float32") -> Any:
    capability = (attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR"))
    module = check(driver.cuModuleLoadData(kernels.cubin("float32", capability)))
    return check(driver.cuModuleGetFunction(module, name.encode()))


def launch(kernel: Any, combine: Combine, stream: Any, threads: int = 128) -> tuple[Any, ...]:
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(combine))
    return driver.cuLaunchKernel(kernel, 2, 1, 1, threads, 1, 1, 0, stream, ctypes.addressof(parameters), 0)


def sum_of(sources: list[int], target: int) -> Combine:
    combine = Combine(count=COUNT, src_count=len(sources), dst_count=1)
    combine.src[: len(sources)] = sources
    combine.dst[0] = target
    return combine


def vector(address: int, seed: int) -> np.ndarray[Any, Any]:
    values = np.random.default_rng(seed).random(COUNT, np.float32)
    write(address, values.tobytes())
    return values


@case()
def test_a_kernel_adds_with_the_bits_of_float32_addition() -> None:
    context()
    stream, first, second, target = non_blocking(), filled(), filled(), filled()
    expected = vector(first, 1) + vector(second, 2)
    check(launch(function(), sum_of([first, second], target), stream))
    check(driver.cuStreamSynchronize(stream))
    assert read(target, 4 * COUNT) == expected.tobytes()


@case()
def test_parameters_are_copied_when_the_launch_is_called() -> None:
    context()
    kernel, stream, gate, first, target = function(), non_blocking(), Gate(), filled(), filled()
    expected = vector(first, 3)
    combine = sum_of([first], target)
    gate.stop(stream)
    check(launch(kernel, combine, stream))
    ctypes.memset(ctypes.addressof(combine), 0, ctypes.sizeof(combine))
    gate.open()
    check(driver.cuStreamSynchronize(stream))
    assert read(target, 4 * COUNT) == expected.tobytes()


@case()
def test_a_kernel_reads_and_writes_pinned_host_memory() -> None:
    """What the progress executor does with slots of links."""
    context()
    stream, device = non_blocking(), filled()
    slot, result = (int(check(driver.cuMemHostAlloc(4 * COUNT, driver.CU_MEMHOSTALLOC_DEVICEMAP))) for _ in range(2))
    values = np.random.default_rng(4).random(COUNT, np.float32)
    ctypes.memmove(slot, values.ctypes.data, values.nbytes)
    expected = values + vector(device, 5)
    check(launch(function(), sum_of([slot, device], result), stream))
    check(driver.cuStreamSynchronize(stream))
    assert ctypes.string_at(result, 4 * COUNT) == expected.tobytes()


@case()
def test_more_than_1024_threads_are_refused() -> None:
    context()
    combine = sum_of([filled()], filled())
    answer = launch(function(), combine, non_blocking(), THREADS_MAX + 1)
    assert refused(answer) == ERROR.CUDA_ERROR_INVALID_VALUE


@case()
def test_a_kernel_that_is_not_in_the_module_is_not_found() -> None:
    context()
    function()
    capability = (attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR"))
    module = check(driver.cuModuleLoadData(kernels.cubin("float32", capability)))
    assert refused(driver.cuModuleGetFunction(module, b"rr_mean_float32")) == ERROR.CUDA_ERROR_NOT_FOUND


@case()
def test_a_cubin_of_another_architecture_is_refused() -> None:
    context()
    other = (8, 0) if attribute("COMPUTE_CAPABILITY_MAJOR") != 8 else (9, 0)
    answer = driver.cuModuleLoadData(kernels.cubin("float32", other))
    assert refused(answer) == ERROR.CUDA_ERROR_NO_BINARY_FOR_GPU


@case()
def test_a_bad_address_in_a_kernel_stays_with_the_process() -> None:
    context()
    kernel, stream, memory = function(), non_blocking(), filled()
    nowhere = memory + (1 << 38)
    check(launch(kernel, sum_of([nowhere], memory), stream))
    assert refused(driver.cuStreamSynchronize(stream)) == ERROR.CUDA_ERROR_ILLEGAL_ADDRESS
    assert refused(driver.cuMemAlloc(4096)) == ERROR.CUDA_ERROR_ILLEGAL_ADDRESS
    assert refused(driver.cuStreamQuery(stream)) == ERROR.CUDA_ERROR_ILLEGAL_ADDRESS
    assert refused(driver.cuCtxSynchronize()) == ERROR.CUDA_ERROR_ILLEGAL_ADDRESS
