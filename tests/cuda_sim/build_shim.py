"""Compile the kernels for the CPU once: the real source with shim.h, as a library the simulated driver loads."""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

from cuda_sim.build import cache_folder, headers

HERE = Path(__file__).resolve().parent
NATIVE = HERE.parents[1] / "native"
COMPILER = os.environ.get("CXX", "c++")
# No fused multiply-add: not in the kernels either.
FLAGS = ["-std=c++17", "-O1", "-g1", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
FLAGS += ["-shared", "-fPIC", "-fvisibility=hidden", "-DRR_KERNELS_ON_HOST"]


@functools.cache
def library(*more: Path) -> Path:
    """The kernels of native/kernels and of ``more`` .cu files, made anew only where something has changed."""
    sources = [*sorted((NATIVE / "kernels").glob("*.cu")), *more, *sorted(HERE.glob("shim*.cpp"))]
    version = subprocess.run([COMPILER, "--version"], capture_output=True, check=True).stdout
    key = hashlib.sha256(version + repr((FLAGS, headers())).encode())
    included = [
        NATIVE / "src" / "cuda_kernel_abi.h",
        *sorted(HERE.glob("shim*.h")),
        *HERE.glob("shim_include/**/target"),
    ]
    for path in [*sources, *included, headers() / "cuda_fp16.hpp", headers() / "cuda_bf16.hpp"]:
        key.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
    target = cache_folder() / f"libkernels-{key.hexdigest()[:16]}.so"
    if target.exists():
        return target
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        partial = Path(work) / target.name
        command = [COMPILER, *FLAGS, f"-I{HERE}", f"-I{NATIVE / 'src'}", "-isystem", str(HERE / "shim_include")]
        command += ["-isystem", str(headers()), "-x", "c++", *map(str, sources), "-o", str(partial)]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{result.stderr}")
        partial.rename(target)
    return target
