"""Where the tests have torch from, and how they run ranks of it."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from launchers import environment, installed, packages_of

HERE = Path(__file__).with_name("torch")
TIMEOUT_S = 240


def has(name: str) -> bool:
    """Not: a folder of that name among the tests, which is a namespace package."""
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None


def packages() -> str:
    """For PYTHONPATH. A build without CUDA where an index has one: 190 MB to fetch, 750 MB on disk."""
    found = []
    if not has("torch"):
        try:
            found.append(packages_of(installed("torch", "torch==2.13.0+cpu")))
        except pytest.skip.Exception:
            found.append(packages_of(installed("torch-any", "torch")))
    if not has("expecttest"):
        found.append(packages_of(installed("expecttest", "expecttest")))
    return os.pathsep.join(found)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


def start(path: str, world: int, *command: str) -> list[subprocess.Popen[str]]:
    """The script on ranks, as any launcher does: by RANK, WORLD_SIZE and the master's address."""
    port = free_port()
    ranks = []
    for rank in range(world):
        own = {"PYTHONPATH": path, "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
        own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        ranks.append(
            subprocess.Popen(
                [sys.executable, *command],
                env=environment(own),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    return ranks


def finish(ranks: list[subprocess.Popen[str]], timeout_s: float = TIMEOUT_S) -> list[str]:
    """What each rank printed; ranks that are left are killed."""
    try:
        return [rank.communicate(timeout=timeout_s)[0] for rank in ranks]
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
                rank.wait()


def figures(path: str, world: int, backend: str, out: Path, names: list[str]) -> list[dict[str, Any]]:
    """Of each rank; see matrix.py."""
    ranks = start(path, world, str(HERE / "matrix.py"), backend, str(out), *names)
    said = finish(ranks)
    assert [rank.returncode for rank in ranks] == [0] * world, "\n".join(said)[-4000:]
    return [json.loads(Path(f"{out}.{rank}").read_text()) for rank in range(world)]
