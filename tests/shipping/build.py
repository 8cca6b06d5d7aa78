"""Compile the library's sources together with the adapters of src/, once for each content."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import subprocess
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
COMPILER = os.environ.get("CC", "cc")
FLAGS = ["-std=gnu11", "-O2", "-g1", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-pthread"]


def cache_folder() -> Path:
    """RDMARING_SHIPPING_CACHE, or a folder of this user's below the one for temporary files."""
    folder = os.environ.get("RDMARING_SHIPPING_CACHE")
    path = Path(folder) if folder else Path(tempfile.gettempdir()) / f"rdmaring-shipping-{os.getuid()}"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def _run(command: list[str], target: Path) -> None:
    """A command whose last argument is the file it makes: there whole, or not at all."""
    partial = target.with_name(f"{target.name}.{os.getpid()}.{threading.get_ident()}")
    result = subprocess.run([*command, str(partial)], capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{result.stderr}")
    partial.rename(target)


def _includes(source: Path, folders: list[Path], seen: dict[Path, bytes]) -> None:
    """The source and all files of ours that it includes, with their bytes."""
    seen[source] = source.read_bytes()
    for name in re.findall(rb'^\s*#\s*include\s+"([^"]+)"', seen[source], re.MULTILINE):
        for folder in [source.parent, *folders]:
            path = (folder / name.decode()).resolve()
            if path.exists():
                if path not in seen:
                    _includes(path, folders, seen)
                break


def _object(source: Path, folders: list[Path], options: list[str], version: bytes) -> Path:
    seen: dict[Path, bytes] = {}
    _includes(source, folders, seen)
    key = hashlib.sha256(version + repr([FLAGS, options, source.name]).encode())
    for path in sorted(seen, key=lambda path: path.name):
        key.update(path.name.encode() + seen[path])
    target = cache_folder() / f"{source.stem}-{key.hexdigest()[:24]}.o"
    if not target.exists():
        _run([COMPILER, *FLAGS, *options, *(f"-I{folder}" for folder in folders), "-c", str(source), "-o"], target)
    return target


@functools.cache
def library(root: Path = ROOT) -> Path:
    """The shared library of the tree at `root`: what of it is compiled already is taken from the cache."""
    native = root / "native"
    folders = [native / "include", native / "src", native / "tests", HERE / "src"]
    version = subprocess.run([COMPILER, "--version"], capture_output=True, check=True).stdout
    options = ['-DRDMARING_VERSION="tested"']
    sources = sorted([*(native / "src").glob("*.c"), *(HERE / "src").glob("*.c")])
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = [str(path) for path in pool.map(lambda path: _object(path, folders, options, version), sources)]
    target = cache_folder() / f"shipping-{hashlib.sha256(repr(objects).encode()).hexdigest()[:24]}.so"
    if not target.exists():
        _run([COMPILER, "-shared", "-pthread", "-Wl,-z,defs", *objects, "-lm", "-ldl", "-o"], target)
    return target


if __name__ == "__main__":
    print(library())
