"""The example jobs as users run them: exit codes, losses, accuracy, bits; and that they can fail."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
RUN_LIMIT_S = 100
LOSS_DIFFERENCE_MAX = 1e-5
ACCURACY_MIN = 0.95


def run(ranks: int, script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # One thread a rank: the matrices are small, and threads of BLAS spin, which a busy machine punishes.
    launch = [sys.executable, "-m", "rdmaring.cli.main", "run", "-n", str(ranks)]
    return subprocess.run(
        [*launch, "--env", "OMP_NUM_THREADS=1", str(script), *arguments],
        capture_output=True,
        text=True,
        timeout=RUN_LIMIT_S,
    )


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


# ---- data-parallel training ----


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """training(ranks): the document of one run in both modes; each number of ranks is run once."""
    folder = tmp_path_factory.mktemp("training")

    @cache
    def document(ranks: int) -> tuple[dict[str, Any], str]:
        path = folder / f"{ranks}.json"
        result = run(ranks, SCRIPTS / "train_digits.py", "--mode", "both", "--seed", "1", "--json", str(path))
        assert result.returncode == 0, result.stdout + result.stderr
        return json.loads(path.read_text()), result.stdout

    return document


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_training_ends_with_equal_bits_and_the_accuracy(training: Any, ranks: int) -> None:
    document, output = training(ranks)
    assert document["world"] == ranks
    assert [one["mode"] for one in document["runs"]] == ["blocking", "overlapped"]
    for one in document["runs"]:
        assert ACCURACY_MIN <= one["accuracy"] <= 1
        assert len(one["weights_sha256"]) == ranks
        assert len(one["loss"]) == document["epochs"] * 12  # 1437 images in batches of at most 128
        for spent, whole in zip(one["communication_s"], one["steps_s"], strict=True):
            assert 0 < spent < whole
    digests = {digest for one in document["runs"] for digest in one["weights_sha256"]}
    assert len(digests) == 1, "all ranks in both modes"
    assert output.count("%) of the time of the steps") == 2
    assert "overlapped  epoch 20/20" in output


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_loss_does_not_depend_on_the_number_of_ranks(training: Any, ranks: int) -> None:
    (alone, _), (shared, _) = training(1), training(ranks)
    for one, other in zip(alone["runs"], shared["runs"], strict=True):
        np.testing.assert_allclose(other["loss"], one["loss"], rtol=0, atol=LOSS_DIFFERENCE_MAX)
    assert np.mean(alone["runs"][0]["loss"][-12:]) < 0.1 < 1 < alone["runs"][0]["loss"][0]


def test_uneven_parts_of_a_batch_weigh_as_their_images_do(training: Any, tmp_path: Path) -> None:
    path = tmp_path / "3.json"
    options = ["--mode", "overlapped", "--epochs", "3", "--target", "0", "--bucket-kib", "0"]
    result = run(3, SCRIPTS / "train_digits.py", *options, "--json", str(path))
    assert result.returncode == 0, result.stdout + result.stderr
    (uneven,) = json.loads(path.read_text())["runs"]
    expected = training(1)[0]["runs"][0]["loss"][:36]  # 128 = 43 + 43 + 42
    np.testing.assert_allclose(uneven["loss"], expected, rtol=0, atol=LOSS_DIFFERENCE_MAX)


def test_gradients_are_derivatives() -> None:
    """Of the mean loss by some parameters of each layer, against central differences."""
    train_digits = load("train_digits")
    random = np.random.default_rng(7)
    count = train_digits.parameter_count()
    network = train_digits.Network(np.zeros(count), np.zeros(count))
    network.start(seed=5)
    x, labels = random.random((9, 64)), random.integers(0, 10, 9)

    def loss() -> float:
        value, _ = train_digits.cross_entropy(network.forward(x)[-1], labels)
        return float(value)

    outputs = network.forward(x)
    _, slope = train_digits.cross_entropy(outputs[-1], labels)
    assert list(network.backward(outputs, slope)) == [2, 1, 0]
    step = 1e-6
    for span in network.spans:
        for index in [*random.integers(span.start, span.stop, 12), span.stop - 1]:
            kept = network.parameters[index]
            network.parameters[index] = kept + step
            above = loss()
            network.parameters[index] = kept - step
            slope_here = (above - loss()) / (2 * step)
            network.parameters[index] = kept
            assert network.gradients[index] == pytest.approx(slope_here, rel=1e-4, abs=1e-6)


def test_a_missed_target_is_a_failure() -> None:
    result = run(2, SCRIPTS / "train_digits.py", "--epochs", "1", "--mode", "blocking", "--target", "0.999")
    assert result.returncode == 1
    assert "FAILED: blocking: the test accuracy is" in result.stderr


def test_wrong_arguments_are_told_before_ranks_meet() -> None:
    result = run(2, SCRIPTS / "train_digits.py", "--epochs", "0")
    assert result.returncode == 2
    assert "--epochs takes integers > 0" in result.stderr


DIVERGING = """
import sys
sys.path.insert(0, {scripts!r})
import train_digits
update = train_digits.Trainer.update
def diverging(self, bucket):
    update(self, bucket)
    if self.comm.rank == 1:
        self.network.parameters[bucket.start] += 1e-15
train_digits.Trainer.update = diverging
sys.exit(train_digits.main(["--epochs", "1", "--target", "0", "--mode", "overlapped"]))
"""


def test_weights_that_differ_in_their_last_bits_are_a_failure(tmp_path: Path) -> None:
    script = tmp_path / "diverging.py"
    script.write_text(DIVERGING.format(scripts=str(SCRIPTS)))
    result = run(2, script)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "FAILED: overlapped: the weights differ between ranks" in result.stderr


# ---- tensor parallelism ----


@pytest.mark.parametrize(("ranks", "dtype"), [(1, "float32"), (2, "float32"), (3, "float64"), (4, "float32")])
def test_the_parts_make_the_whole(ranks: int, dtype: str, tmp_path: Path) -> None:
    path = tmp_path / "parallel.json"
    options = ["--dtype", dtype, "--repeat", "5", "--blocks", "3", "--json", str(path)]
    result = run(ranks, SCRIPTS / "tensor_parallel.py", *options)
    assert result.returncode == 0, result.stdout + result.stderr
    document = json.loads(path.read_text())
    assert document["world"] == ranks
    assert set(document["differences"]) == {"output", "input", "A0", "B0", "A1", "B1", "A2", "B2"}
    rounding = {"float32": 1e-4, "float64": 1e-12}[dtype]
    assert max(document["differences"].values()) <= document["tolerance"] < rounding
    assert len(document["output_sha256"]) == ranks
    assert len(set(document["output_sha256"])) == 1
    for spent, whole in zip(document["communication_s"], document["total_s"], strict=True):
        assert 0 < spent < whole
    assert "% of it" in result.stdout


# Rank 1's part of the named method is lost: what it adds to the sum is zero.
LOSING = """
import sys
sys.path.insert(0, {scripts!r})
import tensor_parallel
make = tensor_parallel.ParallelBlock.__init__
def losing(self, comm, *rest):
    make(self, comm, *rest)
    if comm.rank == 1:
        whole, buffer = self.{plan}, self.{buffer}
        class Lost:
            def __call__(self):
                buffer[:] = 0
                return whole()
            def start(self):
                buffer[:] = 0
                return whole.start()
        self.{plan} = Lost()
tensor_parallel.ParallelBlock.__init__ = losing
sys.exit(tensor_parallel.main(["--repeat", "1"]))
"""


@pytest.mark.parametrize(
    ("plan", "buffer", "wrong"), [("_sum_outputs", "_output", "output"), ("_sum_by_x", "_by_x", "input")]
)
def test_a_lost_contribution_is_a_failure(plan: str, buffer: str, wrong: str, tmp_path: Path) -> None:
    script = tmp_path / "losing.py"
    script.write_text(LOSING.format(scripts=str(SCRIPTS), plan=plan, buffer=buffer))
    result = run(4, script)
    assert result.returncode == 1, result.stdout + result.stderr
    assert f"FAILED: {wrong}: difference" in result.stderr
