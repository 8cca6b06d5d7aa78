"""Streams, events and copies: what is asynchronous is, and nothing is ordered that was not asked to be."""

from __future__ import annotations

import ctypes
import threading
import time

import cuda.bindings.driver as driver
import numpy as np
from cuda_sim.child import check, context, in_child, refused

NON_BLOCKING = 1
GEQ, EQ, AND, NOR = 0, 1, 2, 3


def word(stream: object, address: int) -> int:
    value = np.zeros(1, np.uint32)
    check(driver.cuMemcpyDtoHAsync(value.ctypes.data, address, 4, stream))
    return int(value[0])


def blocked(flags: int = NON_BLOCKING) -> tuple[object, ctypes.Array[ctypes.c_uint32]]:
    """A stream that waits until the word of pinned memory is 1."""
    pinned = int(check(driver.cuMemHostAlloc(4096, 3)))
    gate = (ctypes.c_uint32 * 1).from_address(pinned)
    stream = check(driver.cuStreamCreate(flags))
    check(driver.cuStreamWaitValue32(stream, pinned, 1, EQ))
    return stream, gate


@in_child()
def test_a_stream_runs_behind_its_caller() -> None:
    context()
    stream, gate = blocked()
    address = int(check(driver.cuMemAlloc(4)))
    check(driver.cuMemsetD32Async(address, 7, 1, stream))
    assert refused(driver.cuStreamQuery(stream)) == 600
    gate[0] = 1
    check(driver.cuStreamSynchronize(stream))
    check(driver.cuStreamQuery(stream))
    assert word(stream, address) == 7


@in_child()
def test_pinned_sources_are_read_late_and_pageable_ones_at_once() -> None:
    context()
    stream, gate = blocked()
    address = int(check(driver.cuMemAlloc(16)))
    pinned = int(check(driver.cuMemHostAlloc(8, 0)))
    late, early = (ctypes.c_uint32 * 1).from_address(pinned), np.array([1], np.uint32)
    late[0] = 1
    check(driver.cuMemcpyHtoDAsync(address, early.ctypes.data, 4, stream))
    check(driver.cuMemcpyHtoDAsync(address + 4, pinned, 4, stream))
    early[0] = late[0] = 2
    gate[0] = 1
    assert (word(stream, address), word(stream, address + 4)) == (1, 2)


@in_child()
def test_a_copy_to_pageable_memory_waits_and_one_to_pinned_memory_does_not() -> None:
    context()
    stream, gate = blocked()
    address = int(check(driver.cuMemAlloc(4)))
    check(driver.cuMemsetD32Async(address, 9, 1, stream))
    pinned = int(check(driver.cuMemHostAlloc(4, 0)))
    check(driver.cuMemcpyDtoHAsync(pinned, address, 4, stream))
    assert refused(driver.cuStreamQuery(stream)) == 600
    timer = threading.Timer(0.1, lambda: gate.__setitem__(0, 1))
    timer.start()
    begin = time.monotonic()
    assert word(stream, address) == 9
    assert time.monotonic() - begin > 0.05
    assert ctypes.c_uint32.from_address(pinned).value == 9


@in_child()
def test_a_wait_means_the_latest_record_at_its_call() -> None:
    context()
    first, gate = blocked()
    second, event = check(driver.cuStreamCreate(NON_BLOCKING)), check(driver.cuEventCreate(2))
    check(driver.cuStreamWaitEvent(second, event, 0))  # never recorded: no wait
    check(driver.cuStreamSynchronize(second))
    check(driver.cuEventRecord(event, second))
    check(driver.cuEventSynchronize(event))
    check(driver.cuStreamWaitEvent(second, event, 0))
    check(driver.cuEventRecord(event, first))  # later than the wait: not meant by it
    check(driver.cuStreamSynchronize(second))
    assert refused(driver.cuEventQuery(event)) == 600
    check(driver.cuStreamWaitEvent(second, event, 0))
    assert refused(driver.cuStreamQuery(second)) == 600
    gate[0] = 1
    check(driver.cuStreamSynchronize(second))
    check(driver.cuEventQuery(event))


@in_child()
def test_the_legacy_stream_waits_for_blocking_streams_and_they_for_it() -> None:
    context()
    address = int(check(driver.cuMemAlloc(8)))
    blocking, gate = blocked(flags=0)
    check(driver.cuMemsetD32Async(address, 5, 1, 1))
    assert refused(driver.cuStreamQuery(1)) == 600
    other, free = check(driver.cuStreamCreate(0)), check(driver.cuStreamCreate(NON_BLOCKING))
    check(driver.cuMemsetD32Async(address + 4, 5, 1, other))
    assert refused(driver.cuStreamQuery(other)) == 600
    check(driver.cuMemsetD32Async(address + 4, 6, 1, free))
    check(driver.cuStreamSynchronize(free))
    gate[0] = 1
    check(driver.cuStreamSynchronize(other))
    check(driver.cuStreamQuery(0))
    check(driver.cuStreamQuery(blocking))


@in_child()
def test_the_legacy_stream_does_not_wait_for_non_blocking_streams() -> None:
    context()
    stream, gate = blocked()
    address = int(check(driver.cuMemAlloc(4)))
    check(driver.cuMemsetD32(address, 5, 1))
    assert word(0, address) == 5
    check(driver.cuMemsetD32Async(address, 6, 1, 2))  # the thread's own stream
    assert word(2, address) == 6
    assert refused(driver.cuStreamQuery(stream)) == 600
    gate[0] = 1


@in_child()
def test_comparisons_are_those_of_the_driver() -> None:
    context()
    stream = check(driver.cuStreamCreate(NON_BLOCKING))
    address = int(check(driver.cuMemAlloc(16)))
    top = (1 << 32) - 1
    for value, wanted, flags in [(3, 3, GEQ), (3, 2, GEQ), (1, top, GEQ), (5, 5, EQ), (6, 2, AND), (6, 1, NOR)]:
        check(driver.cuStreamWriteValue32(stream, address, value, 0))
        check(driver.cuStreamWaitValue32(stream, address, wanted, flags))
        check(driver.cuStreamSynchronize(stream))
    check(driver.cuStreamWriteValue64(stream, address + 8, 1 << 40, 0))
    check(driver.cuStreamWaitValue64(stream, address + 8, 1 << 40, EQ))
    check(driver.cuStreamSynchronize(stream))
    for value, wanted, flags in [(2, 3, GEQ), (top, 1, GEQ), (5, 4, EQ), (6, 1, AND), (top, 1, NOR)]:
        check(driver.cuStreamWriteValue32(stream, address, value, 0))
        check(driver.cuStreamWaitValue32(stream, address, wanted, flags))
        assert refused(driver.cuStreamQuery(stream)) == 600
        time.sleep(0.01)
        assert refused(driver.cuStreamQuery(stream)) == 600
        other = check(driver.cuStreamCreate(NON_BLOCKING))
        check(driver.cuStreamWriteValue32(other, address, {NOR: 0}.get(flags, wanted), 0))
        check(driver.cuStreamSynchronize(stream))


@in_child(attributes={"CAN_USE_STREAM_WAIT_VALUE_NOR": 0, "CAN_USE_64_BIT_STREAM_MEM_OPS": 0})
def test_memory_operations_are_checked_when_they_are_called() -> None:
    context()
    stream = check(driver.cuStreamCreate(NON_BLOCKING))
    address = int(check(driver.cuMemAlloc(64)))
    pageable = np.zeros(1, np.uint32).ctypes.data
    assert refused(driver.cuStreamWaitValue32(stream, address + 2, 0, 0)) == 1
    assert refused(driver.cuStreamWriteValue32(stream, address + 64, 0, 0)) == 1
    assert refused(driver.cuStreamWriteValue32(stream, pageable, 0, 0)) == 1
    assert refused(driver.cuStreamWriteValue32(stream, address, 0, 1)) == 801  # NO_MEMORY_BARRIER: v1 only
    assert refused(driver.cuStreamWaitValue32(stream, address, 0, NOR)) == 801
    assert refused(driver.cuStreamWaitValue32(stream, address, 0, 1 << 30)) == 801  # a flush
    assert refused(driver.cuStreamWriteValue64(stream, address, 0, 0)) == 801
    check(driver.cuStreamQuery(stream))


@in_child()
def test_a_batch_runs_in_its_order() -> None:
    context()
    stream = check(driver.cuStreamCreate(NON_BLOCKING))
    address = int(check(driver.cuMemAlloc(8)))
    check(driver.cuMemsetD32Async(address, 0, 2, stream))
    kinds = driver.CUstreamBatchMemOpType
    items = []
    for kind, at, value in [("WRITE", 0, 1), ("WAIT", 0, 1), ("WRITE", 0, 0), ("WRITE", 4, 3)]:
        item = driver.CUstreamBatchMemOpParams()
        half = item.writeValue if kind == "WRITE" else item.waitValue
        half.operation = getattr(kinds, f"CU_STREAM_MEM_OP_{kind}_VALUE_32")
        half.address, half.value, half.flags = address + at, driver.cuuint32_t(value), EQ if kind == "WAIT" else 0
        items.append(item)
    check(driver.cuStreamBatchMemOp(stream, 4, items, 0))
    assert (word(stream, address), word(stream, address + 4)) == (0, 3)
    assert refused(driver.cuStreamBatchMemOp(stream, 256, items * 64, 0)) == 1
    assert refused(driver.cuStreamBatchMemOp(stream, 4, items, 1)) == 1


@in_child(one_queue=True)
def test_one_queue_holds_up_every_stream_behind_a_wait() -> None:
    context()
    stream, gate = blocked()
    other, address = check(driver.cuStreamCreate(NON_BLOCKING)), int(check(driver.cuMemAlloc(4)))
    check(driver.cuMemsetD32Async(address, 1, 1, other))
    time.sleep(0.05)
    assert refused(driver.cuStreamQuery(other)) == 600
    gate[0] = 1
    check(driver.cuStreamSynchronize(other))
    check(driver.cuStreamQuery(stream))


@in_child()
def test_handles_that_were_destroyed_are_refused() -> None:
    context()
    stream, event = check(driver.cuStreamCreate(0)), check(driver.cuEventCreate(0))
    check(driver.cuStreamDestroy(stream))
    check(driver.cuEventDestroy(event))
    for _ in range(20):
        check(driver.cuStreamCreate(0))
        check(driver.cuEventCreate(0))
    assert refused(driver.cuStreamSynchronize(stream)) == 400
    assert refused(driver.cuEventRecord(event, 0)) == 400
    assert refused(driver.cuStreamDestroy(0)) == 400


@in_child(devices=2)
def test_a_stream_belongs_to_its_context() -> None:
    context(0)
    stream, address = check(driver.cuStreamCreate(0)), check(driver.cuMemAlloc(4))
    context(1)
    assert refused(driver.cuMemsetD32Async(address, 0, 1, stream)) == 400


@in_child(devices=2)
def test_peers_are_mapped_only_after_asking_and_copies_need_no_mapping() -> None:
    first = context(0)
    near = int(check(driver.cuMemAlloc(4)))
    context(1)
    far = int(check(driver.cuMemAlloc(4)))
    check(driver.cuMemcpyDtoD(far, near, 4))
    check(driver.cuCtxSynchronize())
    check(driver.cuCtxEnablePeerAccess(first, 0))
    assert refused(driver.cuCtxEnablePeerAccess(first, 0)) == 704
    check(driver.cuStreamWriteValue32(0, near, 3, 0))
    assert word(0, near) == 3
    check(driver.cuCtxDisablePeerAccess(first))
    assert refused(driver.cuCtxDisablePeerAccess(first)) == 705
    check(driver.cuStreamWriteValue32(0, near, 4, 0))
    assert refused(driver.cuCtxSynchronize()) == 700
    assert refused(driver.cuMemAlloc(4)) == 700  # sticky


@in_child()
def test_memory_is_freed_after_the_work_on_it() -> None:
    context()
    stream, gate = blocked()
    address = check(driver.cuMemAlloc(4))
    check(driver.cuMemsetD32Async(address, 1, 1, stream))
    threading.Timer(0.1, lambda: gate.__setitem__(0, 1)).start()
    begin = time.monotonic()
    check(driver.cuMemFree(address))
    assert time.monotonic() - begin > 0.05


@in_child()
def test_a_host_function_runs_in_order_and_may_not_call_the_driver() -> None:
    context()
    stream, gate = blocked()
    seen: list[int] = []
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: seen.append(int(driver.cuMemAlloc(4)[0])))
    check(driver.cuLaunchHostFunc(stream, driver.CUhostFn(_ptr=ctypes.addressof(function)), 0))
    assert seen == []
    gate[0] = 1
    while refused_or_done(stream):
        time.sleep(0.001)
    assert seen == [800]


def refused_or_done(stream: object) -> bool:
    return int(driver.cuStreamQuery(stream)[0]) == 600


@in_child(delay_us=20000)
def test_delays_let_a_missing_wait_show() -> None:
    context()
    one, two = check(driver.cuStreamCreate(NON_BLOCKING)), check(driver.cuStreamCreate(NON_BLOCKING))
    address = int(check(driver.cuMemAlloc(4)))
    wrong = 0
    for turn in range(1, 25):
        check(driver.cuMemsetD32Async(address, turn, 1, one))
        wrong += word(two, address) != turn
    check(driver.cuCtxSynchronize())
    assert 0 < wrong


@in_child()
def test_times_are_told_by_events_that_keep_them() -> None:
    context()
    stream = check(driver.cuStreamCreate(NON_BLOCKING))
    first, last, silent = (check(driver.cuEventCreate(flags)) for flags in (0, 0, 2))
    check(driver.cuEventRecord(first, stream))
    check(driver.cuStreamSynchronize(stream))
    time.sleep(0.02)
    for event in (last, silent):
        check(driver.cuEventRecord(event, stream))
    check(driver.cuStreamSynchronize(stream))
    assert 20 <= check(driver.cuEventElapsedTime(first, last)) < 5000
    assert refused(driver.cuEventElapsedTime(first, silent)) == 400
    assert refused(driver.cuEventCreate(4)) == 1  # INTERPROCESS keeps no time
