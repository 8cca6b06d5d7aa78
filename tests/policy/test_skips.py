"""A skip in CI fails the run, unless hardware is missing that no installation brings."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"
SKIPS = {
    "no gpu in this machine": 0,
    "no RDMA NIC: /sys/class/infiniband is empty": 0,
    "matplotlib is not installed": 1,
    "": 1,
}


@pytest.mark.parametrize("ci", [True, False])
@pytest.mark.parametrize("module_level", [True, False])
@pytest.mark.parametrize("reason", SKIPS)
def test_only_missing_hardware_excuses_a_skip(tmp_path: Path, reason: str, module_level: bool, ci: bool) -> None:
    shutil.copy(CONFTEST, tmp_path)
    passes = "def test_passes(): pass\n"
    (tmp_path / "test_passes.py").write_text(passes)
    skip = f"import pytest\npytest.skip({reason!r}, allow_module_level=True)\n"
    if not module_level:
        skip = f"import pytest\ndef test_skips(): pytest.skip({reason!r})\n"
    (tmp_path / "test_skips.py").write_text(skip)
    env = {name: value for name, value in os.environ.items() if name != "CI"} | ({"CI": "true"} if ci else {})
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"], cwd=tmp_path, env=env, capture_output=True
    )
    assert result.returncode == (SKIPS[reason] if ci else 0), result.stdout.decode()
