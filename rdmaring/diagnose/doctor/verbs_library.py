"""libibverbs as the engine will find it: opened at run time, and which devices it can drive."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

LIBRARY = "libibverbs.so.1"


@dataclass(frozen=True, slots=True)
class VerbsLibrary:
    """error: why it could not be opened; "" where it was. devices: names it has a driver for."""

    path: str = ""
    version: str = ""
    devices: tuple[str, ...] = ()
    error: str = ""


def open_verbs_library(name: str = LIBRARY) -> VerbsLibrary:
    """Open it and list its devices. name: what the loader looks for, or a path. Never raises for a library that is "
    "absent or too old."""
    try:
        library = ctypes.CDLL(name, use_errno=True)
        list_devices, free_list, name_of = (
            library.ibv_get_device_list,
            library.ibv_free_device_list,
            library.ibv_get_device_name,
        )
    except (OSError, AttributeError) as error:
        return VerbsLibrary(error=str(error))
    list_devices.restype = ctypes.POINTER(ctypes.c_void_p)
    free_list.argtypes = [ctypes.c_void_p]
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
    path = _mapped_path(Path(name).name if name != LIBRARY else "libibverbs.so")
    version = Path(path).name.partition(".so.")[2]
    count = ctypes.c_int(0)
    listed = list_devices(ctypes.byref(count))
    if not listed:
        number = ctypes.get_errno()
        return VerbsLibrary(path, version, error=f"ibv_get_device_list: {os.strerror(number)}")
    devices = tuple(sorted(name_of(listed[index]).decode() for index in range(count.value)))
    free_list(listed)
    return VerbsLibrary(path, version, devices)


def _mapped_path(part: str) -> str:
    """The file behind the library, whose name carries the version; "" where /proc does not tell."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return ""
    return next((line.split()[-1] for line in lines if part in line), "")
