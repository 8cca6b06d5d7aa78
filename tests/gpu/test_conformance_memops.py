"""Stream memory operations: waits on words and stores of words, in batches, between streams and processes."""

from __future__ import annotations

import ctypes

from gpu.conformance import (
    AND,
    BLOCK_BYTES,
    EQ,
    GEQ,
    LEGACY,
    NOR,
    Gate,
    attribute,
    batch,
    case,
    check,
    context,
    driver,
    filled,
    lacking,
    non_blocking,
    poll,
    read,
    refused,
    soon,
    wait32,
    words,
    write32,
)

ERROR = driver.CUresult
COUNT_MAX = 255


def passes(word: int, value: int, flags: int) -> bool:
    """Whether a wait for ``value`` ends while the word is ``word``; afterwards it is made to end."""
    stream, memory = non_blocking(), filled()
    check(driver.cuStreamWriteValue32(stream, memory, word, 0))
    check(driver.cuStreamSynchronize(stream))
    check(driver.cuStreamWaitValue32(stream, memory, value, flags))
    ended = soon(lambda: poll(stream), 0.15)
    other = non_blocking()
    for way_out in (value, 0xFFFFFFFF, 0, 1):
        if not poll(stream):
            check(driver.cuStreamWriteValue32(other, memory, way_out, 0))
            soon(lambda: poll(stream), 1.0)
    check(driver.cuStreamSynchronize(stream))
    return ended


@case()
def test_greater_or_equal_is_cyclic() -> None:
    context()
    assert passes(5, 5, GEQ)
    assert passes(6, 5, GEQ)
    assert not passes(4, 5, GEQ)
    assert passes(1, 0xFFFFFFFF, GEQ)  # 1 comes two behind 2^32 - 1
    assert not passes(0xFFFFFFFF, 1, GEQ)


@case()
def test_equal_and_and() -> None:
    context()
    assert passes(5, 5, EQ)
    assert not passes(6, 5, EQ)
    assert passes(0b0110, 0b0100, AND)
    assert not passes(0b0110, 0b1001, AND)


@case()
def test_nor_where_the_device_has_it() -> None:
    context()
    if not attribute("CAN_USE_STREAM_WAIT_VALUE_NOR"):
        answer = driver.cuStreamWaitValue32(non_blocking(), filled(), 0, NOR)
        assert refused(answer) == ERROR.CUDA_ERROR_NOT_SUPPORTED
        lacking("no wait of the kind NOR")
    assert passes(0xFFFFFFFE, 0, NOR)
    assert not passes(0xFFFFFFFF, 0, NOR)


@case()
def test_words_of_64_bits() -> None:
    context()
    if not attribute("CAN_USE_64_BIT_STREAM_MEM_OPS"):
        lacking("no operations on 64 bits")
    stream, memory = non_blocking(), filled()
    check(driver.cuStreamWriteValue64(stream, memory, 1 << 40, 0))
    check(driver.cuStreamWaitValue64(stream, memory, 1 << 40, EQ))
    check(driver.cuStreamWriteValue32(stream, memory + 8, 9, 0))
    check(driver.cuStreamSynchronize(stream))
    assert words(memory, 3) == [0, 1 << 8, 9]


@case()
def test_a_word_must_be_aligned_and_lie_in_memory_the_device_maps() -> None:
    context()
    stream, memory = non_blocking(), filled()
    assert refused(driver.cuStreamWriteValue32(stream, memory + 2, 1, 0)) == ERROR.CUDA_ERROR_INVALID_VALUE
    assert refused(driver.cuStreamWaitValue32(stream, memory + 2, 1, EQ)) == ERROR.CUDA_ERROR_INVALID_VALUE
    ordinary = (ctypes.c_uint32 * 16)()
    answer = driver.cuStreamWriteValue32(stream, ctypes.addressof(ordinary), 1, 0)
    assert refused(answer) == ERROR.CUDA_ERROR_INVALID_VALUE


@case()
def test_the_second_kind_of_these_calls_has_no_store_without_barrier() -> None:
    context()
    flags = int(driver.CUstreamWriteValue_flags.CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER)
    refused(driver.cuStreamWriteValue32(non_blocking(), filled(), 1, flags))


@case()
def test_a_batch_waits_and_resets() -> None:
    """A flag with one setter and one resetter: what a ring does for each slice."""
    context()
    stream, setter, memory = non_blocking(), non_blocking(), filled()
    for turn in range(20):
        check(batch(stream, [wait32(memory, 1), write32(memory, 0)]))
        check(driver.cuStreamWriteValue32(stream, memory + 64, turn + 1, 0))
        assert not poll(stream)
        check(driver.cuStreamWriteValue32(setter, memory, 1, 0))
        check(driver.cuStreamSynchronize(stream))
        assert words(memory, 17)[::16] == [0, turn + 1]


@case()
def test_a_batch_waits_for_all_its_words() -> None:
    context()
    stream, setter, memory = non_blocking(), non_blocking(), filled()
    flags = [memory + 128 * i for i in range(8)]
    check(batch(stream, [wait32(flag, 1) for flag in flags] + [write32(flag, 0) for flag in flags]))
    for flag in flags:
        assert not poll(stream)
        check(driver.cuStreamWriteValue32(setter, flag, 1, 0))
        check(driver.cuStreamSynchronize(setter))
    check(driver.cuStreamSynchronize(stream))
    assert words(memory, 32 * 8)[::32] == [0] * 8


@case()
def test_a_batch_has_less_than_256_operations() -> None:
    context()
    stream, memory = non_blocking(), filled()
    check(batch(stream, [write32(memory + 4 * i, i + 1) for i in range(COUNT_MAX)]))
    check(driver.cuStreamSynchronize(stream))
    assert words(memory, COUNT_MAX) == list(range(1, COUNT_MAX + 1))
    too_many = [write32(memory, 1) for _ in range(COUNT_MAX + 1)]
    assert refused(batch(stream, too_many)) == ERROR.CUDA_ERROR_INVALID_VALUE


@case(delay_us=500)
def test_what_a_stream_wrote_before_a_flag_is_seen_behind_it() -> None:
    context()
    writer, reader = non_blocking(), non_blocking()
    data, flag, copy = filled(), filled(), filled()
    for turn in range(1, 20):
        check(driver.cuMemsetD8Async(data, turn, BLOCK_BYTES, writer))
        check(driver.cuStreamWriteValue32(writer, flag, turn, 0))
        check(driver.cuStreamWaitValue32(reader, flag, turn, GEQ))
        check(driver.cuMemcpyDtoDAsync(copy, data, BLOCK_BYTES, reader))
        check(driver.cuStreamSynchronize(reader))
        assert read(copy, BLOCK_BYTES) == bytes([turn]) * BLOCK_BYTES


@case(delay_us=200)
def test_a_copy_of_4_bytes_sets_a_flag_as_well() -> None:
    """The other way to set a peer's flag: a copy of a word that holds 1."""
    context()
    setter, waiter, one, flag = non_blocking(), non_blocking(), filled(), filled()
    check(driver.cuMemsetD32(one, 1, 1))
    check(driver.cuStreamSynchronize(LEGACY))  # streams that do not block do not wait for it
    for _ in range(20):
        check(batch(waiter, [wait32(flag, 1), write32(flag, 0)]))
        check(driver.cuMemcpyDtoDAsync(flag, one, 4, setter))
        check(driver.cuStreamSynchronize(waiter))
        assert words(flag, 1) == [0]


@case()
def test_the_host_sets_and_sees_words_of_pinned_memory() -> None:
    context()
    stream, gate = non_blocking(), Gate()
    gate.stop(stream)
    check(driver.cuStreamWriteValue32(stream, gate.device_address + 64, 7, 0))
    seen = ctypes.c_uint32.from_address(gate.address + 64)
    assert seen.value == 0
    gate.open()
    assert soon(lambda: seen.value == 7)
    check(driver.cuStreamSynchronize(stream))
