"""Legacy IPC: memory of one process used by another."""

from __future__ import annotations

import ctypes

from gpu.conformance import (
    BLOCK_BYTES,
    EQ,
    Peer,
    case,
    check,
    context,
    driver,
    filled,
    non_blocking,
    read,
    refused,
    words,
    write,
)

ERROR = driver.CUresult
LAZY = int(driver.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
COUNT = 4096
ROUNDS = 50


def handle_of(address: int) -> bytes:
    return ctypes.string_at(check(driver.cuIpcGetMemHandle(address)).getPtr(), 64)


def opened(raw: bytes, flags: int = LAZY) -> tuple:
    handle = driver.CUipcMemHandle()
    ctypes.memmove(handle.getPtr(), raw, 64)
    return driver.cuIpcOpenMemHandle(handle, flags)


@case()
def test_a_process_does_not_open_its_own_handle() -> None:
    context()
    assert refused(opened(handle_of(filled()))) == ERROR.CUDA_ERROR_INVALID_CONTEXT


@case()
def test_handles_of_base_and_offset_are_equal_and_others_are_not() -> None:
    context()
    first, second = filled(2 * BLOCK_BYTES), filled()
    assert handle_of(first) == handle_of(first + 4096) == handle_of(first + 2 * BLOCK_BYTES - 1)
    assert handle_of(first) != handle_of(second)


@case()
def test_a_handle_is_new_for_an_address_that_is_used_again() -> None:
    context()
    seen = {}
    for _ in range(8):
        begin = int(check(driver.cuMemAlloc(BLOCK_BYTES)))
        raw = handle_of(begin)
        assert raw not in seen
        seen[raw] = begin
        check(driver.cuMemFree(begin))
    assert len(set(seen.values())) < 8, "no address came again: the case has shown nothing"


@case()
def test_host_memory_and_no_memory_have_no_handle() -> None:
    context()
    pinned = int(check(driver.cuMemHostAlloc(COUNT, 0)))
    ordinary = ctypes.create_string_buffer(COUNT)
    for address in (pinned, ctypes.addressof(ordinary), 0):
        assert refused(driver.cuIpcGetMemHandle(address)) == ERROR.CUDA_ERROR_INVALID_VALUE


@case()
def test_what_is_not_open_is_not_closed() -> None:
    context()
    assert refused(driver.cuIpcCloseMemHandle(filled())) in (
        ERROR.CUDA_ERROR_INVALID_VALUE, ERROR.CUDA_ERROR_INVALID_HANDLE, ERROR.CUDA_ERROR_INVALID_CONTEXT
    )  # fmt: skip


def reads_and_writes(hear, say) -> None:
    context()
    raw = bytes.fromhex(hear())
    assert refused(opened(raw, 0)) == ERROR.CUDA_ERROR_INVALID_VALUE
    first = int(check(opened(raw)))
    assert int(check(opened(raw))) == first
    say(read(first + 512, COUNT).hex())
    hear()
    write(first + BLOCK_BYTES - COUNT, b"theirs!!" * (COUNT // 8))
    check(driver.cuCtxSynchronize())
    assert int(driver.cuIpcGetMemHandle(first)[0]) != 0  # what is borrowed cannot be lent
    check(driver.cuIpcCloseMemHandle(first))  # opened twice: still open
    say(read(first, 8).hex())
    check(driver.cuIpcCloseMemHandle(first))
    target = ctypes.create_string_buffer(8)
    refused(driver.cuMemcpyDtoH(ctypes.addressof(target), first, 8))
    refused(driver.cuIpcCloseMemHandle(first))
    say("closed")


@case()
def test_another_process_reads_and_writes_the_same_bytes() -> None:
    context()
    memory = filled()
    write(memory + 512, b"ours" * (COUNT // 4))
    with Peer.running(reads_and_writes) as peer:
        peer.say(handle_of(memory + 512).hex())
        assert bytes.fromhex(peer.hear()) == b"ours" * (COUNT // 4)
        write(memory, b"8 bytes!")
        peer.say("write")
        assert bytes.fromhex(peer.hear()) == b"8 bytes!"
        assert peer.hear() == "closed"
        assert read(memory + BLOCK_BYTES - COUNT, COUNT) == b"theirs!!" * (COUNT // 8)
        peer.say("end")
    check(driver.cuMemFree(memory))  # all have closed it


def refuses_damaged_handles(hear, say) -> None:
    context()
    answers = [int(opened(bytes.fromhex(raw))[0]) for raw in hear()]
    say(answers)


@case()
def test_handles_that_are_none_are_refused() -> None:
    context()
    gone = filled()
    raw = handle_of(gone)
    check(driver.cuMemFree(gone))
    with Peer.running(refuses_damaged_handles) as peer:
        peer.say([bytes(64).hex(), bytes(range(64)).hex(), raw.hex()])
        answers = peer.hear()
        peer.say("end")
    assert 0 not in answers, answers


def plays_ping_pong(hear, say) -> None:
    """Sets the owner's flag by its own stream, waits for its own flag in the owner's memory."""
    context()
    memory = int(check(opened(bytes.fromhex(hear()))))
    stream = non_blocking()
    for turn in range(ROUNDS):
        check(driver.cuStreamWaitValue32(stream, memory, turn + 1, EQ))
        check(driver.cuMemsetD8Async(memory + COUNT, turn + 1, COUNT, stream))
        check(driver.cuStreamWriteValue32(stream, memory + 128, turn + 1, 0))
    check(driver.cuStreamSynchronize(stream))
    say("played")
    hear()
    check(driver.cuIpcCloseMemHandle(memory))
    say("closed")


@case(delay_us=300)
def test_streams_of_two_processes_wait_for_each_other_by_flags() -> None:
    context()
    memory, mine = filled(), filled()
    stream = non_blocking()
    with Peer.running(plays_ping_pong) as peer:
        peer.say(handle_of(memory).hex())
        for turn in range(ROUNDS):
            check(driver.cuStreamWriteValue32(stream, memory, turn + 1, 0))
            check(driver.cuStreamWaitValue32(stream, memory + 128, turn + 1, EQ))
            check(driver.cuMemcpyDtoDAsync(mine + COUNT * turn, memory + COUNT, COUNT, stream))
        check(driver.cuStreamSynchronize(stream))
        assert peer.hear() == "played"
        peer.say("close")
        assert peer.hear() == "closed"
    for turn in range(ROUNDS):
        assert words(mine + COUNT * turn, COUNT // 4) == [0x01010101 * (turn + 1)] * (COUNT // 4), turn
