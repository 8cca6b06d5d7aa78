"""The training of train_digits.py, which loses ranks on the way and goes on with the survivors.

    rdmaring run --keep-going -n 4 scripts/train_survivors.py --lose 0:3 --lose 2:7

`--lose R:E` kills rank R (as it was numbered at the start) in the middle of epoch E. The survivors call
``comm.shrink()``, take the weights that they had at the beginning of the last epoch that all had begun, and go on
with the same global batches, cut among fewer. Gradients are reduced with ``out=``, so no call overwrites its input.

Exit code of each survivor: 0 if the test accuracy reaches --target and all survivors end with the same weights bit by
bit; else 1; 2 for wrong arguments. `rdmaring run` itself ends with the status of the ranks that were killed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
from train_digits import (
    BATCH,
    LEARNING_RATE,
    MOMENTUM,
    Digits,
    Network,
    accuracy_of,
    cross_entropy,
    digests_of,
    load_digits,
    parameter_count,
)

import rdmaring as rr


class Survivor:
    """One rank's training, and what it needs to go back to the beginning of an epoch."""

    def __init__(self, comm: rr.Communicator, digits: Digits, options: argparse.Namespace) -> None:
        self.comm = comm
        self.first_rank = comm.rank
        self.digits = digits
        self.options = options
        self.network = Network(np.zeros(parameter_count()), np.zeros(parameter_count()))
        self.network.start(options.seed)
        self.velocity = np.zeros(parameter_count())
        self.mean = np.zeros(parameter_count())
        # operation that had ended when it was taken -> epoch, weights, velocity; the last two
        self.kept: dict[int, tuple[int, Any, Any]] = {}
        self.lost: list[int] = []

    def keep(self, epoch: int) -> None:
        state = (epoch, self.network.parameters.copy(), self.velocity.copy())
        self.kept = dict([*self.kept.items(), (self.comm.last.op, state)][-2:])

    def go_back(self) -> int:
        """With the survivors, to the last epoch that all of them had begun; returns it."""
        self.comm = self.comm.shrink(timeout_s=self.options.timeout)
        recovered = self.comm.recovered
        assert recovered is not None
        self.lost += recovered.lost
        epoch, weights, velocity = self.kept[max(op for op in self.kept if op <= recovered.last_common_op)]
        self.network.parameters[:], self.velocity[:] = weights, velocity
        self.kept = {0: (epoch, weights, velocity)}
        if self.comm.rank == 0:
            print(f"lost ranks {list(recovered.lost)}: {self.comm.size} go on from epoch {epoch}", flush=True)
        return epoch

    def epoch(self, number: int) -> None:
        order = np.random.default_rng([self.options.seed, 2, number]).permutation(len(self.digits.train_y))
        batches = np.array_split(order, np.arange(BATCH, len(order), BATCH))
        for index, batch in enumerate(batches):
            if index == len(batches) // 2 and (self.first_rank, number) in self.options.lose:
                os.kill(os.getpid(), signal.SIGKILL)
            self.step(self.digits.train_x[batch], self.digits.train_y[batch])

    def step(self, x: Any, labels: Any) -> None:
        comm, network = self.comm, self.network
        mine = np.array_split(np.arange(len(x)), comm.size)[comm.rank]
        outputs = network.forward(x[mine])
        _, slope = cross_entropy(outputs[-1], labels[mine])
        for _ in network.backward(outputs, slope * (comm.size / len(x))):
            pass
        comm.all_reduce(network.gradients, out=self.mean, op="avg")
        self.velocity *= MOMENTUM
        self.velocity += self.mean
        network.parameters -= LEARNING_RATE * self.velocity

    def train(self) -> tuple[float, list[str]]:
        """Accuracy on the test images, and each survivor's digest of the weights."""
        number = 1
        while True:
            try:
                while number <= self.options.epochs:
                    self.keep(number)
                    self.epoch(number)
                    number += 1
                return accuracy_of(self.comm, self.network, self.digits), digests_of(self.comm, self.network)
            except (rr.CommunicatorError, rr.LinkError) as error:
                print(f"rank {self.comm.rank}: {error}", file=sys.stderr, flush=True)
                number = self.go_back()


def lost(text: str) -> tuple[int, int]:
    rank, _, epoch = text.partition(":")
    return int(rank), int(epoch)


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Data-parallel training that loses ranks and goes on with the survivors.",
        epilog="Run it as: rdmaring run --keep-going -n RANKS scripts/train_survivors.py --lose RANK:EPOCH",
    )
    add = parser.add_argument
    add("--lose", type=lost, action="append", default=[], metavar="RANK:EPOCH", help="kill that rank in that epoch")
    add("--epochs", type=int, default=20, help="passes over the training images (default: 20)")
    add("--seed", type=int, default=1, help="of split, weights and order of the images (default: 1)")
    add("--target", type=float, default=0.95, help="test accuracy to reach (default: 0.95)")
    add("--timeout", type=float, default=60.0, help="seconds for the survivors to come together (default: 60)")
    add("--json", type=Path, metavar="FILE", help="the lowest survivor writes its results to FILE")
    options = parser.parse_args(given)
    comm = rr.init()
    survivor = Survivor(comm, load_digits(comm, options.seed, "float64"), options)
    try:
        accuracy, digests = survivor.train()
    finally:
        survivor.comm.close()
    good = accuracy >= options.target and len(set(digests)) == 1
    if survivor.comm.rank == 0:
        print(f"accuracy {accuracy:.4f}; {len(digests)} survivors, {len(set(digests))} kind of weights", flush=True)
        if options.json is not None:
            results = {"accuracy": accuracy, "weights_sha256": digests, "lost": survivor.lost}
            options.json.write_text(json.dumps(results))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
