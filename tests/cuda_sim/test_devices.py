"""Devices: what they say they can do, and what an adapter may do with their memory."""

from __future__ import annotations

import ctypes
import mmap
import os

import cuda.bindings.driver as driver
import numpy as np
from cuda_sim.child import check, context, in_child, refused, run

PAGE = 4096
BLOCK = 2 << 20
DMA_BUF = driver.CUmemRangeHandleType.CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD


def attribute(name: str, device: int = 0) -> int:
    return int(
        check(driver.cuDeviceGetAttribute(getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}"), device))
    )


def library() -> ctypes.CDLL:
    driver_library = ctypes.CDLL("libcuda.so.1")
    for name in ("cs_rdma_write", "cs_rdma_read"):
        function = getattr(driver_library, name)
        function.restype, function.argtypes = ctypes.c_bool, [ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t]
    return driver_library


def written(address: int) -> int:
    host = np.zeros(1, np.uint8)
    check(driver.cuMemcpyDtoH(host.ctypes.data, address, 1))
    return int(host[0])


@in_child(devices=2, attributes={"DMA_BUF_SUPPORTED": 0, "1/DMA_BUF_SUPPORTED": 1, "COMPUTE_CAPABILITY_MAJOR": 8})
def test_attributes_are_set_for_all_devices_or_for_one() -> None:
    check(driver.cuInit(0))
    assert [attribute("DMA_BUF_SUPPORTED", device) for device in (0, 1)] == [0, 1]
    assert attribute("COMPUTE_CAPABILITY_MAJOR") == 8
    assert attribute("UNIFIED_ADDRESSING") == 1
    assert (
        refused(driver.cuDeviceGetAttribute(driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 2)) == 101
    )


@in_child(devices=3, others={"PCI": "0001:3b:00.0,0001:5e:02.0"}, variables={"CUDA_VISIBLE_DEVICES": "1,2,7,0"})
def test_places_on_the_bus_follow_the_device() -> None:
    check(driver.cuInit(0))
    assert check(driver.cuDeviceGetCount()) == 2  # 7 hides what follows
    assert check(driver.cuDeviceGetPCIBusId(32, 0)).split(b"\0")[0] == b"0001:5e:02.0"
    assert check(driver.cuDeviceGetPCIBusId(32, 1)).split(b"\0")[0] == b"0000:12:00.0"
    assert [attribute(f"PCI_{part}_ID") for part in ("DOMAIN", "BUS", "DEVICE")] == [1, 0x5E, 2]
    assert int(check(driver.cuDeviceGetByPCIBusId(b"0001:5E:02.0"))) == 0


def print_uuids() -> None:
    check(driver.cuInit(0))
    print([bytes(check(driver.cuDeviceGetUuid(device)).bytes).hex() for device in range(2)])


def test_devices_have_the_same_uuid_in_all_processes_of_a_node_and_no_other() -> None:
    first, again, elsewhere = (run(__file__, "print_uuids", devices=2, node=node) for node in ("a", "a", "b"))
    assert first[0] == 0 and first == again
    assert len({*eval(first[1]), *eval(elsewhere[1])}) == 4


@in_child()
def test_a_dma_buf_is_the_memory_of_its_range() -> None:
    context()
    address = int(check(driver.cuMemAlloc(BLOCK)))
    fd = int(check(driver.cuMemGetHandleForAddressRange(address + PAGE, 2 * PAGE, DMA_BUF, 0)))
    adapter = mmap.mmap(fd, 2 * PAGE, offset=os.lseek(fd, 0, os.SEEK_CUR))
    adapter[0] = 77
    assert written(address + PAGE) == 77
    check(driver.cuMemsetD8(address + 2 * PAGE, 78, 1))
    check(driver.cuCtxSynchronize())
    assert adapter[PAGE] == 78
    for begin, size in [(address + 1, PAGE), (address, PAGE + 1), (address, BLOCK + PAGE)]:
        assert refused(driver.cuMemGetHandleForAddressRange(begin, size, DMA_BUF, 0)) == 1


@in_child(attributes={"DMA_BUF_SUPPORTED": 0, "GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS": 0})
def test_what_a_device_lacks_is_not_supported() -> None:
    context()
    address = int(check(driver.cuMemAlloc(BLOCK)))
    assert refused(driver.cuMemGetHandleForAddressRange(address, PAGE, DMA_BUF, 0)) == 801
    target, scope = driver.CUflushGPUDirectRDMAWritesTarget, driver.CUflushGPUDirectRDMAWritesScope
    current = target.CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX
    owner = scope.CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER
    assert refused(driver.cuFlushGPUDirectRDMAWrites(current, owner)) == 801


@in_child(attributes={"GPU_DIRECT_RDMA_WRITES_ORDERING": 0})
def test_writes_of_an_adapter_are_unseen_until_the_flush() -> None:
    context()
    address, adapter = int(check(driver.cuMemAlloc(BLOCK))), library()
    check(driver.cuMemsetD8(address, 1, 1))
    check(driver.cuCtxSynchronize())
    assert adapter.cs_rdma_write(address, b"\x02", 1)
    assert written(address) == 1
    target, scope = driver.CUflushGPUDirectRDMAWritesTarget, driver.CUflushGPUDirectRDMAWritesScope
    current = target.CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX
    check(driver.cuFlushGPUDirectRDMAWrites(current, scope.CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER))
    assert written(address) == 2
    assert adapter.cs_rdma_write(address, b"\x03", 1)
    assert written(address) == 2
    assert adapter.cs_rdma_read(address, ctypes.create_string_buffer(1), 1)  # a loopback READ flushes, too
    assert written(address) == 3
    assert not adapter.cs_rdma_write(address + BLOCK, b"\x03", 1)


@in_child()
def test_ordered_writes_of_an_adapter_are_seen_at_once() -> None:
    context()
    address = int(check(driver.cuMemAlloc(BLOCK)))
    assert library().cs_rdma_write(address, b"\x05", 1)
    assert written(address) == 5
