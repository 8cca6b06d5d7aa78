"""Training runtimes on rdmaring, as docs/RUNTIMES.md shows: the weights are gloo's. They install some 200 MB each."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torches
from launchers import environment, installed, packages_of

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "RUNTIMES.md"
TIMEOUT_S = 900  # with the installation

pytestmark = [pytest.mark.long, pytest.mark.timeout(TIMEOUT_S)]


def trained(path: str, job: str, backend: str) -> list[dict[str, Any]]:
    ranks = torches.start(path, 2, str(HERE / job), backend)
    outputs = torches.finish(ranks)
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(outputs)
    assert "Traceback" not in "".join(outputs), "\n".join(outputs)
    return [json.loads(re.findall(r"SAY (\{.*\})", output)[-1]) for output in outputs]


@pytest.mark.parametrize(("name", "job"), [("lightning", "lightning_job.py"), ("accelerate", "accelerate_job.py")])
def test_trained_weights_are_gloos(name: str, job: str) -> None:
    own = packages_of(installed(name, "torch==2.13.0", name))
    ours, theirs = trained(own, job, "rdmaring"), trained(own, job, "gloo")
    for rank in range(2):
        assert (ours[rank].pop("backend"), theirs[rank].pop("backend")) == ("rdmaring", "gloo")
        assert ours[rank] == theirs[rank] == ours[0]
    assert all(ours[0]["weights"])
    assert ours[0].get("total", 3.0) == 3.0


def test_actors_of_ray(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```python\n(import time\n.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "ring_for_ray.py").write_text(block)
    path = packages_of(installed("ray", "ray"))
    own = {"PYTHONPATH": os.pathsep.join((path, str(tmp_path))), "RAY_USAGE_STATS_ENABLED": "0", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(HERE / "ray_job.py"), str(tmp_path)],
        cwd=tmp_path,  # Ray's workers import from their driver's folder before all others
        env=environment(own), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and "RIGHT" in done.stdout, done.stdout
