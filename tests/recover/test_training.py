"""The example that loses ranks reaches its accuracy with equal weights on the survivors."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from worlds import RDMARING

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "train_survivors.py"


def test_training_loses_two_ranks_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    line = [RDMARING, "run", "--keep-going", "-n", "4", str(SCRIPT), "--lose", "0:3", "--lose", "2:7"]
    done = subprocess.run(
        [*line, "--json", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert path.exists(), done.stdout
    results = json.loads(path.read_text())
    assert results["accuracy"] >= 0.95, done.stdout
    assert len(results["weights_sha256"]) == 2 and len(set(results["weights_sha256"])) == 1
    assert results["lost"] == [0, 1]  # the second by its rank among the first survivors
    assert "3 go on from epoch 3" in done.stdout and "2 go on from epoch 7" in done.stdout
