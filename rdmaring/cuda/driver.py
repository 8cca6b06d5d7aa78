"""The CUDA driver as cuda-python shows it: loaded when first needed, its refusals as our errors."""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib import import_module
from types import ModuleType
from typing import Any

from rdmaring.errors import CudaError

INSTALL = "pip install 'rdmaring[cuda]'"
DRIVER_VERSION_MIN = 11080  # 11.8: stream memory operations of the second kind, in wide use

_loaded: dict[int, ModuleType] = {}  # by process: a driver that was initialised before a fork serves the parent only


def bindings() -> ModuleType:
    """cuda.bindings.driver, with the driver initialised.

    Raises:
        CudaError: cuda-python or the driver is missing, too old, or has no device here; the message says what to do.
    """
    module = _loaded.get(os.getpid())
    return _load() if module is None else module


def is_loaded() -> bool:
    """Whether this process, and not a parent that forked it, has used the driver."""
    return os.getpid() in _loaded


def _load() -> ModuleType:
    module: ModuleType
    if _loaded:
        raise CudaError(
            "CUDA was used before this process was forked, and does not work in a child",
            hint="start processes by multiprocessing's 'spawn', or use CUDA first in the child",
        )
    try:
        module = import_module("cuda.bindings.driver")
    except ImportError as error:
        raise CudaError(f"cuda-python, which GPU memory needs, cannot be imported: {error}", hint=INSTALL) from None
    try:
        (status,) = module.cuInit(0)
    except RuntimeError as error:  # cuda.pathfinder's DynamicLibNotFoundError
        raise CudaError(
            f"the CUDA driver, libcuda.so.1, cannot be loaded: {error}",
            hint="install NVIDIA's driver; in a container, start it with the GPUs (--gpus all)",
        ) from None
    _check(status, "cuInit")
    status, version = module.cuDriverGetVersion()
    _check(status, "cuDriverGetVersion")
    if version < DRIVER_VERSION_MIN:
        raise CudaError(
            f"the CUDA driver serves CUDA {shown(version)}; accepted are {shown(DRIVER_VERSION_MIN)} and newer",
            hint="install a newer driver",
        )
    _loaded[os.getpid()] = module
    return module


def shown(version: int) -> str:
    """12040 as 12.4."""
    return f"{version // 1000}.{version % 1000 // 10}"


def _check(status: Any, name: str) -> None:
    if int(status):
        word = getattr(status, "name", "an unknown error")
        raise CudaError(f"{name} failed: {word} ({int(status)})", hint=HINTS.get(word, ""), driver_error=word)


HINTS = {
    "CUDA_ERROR_NO_DEVICE": "no GPU is visible: look at nvidia-smi and CUDA_VISIBLE_DEVICES",
    "CUDA_ERROR_NOT_INITIALIZED": "start processes by multiprocessing's 'spawn': CUDA does not work after a fork",
    "CUDA_ERROR_OUT_OF_MEMORY": "free GPU memory, or let several ranks use different GPUs",
    "CUDA_ERROR_INVALID_DEVICE": "count the GPUs that CUDA_VISIBLE_DEVICES leaves, from 0",
    "CUDA_ERROR_ILLEGAL_ADDRESS": "a kernel of this process used memory that is not its own; the process must end",
}


def call(name: str, *arguments: Any) -> Any:
    """Call one function of the driver; returns its result, a tuple of several, or None.

    Raises:
        CudaError: the driver refused, or has no such function.
    """
    try:
        found = getattr(bindings(), name)(*arguments)
    except CudaError:
        raise
    except RuntimeError as error:  # cuda-python's FunctionNotFoundError
        raise CudaError(f"the CUDA driver has no {name}: {error}", hint="install a newer driver") from None
    _check(found[0], name)
    if len(found) <= 2:
        return found[1] if len(found) == 2 else None
    return found[1:]


def addresses(entries: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Name and address of each function; 0 where this driver has none of that version.

    entries: name and version, the one whose signature the caller knows: a later one may have another.
    """
    found = []
    module = bindings()
    for name, version in entries:
        result = module.cuGetProcAddress(name.encode(), version, 0)
        found.append((name, 0 if int(result[0]) else int(result[1] or 0)))
    return found
