"""Data-parallel training of a small network on scikit-learn's handwritten digits.

    rdmaring run -n 4 scripts/train_digits.py
    rdmaring run -n 2 scripts/train_digits.py --mode overlapped --epochs 10 --seed 3 --json digits.json

Every rank holds the whole network and works on its part of each global batch. Gradients lie in one flat
array of registered memory, cut into buckets of successive layers. A bucket is averaged over the ranks as soon
as the backward pass has filled it (`--mode overlapped`), or after the backward pass (`--mode blocking`);
`both` trains twice, from the same start. The result does not depend on the mode, and on the number of ranks
only by rounding.

Exit code: 0 if the test accuracy reaches --target in every mode, all ranks end with the same weights bit by
bit, and so do both modes; else 1; 2 for wrong arguments.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import rdmaring as rr

Array = NDArray[Any]

LAYERS = (64, 128, 64, 10)  # units; the first is the pixels, the last the digits
IMAGES, TEST_IMAGES = 1797, 360
BATCH = 128  # images of a global batch, over all ranks
STEPS = -(-(IMAGES - TEST_IMAGES) // BATCH)  # an epoch
LEARNING_RATE, MOMENTUM = 0.05, 0.9
MODES = ("blocking", "overlapped")


# ---- data ----


@dataclass(frozen=True)
class Digits:
    """Images (n, 64) in 0..1 and labels (n,), for training and for the test."""

    train_x: Array
    train_y: Array
    test_x: Array
    test_y: Array


def load_digits(comm: rr.Communicator, seed: int, dtype: str) -> Digits:
    """The same on every rank: rank 0 reads the data, the others get them from it."""
    pixels, labels = np.zeros((IMAGES, LAYERS[0])), np.zeros(IMAGES, np.int64)
    if comm.rank == 0:
        from sklearn.datasets import load_digits as read  # one rank pays for this import

        pixels[:], labels[:] = read(return_X_y=True)
    comm.broadcast(pixels)
    comm.broadcast(labels)
    order = np.random.default_rng([seed, 0]).permutation(IMAGES)
    pixels, labels = (pixels[order] / 16).astype(dtype), labels[order]
    return Digits(pixels[TEST_IMAGES:], labels[TEST_IMAGES:], pixels[:TEST_IMAGES], labels[:TEST_IMAGES])


# ---- network ----


class Network:
    """A multilayer perceptron; parameters and gradients lie in one flat array each, layer after layer.

    parameters, gradients: arrays of ``parameter_count()`` elements. spans[i]: where layer i lies in them.
    """

    def __init__(self, parameters: Array, gradients: Array) -> None:
        self.parameters, self.gradients = parameters, gradients
        self.spans: list[slice] = []
        self._layers: list[tuple[Array, Array, Array, Array]] = []  # weight, bias, their gradients
        begin = 0
        for inputs, outputs in pairwise(LAYERS):
            middle, end = begin + inputs * outputs, begin + (inputs + 1) * outputs
            self.spans.append(slice(begin, end))
            weight, bias = parameters[begin:middle].reshape(inputs, outputs), parameters[middle:end]
            by_weight, by_bias = gradients[begin:middle].reshape(inputs, outputs), gradients[middle:end]
            self._layers.append((weight, bias, by_weight, by_bias))
            begin = end

    def start(self, seed: int) -> None:
        """Random weights of variance 2 / inputs (He), no bias."""
        random = np.random.default_rng([seed, 1])
        self.parameters[:] = 0
        for weight, *_ in self._layers:
            weight[:] = random.normal(0.0, np.sqrt(2 / len(weight)), weight.shape)

    def forward(self, x: Array) -> list[Array]:
        """The output of every layer, x first; the last are logits (n, 10)."""
        outputs = [x]
        for index, (weight, bias, *_) in enumerate(self._layers):
            x = x @ weight + bias
            outputs.append(x if index == len(self._layers) - 1 else np.maximum(x, 0))
            x = outputs[-1]
        return outputs

    def backward(self, outputs: list[Array], slope: Array) -> Iterator[int]:
        """Fill the gradients from the last layer to the first; yield a layer as soon as its own are there.

        slope: derivative of the loss by the logits, (n, 10).
        """
        for index in reversed(range(len(self._layers))):
            weight, _, by_weight, by_bias = self._layers[index]
            np.matmul(outputs[index].T, slope, out=by_weight)
            np.sum(slope, axis=0, out=by_bias)
            yield index
            if index > 0:
                slope = (slope @ weight.T) * (outputs[index] > 0)


def parameter_count() -> int:
    return sum((inputs + 1) * outputs for inputs, outputs in pairwise(LAYERS))


def cross_entropy(logits: Array, labels: Array) -> tuple[float, Array]:
    """Its sum over the images, and its derivative by the logits."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    exponentials = np.exp(shifted)
    totals = exponentials.sum(axis=1, keepdims=True)
    slope = exponentials / totals
    rows = np.arange(len(labels))
    slope[rows, labels] -= 1
    return float(np.sum(np.log(totals[:, 0]) - shifted[rows, labels], dtype=np.float64)), slope


# ---- training ----


@dataclass
class Run:
    """One training. loss: mean over the global batch, one a step. The other lists hold one value a rank."""

    mode: str
    loss: list[float] = field(default_factory=list)
    accuracy: float = 0.0
    weights_sha256: list[str] = field(default_factory=list)
    steps_s: list[float] = field(default_factory=list)
    communication_s: list[float] = field(default_factory=list)  # of it, in calls that start or wait

    @property
    def epoch_loss(self) -> float:
        """Mean over the last epoch."""
        return float(np.mean(self.loss[-STEPS:]))

    @property
    def shares(self) -> list[float]:
        """Part of the time of the steps that each rank spends in calls that communicate."""
        return [part / whole for part, whole in zip(self.communication_s, self.steps_s, strict=True)]


def buckets_of(network: Network, bucket_bytes: int) -> dict[int, slice]:
    """Cut the gradients into buckets of whole layers; each but the last holds at least ``bucket_bytes``.

    Returns for each bucket: the layer that completes it in the backward pass -> where it lies.
    """
    buckets: dict[int, slice] = {}
    end = network.gradients.size
    for index in reversed(range(len(network.spans))):
        begin = network.spans[index].start
        if (end - begin) * network.gradients.itemsize >= bucket_bytes or index == 0:
            buckets[index] = slice(begin, end)
            end = begin
    return buckets


class Trainer:
    """Stochastic gradient descent with momentum on global batches, each rank with its part of a batch."""

    def __init__(self, comm: rr.Communicator, network: Network, bucket_bytes: int, overlapped: bool) -> None:
        self.comm = comm
        self.network = network
        self.buckets = buckets_of(network, bucket_bytes)
        self.overlapped = overlapped
        self.velocity = np.zeros_like(network.parameters)
        self.communication_s = 0.0

    def step(self, x: Array, labels: Array) -> float:
        """One step on a global batch, which all ranks pass whole.

        Returns this rank's part of the mean loss.
        """
        comm, network = self.comm, self.network
        mine = np.array_split(np.arange(len(x)), comm.size)[comm.rank]
        outputs = network.forward(x[mine])
        loss, slope = cross_entropy(outputs[-1], labels[mine])
        # The average over ranks is to be the mean over the batch, although the ranks' parts may be uneven.
        slope *= comm.size / len(x)

        started: list[tuple[slice, rr.Work]] = []
        for layer in network.backward(outputs, slope):
            if self.overlapped and layer in self.buckets:
                begin_s = time.perf_counter()
                bucket = self.buckets[layer]
                started.append((bucket, comm.all_reduce(network.gradients[bucket], op="avg", async_op=True)))
                self.communication_s += time.perf_counter() - begin_s
        for bucket, work in started:
            begin_s = time.perf_counter()
            work.wait()
            self.communication_s += time.perf_counter() - begin_s
            self.update(bucket)
        if not self.overlapped:
            for bucket in self.buckets.values():
                begin_s = time.perf_counter()
                comm.all_reduce(network.gradients[bucket], op="avg")
                self.communication_s += time.perf_counter() - begin_s
                self.update(bucket)
        return loss / len(x)

    def update(self, bucket: slice) -> None:
        self.velocity[bucket] *= MOMENTUM
        self.velocity[bucket] += self.network.gradients[bucket]
        self.network.parameters[bucket] -= LEARNING_RATE * self.velocity[bucket]


def accuracy_of(comm: rr.Communicator, network: Network, digits: Digits) -> float:
    """Part of the test images that are recognised; each rank looks at some of them."""
    mine = np.array_split(np.arange(len(digits.test_y)), comm.size)[comm.rank]
    found = network.forward(digits.test_x[mine])[-1].argmax(axis=1)
    right = comm.all_reduce(np.array([np.sum(found == digits.test_y[mine])], np.int64))
    return float(right[0] / len(digits.test_y))


def digests_of(comm: rr.Communicator, network: Network) -> list[str]:
    """SHA-256 of the weights on each rank."""
    own = np.frombuffer(hashlib.sha256(network.parameters.tobytes()).digest(), np.uint8)
    return [row.tobytes().hex() for row in comm.all_gather(own).reshape(comm.size, -1)]


def train(comm: rr.Communicator, digits: Digits, options: argparse.Namespace, mode: str) -> Run:
    """Train from the seed's start to the last epoch. Collective."""
    gradients = comm.empty(parameter_count(), options.dtype)  # registered: the peers read it in place
    network = Network(np.zeros_like(gradients), gradients)
    if comm.rank == 0:
        network.start(options.seed)
    comm.broadcast(network.parameters)
    trainer = Trainer(comm, network, options.bucket_kib << 10, mode == "overlapped")
    run = Run(mode)
    steps_s = 0.0
    for epoch in range(1, options.epochs + 1):
        order = np.random.default_rng([options.seed, 2, epoch]).permutation(len(digits.train_y))
        batches = np.array_split(order, np.arange(BATCH, len(order), BATCH))
        begin_s = time.perf_counter()
        losses = np.array([trainer.step(digits.train_x[batch], digits.train_y[batch]) for batch in batches])
        steps_s += time.perf_counter() - begin_s
        run.loss += comm.all_reduce(losses).tolist()
        if comm.rank == 0 and epoch % max(1, options.epochs // 5) == 0:
            print(f"{mode:<10}  epoch {epoch}/{options.epochs}  loss {run.epoch_loss:.5f}", flush=True)
    run.accuracy = accuracy_of(comm, network, digits)
    run.weights_sha256 = digests_of(comm, network)
    times = comm.all_gather(np.array([steps_s, trainer.communication_s]))
    run.steps_s, run.communication_s = times[0::2].tolist(), times[1::2].tolist()
    return run


# ---- verdict ----


def failures_of(runs: list[Run], target: float) -> list[str]:
    """What is wrong with the runs, one sentence each. Equal on all ranks."""
    failures = []
    for run in runs:
        if run.accuracy < target:
            failures.append(f"{run.mode}: the test accuracy is {run.accuracy:.4f}, below {target}")
        if len(set(run.weights_sha256)) != 1:
            digests = ", ".join(digest[:8] for digest in run.weights_sha256)
            failures.append(f"{run.mode}: the weights differ between ranks, by their sha256: {digests}")
    if len({run.weights_sha256[0] for run in runs}) != 1:
        failures.append("the weights of the two modes differ")
    return failures


def report(comm: rr.Communicator, runs: list[Run], failures: list[str]) -> None:
    """The table, for people."""
    print(f"{'mode':<10} {'loss':>8} {'accuracy':>8} {'steps':>8}   communication: mean (most) of the ranks")
    for run in runs:
        mean, most = 100 * float(np.mean(run.shares)), 100 * max(run.shares)
        print(
            f"{run.mode:<10} {run.epoch_loss:>8.5f} {run.accuracy:>8.4f} {max(run.steps_s):>6.2f} s"
            f"   {mean:.0f} % ({most:.0f} %) of the time of the steps"
        )
    if not failures:
        modes = " in both modes" if len(runs) > 1 else ""
        digest = runs[0].weights_sha256[0][:16]
        print(f"weights equal bit by bit on all ranks{modes} ({comm.size} in the world): sha256 {digest}...")
    sys.stdout.flush()
    for failure in failures:
        print(f"train_digits: FAILED: {failure}", file=sys.stderr)


def arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Data-parallel training of a small network on scikit-learn's digits.",
        epilog="Run it as: rdmaring run -n RANKS scripts/train_digits.py [options]",
    )
    add = parser.add_argument
    add("--mode", choices=(*MODES, "both"), default="both", help="when gradients travel (default: both)")
    add("--epochs", type=int, default=20, help="passes over the training images (default: 20)")
    add("--seed", type=int, default=1, help="of split, weights and order of the images (default: 1)")
    add("--dtype", choices=("float64", "float32"), default="float64", help="of numbers (default: float64)")
    add("--bucket-kib", type=int, default=32, help="least size of a gradient bucket (default: 32)")
    add("--target", type=float, default=0.95, help="test accuracy to reach (default: 0.95)")
    add("--json", type=Path, metavar="FILE", help="write losses, accuracy, digests and times to FILE")
    options = parser.parse_args(given)
    if options.epochs < 1 or options.bucket_kib < 0 or options.seed < 0:
        parser.error("--epochs takes integers > 0; --seed and --bucket-kib integers >= 0")
    if importlib.util.find_spec("sklearn") is None:
        parser.error("scikit-learn, which holds the digits, is missing: pip install 'rdmaring[examples]'")
    if options.json is not None and not options.json.parent.is_dir():
        parser.error(f"--json {options.json}: there is no directory {options.json.parent}")
    return options


def main(given: list[str] | None = None) -> int:
    options = arguments(given)
    with rr.init() as comm:
        digits = load_digits(comm, options.seed, options.dtype)
        if comm.rank == 0:
            print(
                f"{len(digits.train_y)} training and {len(digits.test_y)} test images, "
                f"global batches of {BATCH}; {parameter_count()} parameters in {options.dtype}; "
                f"world size {comm.size}; seed {options.seed}",
                flush=True,
            )
        modes = MODES if options.mode == "both" else (options.mode,)
        runs = [train(comm, digits, options, mode) for mode in modes]
        failures = failures_of(runs, options.target)
        if comm.rank == 0:
            report(comm, runs, failures)
            if options.json is not None:
                facts = {name: getattr(options, name) for name in ("seed", "epochs", "dtype", "target")}
                results = {"failures": failures, "runs": [asdict(run) for run in runs]}
                options.json.write_text(json.dumps({"world": comm.size, **facts, **results}))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
