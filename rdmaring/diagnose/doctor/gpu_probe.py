"""The child process of gpu_facts: asks the driver, tries what ranks will do, and writes a line of JSON for each answer.

Run without arguments it does all of it; ``open DEVICE HANDLE COUNT`` is the second process of an IPC attempt.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from rdmaring.cuda import nvrtc
from rdmaring.diagnose.doctor.gpu_facts import ATTRIBUTES
from rdmaring.errors import RdmaringError

TOKEN_BYTES = 4096
BLOCK_BYTES = 2 << 20  # an allocation that shares its block with no other
OPEN_TIMEOUT_S = 20.0
HANDLE_BYTES = 64


class DriverError(Exception):
    """A call failed: its name and the driver's name and number of the error."""


def say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


class Driver:
    """The driver's calls, by cuda-python: driver.call("cuMemAlloc", count) gives the result or raises DriverError."""

    def __init__(self, binding: Any) -> None:
        self.binding = binding

    def call(self, name: str, *arguments: object) -> Any:
        code, *results = getattr(self.binding, name)(*arguments)
        if int(code) != 0:
            raise DriverError(f"{name}: {self.error_text(code)}")
        return results[0] if len(results) == 1 else tuple(results)

    def error_text(self, code: Any) -> str:
        """CUDA_ERROR_NO_DEVICE (100)."""
        known, name = self.binding.cuGetErrorName(code)
        return f"{name.decode() if int(known) == 0 and name else 'unknown error'} ({int(code)})"

    @contextmanager
    def context(self, ordinal: int) -> Iterator[Any]:
        """The primary context of a device, current."""
        device = self.call("cuDeviceGet", ordinal)
        context = self.call("cuDevicePrimaryCtxRetain", device)
        self.call("cuCtxPushCurrent", context)
        with self.undone(("cuCtxPopCurrent",), ("cuDevicePrimaryCtxRelease", device)):
            yield context

    @contextmanager
    def block(self) -> Iterator[int]:
        """BLOCK_BYTES of the current device's memory."""
        address = int(self.call("cuMemAlloc", BLOCK_BYTES))
        with self.undone(("cuMemFree", address)):
            yield address

    @contextmanager
    def undone(self, *calls: tuple[Any, ...]) -> Iterator[None]:
        """Make these calls afterwards. Where something went wrong before, that is told and not what follows from it."""
        try:
            yield
        except BaseException:
            for name, *arguments in calls:
                getattr(self.binding, name)(*arguments)
            raise
        for name, *arguments in calls:
            self.call(name, *arguments)

    def write(self, address: int, data: bytes) -> None:
        """The bytes are there when it returns: a copy from pageable memory returns when they are staged."""
        source = ctypes.create_string_buffer(data, len(data))
        self.call("cuMemcpyHtoD", address, ctypes.addressof(source), len(data))
        self.call("cuCtxSynchronize")

    def read(self, address: int, count: int) -> bytes:
        target = ctypes.create_string_buffer(count)
        self.call("cuMemcpyDtoH", ctypes.addressof(target), address, count)
        return target.raw


def attempt(body: Callable[[], None]) -> str:
    """The error of ``body`` as text, "" where there was none."""
    try:
        body()
    except (DriverError, RuntimeError, OSError) as error:  # cuda-python raises RuntimeErrors for what is missing
        return str(error) or type(error).__name__
    return ""


def main(arguments: Sequence[str]) -> int:
    try:
        binding: Any = importlib.import_module("cuda.bindings.driver")
        say(binding=importlib.import_module("cuda.bindings").__version__)
    except ImportError as error:
        say(binding_error=str(error))
        return 0
    driver = Driver(binding)
    if arguments[:1] == ["open"]:
        return _open(driver, int(arguments[1]), bytes.fromhex(arguments[2]), int(arguments[3]))
    say(at="cuInit")
    say(init_error=attempt(lambda: driver.call("cuInit", 0)))
    say(driver_version=driver.call("cuDriverGetVersion"))
    say(at="NVRTC")
    say(nvrtc=_nvrtc())
    say(at="the list of devices")
    try:
        count = driver.call("cuDeviceGetCount")
    except DriverError:
        return 0  # cuInit's error says why
    for ordinal in range(count):
        say(gpu=_describe(driver, ordinal))
    for ordinal in range(count):
        for name, trial in (("memops", _try_memops), ("ipc", _try_ipc), ("dma_buf", _try_dma_buf)):
            say(at=f"{name} of GPU {ordinal}")
            say(**{name: (ordinal, attempt(partial(trial, driver, ordinal)))})
    for reader in range(count):
        for owner in range(count):
            if reader != owner:
                say(at=f"the copy of GPU {reader} from GPU {owner}")
                say(peer=_try_peer(driver, reader, owner))
    return 0


def _nvrtc() -> dict[str, object]:
    """As the kernels' compilation finds it, with its headers."""
    try:
        binding = nvrtc.bindings()
        code, archs = binding.nvrtcGetSupportedArchs()
        nvrtc.headers()
        version = nvrtc.version()
    except (RdmaringError, RuntimeError) as error:
        return {"error": str(error) or type(error).__name__}
    return {"error": f"nvrtcGetSupportedArchs: {code}"} if int(code) else {"version": version, "archs": list(archs)}


def _describe(driver: Driver, ordinal: int) -> dict[str, object]:
    device = driver.call("cuDeviceGet", ordinal)
    attributes = driver.binding.CUdevice_attribute

    def attribute(name: str) -> int:
        member = getattr(attributes, f"CU_DEVICE_ATTRIBUTE_{name}", None)
        # An attribute that binding or driver is too old for is a power that is not there.
        return 0 if member is None else int((driver.binding.cuDeviceGetAttribute(member, device)[1]) or 0)

    raw = bytes(driver.call("cuDeviceGetUuid", device).bytes)[:16].hex()
    return {
        "ordinal": ordinal,
        "name": _text(driver.call("cuDeviceGetName", 256, device)),
        "uuid": f"GPU-{raw[:8]}-{raw[8:12]}-{raw[12:16]}-{raw[16:20]}-{raw[20:]}",
        "pci": _text(driver.call("cuDeviceGetPCIBusId", 32, device)).lower(),
        "capability": (attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")),
        "memory_bytes": int(driver.call("cuDeviceTotalMem", device)),
        "attributes": {name: attribute(its) for name, its in ATTRIBUTES.items()},
    }


def _text(raw: bytes) -> str:
    """Of a buffer that the driver filled up to a zero byte."""
    return raw.partition(b"\0")[0].decode(errors="replace")


def _try_memops(driver: Driver, ordinal: int) -> None:
    """A stream sets a word, waits for it and sets another; the host reads both."""
    with driver.context(ordinal), driver.block() as block:
        driver.write(block, bytes(8))
        stream = driver.call("cuStreamCreate", int(driver.binding.CUstream_flags.CU_STREAM_NON_BLOCKING))
        with driver.undone(("cuStreamDestroy", stream)):
            driver.call("cuStreamWriteValue32", stream, block, 7, 0)
            driver.call("cuStreamWaitValue32", stream, block, 7, 1)  # 1: equal
            driver.call("cuStreamWriteValue32", stream, block + 4, 9, 0)
            driver.call("cuStreamSynchronize", stream)
        seen = driver.read(block, 8)
        if seen != bytes([7, 0, 0, 0, 9, 0, 0, 0]):
            raise DriverError(f"the stream's words are {seen.hex(' ', 4)}, not 07000000 09000000")


def _try_ipc(driver: Driver, ordinal: int) -> None:
    """A second process opens the handle, reads the token and writes it back, reversed."""
    token = os.urandom(TOKEN_BYTES)
    with driver.context(ordinal), driver.block() as block:
        driver.write(block, token)
        handle = driver.call("cuIpcGetMemHandle", block)
        raw = ctypes.string_at(handle.getPtr(), HANDLE_BYTES).hex()
        command = [sys.executable, "-m", __spec__.name, "open", str(ordinal), raw, str(TOKEN_BYTES)]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=OPEN_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise DriverError(f"the second process did not end within {OPEN_TIMEOUT_S:g} s") from None
        answer = ended.stdout.strip().splitlines()[-1:] or [""]
        if ended.returncode:
            words = ended.stderr.strip().splitlines()[-1:] or [f"exit code {ended.returncode}"]
            raise DriverError(f"the second process failed: {words[0]}")
        fields = json.loads(answer[0])
        if fields.get("open_error"):
            raise DriverError(f"in the second process: {fields['open_error']}")
        if fields.get("seen") != token.hex() or driver.read(block, TOKEN_BYTES) != token[::-1]:
            raise DriverError("the two processes do not see the same bytes")


def _open(driver: Driver, ordinal: int, raw: bytes, count: int) -> int:
    """The second process. Devices are numbered alike in both: it has the first one's environment."""

    def body() -> None:
        driver.call("cuInit", 0)
        handle = driver.binding.CUipcMemHandle()
        ctypes.memmove(handle.getPtr(), raw, HANDLE_BYTES)
        with driver.context(ordinal):
            lazy = int(driver.binding.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
            address = int(driver.call("cuIpcOpenMemHandle", handle, lazy))
            seen.append(driver.read(address, count))
            driver.write(address, seen[0][::-1])
            driver.call("cuCtxSynchronize")
            driver.call("cuIpcCloseMemHandle", address)

    seen: list[bytes] = []
    error = attempt(body)
    say(open_error=error, seen="" if error else seen[0].hex())
    return 0


def _try_dma_buf(driver: Driver, ordinal: int) -> None:
    """A descriptor of a block's memory, as RDMA registration takes it."""
    with driver.context(ordinal), driver.block() as block:
        kind = driver.binding.CUmemRangeHandleType.CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
        count = -(-BLOCK_BYTES // mmap.PAGESIZE) * mmap.PAGESIZE
        os.close(int(driver.call("cuMemGetHandleForAddressRange", block, count, kind, 0)))


def _try_peer(driver: Driver, reader: int, owner: int) -> dict[str, object]:
    devices = [driver.call("cuDeviceGet", ordinal) for ordinal in (reader, owner)]
    offered = bool(driver.call("cuDeviceCanAccessPeer", *devices))
    error = attempt(lambda: _copy_between(driver, reader, owner)) if offered else ""
    return {"reader": reader, "owner": owner, "offered": offered, "error": error}


def _copy_between(driver: Driver, reader: int, owner: int) -> None:
    """A token in the owner's memory, pulled by the reader, reversed, and pushed back."""
    token = os.urandom(TOKEN_BYTES)
    with driver.context(owner) as theirs, driver.block() as remote:
        driver.write(remote, token)
        driver.call("cuCtxSynchronize")
        with driver.context(reader), driver.block() as local:
            driver.call("cuCtxEnablePeerAccess", theirs, 0)
            with driver.undone(("cuCtxDisablePeerAccess", theirs)):
                driver.call("cuMemcpyDtoD", local, remote, TOKEN_BYTES)
                driver.call("cuCtxSynchronize")
                pulled = driver.read(local, TOKEN_BYTES)
                driver.write(local, token[::-1])
                driver.call("cuMemcpyDtoD", remote, local, TOKEN_BYTES)
                driver.call("cuCtxSynchronize")
        pushed = driver.read(remote, TOKEN_BYTES)
    for what, got, wanted in (("read", pulled, token), ("written", pushed, token[::-1])):
        if got != wanted:
            wrong = sum(a != b for a, b in zip(got, wanted, strict=True))
            raise DriverError(f"{wrong} of {TOKEN_BYTES} bytes {what} over the bus are wrong")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
