"""README and EXAMPLES: their Python runs, and they name every command and setting there is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cuda_sim.environment import environment

from rdmaring.cli.main import SUBCOMMANDS
from rdmaring.settings import VARIABLES

ROOT = Path(__file__).resolve().parents[2]
README, EXAMPLES = ROOT / "README.md", ROOT / "docs" / "EXAMPLES.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
BLOCKS = [
    pytest.param(block, id=f"{path.stem}-{number}")
    for path in (README, EXAMPLES)
    for number, block in enumerate(BLOCK.findall(path.read_text()))
]


def test_blocks_are_found() -> None:
    assert len(BLOCKS) >= 5


@pytest.mark.parametrize("block", BLOCKS)
def test_python_of_the_documents_runs(block: str, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(block)
    command = [sys.executable, "-m", "rdmaring.cli.main", "run", "-n", "2", str(script)]
    gpus = environment(devices=2) if "cuda" in block else {}
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **gpus})
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Warning" not in result.stderr


def test_readme_names_every_setting_and_no_other() -> None:
    assert set(re.findall(r"\bRDMARING_[A-Z_]+[A-Z]\b", README.read_text())) == set(VARIABLES)


def test_readme_names_every_command() -> None:
    assert set(re.findall(r"^\| `rdmaring (\w+)", README.read_text(), re.MULTILINE)) == set(SUBCOMMANDS)


def test_links_lead_somewhere() -> None:
    targets = [ROOT / name for name in re.findall(r"\]\(([^)#:]+)\)", README.read_text())]
    assert len(targets) > 5
    assert [target for target in targets if not target.exists()] == []
