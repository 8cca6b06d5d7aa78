"""Stream capture and graphs: what is captured does not run, what is launched runs in the captured order."""

from __future__ import annotations

import threading

import cuda.bindings.driver as driver
import numpy as np
from cuda_sim.child import check, context, in_child, refused

MODE = driver.CUstreamCaptureMode
GLOBAL, RELAXED = MODE.CU_STREAM_CAPTURE_MODE_GLOBAL, MODE.CU_STREAM_CAPTURE_MODE_RELAXED


def stream() -> object:
    return check(driver.cuStreamCreate(1))


def event() -> object:
    return check(driver.cuEventCreate(2))


def words(address: int, count: int) -> list[int]:
    host = np.zeros(count, np.uint32)
    check(driver.cuMemcpyDtoH(host.ctypes.data, address, 4 * count))
    return host.tolist()


@in_child()
def test_a_captured_ping_pong_of_two_streams_is_replayed() -> None:
    context()
    one, two, address = stream(), stream(), int(check(driver.cuMemAlloc(64)))
    check(driver.cuMemsetD32(address, 0, 16))
    check(driver.cuCtxSynchronize())
    check(driver.cuStreamBeginCapture(one, GLOBAL))
    fork, join = event(), event()
    check(driver.cuEventRecord(fork, one))
    check(driver.cuStreamWaitEvent(two, fork, 0))
    for turn in (1, 2, 3):
        check(driver.cuStreamWriteValue32(one, address, turn, 0))
        check(driver.cuStreamWaitValue32(two, address, turn, 1))
        check(driver.cuStreamWriteValue32(two, address + 4, turn, 0))
        check(driver.cuStreamWaitValue32(one, address + 4, turn, 1))
    check(driver.cuMemcpyDtoDAsync(address + 8, address, 8, two))
    check(driver.cuEventRecord(join, two))
    check(driver.cuStreamWaitEvent(one, join, 0))
    check(driver.cuMemsetD32Async(address, 0, 2, one))
    graph = check(driver.cuStreamEndCapture(one))
    check(driver.cuCtxSynchronize())
    assert words(address, 4) == [0] * 4  # nothing ran
    assert check(driver.cuGraphGetNodes(graph))[1] == 14
    launched = check(driver.cuGraphInstantiate(graph, 0))
    check(driver.cuGraphDestroy(graph))
    for _ in range(20):
        check(driver.cuMemsetD32Async(address + 8, 9, 2, one))
        check(driver.cuGraphLaunch(launched, one))
    check(driver.cuStreamSynchronize(one))
    assert words(address, 4) == [0, 0, 3, 3]
    check(driver.cuGraphExecDestroy(launched))
    assert refused(driver.cuGraphLaunch(launched, one)) == 1
    assert refused(driver.cuGraphInstantiate(graph, 0)) == 1


@in_child(delay_us=2000)
def test_lanes_keep_their_order_and_launches_follow_each_other() -> None:
    context()
    one, two, three = stream(), stream(), stream()
    address = int(check(driver.cuMemAlloc(1024)))
    check(driver.cuStreamBeginCapture(one, RELAXED))
    fork, join = event(), event()
    check(driver.cuMemsetD32Async(address, 1, 64, one))
    check(driver.cuEventRecord(fork, one))
    check(driver.cuStreamWaitEvent(two, fork, 0))
    check(driver.cuMemcpyDtoDAsync(address + 256, address, 256, two))
    check(driver.cuEventRecord(join, two))
    check(driver.cuStreamWaitEvent(one, join, 0))
    check(driver.cuMemsetD32Async(address, 2, 64, one))
    launched = check(driver.cuGraphInstantiate(check(driver.cuStreamEndCapture(one)), 0))
    for turn in range(30):
        check(driver.cuGraphLaunch(launched, (one, three)[turn % 2]))
    check(driver.cuCtxSynchronize())
    assert words(address, 128) == [2] * 64 + [1] * 64


def ended(captured: object) -> int:
    """What ending an invalid capture says; the stream works again afterwards."""
    number = refused(driver.cuStreamEndCapture(captured))
    check(driver.cuStreamSynchronize(captured))
    return number


@in_child()
def test_what_a_capture_forbids_invalidates_it() -> None:
    context()
    one, two, address = stream(), stream(), int(check(driver.cuMemAlloc(64)))
    outside = event()
    check(driver.cuEventRecord(outside, two))
    forbidden = [
        (900, lambda: driver.cuStreamSynchronize(one)),
        (900, lambda: driver.cuStreamQuery(one)),
        (900, lambda: driver.cuCtxSynchronize()),
        (900, lambda: driver.cuMemAlloc(64)),
        (900, lambda: driver.cuMemFree(address)),
        (900, lambda: driver.cuMemHostAlloc(64, 0)),
        (900, lambda: driver.cuEventQuery(outside)),
        (905, lambda: driver.cuStreamWaitEvent(one, outside, 0)),
        (900, lambda: driver.cuEventRecord(check(driver.cuEventCreate(6)), one)),
    ]
    for number, call in forbidden:
        check(driver.cuStreamBeginCapture(one, GLOBAL))
        check(driver.cuMemsetD32Async(address, 1, 1, one))
        assert refused(call()) == number
        assert refused(driver.cuMemsetD32Async(address, 1, 1, one)) == 901
        assert ended(one) == 901


@in_child()
def test_the_legacy_stream_may_not_be_used_beside_a_blocking_capture() -> None:
    context()
    blocking, address = check(driver.cuStreamCreate(0)), int(check(driver.cuMemAlloc(64)))
    check(driver.cuStreamBeginCapture(blocking, RELAXED))
    assert refused(driver.cuMemsetD32Async(address, 1, 1, 0)) == 906
    assert ended(blocking) == 901
    assert refused(driver.cuStreamBeginCapture(0, RELAXED)) == 900


@in_child()
def test_a_relaxed_capture_and_a_relaxed_thread_allow_allocation() -> None:
    context()
    one, two = stream(), stream()
    check(driver.cuStreamBeginCapture(one, RELAXED))
    check(driver.cuMemAlloc(64))
    check(driver.cuStreamBeginCapture(two, GLOBAL))
    before = check(driver.cuThreadExchangeStreamCaptureMode(RELAXED))
    check(driver.cuMemAlloc(64))
    assert before == GLOBAL
    check(driver.cuStreamEndCapture(one))
    check(driver.cuStreamEndCapture(two))


@in_child()
def test_captures_end_where_they_began_with_all_streams_joined() -> None:
    context()
    one, two, address = stream(), stream(), int(check(driver.cuMemAlloc(64)))
    assert refused(driver.cuStreamEndCapture(one)) == 401
    fork, join = event(), event()
    check(driver.cuStreamBeginCapture(one, GLOBAL))
    assert refused(driver.cuStreamBeginCapture(one, GLOBAL)) == 401
    check(driver.cuEventRecord(fork, one))
    check(driver.cuStreamWaitEvent(two, fork, 0))
    status = check(driver.cuStreamIsCapturing(two))
    assert status == driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
    check(driver.cuMemsetD32Async(address, 1, 1, two))
    check(driver.cuEventRecord(join, two))
    check(driver.cuStreamWaitEvent(one, join, 0))
    check(driver.cuStreamEndCapture(one))
    assert refused(driver.cuEventQuery(join)) == refused(driver.cuStreamWaitEvent(two, join, 0)) == 907
    check(driver.cuStreamBeginCapture(one, GLOBAL))
    check(driver.cuEventRecord(fork, one))
    check(driver.cuStreamWaitEvent(two, fork, 0))
    check(driver.cuMemsetD32Async(address, 1, 1, two))
    assert ended(one) == 904
    answers: list[int] = []
    made = check(driver.cuCtxGetCurrent())

    def elsewhere() -> None:
        check(driver.cuCtxSetCurrent(made))
        answers.append(refused(driver.cuStreamEndCapture(one)))

    check(driver.cuStreamBeginCapture(one, GLOBAL))
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert answers == [908]
    check(driver.cuStreamEndCapture(one))
