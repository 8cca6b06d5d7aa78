"""A C program with rdmaring.h and librdmaring, without Python, runs a schedule that the command wrote."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from worlds import RDMARING

import rdmaring

PACKAGE = Path(rdmaring.__file__).parent
SOURCE = Path(__file__).parents[2] / "native/tests/embed.c"


@pytest.fixture(scope="module")
def embed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("embed") / "embed"
    line = ["gcc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{PACKAGE / 'include'}", str(SOURCE)]
    subprocess.run([*line, "-o", str(program), f"-L{PACKAGE / 'lib'}", "-lrdmaring"], check=True)
    return program


def run(embed: Path, *args: str) -> subprocess.CompletedProcess[str]:
    env = {"LD_LIBRARY_PATH": str(PACKAGE / "lib")}
    return subprocess.run([str(embed), *args], env=env, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def ring_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("schedules") / "ring2.rows"
    line = [RDMARING, "schedule", "ring", "-n", "2", "--save", str(path)]
    subprocess.run(line, check=True, capture_output=True)
    return path


@pytest.mark.parametrize("count", [2, 1000, 3_000_000])
def test_two_processes_all_reduce(embed: Path, ring_file: Path, count: int) -> None:
    done = run(embed, str(ring_file), str(count))
    assert done.returncode == 0, done.stderr
    sent = count * 4  # 2(N-1)/N of the vector, N = 2
    for rank in (0, 1):
        assert f"rank {rank}: right, 2 steps, {sent} bytes sent" in done.stdout


def test_a_damaged_file_is_refused(embed: Path, ring_file: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.rows"
    data = bytearray(ring_file.read_bytes())
    data[100] ^= 1
    damaged.write_bytes(data)
    done = run(embed, str(damaged), "10")
    assert done.returncode == 1 and "is damaged: its checksum does not match" in done.stderr
    assert "cannot open" in run(embed, str(tmp_path / "none"), "10").stderr
