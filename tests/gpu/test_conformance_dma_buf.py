"""dma-buf descriptors of device memory, as RDMA registration takes them."""

from __future__ import annotations

import mmap
import os

from gpu.conformance import BLOCK_BYTES, attribute, case, check, context, driver, filled, lacking, refused

ERROR = driver.CUresult
FD = driver.CUmemRangeHandleType.CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD


@case()
def test_pages_of_an_allocation_have_a_descriptor() -> None:
    context()
    if not attribute("DMA_BUF_SUPPORTED"):
        lacking("no dma-buf")
    memory = filled(2 * BLOCK_BYTES)
    for offset, count in ((0, 2 * BLOCK_BYTES), (mmap.PAGESIZE, mmap.PAGESIZE), (BLOCK_BYTES, BLOCK_BYTES)):
        descriptor = int(check(driver.cuMemGetHandleForAddressRange(memory + offset, count, FD, 0)))
        assert os.fstat(descriptor)
        os.close(descriptor)


@case()
def test_a_range_that_does_not_consist_of_pages_is_refused() -> None:
    context()
    if not attribute("DMA_BUF_SUPPORTED"):
        lacking("no dma-buf")
    memory = filled()
    for offset, count in ((512, mmap.PAGESIZE), (0, 1000), (0, 0)):
        answer = driver.cuMemGetHandleForAddressRange(memory + offset, count, FD, 0)
        assert refused(answer) == ERROR.CUDA_ERROR_INVALID_VALUE, (offset, count)


@case()
def test_a_range_that_runs_over_the_end_is_refused() -> None:
    context()
    if not attribute("DMA_BUF_SUPPORTED"):
        lacking("no dma-buf")
    refused(driver.cuMemGetHandleForAddressRange(filled(), 3 * BLOCK_BYTES, FD, 0))


@case(attributes={"DMA_BUF_SUPPORTED": 0})
def test_a_device_without_says_so() -> None:
    context()
    if attribute("DMA_BUF_SUPPORTED"):
        lacking("it has dma-buf")
    answer = driver.cuMemGetHandleForAddressRange(filled(), BLOCK_BYTES, FD, 0)
    assert refused(answer) == ERROR.CUDA_ERROR_NOT_SUPPORTED
