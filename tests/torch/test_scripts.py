"""scripts/train_ddp.py and scripts/torch_cost.py as users run them; and that they can fail."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from launchers import environment
from torches import packages

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
SMALL = ("--steps", "8", "--block", "2", "--width", "16", "--layers", "1", "--batch", "8", "--target", "1.2")


def run(*command: str, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPTS / command[0]), *command[1:]],
        env=environment({"PYTHONPATH": packages()}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


@pytest.fixture
def train_ddp(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import train_ddp

    return train_ddp  # type: ignore[no-any-return]


@pytest.mark.timeout(600)
def test_losses_are_gloos(tmp_path: Path) -> None:
    done = run("train_ddp.py", "-n", "2", *SMALL, "--json", str(tmp_path / "out.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "step of gloo / step of rdmaring" in done.stdout
    found = json.loads((tmp_path / "out.json").read_text())
    assert (found["world"], found["steps"], found["failures"]) == (2, 8, [])
    curves = {name: each["loss"] for name, each in found["variants"].items()}
    assert curves["rdmaring"] == pytest.approx(curves["gloo"], rel=1e-6)
    assert curves["plan"] == pytest.approx(curves["gloo"], rel=1e-6)
    assert curves["alone"] != pytest.approx(curves["gloo"], rel=1e-6)  # the others have exchanged gradients
    assert all(each["step_s"] > 0 for each in found["variants"].values())


def test_what_is_wrong_with_losses_is_said(train_ddp: ModuleType) -> None:
    def facts(own: list[float], theirs: list[float]) -> dict[str, dict[str, Any]]:
        return {"gloo": {"loss": theirs}, "rdmaring": {"loss": own}, "plan": {"loss": theirs}}

    def failures(own: list[float], world: int = 2, *given: str) -> list[str]:
        found: list[str] = train_ddp.failures_of(facts(own, falls), world, train_ddp.arguments(list(given)))
        return found

    falls = [2.0, 1.5, 1.0, 0.5, 0.5]
    near = [2.0, 1.5 + 4e-5, *falls[2:]]
    assert failures(falls) == []
    assert failures([2.0, 1.6, *falls[2:]]) == ["rdmaring: the loss of step 1 is 1.6, gloo's is 1.5"]
    assert failures(near, 4) == [] and len(failures(near, 2)) == len(failures(near, 4, "--double")) == 1
    assert "give more --steps" in failures(falls, 2, "--target", "0.2")[0]


@pytest.mark.parametrize(
    ("script", "given", "said"),
    [
        ("train_ddp.py", ["--width", "6"], "--width is 6; accepted are multiples of 4"),
        ("train_ddp.py", ["--steps", "2"], "--steps integers > 3"),
        ("torch_cost.py", ["--turns", "0"], "take integers > 0"),
    ],
)
def test_wrong_arguments(script: str, given: list[str], said: str) -> None:
    done = run(script, *given)
    assert done.returncode == 2 and said in done.stderr


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("world", "given"), [(2, []), (4, []), (4, ["--double"])], ids=["2", "4", "4 in float64"])
def test_a_transformer_learns(world: int, given: list[str]) -> None:
    done = run("train_ddp.py", "-n", str(world), *given, timeout_s=600)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.timeout(600)
def test_costs_are_measured(tmp_path: Path) -> None:
    """The figures are of a quiet machine; here: that a bucket is not slower than gloo's, in the same turns."""
    done = run("torch_cost.py", "--json", str(tmp_path / "cost.json"), timeout_s=500)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "cost.json").read_text())["faster"] > 1
