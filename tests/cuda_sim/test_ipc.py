"""Legacy IPC between processes: what a handle means, and each way to misuse one."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection

import cuda.bindings.driver as driver
import numpy as np
from cuda_sim.child import Beside, check, context, handle_bytes, handle_from, in_child, refused

LAZY = 1
BLOCK = 2 << 20
EVENT = 6  # INTERPROCESS and DISABLE_TIMING


def opened(data: bytes, flags: int = LAZY) -> tuple[object, ...]:
    return driver.cuIpcOpenMemHandle(handle_from(driver.CUipcMemHandle, data), flags)


def exported(address: int) -> bytes:
    return handle_bytes(check(driver.cuIpcGetMemHandle(address)))


def read(address: int, count: int) -> list[int]:
    host = np.zeros(count, np.uint32)
    check(driver.cuMemcpyDtoH(host.ctypes.data, address, 4 * count))
    return host.tolist()


def _writes_into(connection: Connection) -> None:
    context()
    mine = int(check(driver.cuMemAlloc(BLOCK)))
    data = connection.recv()
    address = int(check(opened(data)))
    assert int(check(opened(data))) == address != mine
    assert read(address, 2) == [1, 1]
    check(driver.cuMemsetD32(address, 2, 1))
    check(driver.cuCtxSynchronize())
    attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
    assert not check(driver.cuPointerGetAttribute(attribute, address))
    assert refused(driver.cuIpcGetMemHandle(address)) == 1
    assert refused(driver.cuMemFree(address)) == 1
    connection.send("written")
    assert connection.recv() == "tried"
    check(driver.cuIpcCloseMemHandle(address))
    assert read(address, 1) == [2]  # opened twice, closed once
    check(driver.cuIpcCloseMemHandle(address))
    assert refused(driver.cuIpcCloseMemHandle(address)) == 1
    assert refused(driver.cuMemsetD32(address, 3, 1)) == 1
    connection.send("closed")
    assert connection.recv() == "freed"
    assert refused(opened(data)) == 400


@in_child()
def test_memory_is_shared_until_it_is_closed_and_freed_only_then() -> None:
    peer = Beside(_writes_into)
    context()
    address = int(check(driver.cuMemAlloc(BLOCK)))
    check(driver.cuMemsetD32(address, 1, 2))
    check(driver.cuCtxSynchronize())
    peer.send(exported(address))
    assert peer.recv() == "written"
    assert read(address, 2) == [2, 1]
    assert refused(driver.cuMemFree(address)) == 208
    peer.send("tried")
    assert peer.recv() == "closed"
    check(driver.cuMemFree(address))
    peer.send("freed")
    peer.join()


@in_child()
def test_a_handle_means_the_base_and_is_new_for_an_address_used_again() -> None:
    context()
    address = int(check(driver.cuMemAlloc(BLOCK)))
    before = exported(address)
    assert exported(address + 4096) == before
    check(driver.cuMemFree(address))
    assert int(check(driver.cuMemAlloc(BLOCK))) == address
    assert exported(address) != before


@in_child()
def test_the_exporter_cannot_open_its_own_handle_and_flags_are_fixed() -> None:
    context()
    data = exported(int(check(driver.cuMemAlloc(BLOCK))))
    assert refused(opened(data)) == 201
    assert refused(opened(data, 0)) == 1
    assert refused(opened(bytes(64))) == 400


@in_child()
def test_memory_of_a_pool_cannot_be_exported() -> None:
    context()
    stream = check(driver.cuStreamCreate(1))
    address = int(check(driver.cuMemAllocAsync(4096, stream)))
    attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
    assert not check(driver.cuPointerGetAttribute(attribute, address))
    assert refused(driver.cuIpcGetMemHandle(address)) == 1
    check(driver.cuMemsetD8Async(address, 0, 4096, stream))
    check(driver.cuMemFreeAsync(address, stream))
    check(driver.cuStreamSynchronize(stream))
    assert refused(driver.cuMemsetD8Async(address, 0, 1, stream)) == 1


@in_child(others={"MIG": 1})
def test_a_mig_instance_shares_nothing() -> None:
    context()
    address = int(check(driver.cuMemAlloc(BLOCK)))
    assert b"MIG" in check(driver.cuDeviceGetName(64, 0))
    assert refused(driver.cuIpcGetMemHandle(address)) == 801


def _neighbour(connection: Connection) -> None:
    context()
    address = int(check(opened(connection.recv())))
    assert read(address, 1) == [5]
    assert refused(driver.cuMemsetD8(address, 0, 513)) == 1  # the neighbour's bytes
    connection.send("done")


@in_child()
def test_an_allocation_inside_a_block_is_opened_alone() -> None:
    peer = Beside(_neighbour)
    context()
    first, second = (int(check(driver.cuMemAlloc(512))) for _ in range(2))
    assert second == first + 512
    check(driver.cuMemsetD32(second, 5, 1))
    check(driver.cuCtxSynchronize())
    peer.send(exported(second))
    assert peer.recv() == "done"
    peer.join()


def _dies(connection: Connection) -> None:
    context()
    check(opened(connection.recv()))
    connection.send("open")
    signal.pause()


@in_child()
def test_a_dead_importer_does_not_hold_memory() -> None:
    peer = Beside(_dies)
    context()
    address = int(check(driver.cuMemAlloc(BLOCK)))
    peer.send(exported(address))
    assert peer.recv() == "open"
    assert refused(driver.cuMemFree(address)) == 208
    os.kill(peer.pid, signal.SIGKILL)
    os.waitpid(peer.pid, 0)
    check(driver.cuMemFree(address))


def _cannot_map(connection: Connection) -> None:
    context(1)
    assert refused(opened(connection.recv())) == 205
    connection.send("done")


@in_child(devices=2, others={"PEER": 0})
def test_devices_without_peer_access_cannot_share() -> None:
    peer = Beside(_cannot_map)
    context(0)
    peer.send(exported(int(check(driver.cuMemAlloc(BLOCK)))))
    assert peer.recv() == "done"
    peer.join()


def _second_device(connection: Connection) -> None:
    context(0)
    data = connection.recv()
    check(opened(data))
    context(1)
    assert refused(opened(data)) == 201
    connection.send("done")


@in_child(devices=2)
def test_one_context_of_a_process_opens_a_handle() -> None:
    peer = Beside(_second_device)
    context(0)
    peer.send(exported(int(check(driver.cuMemAlloc(BLOCK)))))
    assert peer.recv() == "done"
    peer.join()


def _waits(connection: Connection) -> None:
    context()
    event_data, memory_data = connection.recv()
    event = check(driver.cuIpcOpenEventHandle(handle_from(driver.CUipcEventHandle, event_data)))
    address = int(check(opened(memory_data)))
    stream = check(driver.cuStreamCreate(1))
    assert refused(driver.cuEventQuery(event)) == 600
    check(driver.cuStreamWaitEvent(stream, event, 0))
    target = np.zeros(1, np.uint32)
    connection.send("waits")
    check(driver.cuMemcpyDtoHAsync(target.ctypes.data, address, 4, stream))
    assert target[0] == 8
    connection.send("seen")
    assert connection.recv() == "destroyed"
    assert refused(driver.cuEventQuery(event)) == 400


@in_child()
def test_an_event_orders_streams_of_two_processes_until_its_maker_destroys_it() -> None:
    peer = Beside(_waits)
    context()
    stream, event = check(driver.cuStreamCreate(1)), check(driver.cuEventCreate(EVENT))
    address = int(check(driver.cuMemAlloc(BLOCK)))
    check(driver.cuStreamWaitValue32(stream, address, 1, 1))
    check(driver.cuMemsetD32Async(address, 8, 1, stream))
    check(driver.cuEventRecord(event, stream))
    peer.send((handle_bytes(check(driver.cuIpcGetEventHandle(event))), exported(address)))
    assert peer.recv() == "waits"
    other = check(driver.cuStreamCreate(1))
    check(driver.cuStreamWriteValue32(other, address, 1, 0))
    assert peer.recv() == "seen"
    check(driver.cuEventDestroy(event))
    peer.send("destroyed")
    peer.join()


@in_child()
def test_only_events_made_for_it_are_exported() -> None:
    context()
    assert refused(driver.cuIpcGetEventHandle(check(driver.cuEventCreate(2)))) == 400
    data = handle_bytes(check(driver.cuIpcGetEventHandle(check(driver.cuEventCreate(EVENT)))))
    assert refused(driver.cuIpcOpenEventHandle(handle_from(driver.CUipcEventHandle, data))) == 201


def _polls(connection: Connection) -> None:
    context()
    address = int(check(opened(connection.recv())))
    stream = check(driver.cuStreamCreate(1))
    for turn in range(1, 50):
        check(driver.cuStreamWaitValue32(stream, address, turn, 1))
        check(driver.cuStreamWriteValue32(stream, address + 4, turn, 0))
    check(driver.cuStreamSynchronize(stream))
    check(driver.cuIpcCloseMemHandle(address))


@in_child()
def test_flags_go_to_and_fro() -> None:
    peer = Beside(_polls)
    context()
    address, stream = int(check(driver.cuMemAlloc(BLOCK))), check(driver.cuStreamCreate(1))
    check(driver.cuMemsetD32Async(address, 0, 2, stream))
    check(driver.cuStreamSynchronize(stream))
    peer.send(exported(address))
    for turn in range(1, 50):
        check(driver.cuStreamWriteValue32(stream, address, turn, 0))
        check(driver.cuStreamWaitValue32(stream, address + 4, turn, 1))
    check(driver.cuStreamSynchronize(stream))
    peer.join()
    check(driver.cuMemFree(address))
