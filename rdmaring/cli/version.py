"""What ``rdmaring --version`` says: one fact a line, the first one `rdmaring VERSION`."""

from __future__ import annotations

import os
from importlib import metadata

from rdmaring._native import ffi, lib
from rdmaring._version import __version__
from rdmaring.cuda import driver
from rdmaring.diagnose.doctor.verbs_library import LIBRARY, VerbsLibrary, open_verbs_library
from rdmaring.errors import CudaError


def lines() -> list[str]:
    """The version, and what of the machine this installation can use. Never raises for what is absent."""
    verbs = open_verbs_library(os.environ.get("RDMARING_LIBIBVERBS") or LIBRARY)
    return [
        f"rdmaring {__version__}",
        f"build: {_text(lib.rr_build_name())}; speaks {_text(lib.rr_wire_name())}",
        f"SIMD: {_text(lib.rr_simd_name())}",
        f"verbs: {verbs_line(verbs)}",
        f"CUDA: {cuda_line()}",
    ]


def verbs_line(found: VerbsLibrary) -> str:
    """``found`` in words."""
    version = f"libibverbs {found.version}" if found.version else "libibverbs"
    if found.error:
        return f"{version}, devices: none ({found.error})" if found.path else f"none ({found.error})"
    return f"{version}, devices: {', '.join(found.devices) or 'none'}"


def cuda_line() -> str:
    """The driver and cuda-python, or why there is none."""
    try:
        served = driver.shown(driver.call("cuDriverGetVersion"))
        devices = driver.call("cuDeviceGetCount")
    except CudaError as error:
        return f"none ({error.cause})"
    return f"driver for CUDA {served}, cuda-bindings {metadata.version('cuda-bindings')}, GPUs: {devices}"


def _text(value: object) -> str:
    return str(ffi.string(value).decode())
