"""Device and pinned memory: where it lies, who may touch it, and what the driver says of an address."""

from __future__ import annotations

import ctypes
import os
import signal

import cuda.bindings.driver as driver
import numpy as np
from cuda_sim.child import check, context, in_child, refused

BLOCK = 2 << 20
ATTRIBUTE = driver.CUpointer_attribute
PREFIX = "CU_POINTER_ATTRIBUTE_"


def attribute(name: str, address: int) -> int:
    return int(check(driver.cuPointerGetAttribute(getattr(ATTRIBUTE, PREFIX + name), address)))


@in_child()
def test_small_allocations_share_a_block_at_steps_of_512_bytes() -> None:
    context()
    offsets = [int(check(driver.cuMemAlloc(size))) for size in (1, 65, 123, 1 << 20)]
    assert [address - offsets[0] for address in offsets] == [0, 0x200, 0x400, 0x600]
    assert offsets[0] % BLOCK == 0
    large = int(check(driver.cuMemAlloc(BLOCK)))
    assert large % BLOCK == 0 and not offsets[0] <= large < offsets[0] + BLOCK
    check(driver.cuMemFree(offsets[1]))
    assert int(check(driver.cuMemAlloc(100))) == offsets[1]


@in_child()
def test_the_range_of_an_address_is_its_allocation() -> None:
    context()
    first, second = int(check(driver.cuMemAlloc(100))), int(check(driver.cuMemAlloc(1000)))
    assert [int(x) for x in check(driver.cuMemGetAddressRange(second + 999))] == [second, 1000]
    assert refused(driver.cuMemGetAddressRange(first + 100)) == 500
    assert attribute("RANGE_START_ADDR", second + 8) == second
    assert attribute("RANGE_SIZE", second + 8) == 1000
    assert attribute("MEMORY_TYPE", first) == driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
    assert attribute("IS_LEGACY_CUDA_IPC_CAPABLE", first) == 1
    ids = {attribute("BUFFER_ID", first), attribute("BUFFER_ID", second)}
    check(driver.cuMemFree(second))
    again = int(check(driver.cuMemAlloc(1000)))
    assert again == second and attribute("BUFFER_ID", again) not in ids and len(ids) == 2


@in_child()
def test_the_host_faults_on_a_device_address() -> None:
    context()
    address = int(check(driver.cuMemAlloc(4096)))
    assert check(driver.cuMemcpyDtoH(ctypes.create_string_buffer(4), address, 4)) is None
    read, write = os.pipe()
    if not os.fork():
        os.write(write, b"before")
        ctypes.string_at(address, 1)
        os.write(write, b"after")
        os._exit(0)
    _, status = os.wait()
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSEGV
    assert os.read(read, 20) == b"before"


@in_child()
def test_fresh_memory_is_not_zero() -> None:
    context()
    host = np.zeros(64, np.uint8)
    check(driver.cuMemcpyDtoH(host.ctypes.data, check(driver.cuMemAlloc(64)), 64))
    assert host.all()


@in_child()
def test_ends_are_exact_and_frees_are_checked() -> None:
    context()
    address, other = int(check(driver.cuMemAlloc(100))), int(check(driver.cuMemAlloc(100)))
    assert refused(driver.cuMemsetD8(address, 0, 101)) == 1
    assert refused(driver.cuMemcpyDtoD(address, other + 1, 100)) == 1
    assert refused(driver.cuMemFree(address + 1)) == 1
    check(driver.cuMemFree(address))
    assert refused(driver.cuMemFree(address)) == 1
    assert refused(driver.cuMemsetD8(address, 0, 1)) == 1
    assert refused(driver.cuMemAlloc(0)) == 1


@in_child(others={"MEMORY_MIB": 8})
def test_a_device_has_an_end() -> None:
    context()
    assert check(driver.cuMemGetInfo()) == (8 << 20, 8 << 20)
    kept = [check(driver.cuMemAlloc(3 << 20)), check(driver.cuMemAlloc(BLOCK))]  # in steps of 2 MiB: 4 + 2
    assert check(driver.cuMemGetInfo())[0] == 2 << 20
    assert refused(driver.cuMemAlloc(3 << 20)) == 2
    check(driver.cuMemFree(kept[0]))
    check(driver.cuMemAlloc(5 << 20))


@in_child()
def test_pinned_memory_has_one_address_for_both() -> None:
    context()
    pinned = int(check(driver.cuMemHostAlloc(4096, 3)))
    assert int(check(driver.cuMemHostGetDevicePointer(pinned, 0))) == pinned
    assert attribute("MEMORY_TYPE", pinned) == driver.CUmemorytype.CU_MEMORYTYPE_HOST
    ctypes.memset(pinned, 7, 4096)
    check(driver.cuMemFreeHost(pinned))
    assert refused(driver.cuMemFreeHost(pinned)) == 1


@in_child()
def test_registrations_do_not_overlap_and_end_once() -> None:
    context()
    array = np.zeros(3 * 4096, np.uint8)
    address = array.ctypes.data
    assert refused(driver.cuPointerGetAttribute(ATTRIBUTE.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address)) == 1
    assert refused(driver.cuMemHostGetDevicePointer(address, 0)) == 1
    check(driver.cuMemHostRegister(address, 8192, 2))
    assert refused(driver.cuMemHostRegister(address + 4096, 8192, 2)) == 712
    assert int(check(driver.cuMemHostGetDevicePointer(address + 5, 0))) == address + 5
    check(driver.cuMemHostUnregister(address))
    assert refused(driver.cuMemHostUnregister(address)) == 713
    assert refused(driver.cuMemHostRegister(4096, 4096, 0)) == 1  # no such pages


@in_child()
def test_attributes_of_ordinary_memory_say_nothing_when_asked_together() -> None:
    context()
    array = np.zeros(16)
    wanted = [ATTRIBUTE.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ATTRIBUTE.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL]
    values = check(driver.cuPointerGetAttributes(2, wanted, array.ctypes.data))
    assert int(values[0]) == 0 and int(values[1]) == -2


@in_child()
def test_memory_that_a_nic_reads_can_be_marked() -> None:
    context()
    address = int(check(driver.cuMemAlloc(4096)))
    assert attribute("SYNC_MEMOPS", address) == 0 and attribute("IS_GPU_DIRECT_RDMA_CAPABLE", address) == 1
    check(driver.cuPointerSetAttribute(True, ATTRIBUTE.CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address))
    assert attribute("SYNC_MEMOPS", address) == 1


@in_child()
def test_the_last_release_ends_a_context_with_its_memory_and_streams() -> None:
    made = context()
    stream, address = check(driver.cuStreamCreate(1)), check(driver.cuMemAlloc(4096))
    check(driver.cuDevicePrimaryCtxRelease(0))
    assert refused(driver.cuMemAlloc(4096)) == 709
    assert refused(driver.cuCtxSetCurrent(made)) == 201
    assert refused(driver.cuDevicePrimaryCtxRelease(0)) == 201
    context()
    assert refused(driver.cuMemFree(address)) == 1
    assert refused(driver.cuStreamQuery(stream)) == 400


@in_child(devices=2)
def test_contexts_are_a_stack_of_each_thread() -> None:
    import threading

    first = context(0)
    second = check(driver.cuDevicePrimaryCtxRetain(1))
    check(driver.cuCtxPushCurrent(second))
    assert int(check(driver.cuCtxGetDevice())) == 1
    assert int(check(driver.cuCtxPopCurrent())) == int(second)
    assert int(check(driver.cuCtxGetDevice())) == 0
    answers: list[int] = []
    thread = threading.Thread(target=lambda: answers.append(refused(driver.cuMemAlloc(16))))
    thread.start()
    thread.join()
    assert answers == [201]
    assert int(check(driver.cuCtxGetCurrent())) == int(first)
