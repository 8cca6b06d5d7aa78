"""Compile the simulated CUDA driver once; everything it is made of lies in this folder and in NVIDIA's headers."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import subprocess
import tempfile
from pathlib import Path

from cuda_sim import make_table

HERE = Path(__file__).resolve().parent
COMPILER = os.environ.get("CC", "cc")
FLAGS = ["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror"]
FLAGS += ["-shared", "-fPIC", "-fvisibility=hidden", "-pthread"]


@functools.cache
def headers() -> Path:
    """The folder of cuda.h and cudaTypedefs.h in the installed wheel nvidia-cuda-runtime."""
    spec = importlib.util.find_spec("nvidia")
    for root in [] if spec is None else spec.submodule_search_locations or []:
        for found in sorted(Path(root).glob("**/include/cudaTypedefs.h")):
            return found.parent
    raise RuntimeError("no cudaTypedefs.h: install the wheel nvidia-cuda-runtime (pip install 'rdmaring[cuda]')")


def cache_folder() -> Path:
    """RR_CUDA_SIM_CACHE, or a folder of this user's below the one for temporary files."""
    folder = os.environ.get("RR_CUDA_SIM_CACHE")
    path = Path(folder) if folder else Path(tempfile.gettempdir()) / f"cuda-sim-{os.getuid()}"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def sources() -> list[Path]:
    """All C files of the driver. shim*.c belong to the kernels, which are compiled apart."""
    return sorted(path for path in HERE.glob("*.c") if not path.name.startswith("shim"))


@functools.cache
def library() -> Path:
    """libcuda.so.1, made anew only where a source, NVIDIA's headers or the compiler changed; safe beside others."""
    version = subprocess.run([COMPILER, "--version"], capture_output=True, check=True).stdout
    key = hashlib.sha256(version + repr(FLAGS).encode())
    nvidia = [headers() / "cuda.h", headers() / "cudaTypedefs.h"]
    for path in [*sources(), *sorted(HERE.glob("*.h")), HERE / "make_table.py", *nvidia]:
        key.update(path.name.encode() + path.read_bytes())
    folder = cache_folder() / key.hexdigest()[:16]
    target = folder / "libcuda.so.1"
    if target.exists():
        return target
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        typedefs = (headers() / "cudaTypedefs.h").read_text()
        (Path(work) / "entries.h").write_text(make_table.declarations(typedefs, sources()))
        (Path(work) / "table.inc").write_text(make_table.table(typedefs, sources()))
        (Path(work) / "results.inc").write_text(make_table.results((headers() / "cuda.h").read_text()))
        partial = Path(work) / target.name
        command = [COMPILER, *FLAGS, f"-I{work}", "-isystem", str(headers()), *map(str, sources())]
        command += ["-Wl,-z,nodelete", "-Wl,-z,defs", f"-Wl,-soname,{target.name}", "-ldl", "-o", str(partial)]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{result.stderr}")
        partial.rename(target)
    return target
