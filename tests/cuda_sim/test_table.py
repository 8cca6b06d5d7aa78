"""The table of entries: ours, those that are not ours, and the process they belong to."""

from __future__ import annotations

import ctypes
import os

import cuda.bindings.driver as driver
import pytest
from cuda_sim import build, make_table
from cuda_sim.child import check, context, in_child, refused

RESULT = driver.CUresult


def proc(name: str, version: int) -> tuple[object, ...]:
    return driver.cuGetProcAddress(name.encode(), version, 0)


@in_child()
def test_an_older_signature_is_not_given_for_a_newer_one_that_is_missing() -> None:
    check(driver.cuInit(0))
    assert check(proc("cuMemAlloc", 3020))[0] == check(proc("cuMemAlloc", 13000))[0] != 0
    assert check(proc("cuCtxGetDevice", 12000))[0] != 0
    answer = proc("cuCtxGetDevice", 13000)  # a signature with a second argument since 13.0
    assert refused(answer) == RESULT.CUDA_ERROR_NOT_FOUND
    assert refused(proc("cuNoSuchCall", 13000)) == RESULT.CUDA_ERROR_NOT_FOUND
    assert refused(proc("cuMemAlloc", 3000)) == RESULT.CUDA_ERROR_NOT_FOUND


@in_child()
def test_a_call_that_we_lack_is_named_by_the_bindings() -> None:
    check(driver.cuInit(0))
    with pytest.raises(Exception, match="cuMemAllocManaged"):
        driver.cuMemAllocManaged(4096, 1)


@in_child()
def test_nvrtc_compiles_beside_the_simulated_driver() -> None:
    import cuda.bindings.nvrtc as nvrtc

    check(driver.cuInit(0))
    program = check(nvrtc.nvrtcCreateProgram(b'extern "C" __global__ void k(int *p) { *p = 1; }', b"k.cu", 0, [], []))
    check(nvrtc.nvrtcCompileProgram(program, 1, [b"-arch=sm_90"]))
    assert check(nvrtc.nvrtcGetCUBINSize(program)) > 0


@in_child()
def test_the_export_table_is_not_found() -> None:
    library = ctypes.CDLL("libcuda.so.1")
    table = ctypes.c_void_p(1)
    assert library.cuGetExportTable(ctypes.byref(table), bytes(16)) == RESULT.CUDA_ERROR_NOT_FOUND
    assert table.value is None


@in_child()
def test_nothing_goes_before_init_and_nothing_without_a_context() -> None:
    assert refused(driver.cuDeviceGetCount()) == RESULT.CUDA_ERROR_NOT_INITIALIZED
    assert refused(driver.cuInit(1)) == RESULT.CUDA_ERROR_INVALID_VALUE
    check(driver.cuInit(0))
    assert check(driver.cuDeviceGetCount()) == 1
    assert refused(driver.cuMemAlloc(4096)) == RESULT.CUDA_ERROR_INVALID_CONTEXT
    context()
    check(driver.cuMemAlloc(4096))


@in_child()
def test_a_child_of_fork_is_not_initialised() -> None:
    context()
    child = os.fork()
    if not child:
        answers = [driver.cuInit(0)[0], driver.cuDeviceGetCount()[0], driver.cuMemAlloc(4096)[0]]
        os._exit(0 if answers == [RESULT.CUDA_ERROR_NOT_INITIALIZED] * 3 else 1)
    assert os.waitpid(child, 0)[1] == 0
    check(driver.cuMemAlloc(4096))


@in_child(devices=0)
def test_a_node_without_devices_says_so() -> None:
    assert refused(driver.cuInit(0)) == RESULT.CUDA_ERROR_NO_DEVICE


@in_child(fail=["cuMemAlloc:2:CUDA_ERROR_OUT_OF_MEMORY", "cuCtxSynchronize:2+:999"])
def test_planned_failures_strike_the_call_they_name() -> None:
    context()
    check(driver.cuMemAlloc(4096))
    assert refused(driver.cuMemAlloc(4096)) == RESULT.CUDA_ERROR_OUT_OF_MEMORY
    check(driver.cuMemAlloc(4096))
    check(driver.cuCtxSynchronize())
    assert refused(driver.cuCtxSynchronize()) == refused(driver.cuCtxSynchronize()) == RESULT.CUDA_ERROR_UNKNOWN


@in_child(fail=["cuMemAlloc:1:700"])
def test_a_planned_fault_is_sticky() -> None:
    context()
    assert refused(driver.cuMemAlloc(4096)) == 700
    assert refused(driver.cuMemAlloc(4096)) == 700
    assert refused(driver.cuCtxSynchronize()) == 700
    assert check(driver.cuGetErrorName(RESULT.CUDA_ERROR_ILLEGAL_ADDRESS)) == b"CUDA_ERROR_ILLEGAL_ADDRESS"


@in_child()
def test_calls_are_counted() -> None:
    library = ctypes.CDLL("libcuda.so.1")
    library.cs_calls.restype = ctypes.c_uint64
    context()
    for _ in range(3):
        check(driver.cuMemAlloc(4096))
    assert library.cs_calls(b"cuMemAlloc") == 3
    assert library.cs_calls(b"*") == 3 + 4  # init, device, context, current


def test_a_version_that_the_header_lacks_is_refused_at_build_time(tmp_path) -> None:
    typedefs = (build.headers() / "cudaTypedefs.h").read_text()
    source = tmp_path / "new.c"
    source.write_text("CS_API(cuMemAlloc, 3021)(CUdeviceptr *address, size_t bytes)\n")
    with pytest.raises(ValueError, match="cuMemAlloc"):
        make_table.declarations(typedefs, [source])
