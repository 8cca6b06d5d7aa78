"""Wheels as they are given out: made by scripts/build_wheels, checked from their files, installed and run."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "wheels"
TOOLS = CACHE / "tools" / "bin"
TIMEOUT_S = 900


def build(out: Path, *options: str) -> str:
    line = [sys.executable, str(ROOT / "scripts/build_wheels"), "--out", str(out), "--cache", str(CACHE), *options]
    done = subprocess.run(line, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheels")
    said = build(out, "--machine", platform.machine(), "--python", sys.executable)
    assert "bench -n 2 is right" in said
    (found,) = out.glob("*.whl")
    return found


def faults(wheel: Path, machine: str) -> str:
    line = [str(TOOLS / "python"), str(ROOT / "scripts/wheel_checks.py"), str(wheel), machine]
    return subprocess.run(line, capture_output=True, text=True, timeout=60).stderr


def changed(wheel: Path, tmp_path: Path, name: str, *patch: str) -> Path:
    """The wheel with one library changed by patchelf."""
    tmp_path.mkdir()
    folder = tmp_path / "files"
    with zipfile.ZipFile(wheel) as files:
        files.extractall(folder)
    subprocess.run([str(TOOLS / "patchelf"), *patch, str(folder / name)], check=True)
    made = shutil.make_archive(str(tmp_path / "changed"), "zip", folder)
    return Path(made).rename(tmp_path / wheel.name)


@pytest.mark.timeout(TIMEOUT_S)
def test_a_wheel_for_this_machine_and_python(wheel: Path) -> None:
    assert re.fullmatch(r"rdmaring-[\d.]+-cp310-abi3-(manylinux_2_2[0-8]_\w+\.?)+\.whl", wheel.name)
    assert faults(wheel, platform.machine()) == ""


@pytest.mark.timeout(TIMEOUT_S)
def test_the_checks_find_what_is_planted(wheel: Path, tmp_path: Path) -> None:
    machine = platform.machine()
    library = "rdmaring/lib/librdmaring.so"
    needy = changed(wheel, tmp_path / "a", library, "--add-needed", "libibverbs.so.1")
    assert f"{library} needs libibverbs.so.1" in faults(needy, machine)
    extension = "rdmaring/_rdmaring.abi3.so"
    lost = changed(wheel, tmp_path / "b", extension, "--set-rpath", "/somewhere/build")
    assert f"{extension} looks for libraries in /somewhere/build" in faults(lost, machine)
    other = {"x86_64": "aarch64"}.get(machine, "x86_64")
    assert f"{library} is for" in faults(wheel, other)
    newer = tmp_path / "rdmaring-0-cp311-abi3-manylinux_2_34_x86_64.whl"
    shutil.copy(wheel, newer)
    told = faults(newer, "x86_64")
    assert "its tag is cp311-abi3" in told and "its platform is manylinux_2_34_x86_64" in told


@pytest.mark.long
@pytest.mark.timeout(TIMEOUT_S)
def test_both_machines_and_every_python_found(tmp_path: Path) -> None:
    said = build(tmp_path)
    assert {name.split("_", 3)[-1] for name in re.findall(r"manylinux_2_\d+_\w+?(?=\.)", said)} >= {"x86_64", "aarch64"}
    assert len(list(tmp_path.glob("*.whl"))) == 2
    assert said.count("bench -n 2 is right") >= 1
