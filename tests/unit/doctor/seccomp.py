"""A real seccomp filter that refuses system calls of this process and of those it starts."""

from __future__ import annotations

import ctypes
import os
import platform

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 22, 38
SECCOMP_MODE_FILTER = 2
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
NUMBERS = {
    "x86_64": {"memfd_create": 319, "process_vm_readv": 310},
    "aarch64": {"memfd_create": 279, "process_vm_readv": 270},
}


class Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_ushort), ("true", ctypes.c_ubyte), ("false", ctypes.c_ubyte), ("k", ctypes.c_uint32))


class Program(ctypes.Structure):
    _fields_ = (("count", ctypes.c_ushort), ("filter", ctypes.POINTER(Instruction)))


def refuse(call: str, number: int) -> None:
    """From now on ``call`` fails with errno ``number``. There is no way back: only in a process of its own."""
    code = NUMBERS[platform.machine()][call]
    steps = [(LOAD, 0, 0, 0), (JUMP_IF_EQUAL, 0, 1, code), (RETURN, 0, 0, ERRNO | number), (RETURN, 0, 0, ALLOW)]
    instructions = (Instruction * len(steps))(*(Instruction(*step) for step in steps))
    program = Program(len(steps), instructions)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
        PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0
    ):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
