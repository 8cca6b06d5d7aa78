"""Modules and kernels on the simulated driver: real images name the kernels, their source compiled for the CPU runs."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import cuda.bindings.driver as driver
import numpy as np
from cuda_sim.child import check, context, in_child, refused, run
from cuda_sim.kernel_calls import combine_of, function, image, launch

NON_BLOCKING = 1
COUNT = 5003


def ptx() -> bytes:
    """The PTX of float32, as this NVRTC writes it."""
    from rdmaring.cuda import kernels, nvrtc

    source = (kernels.source_folder() / kernels.SOURCE_NAME).read_bytes()
    abi = (kernels.source_folder() / kernels.INCLUDED_NAME).read_bytes()
    bindings = nvrtc.bindings()
    program = check(bindings.nvrtcCreateProgram(source, b"combine.cu", 1, [abi], [kernels.INCLUDED_NAME.encode()]))
    options = [b"--std=c++17", b"--gpu-architecture=compute_80", b"-DRR_DTYPE=0"]
    check(bindings.nvrtcCompileProgram(program, len(options), options))
    text = bytes(check(bindings.nvrtcGetPTXSize(program)))
    check(bindings.nvrtcGetPTX(program, text))
    return text


def vectors(stream: Any, number: int, count: int = COUNT) -> tuple[list[np.ndarray[Any, Any]], list[int]]:
    """Random float32 vectors, and copies of them in device memory."""
    rng = np.random.default_rng(7)
    values = [rng.uniform(-1, 1, count).astype(np.float32) for _ in range(number)]
    addresses = [int(check(driver.cuMemAlloc(value.nbytes))) for value in values]
    for value, address in zip(values, addresses, strict=True):
        check(driver.cuMemcpyHtoDAsync(address, value.ctypes.data, value.nbytes, stream))
    return values, addresses


def read(address: int, stream: Any, count: int = COUNT) -> np.ndarray[Any, Any]:
    out = np.zeros(count, np.float32)
    check(driver.cuMemcpyDtoHAsync(out.ctypes.data, address, out.nbytes, stream))
    check(driver.cuStreamSynchronize(stream))
    return out


def sum_of_three(module: Any) -> None:
    stream = check(driver.cuStreamCreate(NON_BLOCKING))
    values, addresses = vectors(stream, 3)
    combine = combine_of(addresses, addresses[1:], COUNT)
    check(launch(function(module), combine, stream))
    combine.count = 0  # the launch has its own copy
    combine.src[0] = 0
    expected = values[0] + values[1] + values[2]
    assert np.array_equal(read(addresses[1], stream), expected)
    assert np.array_equal(read(addresses[2], stream), expected)
    assert np.array_equal(read(addresses[0], stream), values[0])


@in_child(delay_us=2000)
def test_a_cubin_runs() -> None:
    context()
    module = check(driver.cuModuleLoadData(image()))
    assert int(function(module)) == int(function(module)) != int(function(module, "rr_max_float32"))
    sum_of_three(module)
    assert check(driver.cuFuncGetParamInfo(function(module), 0)) == (0, 176)
    assert refused(driver.cuFuncGetParamInfo(function(module), 1)) == 1


@in_child(others={"DRIVER_VERSION": 13090})
def test_ptx_runs() -> None:
    context()
    module = check(driver.cuModuleLoadData(ptx()))
    assert check(driver.cuFuncGetParamInfo(function(module, "rr_min_float32"), 0)) == (0, 176)
    sum_of_three(module)


@in_child(others={"DRIVER_VERSION": 13000})
def test_an_image_that_the_device_or_the_driver_does_not_run_is_refused() -> None:
    context()
    assert refused(driver.cuModuleLoadData(image("float32", (8, 0)))) == 209  # NO_BINARY_FOR_GPU
    text = ptx()
    newer = text.replace(b".version ", b".version 1", 1)  # 9.0 as 19.0
    assert newer != text and refused(driver.cuModuleLoadData(newer)) == 222  # UNSUPPORTED_PTX_VERSION
    for_driver = b"".join(b".version 9.0\n" if b".version" in line else line for line in text.splitlines(keepends=True))
    check(driver.cuModuleLoadData(for_driver))
    for_later = for_driver.replace(b".target sm_80", b".target sm_120")
    assert for_later != for_driver and refused(driver.cuModuleLoadData(for_later)) == 209
    without = for_driver.replace(b".param", b".parm")
    assert refused(driver.cuModuleLoadData(without)) == 218  # INVALID_PTX
    for garbage in (b"no program at all" + bytes(64), bytes(128), (0xBA55ED50).to_bytes(4, "little") + bytes(64)):
        assert refused(driver.cuModuleLoadData(garbage)) == 200  # INVALID_IMAGE


@in_child(devices=2)
def test_stale_and_foreign_handles_are_found_out() -> None:
    first = context(0)
    stream = check(driver.cuStreamCreate(NON_BLOCKING))
    module = check(driver.cuModuleLoadData(image()))
    kernel = function(module)
    assert refused(driver.cuModuleGetFunction(module, b"rr_sum_float64")) == 500
    _, addresses = vectors(stream, 1)
    combine = combine_of(addresses, addresses, COUNT)
    context(1)
    other = check(driver.cuStreamCreate(NON_BLOCKING))
    assert refused(driver.cuModuleGetFunction(module, b"rr_sum_float32")) == 201
    assert refused(launch(kernel, combine, other)) == 400
    check(driver.cuCtxSetCurrent(first))
    check(launch(kernel, combine, stream))
    check(driver.cuModuleUnload(module))
    assert refused(launch(kernel, combine, stream)) == 400
    assert refused(driver.cuModuleUnload(module)) == 400
    assert refused(driver.cuModuleGetFunction(module, b"rr_sum_float32")) == 400
    check(driver.cuStreamSynchronize(stream))


@in_child()
def test_a_kernel_dies_of_an_address_that_is_not_there() -> None:
    context()
    stream = check(driver.cuStreamCreate(NON_BLOCKING))
    kernel = function(check(driver.cuModuleLoadData(image())))
    host = np.zeros(COUNT, np.float32)  # which a device does not see
    _, addresses = vectors(stream, 1)
    check(launch(kernel, combine_of([addresses[0], host.ctypes.data], addresses, COUNT), stream))
    assert refused(driver.cuStreamSynchronize(stream)) == 700
    assert refused(driver.cuMemAlloc(4)) == 700


@in_child()
def test_a_kernel_dies_of_an_address_that_is_not_aligned() -> None:
    context()
    stream = check(driver.cuStreamCreate(NON_BLOCKING))
    kernel = function(check(driver.cuModuleLoadData(image())))
    _, addresses = vectors(stream, 2)
    check(launch(kernel, combine_of([addresses[0], addresses[1] + 2], addresses[:1], COUNT - 1), stream))
    assert refused(driver.cuStreamSynchronize(stream)) == 716


@in_child()
def test_a_kernel_dies_of_more_threads_than_its_bounds() -> None:
    context()
    stream = check(driver.cuStreamCreate(NON_BLOCKING))
    kernel = function(check(driver.cuModuleLoadData(image())))
    _, addresses = vectors(stream, 1)
    check(launch(kernel, combine_of(addresses, addresses, COUNT), stream, block=512))
    check(driver.cuStreamSynchronize(stream))
    check(launch(kernel, combine_of(addresses, addresses, COUNT), stream, block=513))
    assert refused(driver.cuStreamSynchronize(stream)) == 719


@in_child()
def test_pinned_host_memory_is_read_and_written_in_place() -> None:
    context()
    stream = check(driver.cuStreamCreate(NON_BLOCKING))
    kernel = function(check(driver.cuModuleLoadData(image())))
    pinned = int(check(driver.cuMemHostAlloc(4 * COUNT, 3)))
    seen = np.ctypeslib.as_array((ctypes.c_float * COUNT).from_address(pinned))
    seen[:] = 2
    values, addresses = vectors(stream, 1)
    check(launch(kernel, combine_of([pinned, addresses[0]], [pinned], COUNT), stream))
    check(driver.cuStreamSynchronize(stream))
    assert np.array_equal(seen, np.float32(2) + values[0])


def logged_launch() -> None:
    context()
    stream = check(driver.cuStreamCreate(NON_BLOCKING))
    kernel = function(check(driver.cuModuleLoadData(image())))
    _, addresses = vectors(stream, 3)
    check(launch(kernel, combine_of(addresses[:2], [addresses[2] + 4], COUNT - 1), stream))
    check(driver.cuStreamSynchronize(stream))


def test_the_race_log_has_what_a_kernel_touched(tmp_path: Path) -> None:
    status, output = run(__file__, "logged_launch", race_log=tmp_path)
    assert status == 0, output
    (path,) = tmp_path.iterdir()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    (kernel,) = [line for line in lines if line.get("op") == "kernel"]
    written = [line["writes"] for line in lines if str(line.get("op", "")).startswith("copy") or "h2d" in str(line)]
    assert [each[2] for each in kernel["reads"]] == [4 * (COUNT - 1)] * 2
    assert [each[2] for each in kernel["writes"]] == [4 * (COUNT - 1)]
    assert written
    memory, offset, _ = kernel["reads"][0]
    assert kernel["writes"][0][0] == memory and kernel["writes"][0][1] % 512 == 4 and offset % 512 == 0
