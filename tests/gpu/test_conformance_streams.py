"""Streams, events, contexts and processes."""

from __future__ import annotations

import ctypes
import os
import threading

from gpu.conformance import Gate, Peer, case, check, context, driver, filled, non_blocking, poll, refused, soon

ERROR = driver.CUresult
EVENT = driver.CUevent_flags
TIMELESS = int(EVENT.CU_EVENT_DISABLE_TIMING)


@case()
def test_a_stream_is_not_ready_while_it_waits() -> None:
    context()
    stream, gate = non_blocking(), Gate()
    assert poll(stream)
    gate.stop(stream)
    assert not poll(stream)
    gate.open()
    check(driver.cuStreamSynchronize(stream))
    assert poll(stream)


@case()
def test_streams_do_not_wait_for_each_other() -> None:
    context()
    first, second, gate, memory = non_blocking(), non_blocking(), Gate(), filled()
    gate.stop(first)
    check(driver.cuMemsetD8Async(memory, 1, 4096, second))
    assert soon(lambda: poll(second))
    assert not poll(first)
    gate.open()
    check(driver.cuCtxSynchronize())


@case()
def test_the_legacy_stream_waits_for_blocking_streams_and_they_for_it() -> None:
    context()
    blocking, apart, gate, memory = check(driver.cuStreamCreate(0)), non_blocking(), Gate(), filled()
    gate.stop(blocking)
    check(driver.cuMemsetD8Async(memory, 1, 4096, 0))
    other = check(driver.cuStreamCreate(0))
    check(driver.cuMemsetD8Async(memory, 2, 4096, other))
    check(driver.cuMemsetD8Async(memory, 3, 4096, apart))
    assert soon(lambda: poll(apart))
    assert not poll(driver.CUstream(driver.CU_STREAM_LEGACY))
    assert not poll(other)
    gate.open()
    check(driver.cuCtxSynchronize())
    assert poll(other)


@case()
def test_a_wait_means_the_record_that_was_the_latest_when_it_was_called() -> None:
    context()
    held, waiter, free, gate = non_blocking(), non_blocking(), non_blocking(), Gate()
    event = check(driver.cuEventCreate(TIMELESS))
    gate.stop(held)
    check(driver.cuEventRecord(event, held))
    check(driver.cuStreamWaitEvent(waiter, event, 0))
    check(driver.cuEventRecord(event, free))  # a later record, which is done at once, does not free the waiter
    assert soon(lambda: poll(free))
    assert not soon(lambda: poll(waiter), 0.2)
    gate.open()
    check(driver.cuStreamSynchronize(waiter))


@case()
def test_an_event_that_was_never_recorded_is_done() -> None:
    context()
    stream = non_blocking()
    event = check(driver.cuEventCreate(TIMELESS))
    check(driver.cuEventQuery(event))
    check(driver.cuStreamWaitEvent(stream, event, 0))
    check(driver.cuStreamSynchronize(stream))
    check(driver.cuEventSynchronize(event))


@case()
def test_an_event_is_not_ready_before_what_was_put_before_it() -> None:
    context()
    stream, gate = non_blocking(), Gate()
    event = check(driver.cuEventCreate(TIMELESS))
    gate.stop(stream)
    check(driver.cuEventRecord(event, stream))
    assert refused(driver.cuEventQuery(event)) == ERROR.CUDA_ERROR_NOT_READY
    gate.open()
    check(driver.cuEventSynchronize(event))
    check(driver.cuEventQuery(event))


@case()
def test_an_event_without_timing_measures_nothing() -> None:
    context()
    stream = non_blocking()
    timeless = check(driver.cuEventCreate(TIMELESS))
    timed = [check(driver.cuEventCreate(0)) for _ in range(2)]
    for event in (timed[0], timeless, timed[1]):
        check(driver.cuEventRecord(event, stream))
    check(driver.cuStreamSynchronize(stream))
    assert refused(driver.cuEventElapsedTime(timed[0], timeless)) == ERROR.CUDA_ERROR_INVALID_HANDLE
    assert check(driver.cuEventElapsedTime(*timed)) >= 0


@case()
def test_an_event_for_processes_must_be_without_timing() -> None:
    context()
    assert refused(driver.cuEventCreate(int(EVENT.CU_EVENT_INTERPROCESS))) == ERROR.CUDA_ERROR_INVALID_VALUE
    check(driver.cuEventCreate(TIMELESS | int(EVENT.CU_EVENT_INTERPROCESS)))


@case()
def test_contexts_are_current_per_thread() -> None:
    made = context()
    answers = []

    def other() -> None:
        answers.append(int(driver.cuMemAlloc(4096)[0]))
        check(driver.cuCtxPushCurrent(made))
        answers.append(int(driver.cuMemAlloc(4096)[0]))
        check(driver.cuCtxPopCurrent())
        answers.append(int(driver.cuMemAlloc(4096)[0]))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert answers == [int(ERROR.CUDA_ERROR_INVALID_CONTEXT), 0, int(ERROR.CUDA_ERROR_INVALID_CONTEXT)]


@case()
def test_nothing_goes_before_init() -> None:
    assert refused(driver.cuDeviceGetCount()) == ERROR.CUDA_ERROR_NOT_INITIALIZED
    check(driver.cuInit(0))
    assert check(driver.cuDeviceGetCount()) >= 1


@case()
def test_a_child_of_fork_is_not_initialised() -> None:
    context()
    child = os.fork()
    if not child:
        os._exit(0 if driver.cuMemAlloc(4096)[0] == ERROR.CUDA_ERROR_NOT_INITIALIZED else 1)
    assert os.waitpid(child, 0)[1] == 0
    check(driver.cuMemAlloc(4096))


def waits_for_an_event(hear, say) -> None:
    context()
    memory = int(check(driver.cuMemAlloc(4096)))
    stream = non_blocking()
    handle = driver.CUipcEventHandle()
    ctypes.memmove(handle.getPtr(), bytes.fromhex(hear()), 64)
    event = check(driver.cuIpcOpenEventHandle(handle))
    check(driver.cuStreamWaitEvent(stream, event, 0))
    check(driver.cuMemsetD8Async(memory, 1, 4096, stream))
    say("waits")
    hear()
    say(poll(stream))
    hear()
    check(driver.cuStreamSynchronize(stream))
    check(driver.cuEventSynchronize(event))
    check(driver.cuEventDestroy(event))
    say("done")


@case()
def test_an_event_of_one_process_orders_a_stream_of_another() -> None:
    context()
    stream, gate = non_blocking(), Gate()
    event = check(driver.cuEventCreate(TIMELESS | int(EVENT.CU_EVENT_INTERPROCESS)))
    gate.stop(stream)
    check(driver.cuEventRecord(event, stream))
    handle = check(driver.cuIpcGetEventHandle(event))
    with Peer.running(waits_for_an_event) as peer:
        peer.say(ctypes.string_at(handle.getPtr(), 64).hex())
        assert peer.hear() == "waits"
        peer.say("look")
        assert peer.hear() is False
        gate.open()
        check(driver.cuStreamSynchronize(stream))
        peer.say("finish")
        assert peer.hear() == "done"
