"""May one process read another's memory (CMA, process_vm_readv)? Asked of the kernel, by doing it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from dataclasses import dataclass

TOKEN_BYTES = 32
PROBE_TIMEOUT_S = 20.0

# The child reads its parent: ranks are no ancestors of each other, and that is what Yama asks for. Then the parent
# reads the child, which Yama's mode 1 allows. It prints "errno of its reading, its own token's address".
CHILD = """
import ctypes, os, sys
class Part(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("bytes", ctypes.c_size_t))
pid, address, count = map(int, sys.argv[1:4])
libc = ctypes.CDLL(None, use_errno=True)
read = libc.process_vm_readv
read.restype = ctypes.c_ssize_t
read.argtypes = [ctypes.c_int, *[ctypes.c_void_p, ctypes.c_ulong] * 2, ctypes.c_ulong]
here = ctypes.create_string_buffer(count)
mine = ctypes.create_string_buffer(bytes.fromhex(sys.argv[4]), count)
got = read(pid, ctypes.byref(Part(ctypes.addressof(here), count)), 1, ctypes.byref(Part(address, count)), 1, 0)
print(0 if got == count else ctypes.get_errno() or -1, here.raw.hex(), ctypes.addressof(mine), flush=True)
sys.stdin.read()
"""


class _Part(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("bytes", ctypes.c_size_t))


@dataclass(frozen=True, slots=True)
class CrossMemory:
    """errno of reading an unrelated process and of reading a child; 0: it worked. wrong: bytes differed."""

    unrelated_errno: int
    child_errno: int
    wrong: bool = False


def probe_cross_memory() -> CrossMemory:
    """Both probes, with a child process of a moment.

    Raises OSError: no child could be started, or it did not answer.
    """
    token = os.urandom(TOKEN_BYTES)
    mine = ctypes.create_string_buffer(token, TOKEN_BYTES)
    other = os.urandom(TOKEN_BYTES)
    arguments = [str(os.getpid()), str(ctypes.addressof(mine)), str(TOKEN_BYTES), other.hex()]
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", CHILD, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        line = child.stdout.readline().split()
        if len(line) != 3:
            child.kill()
            assert child.stderr is not None
            raise OSError(None, f"the probe's child process failed: {child.stderr.read(400).strip()}")
        unrelated_errno, seen = int(line[0]), bytes.fromhex(line[1])
        child_errno, got = _read(child.pid, int(line[2]))
        child.communicate(timeout=PROBE_TIMEOUT_S)
    wrong = (unrelated_errno == 0 and seen != token) or (child_errno == 0 and got != other)
    return CrossMemory(unrelated_errno, child_errno, wrong)


def _read(pid: int, address: int) -> tuple[int, bytes]:
    libc = ctypes.CDLL(None, use_errno=True)
    call = libc.process_vm_readv
    call.restype = ctypes.c_ssize_t
    call.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong]
    here = ctypes.create_string_buffer(TOKEN_BYTES)
    local, remote = _Part(ctypes.addressof(here), TOKEN_BYTES), _Part(address, TOKEN_BYTES)
    got = call(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
    return (0 if got == TOKEN_BYTES else ctypes.get_errno() or -1), here.raw
