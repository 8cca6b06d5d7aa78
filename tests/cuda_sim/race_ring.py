"""A small ring over IPC memory, as one rank runs it on the simulated driver; with one of BUGS in it, or without.

Each of CALLS calls adds the vectors of all ranks: every step sends a chunk into the right neighbour's slot and
receives one from the left. Flags have one setter and one resetter; a slot's credit begins at 1.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
import traceback
from pathlib import Path
from typing import Any

import cuda.bindings.driver as driver
import numpy as np
from cuda_sim.child import check, context
from cuda_sim.kernel_calls import combine_of, function, image, launch

BUGS = (
    "no wait for ready",
    "no wait for credit",
    "no event between the streams",
    "credit before the kernel",
    "ready before the copy",
    "ready on the other stream",
    "no input ordering",
    "no output ordering",
)
REVERSED = "receive before send"  # no race: all stand still where one queue serves all streams
CREDIT_BUGS = ("", "no wait for credit", "credit before the kernel")  # and none, to compare with
BLOCK_BYTES = 2 << 20
CHUNK = 1000  # elements
CALLS = 3
READY, CREDIT = 0, 64  # byte offsets in the flag page, one word a slot
SLOTS_MAX = 2
# Of 2 ms, not times by the clock: a machine that stands still meanwhile is not taken for a stream that does.
HANG_TURNS, MEETING_TURNS = 1500, 30_000
LIMIT_S = 600  # of one ring of many


def exchange(folder: Path, what: str, rank: int, size: int, mine: bytes) -> list[bytes]:
    """An all_gather by files."""
    partial = folder / f"{what}.{rank}.partial"
    partial.write_bytes(mine)
    partial.rename(folder / f"{what}.{rank}")
    paths = [folder / f"{what}.{other}" for other in range(size)]
    for _ in range(MEETING_TURNS):
        if all(path.exists() for path in paths):
            break
        time.sleep(0.002)
    assert all(path.exists() for path in paths), f"rank {rank} misses {what} of others"
    return [path.read_bytes() for path in paths]


class Rank:
    def __init__(self, folder: Path, rank: int, size: int, bug: str) -> None:
        context()
        self.folder, self.rank, self.size, self.bug = folder, rank, size, bug
        self.user, self.copy, self.compute = (check(driver.cuStreamCreate(1)) for _ in range(3))
        self.kernel = function(check(driver.cuModuleLoadData(image())))
        self.data, self.slots, self.flags = (int(check(driver.cuMemAlloc(BLOCK_BYTES))) for _ in range(3))
        self.pinned = int(check(driver.cuMemHostAlloc(BLOCK_BYTES, 0)))  # a copy to other memory would block
        check(driver.cuMemsetD32(self.flags, 0, BLOCK_BYTES // 4))
        check(driver.cuMemsetD32(self.flags + CREDIT, 1, SLOTS_MAX))
        check(driver.cuCtxSynchronize())  # a memset does not wait, and other streams do not wait for it
        handles = b"".join(self._handle(address) for address in (self.slots, self.flags))
        everyone = exchange(folder, "handles", rank, size, handles)
        self.right, self.left = (everyone[(rank + step) % size] for step in (1, -1))
        self.right_slots, self.right_flags = (self._open(self.right[at : at + 64]) for at in (0, 64))
        self.left_flags = self.right_flags if size == 2 else self._open(self.left[64:])
        self.received: list[Any] = []

    @staticmethod
    def _handle(address: int) -> bytes:
        return ctypes.string_at(check(driver.cuIpcGetMemHandle(address)).getPtr(), 64)

    @staticmethod
    def _open(text: bytes) -> int:
        handle = driver.CUipcMemHandle()
        ctypes.memmove(handle.getPtr(), text, 64)
        return int(check(driver.cuIpcOpenMemHandle(handle, 1)))

    def slot(self, step: int) -> int:
        """Of two ranks with two slots each, all credits are for nothing: what is received orders enough."""
        return step % (1 if self.size == 2 and self.bug in CREDIT_BUGS else SLOTS_MAX)

    def chunk(self, number: int) -> int:
        return self.data + number % self.size * CHUNK * 4

    @staticmethod
    def event(stream: Any) -> Any:
        made = check(driver.cuEventCreate(2))
        check(driver.cuEventRecord(made, stream))
        return made

    @staticmethod
    def await_and_reset(stream: Any, flag: int) -> None:
        check(driver.cuStreamWaitValue32(stream, flag, 1, 1))
        check(driver.cuStreamWriteValue32(stream, flag, 0, 0))

    def send(self, step: int, slot: int) -> None:
        ready = self.right_flags + READY + 4 * slot
        if self.bug != "no wait for credit":
            self.await_and_reset(self.copy, self.flags + CREDIT + 4 * slot)
        if step and self.bug != "no event between the streams":
            before = self.received[-2 if self.bug == REVERSED else -1]  # of the step before
            check(driver.cuStreamWaitEvent(self.copy, before, 0))
        if self.bug == "ready before the copy":
            check(driver.cuStreamWriteValue32(self.copy, ready, 1, 0))
        target = self.right_slots + slot * CHUNK * 4
        check(driver.cuMemcpyDtoDAsync(target, self.chunk(self.rank - step), CHUNK * 4, self.copy))
        if self.bug != "ready before the copy":
            stream = self.compute if self.bug == "ready on the other stream" else self.copy
            check(driver.cuStreamWriteValue32(stream, ready, 1, 0))

    def receive(self, step: int, slot: int) -> None:
        credit = self.left_flags + CREDIT + 4 * slot
        chunk, filled = self.chunk(self.rank - step - 1), self.slots + slot * CHUNK * 4
        if self.bug != "no wait for ready":
            self.await_and_reset(self.compute, self.flags + READY + 4 * slot)
        if self.bug == "credit before the kernel":
            check(driver.cuStreamWriteValue32(self.compute, credit, 1, 0))
        sources = [chunk, filled] if step < self.size - 1 else [filled]
        check(launch(self.kernel, combine_of(sources, [chunk], CHUNK), self.compute))
        if self.bug != "credit before the kernel":
            check(driver.cuStreamWriteValue32(self.compute, credit, 1, 0))
        self.received.append(self.event(self.compute))

    def call(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """values: float32, size * CHUNK elements. The sum over all ranks."""
        check(driver.cuMemcpyHtoDAsync(self.data, values.ctypes.data, values.nbytes, self.user))
        if self.bug != "no input ordering":
            there = self.event(self.user)
            for stream in (self.copy, self.compute):
                check(driver.cuStreamWaitEvent(stream, there, 0))
        for step in range(2 * (self.size - 1)):
            if self.bug == REVERSED:
                self.receive(step, self.slot(step))
            self.send(step, self.slot(step))
            if self.bug != REVERSED:
                self.receive(step, self.slot(step))
        for stream in (self.copy, self.compute):
            if self.bug != "no output ordering":
                check(driver.cuStreamWaitEvent(self.user, self.event(stream), 0))
        check(driver.cuMemcpyDtoHAsync(self.pinned, self.data, values.nbytes, self.user))
        self.wait_for_the_end()
        return np.ctypeslib.as_array((ctypes.c_float * values.size).from_address(self.pinned)).copy()

    def wait_for_the_end(self) -> None:
        """A bug can lose a signal, and then a stream waits for ever: its log is read all the same."""
        streams = (self.user, self.copy, self.compute)  # an operation is in the log when it has run
        turns = 0
        while self.bug and any(int(driver.cuStreamQuery(stream)[0]) != 0 for stream in streams):
            turns += 1
            if turns > HANG_TURNS:
                (self.folder / f"still.{self.rank}").touch()
                exchange(self.folder, "over", self.rank, self.size, b"")
                os._exit(0)
            time.sleep(0.002)
        check(driver.cuStreamSynchronize(self.user))


def main(folder: str, rank: str, size: str, bug: str) -> None:
    """One rank. Without a bug the sums must be right."""
    own = Rank(Path(folder), int(rank), int(size), bug)
    for call in range(1 if bug else CALLS):
        inputs = [np.arange(own.size * CHUNK, dtype=np.float32) * (other + call + 1) for other in range(own.size)]
        out = own.call(inputs[own.rank])
        assert bug or np.array_equal(out, sum(inputs)), f"call {call} of rank {rank} is wrong"
    exchange(own.folder, "over", own.rank, own.size, b"")


def many(folder: str, size: str, bug: str, first_seed: str, count: str) -> None:
    """Rings with these seeds, one after another, in FOLDER/SEED; the bindings are imported once for all."""
    for seed in range(int(first_seed), int(first_seed) + int(count)):
        own = Path(folder) / str(seed)
        own.mkdir()
        os.environ["RR_CUDA_SIM_RACE_LOG"] = str(own / "log")
        ranks = [_forked(own, rank, size, bug, seed) for rank in range(int(size))]
        statuses = [os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks]
        assert not any(statuses), f"seed {seed}: {statuses}"


def _forked(own: Path, rank: int, size: str, bug: str, seed: int) -> int:
    child = os.fork()
    if child:
        return child
    os.environ["RR_CUDA_SIM_SEED"] = str(seed * 100 + rank)
    status = 1
    try:
        signal.alarm(LIMIT_S)
        main(str(own), str(rank), size, bug)
        status = 0
    except BaseException:
        traceback.print_exc()
    os._exit(status)
