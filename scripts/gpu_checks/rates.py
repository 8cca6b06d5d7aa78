"""Rates of copies and of flags: H2D, D2H, D2D in GB/s, a flag handed to and fro in us. Run as a process of its own.

python -m gpu_checks.rates MIB REPEATS
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable

import cuda.bindings.driver as driver
from gpu.conformance import EQ, check, context, filled, non_blocking

ROUNDS = 1000


def seconds(enqueue: Callable[[], object], stream: object, repeats: int) -> float:
    """The median time of one call and its stream's end, after one that does not count."""
    times = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        enqueue()
        check(driver.cuStreamSynchronize(stream))
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


def copies(count: int, repeats: int) -> dict[str, float]:
    """GB/s of count bytes; D2D counts what is copied once."""
    stream, source, target = non_blocking(), filled(count), filled(count)
    pinned = int(check(driver.cuMemHostAlloc(count, 0)))
    ways: dict[str, Callable[[], object]] = {
        "h2d_pinned": lambda: check(driver.cuMemcpyHtoDAsync(source, pinned, count, stream)),
        "d2h_pinned": lambda: check(driver.cuMemcpyDtoHAsync(pinned, source, count, stream)),
        "d2d_same_device": lambda: check(driver.cuMemcpyDtoDAsync(target, source, count, stream)),
    }
    return {name: count / seconds(way, stream, repeats) / 1e9 for name, way in ways.items()}


def ping_pong(rounds: int) -> float:
    """us of one hand-over of a flag between two streams of one process."""
    first, second, flags = non_blocking(), non_blocking(), filled()

    def enqueue(begin: int) -> None:
        for turn in range(begin + 1, begin + rounds + 1):
            check(driver.cuStreamWriteValue32(first, flags, turn, 0))
            check(driver.cuStreamWaitValue32(second, flags, turn, EQ))
            check(driver.cuStreamWriteValue32(second, flags + 128, turn, 0))
            check(driver.cuStreamWaitValue32(first, flags + 128, turn, EQ))

    enqueue(0)
    check(driver.cuCtxSynchronize())
    begin = time.perf_counter()
    enqueue(rounds)
    check(driver.cuCtxSynchronize())
    return (time.perf_counter() - begin) / (2 * rounds) * 1e6


def empty_launches(rounds: int) -> float:
    """us of one small copy, enqueued one behind another: what the host pays for an operation."""
    stream, memory = non_blocking(), filled()
    begin = time.perf_counter()
    for _ in range(rounds):
        check(driver.cuMemcpyDtoDAsync(memory, memory + 4096, 4, stream))
    spent = time.perf_counter() - begin
    check(driver.cuStreamSynchronize(stream))
    return spent / rounds * 1e6


def main() -> None:
    mib, repeats = map(int, sys.argv[1:])
    context()
    rounds = ROUNDS if repeats > 5 else ROUNDS // 20
    rates = {f"{name}_GB_s": value for name, value in copies(mib << 20, repeats).items()}
    print(json.dumps({**rates, "mib": mib, "flag_hand_over_us": ping_pong(rounds),
                      "enqueue_of_a_copy_us": empty_launches(rounds)}))  # fmt: skip


if __name__ == "__main__":
    main()
