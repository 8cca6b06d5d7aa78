"""Cases that hold on every CUDA driver: each runs in a process of its own, on the simulated driver and on a real GPU.

A case is a function without arguments, marked by @case(). pytest runs it twice: "simulated", always, and "gpu" (mark
gpu), where a GPU is. What differs on real hardware is a fault of tests/cuda_sim, or of what we believe.
"""

from __future__ import annotations

import ctypes
import faulthandler
import functools
import importlib.util
import inspect
import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cuda.bindings.driver as driver
import pytest
from cuda_sim.child import check as check
from cuda_sim.child import context as context
from cuda_sim.child import refused as refused
from cuda_sim.child import run as run_forked

TESTS = Path(__file__).resolve().parents[1]
TIMEOUT_S = 60
STUCK_S = 40  # a case that waits on what never comes shows where, and ends
GEQ, EQ, AND, NOR = range(4)  # kinds of waits
LACKING = 77  # exit status of a case whose device has not the power it looks at
BLOCK_BYTES = 2 << 20
LEGACY = driver.CUstream(driver.CU_STREAM_LEGACY)
PROBE = "import sys, cuda.bindings.driver as d; sys.exit(int(d.cuInit(0)[0]) or d.cuDeviceGetCount()[1] < 1)"

Case = Callable[[], None]
CASES: list[Case] = []
SETTINGS: dict[Case, dict[str, Any]] = {}  # of the simulated run of each


def real_environment() -> dict[str, str]:
    """Of a process that is to find the machine's own driver."""
    return {**os.environ, "PYTHONPATH": str(TESTS)}


@functools.cache
def has_gpu() -> bool:
    """Whether the machine's own driver shows a device."""
    done = subprocess.run([sys.executable, "-c", PROBE], env=real_environment(), capture_output=True, timeout=TIMEOUT_S)
    return done.returncode == 0


def command(path: str, name: str) -> list[str]:
    return [sys.executable, __file__, path, name]


def run_case(function: Case, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run one case; status 0: it holds, LACKING: the device has no such power, else the output says what differs."""
    line = command(function.__code__.co_filename, function.__name__)
    return subprocess.run(line, env=dict(env), capture_output=True, text=True, timeout=TIMEOUT_S)


def case(**simulated: Any) -> Callable[[Case], Callable[[str], None]]:
    """Make a test of a case. simulated: settings of cuda_sim.environment for the simulated run."""

    def decorate(function: Case) -> Callable[[str], None]:
        CASES.append(function)
        SETTINGS[function] = simulated

        @pytest.mark.parametrize("where", ["simulated", pytest.param("gpu", marks=pytest.mark.gpu)])
        def test(where: str) -> None:
            if where == "simulated":
                status, output = run_forked(function.__code__.co_filename, function.__name__, **simulated)
            elif has_gpu():
                done = run_case(function, real_environment())
                status, output = done.returncode, done.stdout + done.stderr
            else:
                pytest.skip("no gpu: the machine's own driver shows none")
            if status == LACKING and where == "gpu":
                pytest.skip(f"no gpu with this power: {output.strip()}")
            assert status == 0, f"status {status}\n{output}"

        functools.update_wrapper(test, function)  # processes find the case as test.__wrapped__
        where_alone = [inspect.Parameter("where", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
        test.__signature__ = inspect.Signature(where_alone)  # type: ignore[attr-defined]
        return test

    return decorate


def lacking(what: str) -> None:
    """End the case: this device has no such power, so there is nothing to hold."""
    print(what, flush=True)
    os._exit(LACKING)


# ---- inside a case ----------------------------------------------------------------------------------------------


def attribute(name: str) -> int:
    """Of device 0, without CU_DEVICE_ATTRIBUTE_."""
    member = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(check(driver.cuDeviceGetAttribute(member, check(driver.cuDeviceGet(0)))))


def non_blocking() -> Any:
    """A stream that does not wait for the legacy stream."""
    return check(driver.cuStreamCreate(int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)))


def write(address: int, data: bytes) -> None:
    source = ctypes.create_string_buffer(data, len(data))
    check(driver.cuMemcpyHtoD(int(address), ctypes.addressof(source), len(data)))
    check(driver.cuStreamSynchronize(LEGACY))  # it is staged when the call returns, not yet there


def read(address: int, count: int) -> bytes:
    target = ctypes.create_string_buffer(count)
    check(driver.cuMemcpyDtoH(ctypes.addressof(target), int(address), count))
    return target.raw


def words(address: int, count: int) -> list[int]:
    """32-bit words of device memory."""
    return list(memoryview(read(address, 4 * count)).cast("I"))


def filled(count: int = BLOCK_BYTES, value: int = 0) -> int:
    """Address of fresh device memory."""
    address = int(check(driver.cuMemAlloc(count)))
    check(driver.cuMemsetD8(address, value, count))
    check(driver.cuStreamSynchronize(LEGACY))  # no other: it may stand at a gate
    return address


def wait32(address: int, value: int, flags: int = EQ) -> Any:
    """An operation of a batch."""
    item = driver.CUstreamBatchMemOpParams()
    item.waitValue.operation = driver.CUstreamBatchMemOpType.CU_STREAM_MEM_OP_WAIT_VALUE_32
    item.waitValue.address = driver.CUdeviceptr(address)
    item.waitValue.value = driver.cuuint32_t(value)
    item.waitValue.flags = flags
    return item


def write32(address: int, value: int) -> Any:
    """An operation of a batch."""
    item = driver.CUstreamBatchMemOpParams()
    item.writeValue.operation = driver.CUstreamBatchMemOpType.CU_STREAM_MEM_OP_WRITE_VALUE_32
    item.writeValue.address = driver.CUdeviceptr(address)
    item.writeValue.value = driver.cuuint32_t(value)
    item.writeValue.flags = 0
    return item


def batch(stream: Any, items: list[Any]) -> tuple[Any, ...]:
    return driver.cuStreamBatchMemOp(stream, len(items), items, 0)


class Gate:
    """A stream that is made to wait at it goes on when it is opened: a word of pinned memory that the host sets."""

    def __init__(self) -> None:
        flags = driver.CU_MEMHOSTALLOC_DEVICEMAP | driver.CU_MEMHOSTALLOC_PORTABLE
        self.address = int(check(driver.cuMemHostAlloc(mmap.PAGESIZE, flags)))
        self.word = ctypes.c_uint32.from_address(self.address)
        self.word.value = 0
        self.device_address = int(check(driver.cuMemHostGetDevicePointer(self.address, 0)))

    def stop(self, stream: Any) -> None:
        check(driver.cuStreamWaitValue32(stream, self.device_address, 1, 1))  # 1: equal

    def open(self) -> None:
        self.word.value = 1


def poll(stream: Any) -> bool:
    """Whether a stream has done all."""
    code = int(driver.cuStreamQuery(stream)[0])
    assert code in (0, 600), code  # CUDA_ERROR_NOT_READY
    return code == 0


def soon(condition: Callable[[], bool], limit_s: float = 10.0) -> bool:
    """Whether it comes true in time."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.001)
    return False


class Peer:
    """A second process, which runs another function of the same file: peer(hear, say) with lines of JSON."""

    def __init__(self, function: Callable[..., None]) -> None:
        line = [*command(function.__code__.co_filename, function.__name__), "peer"]
        self.process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    @classmethod
    @contextmanager
    def running(cls, function: Callable[..., None]) -> Iterator[Peer]:
        """It must end well by itself once the block is left."""
        peer = cls(function)
        try:
            yield peer
            assert peer.process.stdin is not None
            peer.process.stdin.close()
            assert peer.process.wait(STUCK_S) == 0
        finally:
            peer.process.kill()
            peer.process.wait()

    def say(self, value: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(value) + "\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the second process has ended"
        return json.loads(line)


def _run(path: str, name: str, as_peer: bool) -> None:
    faulthandler.dump_traceback_later(STUCK_S, exit=True)
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, name)
    if not as_peer:
        function.__wrapped__()
        return

    def hear() -> Any:
        line = sys.stdin.readline()
        return json.loads(line) if line else None

    function(hear, lambda value: print(json.dumps(value), flush=True))


if __name__ == "__main__":
    sys.path.pop(0)  # this folder
    _run(sys.argv[1], sys.argv[2], sys.argv[3:] == ["peer"])
