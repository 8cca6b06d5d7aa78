"""Compile the substitute libibverbs once, and write the sysfs that belongs to its configuration."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
COMPILER = os.environ.get("CC", "cc")
FLAGS = ["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror"]


def cache_folder() -> Path:
    """VERBS_SIM_CACHE, or a folder of this user's below the one for temporary files."""
    folder = os.environ.get("VERBS_SIM_CACHE")
    path = Path(folder) if folder else Path(tempfile.gettempdir()) / f"verbs-sim-{os.getuid()}"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def _compile(name: str, sources: list[Path], options: list[str]) -> Path:
    """The file, made anew only where a source, an option or the compiler has changed; safe beside others."""
    version = subprocess.run([COMPILER, "--version"], capture_output=True, check=True).stdout
    key = hashlib.sha256(version + repr([FLAGS, options]).encode())
    for path in sorted([*sources, *HERE.glob("*/*.h"), Path("/usr/include/infiniband/verbs.h")]):
        key.update(path.read_bytes())
    folder = cache_folder() / key.hexdigest()[:16]
    target = folder / name
    if target.exists():
        return target
    folder.mkdir(exist_ok=True)
    partial = folder / f"{name}.{os.getpid()}.{threading.get_ident()}"
    command = [COMPILER, *FLAGS, *map(str, sources), *options, "-o", str(partial)]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{result.stderr}")
    partial.rename(target)
    return target


@functools.cache
def library(without: tuple[str, ...] = ()) -> Path:
    """The library, to be given as RDMARING_LIBIBVERBS.

    without: exported functions it shall lack, as an old libibverbs lacks ibv_reg_dmabuf_mr.
    """
    exports = (HERE / "verbs_sim.map").read_text()
    for name in without:
        if f"\t{name};" not in exports:
            raise ValueError(f"without={without!r}: {name} is not exported by verbs_sim.map")
        exports = exports.replace(f"\t{name};", f"\tverbs_sim_lacks_{name};")  # a version may not be empty
    script = cache_folder() / f"{hashlib.sha256(exports.encode()).hexdigest()[:16]}.map"
    if not script.exists():
        partial = script.with_suffix(f".{os.getpid()}")
        partial.write_text(exports)
        partial.rename(script)
    options = ["-shared", "-fPIC", "-fvisibility=hidden", "-pthread", "-Wl,-z,nodelete", "-Wl,-z,defs", "-ldl"]
    options += ["-Wl,-soname,libibverbs.so.1", f"-Wl,--version-script={script}"]
    return _compile("libibverbs.so.1", sorted((HERE / "src").glob("*.c")), options)


@functools.cache
def driver() -> Path:
    """The test program: it uses the distribution's header and is linked against the substitute."""
    so = library()
    folder = HERE / "driver"
    return _compile("driver", sorted(folder.glob("*.c")), [f"-I{folder}", str(so), f"-Wl,-rpath,{so.parent}"])


def sysfs(root: Path, environment: Mapping[str, str]) -> Path:
    """Write the files of the devices that `environment` (VERBS_SIM and so on) describes; root stands for /sys."""
    script = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).verbs_sim_write_sysfs(sys.argv[2].encode()))"
    root.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-c", script, str(library()), str(root)]
    values = {**os.environ, **environment, "VERBS_SIM_REPORT": ""}  # this process is none of the test's
    result = subprocess.run(command, env=values, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"{root}: {os.strerror(result.returncode)}\n{result.stderr}")
    return root


def environment(
    spec: str = "", *, fabric: str, report: Path | None = None, sysfs_root: Path | None = None, host: str | None = None
) -> dict[str, str]:
    """What a rank needs to find the substitute: to be merged into its environment.

    spec: the VERBS_SIM string of README.md.
    fabric: any text; only processes with the same one reach each other. A test's tmp_path is unique.
    report: where each process appends its line of JSON.
    """
    values = {"RDMARING_LIBIBVERBS": str(library()), "VERBS_SIM": spec, "VERBS_SIM_DIR": fabric}
    if report is not None:
        values["VERBS_SIM_REPORT"] = str(report)
    if host is not None:
        values["RDMARING_HOST_ID"] = host
    if sysfs_root is not None:
        values["RDMARING_SYSFS"] = str(sysfs(sysfs_root, values))
    return values


def inject(path: Path, action: str) -> None:
    """Let an action of README.md happen now, in this process, which has loaded the library at `path`."""
    error = ctypes.CDLL(str(path)).verbs_sim_inject(action.encode())
    if error:
        raise ValueError(f"action={action!r}: {os.strerror(error)}")
