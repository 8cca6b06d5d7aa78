"""Stream capture: what a ring enqueues, as a graph that is launched again and again."""

from __future__ import annotations

from gpu.conformance import (
    LEGACY,
    Gate,
    batch,
    case,
    check,
    context,
    driver,
    filled,
    non_blocking,
    poll,
    refused,
    wait32,
    words,
    write32,
)

ERROR = driver.CUresult
RELAXED = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
TIMELESS = int(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING)
REPLAYS = 100
COUNT = 64 << 10


def ended(stream) -> object:
    """The executable graph of what was captured."""
    graph = check(driver.cuStreamEndCapture(stream))
    return check(driver.cuGraphInstantiate(graph, 0))


@case(delay_us=50)
def test_memory_operations_and_copies_are_captured_and_replayed() -> None:
    """Two streams that hand a buffer to and fro by flags, each with one setter and one resetter: 100 replays."""
    context()
    copier, computer, launcher = non_blocking(), non_blocking(), non_blocking()
    fork, join = (check(driver.cuEventCreate(TIMELESS)) for _ in range(2))
    source, slot, result, flags = filled(COUNT), filled(COUNT), filled(COUNT), filled()
    ready, credit, count = flags, flags + 128, flags + 256
    check(driver.cuMemsetD32(credit, 1, 1))
    check(driver.cuStreamSynchronize(LEGACY))  # streams that do not block do not wait for it
    check(driver.cuStreamBeginCapture(copier, RELAXED))
    check(driver.cuEventRecord(fork, copier))
    check(driver.cuStreamWaitEvent(computer, fork, 0))
    check(batch(copier, [wait32(credit, 1), write32(credit, 0)]))
    check(driver.cuMemcpyDtoDAsync(slot, source, COUNT, copier))
    check(driver.cuStreamWriteValue32(copier, ready, 1, 0))
    check(batch(computer, [wait32(ready, 1), write32(ready, 0)]))
    check(driver.cuMemcpyDtoDAsync(result, slot, COUNT, computer))
    check(driver.cuMemsetD8Async(slot, 0xEE, COUNT, computer))
    check(driver.cuStreamWriteValue32(computer, credit, 1, 0))
    check(driver.cuEventRecord(join, computer))
    check(driver.cuStreamWaitEvent(copier, join, 0))
    executable = ended(copier)
    assert words(result, 1) == [0], "captured work has run"
    for turn in range(REPLAYS):
        check(driver.cuMemsetD32Async(source, turn + 1, COUNT // 4, launcher))
        check(driver.cuGraphLaunch(executable, launcher))
        check(driver.cuStreamWriteValue32(launcher, count, turn + 1, 0))
        if turn % 10 == 9:
            check(driver.cuStreamSynchronize(launcher))
            assert set(words(result, COUNT // 4)) == {turn + 1}
    check(driver.cuStreamSynchronize(launcher))
    assert words(flags, 65)[::32] == [0, 1, REPLAYS]
    check(driver.cuGraphExecDestroy(executable))


@case()
def test_a_launch_comes_after_what_its_stream_holds() -> None:
    context()
    stream, launcher, gate, memory = non_blocking(), non_blocking(), Gate(), filled()
    check(driver.cuStreamBeginCapture(stream, RELAXED))
    check(driver.cuMemsetD32Async(memory, 5, 1, stream))
    executable = ended(stream)
    gate.stop(launcher)
    check(driver.cuGraphLaunch(executable, launcher))
    assert not poll(launcher)
    assert words(memory, 1) == [0]
    gate.open()
    check(driver.cuStreamSynchronize(launcher))
    assert words(memory, 1) == [5]


@case()
def test_a_capture_that_is_not_joined_is_refused_at_its_end() -> None:
    context()
    first, second, memory = non_blocking(), non_blocking(), filled()
    event = check(driver.cuEventCreate(TIMELESS))
    check(driver.cuStreamBeginCapture(first, RELAXED))
    check(driver.cuEventRecord(event, first))
    check(driver.cuStreamWaitEvent(second, event, 0))
    check(driver.cuMemsetD8Async(memory, 1, 4096, second))
    assert refused(driver.cuStreamEndCapture(first)) == ERROR.CUDA_ERROR_STREAM_CAPTURE_UNJOINED


@case()
def test_a_stream_that_captures_can_be_told_and_cannot_be_waited_for() -> None:
    context()
    stream, memory = non_blocking(), filled()
    status = driver.CUstreamCaptureStatus
    assert check(driver.cuStreamIsCapturing(stream)) == status.CU_STREAM_CAPTURE_STATUS_NONE
    check(driver.cuStreamBeginCapture(stream, RELAXED))
    assert check(driver.cuStreamIsCapturing(stream)) == status.CU_STREAM_CAPTURE_STATUS_ACTIVE
    check(driver.cuMemsetD8Async(memory, 1, 4096, stream))
    assert refused(driver.cuStreamSynchronize(stream)) == ERROR.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    driver.cuStreamEndCapture(stream)  # invalidated, or not: it is over
    assert check(driver.cuStreamIsCapturing(stream)) == status.CU_STREAM_CAPTURE_STATUS_NONE


@case()
def test_an_event_of_another_capture_or_of_before_is_not_mixed_in() -> None:
    """An event that was recorded outside may not be waited for inside: the caller's order has to be captured, too."""
    context()
    stream, outside = non_blocking(), non_blocking()
    event = check(driver.cuEventCreate(TIMELESS))
    check(driver.cuEventRecord(event, outside))
    check(driver.cuStreamBeginCapture(stream, RELAXED))
    assert refused(driver.cuStreamWaitEvent(stream, event, 0)) == ERROR.CUDA_ERROR_STREAM_CAPTURE_ISOLATION
    driver.cuStreamEndCapture(stream)
