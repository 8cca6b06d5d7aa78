"""The kernels that combine vectors on a GPU: compiled for the device at hand when first needed, and kept on disk.

One module a dtype holds ``rr_<op>_<dtype>`` for sum, prod, min and max (native/kernels/combine.cu). Compiled ones lie
in ``$XDG_CACHE_HOME/rdmaring/kernels`` (``~/.cache/rdmaring/kernels``), named by what they were made from: source,
options, versions. Deleting them is safe at any time.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from pathlib import Path

from rdmaring.cuda import nvrtc

FLOATS = ("float32", "float64", "float16", "bfloat16")
DTYPES = (*FLOATS, "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
"""By their numbers in C (rr_dtype)."""
OPS = ("sum", "prod", "min", "max")
"""By their numbers in C (rr_redop). avg is sum, with a factor."""

SOURCE_NAME = "combine.cu"
INCLUDED_NAME = "cuda_kernel_abi.h"
OPTIONS = ("--std=c++17", "--fmad=false", "--ftz=false")  # no product may be fused with an addition: other bits
HEADERS_OF = {"float16": ("cuda_fp16.h", "cuda_fp16.hpp"), "bfloat16": ("cuda_bf16.h", "cuda_bf16.hpp")}
DIGEST_BYTES = hashlib.sha256().digest_size

log = logging.getLogger("rdmaring")


def name(op: str, dtype: str) -> str:
    """The kernel's name in its module: "rr_sum_float32"."""
    return f"rr_{op}_{dtype}"


def source_folder() -> Path:
    """Where the package keeps the source."""
    return Path(__file__).resolve().parents[1] / "kernels"


def cache_folder() -> Path:
    """Where compiled kernels are kept; it need not exist."""
    chosen = os.environ.get("XDG_CACHE_HOME")
    if chosen and Path(chosen).is_absolute():
        return Path(chosen) / "rdmaring" / "kernels"
    try:
        return Path.home() / ".cache" / "rdmaring" / "kernels"
    except RuntimeError:  # a user without a home, as in a container
        return Path(tempfile.gettempdir()) / f"rdmaring-kernels-{os.geteuid()}"


def cubin(dtype: str, capability: tuple[int, int]) -> bytes:
    """The module of a dtype for a device, as cuModuleLoadData takes it; from the cache, or compiled (0.3 s).

    dtype: one of DTYPES. capability: the device's compute capability, (9, 0).

    Raises:
        CudaError: NVRTC, cuda-python or CUDA's headers are missing, or do not serve this device.
    """
    source = (source_folder() / SOURCE_NAME).read_bytes()
    included = (source_folder() / INCLUDED_NAME).read_bytes()
    options = [*OPTIONS, f"--gpu-architecture={nvrtc.architecture(capability)}", f"-DRR_DTYPE={DTYPES.index(dtype)}"]
    key = hashlib.sha256()
    for part in (source, included, repr(options).encode(), repr(nvrtc.version()).encode()):
        key.update(hashlib.sha256(part).digest())
    if dtype in HEADERS_OF:
        for header in HEADERS_OF[dtype]:
            key.update(hashlib.sha256((nvrtc.headers() / header).read_bytes()).digest())
        options.append(f"-I{nvrtc.headers()}")
    path = cache_folder() / f"{key.hexdigest()}.cubin"
    kept = _read(path)
    if kept is None:
        kept = nvrtc.compile_cubin(source, SOURCE_NAME, options, {INCLUDED_NAME: included})
        _write(path, kept)
    return kept


def _read(path: Path) -> bytes | None:
    """What _write() wrote; None where there is nothing, or something else: damaged, cut off, or of another user."""
    try:
        with path.open("rb") as file:
            own = os.fstat(file.fileno()).st_uid == os.geteuid()
            content = file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        log.warning("rdmaring: %s is not readable (%s): compiling the kernels again", path, error.strerror)
        return None
    digest, module = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
    return module if own and hashlib.sha256(module).digest() == digest else None


def _write(path: Path, module: bytes) -> None:
    """Beside others who write the same: a file of another name, complete, takes the place of any that is there."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix=path.stem[:16], suffix=".partial")
        try:
            with open(descriptor, "wb") as file:
                file.write(hashlib.sha256(module).digest() + module)
            os.replace(partial, path)
        except BaseException:
            os.unlink(partial)
            raise
    except OSError as error:
        log.warning(
            "rdmaring: compiled kernels cannot be kept in %s (%s): each process compiles its own; set XDG_CACHE_HOME",
            path.parent,
            error.strerror,
        )
