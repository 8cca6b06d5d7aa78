"""The version stands in one file; `rdmaring --version` tells of build, SIMD, verbs and CUDA."""

from __future__ import annotations

import os
import re
import subprocess
from importlib import metadata
from pathlib import Path

import pytest
from cuda_sim.environment import environment
from worlds import RDMARING

import rdmaring

ROOT = Path(__file__).resolve().parents[2]


def version(tmp_path: Path, **own: str) -> dict[str, str]:
    done = subprocess.run(
        [RDMARING, "--version"], cwd=tmp_path, env={**os.environ, **own}, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    first, *facts = done.stdout.splitlines()
    assert first == f"rdmaring {rdmaring.__version__}"
    return dict(line.split(": ", 1) for line in facts)


def test_it_stands_in_one_file() -> None:
    own = re.search(r'^__version__ = "(\d+\.\d+\.\d+)"$', (ROOT / "rdmaring/_version.py").read_text(), re.MULTILINE)
    assert own is not None and own[1] == rdmaring.__version__ == metadata.version("rdmaring")
    stated = re.compile(rf"(?i)\bversion\b.*(?<![\d.]){re.escape(own[1])}(?![\d.])")
    for name in ("pyproject.toml", "native/CMakeLists.txt", "native/include/rdmaring.h", "rdmaring/__init__.py"):
        assert not [line for line in (ROOT / name).read_text().splitlines() if stated.search(line)], name


def test_what_is_told(tmp_path: Path) -> None:
    facts = version(tmp_path, RDMARING_SIMD="scalar", RDMARING_LIBIBVERBS="/nowhere/libibverbs.so.1")
    assert list(facts) == ["build", "SIMD", "verbs", "CUDA"]
    own = re.escape(rdmaring.__version__)
    assert re.fullmatch(
        rf"{own} by (gcc|clang) [\d.]+ for \S+; speaks rdmaring {own} wire \d+ page \d+", facts["build"]
    )
    assert facts["SIMD"] == "scalar"
    assert facts["verbs"].startswith("none (") and "/nowhere/libibverbs.so.1" in facts["verbs"]


@pytest.mark.parametrize("devices", [1, 2])
def test_cuda_is_told(devices: int, tmp_path: Path) -> None:
    told = version(tmp_path, **environment(devices=devices))["CUDA"]
    assert re.fullmatch(rf"driver for CUDA \d+\.\d+, cuda-bindings \S+, GPUs: {devices}", told)


def test_no_cuda_is_told_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda" / "__init__.py").write_text("raise ImportError('not here')\n")
    told = version(tmp_path, PYTHONPATH=str(tmp_path))["CUDA"]
    assert told == "none (cuda-python, which GPU memory needs, cannot be imported: not here)"
