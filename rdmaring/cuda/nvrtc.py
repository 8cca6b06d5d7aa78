"""NVIDIA's compiler at run time, NVRTC: found in wheels or in a toolkit, and what it makes of a source."""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from rdmaring.errors import CudaError

INSTALL = "pip install 'rdmaring[cuda]'"


def _wheel_files(pattern: str) -> Iterator[Path]:
    """Files of NVIDIA's wheels, of the newest toolkit first, wherever Python imports from.

    cuda.pathfinder looks in this environment's site-packages only, not in PYTHONPATH.
    """
    spec = importlib.util.find_spec("nvidia")
    for folder in [] if spec is None else spec.submodule_search_locations or []:
        yield from sorted(Path(folder).glob(pattern), reverse=True)


@functools.cache
def bindings() -> ModuleType:
    """cuda.bindings.nvrtc, with the compiler's library loaded.

    Raises:
        CudaError: cuda-python or NVRTC is missing; the message says what to install.
    """
    try:
        module = importlib.import_module("cuda.bindings.nvrtc")
    except ImportError as error:
        raise CudaError(f"cuda-python, which compiles kernels, cannot be imported: {error}", hint=INSTALL) from None
    try:
        module.nvrtcVersion()
        return module
    except RuntimeError as error:  # cuda.pathfinder's DynamicLibNotFoundError
        missing = error
    for path in _wheel_files("**/lib/libnvrtc.so.*"):
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)  # pathfinder takes one that is loaded
        try:
            module.nvrtcVersion()
            return module
        except RuntimeError as error:
            missing = error
    raise CudaError(f"NVRTC, which compiles kernels, cannot be loaded: {missing}", hint=INSTALL)


def _call(name: str, *arguments: Any) -> Any:
    module = bindings()
    result = getattr(module, name)(*arguments)
    if int(result[0]):
        raise CudaError(
            f"{name} failed: {result[0].name} ({int(result[0])})",
            hint="install the nvidia-cuda-nvrtc of the same release as cuda-bindings",
            driver_error=result[0].name,
        )
    return result[1] if len(result) == 2 else result[1:]


def version() -> tuple[int, int]:
    """Major and minor of NVRTC.

    Raises:
        CudaError: there is none.
    """
    major, minor = _call("nvrtcVersion")
    return int(major), int(minor)


@functools.cache
def headers() -> Path:
    """The folder of cuda_fp16.h and cuda_bf16.h.

    Raises:
        CudaError: they are nowhere; the message says what to install.
    """
    for found in _wheel_files("**/include/cuda_fp16.h"):
        return found.parent
    try:
        from cuda.pathfinder import find_nvidia_header_directory
    except ImportError as error:
        raise CudaError(f"cuda-pathfinder, which finds headers, is missing or too old: {error}", hint=INSTALL) from None
    folder = find_nvidia_header_directory("cudart")
    if folder is None or not (Path(folder) / "cuda_fp16.h").exists():
        raise CudaError("CUDA's headers (cuda_fp16.h, in the wheel nvidia-cuda-runtime) were not found", hint=INSTALL)
    return Path(folder)


def architecture(capability: tuple[int, int]) -> str:
    """The architecture to compile for, as "sm_90": the device's own, or the nearest below that its binaries run on.

    capability: the device's compute capability, (9, 0).

    Raises:
        CudaError: this NVRTC knows none that the device runs.
    """
    known = sorted(int(number) for number in _call("nvrtcGetSupportedArchs"))
    wanted = capability[0] * 10 + capability[1]
    fitting = [number for number in known if number // 10 == capability[0] and number <= wanted]
    if not fitting:
        raise CudaError(
            f"NVRTC {_dotted(version())} compiles for {', '.join(f'sm_{number}' for number in known)}; "
            f"the device has compute capability {_dotted(capability)}",
            hint="pip install -U nvidia-cuda-nvrtc" if known[-1] < wanted else "install an older nvidia-cuda-nvrtc",
        )
    return f"sm_{max(fitting)}"


def _dotted(pair: tuple[int, int]) -> str:
    return f"{pair[0]}.{pair[1]}"


def compile_cubin(source: bytes, name: str, options: Sequence[str], included: Mapping[str, bytes]) -> bytes:
    """Machine code (an ELF file) of a source.

    name: of the source, in messages. options: with --gpu-architecture=sm_NN. included: what ``#include "..."`` of these
    names means, beside the folders of -I options.

    Raises:
        CudaError: the compiler is missing or refused; the message has what it said.
    """
    texts, names = list(included.values()), [key.encode() for key in included]
    program = _call("nvrtcCreateProgram", source, name.encode(), len(names), texts, names)
    try:
        (result,) = bindings().nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        if int(result):
            log = _output(program, "ProgramLog").rstrip(b"\0").decode("utf-8", "replace").strip()
            raise CudaError(
                f"NVRTC {_dotted(version())} did not compile {name} with {options}: {result.name}\n{log}",
                hint="install an nvidia-cuda-nvrtc that knows this GPU, with the headers of its release",
            )
        return _output(program, "CUBIN")
    finally:
        bindings().nvrtcDestroyProgram(program)


def _output(program: Any, kind: str) -> bytes:
    size = _call(f"nvrtcGet{kind}Size", program)
    if size <= 1:
        return b""  # an empty text; Python shares bytes objects of one byte, and the next call writes into its own
    output = bytes(size)
    _call(f"nvrtcGet{kind}", program, output)
    return output
