"""Device memory, pinned memory and what the driver tells of addresses."""

from __future__ import annotations

import ctypes
import mmap

from gpu.conformance import (
    BLOCK_BYTES,
    Gate,
    case,
    check,
    context,
    driver,
    filled,
    non_blocking,
    poll,
    read,
    refused,
    write,
)

ERROR = driver.CUresult
ATTRIBUTE = driver.CUpointer_attribute
COUNT = 4096


def tell(name: str, address: int) -> int:
    return int(check(driver.cuPointerGetAttribute(getattr(ATTRIBUTE, f"CU_POINTER_ATTRIBUTE_{name}"), address)))


@case()
def test_small_allocations_share_a_block_at_steps_of_512_bytes() -> None:
    context()
    begins = [int(check(driver.cuMemAlloc(count))) for count in (1, 65, 123, 1 << 20)]
    assert [begin - begins[0] for begin in begins] == [0, 0x200, 0x400, 0x600]
    assert all(begin % 512 == 0 for begin in begins)


@case()
def test_allocations_of_2_mib_and_more_begin_at_multiples_of_2_mib() -> None:
    context()
    check(driver.cuMemAlloc(1))
    for count in (BLOCK_BYTES, 2 * BLOCK_BYTES, 3 * BLOCK_BYTES):
        assert int(check(driver.cuMemAlloc(count))) % BLOCK_BYTES == 0


@case()
def test_an_address_names_its_allocation_with_the_bytes_that_were_asked_for() -> None:
    context()
    for count in (1000, BLOCK_BYTES, BLOCK_BYTES + 1000):
        begin = int(check(driver.cuMemAlloc(count)))
        for offset in (0, 1, count - 1):
            base, size = check(driver.cuMemGetAddressRange(begin + offset))
            assert (int(base), size) == (begin, count)
        assert tell("RANGE_START_ADDR", begin + 1) == begin
        assert tell("RANGE_SIZE", begin + 1) == count


@case()
def test_nothing_is_allocated_of_nothing_and_freed_once() -> None:
    context()
    assert refused(driver.cuMemAlloc(0)) == ERROR.CUDA_ERROR_INVALID_VALUE
    begin = int(check(driver.cuMemAlloc(BLOCK_BYTES)))
    assert refused(driver.cuMemFree(begin + 512)) == ERROR.CUDA_ERROR_INVALID_VALUE
    check(driver.cuMemFree(begin))
    assert refused(driver.cuMemFree(begin)) == ERROR.CUDA_ERROR_INVALID_VALUE
    check(driver.cuMemFree(0))


@case()
def test_pointer_attributes_of_device_memory() -> None:
    context()
    begin = filled()
    assert tell("MEMORY_TYPE", begin) == int(driver.CUmemorytype.CU_MEMORYTYPE_DEVICE)
    assert tell("DEVICE_ORDINAL", begin) == 0
    assert tell("IS_MANAGED", begin) == 0
    assert tell("IS_LEGACY_CUDA_IPC_CAPABLE", begin) == 1
    first = tell("BUFFER_ID", begin)
    assert tell("BUFFER_ID", begin + 4096) == first
    other = int(check(driver.cuMemAlloc(BLOCK_BYTES)))
    assert tell("BUFFER_ID", other) != first


@case()
def test_a_buffer_id_is_not_used_again_though_the_address_is() -> None:
    context()
    seen = {}
    for _ in range(8):
        begin = int(check(driver.cuMemAlloc(BLOCK_BYTES)))
        number = tell("BUFFER_ID", begin)
        assert number not in seen
        seen[number] = begin
        check(driver.cuMemFree(begin))
    assert len(set(seen.values())) < 8, "no address came again: the case has shown nothing"


@case()
def test_pointer_attributes_of_host_memory() -> None:
    context()
    pinned = int(check(driver.cuMemHostAlloc(COUNT, driver.CU_MEMHOSTALLOC_DEVICEMAP)))
    assert tell("MEMORY_TYPE", pinned) == int(driver.CUmemorytype.CU_MEMORYTYPE_HOST)
    assert tell("IS_LEGACY_CUDA_IPC_CAPABLE", pinned) == 0
    ordinary = ctypes.create_string_buffer(COUNT)
    answer = driver.cuPointerGetAttribute(ATTRIBUTE.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ctypes.addressof(ordinary))
    assert refused(answer) == ERROR.CUDA_ERROR_INVALID_VALUE


@case()
def test_sync_memops_can_be_set_on_device_memory() -> None:
    context()
    begin = filled()
    check(driver.cuPointerSetAttribute(True, ATTRIBUTE.CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, begin))
    assert tell("SYNC_MEMOPS", begin) == 1


@case()
def test_memory_of_a_pool_is_not_for_legacy_ipc() -> None:
    context()
    stream = non_blocking()
    begin = int(check(driver.cuMemAllocAsync(BLOCK_BYTES, stream)))
    check(driver.cuStreamSynchronize(stream))
    assert tell("IS_LEGACY_CUDA_IPC_CAPABLE", begin) == 0
    assert refused(driver.cuIpcGetMemHandle(begin)) == ERROR.CUDA_ERROR_INVALID_VALUE
    check(driver.cuMemsetD8Async(begin, 5, COUNT, stream))
    check(driver.cuStreamSynchronize(stream))
    assert read(begin, COUNT) == bytes([5]) * COUNT
    check(driver.cuMemFreeAsync(begin, stream))
    check(driver.cuStreamSynchronize(stream))


@case()
def test_pinned_memory_has_one_address_for_host_and_device() -> None:
    context()
    pinned = int(check(driver.cuMemHostAlloc(COUNT, driver.CU_MEMHOSTALLOC_DEVICEMAP)))
    assert int(check(driver.cuMemHostGetDevicePointer(pinned, 0))) == pinned
    check(driver.cuMemFreeHost(pinned))


@case()
def test_registered_memory_is_pinned_once() -> None:
    context()
    pages = mmap.mmap(-1, 4 * mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    check(driver.cuMemHostRegister(address, 2 * mmap.PAGESIZE, driver.CU_MEMHOSTREGISTER_DEVICEMAP))
    again = driver.cuMemHostRegister(address, 2 * mmap.PAGESIZE, driver.CU_MEMHOSTREGISTER_DEVICEMAP)
    assert refused(again) == ERROR.CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
    inside = int(check(driver.cuMemHostGetDevicePointer(address + 100, 0)))
    device = filled()
    write(device, b"x" * COUNT)
    check(driver.cuMemcpyDtoD(inside, device, COUNT))
    check(driver.cuCtxSynchronize())
    assert pages[100 : 100 + COUNT] == b"x" * COUNT
    check(driver.cuMemHostUnregister(address))
    assert refused(driver.cuMemHostUnregister(address)) == ERROR.CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED


@case()
def test_pageable_memory_is_read_when_the_copy_is_called() -> None:
    """Small copies are staged by the call, so the stream may stand still meanwhile."""
    context()
    stream, gate, device = non_blocking(), Gate(), filled()
    source = ctypes.create_string_buffer(b"old!" * 256, 1024)
    gate.stop(stream)
    check(driver.cuMemcpyHtoDAsync(device, ctypes.addressof(source), 1024, stream))
    source.raw = b"new!" * 256
    assert not poll(stream)
    gate.open()
    check(driver.cuStreamSynchronize(stream))
    assert read(device, 1024) == b"old!" * 256


@case()
def test_pinned_memory_is_read_when_the_copy_runs() -> None:
    context()
    stream, gate, device = non_blocking(), Gate(), filled()
    pinned = int(check(driver.cuMemHostAlloc(1024, 0)))
    ctypes.memset(pinned, 1, 1024)
    gate.stop(stream)
    check(driver.cuMemcpyHtoDAsync(device, pinned, 1024, stream))
    ctypes.memset(pinned, 2, 1024)
    gate.open()
    check(driver.cuStreamSynchronize(stream))
    assert read(device, 1024) == bytes([2]) * 1024


@case(delay_us=2000)
def test_a_copy_to_pageable_memory_is_there_when_the_call_returns() -> None:
    context()
    stream, device = non_blocking(), filled(value=1)
    for value in range(2, 10):
        target = ctypes.create_string_buffer(COUNT)
        check(driver.cuMemsetD8Async(device, value, COUNT, stream))
        check(driver.cuMemcpyDtoHAsync(ctypes.addressof(target), device, COUNT, stream))
        assert target.raw == bytes([value]) * COUNT


@case(delay_us=2000)
def test_a_copy_to_pinned_memory_may_come_later_but_is_there_after_the_stream() -> None:
    context()
    stream, device, gate = non_blocking(), filled(value=1), Gate()
    pinned = int(check(driver.cuMemHostAlloc(COUNT, 0)))
    ctypes.memset(pinned, 0, COUNT)
    gate.stop(stream)
    check(driver.cuMemcpyDtoHAsync(pinned, device, COUNT, stream))
    assert ctypes.string_at(pinned, COUNT) == bytes(COUNT)
    gate.open()
    check(driver.cuStreamSynchronize(stream))
    assert ctypes.string_at(pinned, COUNT) == bytes([1]) * COUNT


@case()
def test_a_copy_that_runs_over_the_end_is_refused() -> None:
    context()
    device = filled()
    target = ctypes.create_string_buffer(2 * COUNT)
    answer = driver.cuMemcpyDtoH(ctypes.addressof(target), device + BLOCK_BYTES - COUNT, 2 * COUNT)
    assert refused(answer) == ERROR.CUDA_ERROR_INVALID_VALUE
