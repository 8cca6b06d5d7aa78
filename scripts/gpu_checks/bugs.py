"""Deliberate bugs in what is enqueued: each must give wrong bytes, and the same list without the bug none.

A gate holds one of the streams, so a bug shows every time and not only by luck. Run as a process of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import cuda.bindings.driver as driver
from gpu.conformance import EQ, Gate, batch, check, context, filled, non_blocking, read, soon, wait32, write32

COUNT = 1 << 20
TIMELESS = int(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING)
OLD, NEW = 1, 2


def wrong(address: int) -> int:
    """Bytes that are not NEW."""
    return COUNT - read(address, COUNT).count(NEW)


def missing_flag_wait(has_bug: bool) -> int:
    """A receiver that does not wait until the sender has set "ready"."""
    sender, receiver, gate = non_blocking(), non_blocking(), Gate()
    slot, result, ready = filled(COUNT, OLD), filled(COUNT), filled(4096)
    gate.stop(sender)
    check(driver.cuMemsetD8Async(slot, NEW, COUNT, sender))
    check(driver.cuStreamWriteValue32(sender, ready, 1, 0))
    if not has_bug:
        check(batch(receiver, [wait32(ready, 1), write32(ready, 0)]))
    check(driver.cuMemcpyDtoDAsync(result, slot, COUNT, receiver))
    return _finish(gate, receiver, result)


def missing_event(has_bug: bool) -> int:
    """A copy that does not wait for the kernel of the same rank."""
    compute, copier, gate = non_blocking(), non_blocking(), Gate()
    data, result = filled(COUNT, OLD), filled(COUNT)
    event = check(driver.cuEventCreate(TIMELESS))
    gate.stop(compute)
    check(driver.cuMemsetD8Async(data, NEW, COUNT, compute))
    check(driver.cuEventRecord(event, compute))
    if not has_bug:
        check(driver.cuStreamWaitEvent(copier, event, 0))
    check(driver.cuMemcpyDtoDAsync(result, data, COUNT, copier))
    return _finish(gate, copier, result)


def early_credit(has_bug: bool) -> int:
    """A receiver that gives the slot back before it has read it: the next slice overwrites what it reads."""
    sender, receiver, gate = non_blocking(), non_blocking(), Gate()
    slot, result, credit = filled(COUNT, NEW), filled(COUNT), filled(4096)
    if has_bug:
        check(driver.cuStreamWriteValue32(receiver, credit, 1, 0))
    gate.stop(receiver)
    check(driver.cuMemcpyDtoDAsync(result, slot, COUNT, receiver))
    if not has_bug:
        check(driver.cuStreamWriteValue32(receiver, credit, 1, 0))
    check(driver.cuStreamWaitValue32(sender, credit, 1, EQ))
    check(driver.cuMemsetD8Async(slot, OLD, COUNT, sender))
    return _finish(gate, sender, result)


def missing_credit_wait(has_bug: bool) -> int:
    """A sender that uses a slot again without waiting for its credit."""
    sender, receiver, gate = non_blocking(), non_blocking(), Gate()
    slot, result, credit = filled(COUNT, NEW), filled(COUNT), filled(4096)
    gate.stop(receiver)
    check(driver.cuMemcpyDtoDAsync(result, slot, COUNT, receiver))
    check(driver.cuStreamWriteValue32(receiver, credit, 1, 0))
    if not has_bug:
        check(driver.cuStreamWaitValue32(sender, credit, 1, EQ))
    check(driver.cuMemsetD8Async(slot, OLD, COUNT, sender))
    return _finish(gate, sender, result)


def reset_before_wait(has_bug: bool) -> int:
    """A flag that is reset before it is awaited: of a sender that was quick, nothing is left to wait for."""
    stream, ready = non_blocking(), filled(4096)
    check(driver.cuStreamWriteValue32(stream, ready, 1, 0))
    check(driver.cuStreamSynchronize(stream))
    items = [wait32(ready, 1), write32(ready, 0)]
    check(batch(stream, items[::-1] if has_bug else items))
    ended = soon(lambda: int(driver.cuStreamQuery(stream)[0]) == 0, 0.5)
    check(driver.cuStreamWriteValue32(non_blocking(), ready, 1, 0))  # lets a stream that is stuck go on
    check(driver.cuCtxSynchronize())
    return 0 if ended else COUNT


BUGS: tuple[Callable[[bool], int], ...] = (
    missing_flag_wait,
    missing_event,
    early_credit,
    missing_credit_wait,
    reset_before_wait,
)


def _finish(gate: Gate, early: object, result: int) -> int:
    """Give the stream that a bug lets run ahead its time, then open the gate; wrong bytes of the result."""
    soon(lambda: int(driver.cuStreamQuery(early)[0]) == 0, 0.3)
    gate.open()
    check(driver.cuCtxSynchronize())
    return wrong(result)


def main() -> None:
    context()
    rows = []
    for bug in BUGS:
        with_bug, without = bug(True), bug(False)
        rows.append(
            {"bug": bug.__name__, "wrong_bytes": with_bug, "wrong_bytes_without": without,
             "caught": with_bug > 0 and without == 0}
        )  # fmt: skip
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
