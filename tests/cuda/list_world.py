"""A rank of a world whose processes run lists on the streams of the simulated driver; test_lists.py starts them."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import cuda.bindings.driver as driver
import numpy as np
import pytest
from cuda_sim.child import check, context

from rdmaring import chunks
from rdmaring._native import check as check_status
from rdmaring._native import ffi, lib
from rdmaring.buffers import CODE_BY_NAME
from rdmaring.cuda import kernels
from rdmaring.errors import OperationTimeoutError
from rdmaring.plan import COLLECTIVE_CODE
from rdmaring.schedule import generate
from rdmaring.schedule.encode import encode_rank

UNIT = 2 << 20  # of allocations that are shared alone
WAIT_S = 40
SLOT_BYTES = 4096


class Meeting:
    """Ranks tell each other bytes by files in a folder."""

    def __init__(self, folder: Path, rank: int, world: int) -> None:
        self.folder, self.rank, self.world, self.count = folder, rank, world, 0

    def gather(self, mine: bytes) -> list[bytes]:
        self.count += 1
        partial = self.folder / f"partial.{self.rank}"
        partial.write_bytes(mine)
        partial.rename(self.folder / f"{self.count}.{self.rank}")
        end = time.monotonic() + WAIT_S
        paths = [self.folder / f"{self.count}.{rank}" for rank in range(self.world)]
        while not all(path.exists() for path in paths):
            assert time.monotonic() < end, f"rank {self.rank}: not all ranks came to meeting {self.count}"
            time.sleep(0.005)
        return [path.read_bytes() for path in paths]


def open_table() -> Any:
    """The driver's functions, as C wants them."""
    wants, entries, names = ffi.new("rr_cuda_want *"), [], []
    for index in range(lib.rr_cuda_want_count()):
        check_status(lib.rr_cuda_want_at(index, wants))
        result, address, *_ = driver.cuGetProcAddress(ffi.string(wants.name), wants.version, 0)
        if int(result) == 0 and address:
            names.append(ffi.new("char[]", ffi.string(wants.name)))
            entries.append({"name": names[-1], "address": ffi.cast("void *", int(address))})
    out = ffi.new("rr_cuda **")
    check_status(lib.rr_cuda_open(ffi.new("rr_cuda_entry[]", entries), len(entries), out))
    return out[0]


def allocate(nbytes: int) -> int:
    return int(check(driver.cuMemAlloc(max(1, -(-nbytes // UNIT)) * UNIT)))


class Rank:
    """One rank: its context, its block and those of its peers, and the plan's list."""

    def __init__(self, folder: str, rank: str, case: str) -> None:
        given = json.loads(case)
        self.replays = given.get("replays", 8)
        self.own_flags, self.maps = ffi.NULL, list[mmap.mmap]()
        self.rank, self.world, self.count = int(rank), given["world"], given["count"]
        self.collective, self.root = given["collective"], given.get("root")
        self.reduces = self.collective in ("all_reduce", "reduce")
        self.meeting = Meeting(Path(folder), self.rank, self.world)
        self.context = ffi.cast("void *", int(context(self.rank % given.get("devices", 1))))
        self.cuda = open_table()
        sizes = {"world": self.world, "channels": 1, "slot_count": given["slots"], "slot_bytes": SLOT_BYTES}
        self.block = ffi.new("rr_cuda_block *", sizes)
        self.own = allocate(lib.rr_cuda_block_bytes(self.block))
        check_status(lib.rr_cuda_block_reset(self.cuda, self.context, self.block, self.own))
        self.blocks = self._open_blocks()
        self.flags = self._share_flags() if given.get("host_flags") else []
        self.list = self._list(given)

    def _open_blocks(self) -> list[int]:
        handle = check(driver.cuIpcGetMemHandle(self.own))
        blocks = []
        for rank, told in enumerate(self.meeting.gather(ctypes.string_at(handle.getPtr(), 64))):
            if rank == self.rank:
                blocks.append(self.own)
                continue
            theirs = driver.CUipcMemHandle()
            ctypes.memmove(theirs.getPtr(), told, 64)
            blocks.append(int(check(driver.cuIpcOpenMemHandle(theirs, 1))))
        return blocks

    def _share_flags(self) -> list[int]:
        """All ranks' flags in host memory, as the GPU has them."""
        nbytes = -(-lib.rr_cuda_block_flag_bytes(self.block) // mmap.PAGESIZE) * mmap.PAGESIZE
        fd = os.memfd_create("flags")
        os.ftruncate(fd, nbytes)
        flags = []
        for rank, told in enumerate(self.meeting.gather(f"/proc/{os.getpid()}/fd/{fd}".encode())):
            with open(told, "r+b") as file:
                self.maps.append(mmap.mmap(file.fileno(), nbytes))
            begin = ctypes.addressof(ctypes.c_char.from_buffer(self.maps[-1]))
            check(driver.cuMemHostRegister(begin, nbytes, driver.CU_MEMHOSTREGISTER_DEVICEMAP))
            flags.append(int(check(driver.cuMemHostGetDevicePointer(begin, 0))))
            if rank == self.rank:
                self.own_flags = ffi.cast("void *", begin)
                check_status(lib.rr_cuda_flags_reset(self.block, self.own_flags))
        self.meeting.gather(b"flags are set")
        return flags

    def _list(self, given: dict[str, Any]) -> Any:
        schedule = generate(self.collective, given["algorithm"], self.world, self.root)
        self.offsets = chunks.even(self.count, schedule.chunk_count)
        encoded = encode_rank(schedule, self.rank)
        rows = ffi.new("rr_schedule **")
        check_status(lib.rr_schedule_decode(encoded, len(encoded), self.rank, rows))
        table = ffi.new("uint64_t[]", self.offsets)
        plan = {
            "collective": COLLECTIVE_CODE[self.collective],
            "dtype": CODE_BY_NAME["int64"],
            "root": -1 if self.root is None else self.root,
            "count": self.count,
            "scale": 1.0,
            "schedule": rows[0],
            "chunk_offsets": table,
            "slice_bytes": SLOT_BYTES,
        }
        spec = ffi.new("rr_cuda_list_spec *")
        spec.cuda, spec.context, spec.rank, spec.world = self.cuda, self.context, self.rank, self.world
        kept = ffi.new("rr_plan_spec *", plan), ffi.new("uint64_t[]", self.blocks)
        spec.plan, spec.blocks = kept
        flags = ffi.new("uint64_t[]", self.flags) if self.flags else ffi.NULL
        spec.flags, spec.own_flags = flags, self.own_flags
        spec.block = self.block
        spec.copied_flags = given.get("copied_flags", 0)
        if self.reduces:
            self.module = check(driver.cuModuleLoadData(kernels.cubin("int64", compute_capability())))
            found = check(driver.cuModuleGetFunction(self.module, kernels.name("sum", "int64").encode()))
            spec.kernel = ffi.cast("void *", int(found))
        out = ffi.new("rr_cuda_list **")
        status = lib.rr_cuda_list_create(spec, out)
        lib.rr_schedule_free(rows[0])
        check_status(status)
        return out[0]

    def facts(self) -> Any:
        facts = ffi.new("rr_cuda_list_facts *")
        check_status(lib.rr_cuda_list_facts_of(self.list, facts))
        return facts

    def ended(self) -> bool:
        return check_status(lib.rr_cuda_list_ended(self.list)) == 0

    def close(self) -> None:
        """Peers' mappings first, then, when all have closed theirs, the own block."""
        check_status(lib.rr_cuda_list_free(self.list))
        for rank, block in enumerate(self.blocks):
            if rank != self.rank:
                check(driver.cuIpcCloseMemHandle(block))
        self.meeting.gather(b"closed")
        check(driver.cuMemFree(self.own))
        lib.rr_cuda_close(self.cuda)


def compute_capability() -> tuple[int, int]:
    """Of the current context's device: this runs on a real GPU, too (scripts/gpu_check)."""
    device, which = check(driver.cuCtxGetDevice()), driver.CUdevice_attribute
    parts = (
        which.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
        which.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    )
    major, minor = (int(check(driver.cuDeviceGetAttribute(part, device))) for part in parts)
    return major, minor


def vector(rank: int, count: int, call: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng([rank, call]).integers(-1000, 1000, count)


class Buffers:
    """One rank's vector: filled by its own part, and looked at afterwards."""

    def __init__(self, at: Rank) -> None:
        self.at = at
        self.stream = check(driver.cuStreamCreate(1))
        self.handle = ffi.cast("void *", int(self.stream))
        self.memory = allocate(8 * at.count)
        self.scratch = allocate(at.facts().scratch_bytes)
        gathers = at.collective == "all_gather"
        self.part = slice(at.offsets[at.rank], at.offsets[at.rank + 1]) if gathers else slice(0, at.count)

    def fill(self, call: int) -> None:
        mine = vector(self.at.rank, self.at.count, call)[self.part]
        check(driver.cuMemsetD32Async(self.memory, 0x55555555, 2 * self.at.count, self.stream))
        staged = int(check(driver.cuMemHostAlloc(max(mine.nbytes, 8), 0)))  # read late: so not reused
        ctypes.memmove(staged, mine.ctypes.data, mine.nbytes)
        if mine.nbytes:
            check(driver.cuMemcpyHtoDAsync(self.memory + 8 * self.part.start, staged, mine.nbytes, self.stream))

    def emit(self) -> None:
        source = self.memory + 8 * self.part.start
        check_status(lib.rr_cuda_list_emit(self.at.list, source, self.memory, self.scratch, self.handle))

    def compare(self, call: int) -> None:
        at, whole = self.at, np.empty(self.at.count, np.int64)
        check(driver.cuMemcpyDtoHAsync(whole.ctypes.data, self.memory, whole.nbytes, self.stream))
        check(driver.cuStreamSynchronize(self.stream))
        if at.collective == "all_gather":
            parts = [slice(a, b) for a, b in pairwise(at.offsets)]
            want = np.concatenate([vector(rank, at.count, call)[part] for rank, part in enumerate(parts)])
        elif at.reduces:
            if at.root not in (None, at.rank):
                return  # only the root gets the sum
            want = np.sum([vector(rank, at.count, call) for rank in range(at.world)], axis=0)
        else:
            want = vector(at.root or 0, at.count, call)
        np.testing.assert_array_equal(whole, want)


def run(folder: str, rank: str, case: str) -> None:
    """Several calls of one list, each on new data; after each the result must be numpy's."""
    at = Rank(folder, rank, case)
    buffers = Buffers(at)
    calls = []
    for call in range(4):
        buffers.fill(call)
        before = at.facts().calls
        buffers.emit()
        calls.append(at.facts().calls - before)
        buffers.compare(call)
        assert at.ended()
    assert len(set(calls)) == 1, "the same calls at every call"
    at.close()


def replay(folder: str, rank: str, case: str) -> None:
    """Captured once, launched many times."""
    at = Rank(folder, rank, case)
    buffers = Buffers(at)
    check(driver.cuStreamBeginCapture(buffers.stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    buffers.emit()
    graph = check(driver.cuStreamEndCapture(buffers.stream))
    launched = check(driver.cuGraphInstantiate(graph, 0))
    for call in range(at.replays):
        buffers.fill(call)
        check(driver.cuGraphLaunch(launched, buffers.stream))
        buffers.compare(call)
    check(driver.cuGraphExecDestroy(launched))
    check(driver.cuGraphDestroy(graph))
    at.close()


def leave_alone(folder: str, rank: str, case: str) -> None:
    """Rank 0 emits, nobody else does: it hangs until it is aborted, and all drains. Then the list is good again."""
    at = Rank(folder, rank, case)
    if at.rank == 0:
        stream = check(driver.cuStreamCreate(1))
        memory = allocate(8 * at.count)
        check_status(lib.rr_cuda_list_emit(at.list, memory, memory, 0, ffi.cast("void *", int(stream))))
        time.sleep(0.2)
        assert not at.ended()
        assert lib.rr_cuda_list_free(at.list) == lib.RR_ERR_ARGUMENT
        begin = time.monotonic()
        check_status(lib.rr_cuda_list_abort(at.list, 20_000_000_000))
        print(f"drained in {time.monotonic() - begin:.2f} s")
        assert at.ended()
        check(driver.cuStreamSynchronize(stream))
    at.meeting.gather(b"aborted")
    check_status(lib.rr_cuda_block_reset(at.cuda, at.context, at.block, at.own))
    if at.flags:
        check_status(lib.rr_cuda_flags_reset(at.block, at.own_flags))
    at.meeting.gather(b"reset")
    buffers = Buffers(at)
    buffers.fill(0)
    buffers.emit()
    buffers.compare(0)
    at.close()


def give_up(folder: str, rank: str, case: str) -> None:
    """One queue for all streams, and flags in GPU memory: an abort says in its time that it can release nothing."""
    at = Rank(folder, rank, case)
    if at.rank == 0:
        stream = check(driver.cuStreamCreate(1))
        memory = allocate(8 * at.count)
        check_status(lib.rr_cuda_list_emit(at.list, memory, memory, 0, ffi.cast("void *", int(stream))))
        begin = time.monotonic()
        with pytest.raises(OperationTimeoutError, match="give flags in host memory"):
            check_status(lib.rr_cuda_list_abort(at.list, 300_000_000))
        print(f"gave up after {time.monotonic() - begin:.2f} s", flush=True)
    at.meeting.gather(b"over")
    os._exit(0)  # nothing can be freed
