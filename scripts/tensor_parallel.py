"""A tensor-parallel network: every rank holds a part of each weight matrix; partial products are all-reduced.

    rdmaring run -n 4 scripts/tensor_parallel.py
    rdmaring run -n 2 scripts/tensor_parallel.py --hidden 4096 --dtype float32 --json parallel.json

Block i computes x + tanh(x A_i) B_i. The first product is column-parallel: a rank holds some columns of A_i,
and the same rows of B_i, so tanh needs nothing from other ranks. The second is row-parallel: each rank has a
partial product, and their sum is the block's output. Backward, the derivative by x is such a sum, too; it
travels while the rank computes the gradients of its weights. Output and all gradients are compared with the
same network in one piece, in float64.

Tolerance: additions are ordered and rounded differently; nothing else may differ. A sum of n products of
independent terms has a rounding error of about sqrt(n) u of its size, u being the unit roundoff; the errors
of successive products add up likewise. n is the number of additions on the longest path from input to
gradients; 8 sqrt(n) u, of the largest element, leaves room for the largest error among all elements. One
contribution lost or doubled makes a difference of about 1 / ranks.

Exit code: 0 if all differences are within the tolerance and all ranks have the same output bit by bit; else
1; 2 for wrong arguments.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import rdmaring as rr

Array = NDArray[Any]
Results = dict[str, Array]


# ---- in parts ----


class Clock:
    """Adds up the time spent in communication."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def run(self, call: Callable[[], Any]) -> Any:
        begin_s = time.perf_counter()
        result = call()
        self.seconds += time.perf_counter() - begin_s
        return result


class ParallelBlock:
    """This rank's part of one block.

    a: (features, own columns), b: (own rows, features); all ranks' parts together are the block.
    """

    def __init__(self, comm: rr.Communicator, a: Array, b: Array, batch: int, clock: Clock) -> None:
        self.a, self.b, self.clock = a, b, clock
        shape = (batch, len(a))
        self._output: Array = comm.empty(shape, a.dtype)  # registered memory: the peers read it in place
        self._by_x: Array = comm.empty(shape, a.dtype)
        self._sum_outputs = comm.plan_all_reduce(self._output)
        self._sum_by_x = comm.plan_all_reduce(self._by_x)

    def forward(self, x: Array) -> Array:
        """x: (batch, features), equal on all ranks; so is the result."""
        self._x = x
        self._hidden = np.tanh(x @ self.a)
        np.matmul(self._hidden, self.b, out=self._output)
        self.clock.run(self._sum_outputs)
        return x + self._output

    def backward(self, slope: Array) -> tuple[Array, Array, Array]:
        """slope: derivative by the output, equal on all ranks.

        Returns the derivatives by x (whole), and by this rank's parts of a and b.
        """
        inner = (slope @ self.b.T) * (1 - self._hidden**2)
        np.matmul(inner, self.a.T, out=self._by_x)
        work = self.clock.run(self._sum_by_x.start)
        by_a, by_b = self._x.T @ inner, self._hidden.T @ slope  # meanwhile
        self.clock.run(work.wait)
        return slope + self._by_x, by_a, by_b


def in_parts(blocks: list[ParallelBlock], x: Array, slope: Array) -> Results:
    """Forward and backward: the output, the derivative by x, and those by this rank's weights."""
    for block in blocks:
        x = block.forward(x)
    results: Results = {"output": x}
    for index in reversed(range(len(blocks))):
        slope, results[f"A{index}"], results[f"B{index}"] = blocks[index].backward(slope)
    results["input"] = slope
    return results


# ---- in one piece ----


def in_one_piece(weights: list[tuple[Array, Array]], x: Array, slope: Array) -> Results:
    """The same without ranks, in float64."""
    kept = []
    for a, b in weights:
        hidden = np.tanh(x @ a)
        kept.append((x, hidden))
        x = x + hidden @ b
    results: Results = {"output": x}
    for index in reversed(range(len(weights))):
        (a, b), (before, hidden) = weights[index], kept[index]
        inner = (slope @ b.T) * (1 - hidden**2)
        results[f"A{index}"], results[f"B{index}"] = before.T @ inner, hidden.T @ slope
        slope = slope + inner @ a.T
    results["input"] = slope
    return results


# ---- comparison ----


def tolerance_of(options: argparse.Namespace, ranks: int) -> float:
    """Of differences relative to the largest element; see the top of this file."""
    additions = 2 * options.blocks * (options.features + options.hidden + ranks) + options.batch
    return float(8 * np.sqrt(additions) * np.finfo(options.dtype).eps / 2)


def differences(comm: rr.Communicator, found: Results, expected: Results) -> dict[str, float]:
    """The largest over all ranks, relative to the largest element of what is expected."""
    largest = {}
    for name, whole in expected.items():
        part = whole
        if name[0] in "AB":
            part = np.array_split(whole, comm.size, axis=1 if name[0] == "A" else 0)[comm.rank]
        scale = np.max(np.abs(whole))
        largest[name] = float(np.max(np.abs(found[name] - part), initial=0.0) / scale)
    values = comm.all_reduce(np.array(list(largest.values())), op="max")  # NaN stays NaN
    return dict(zip(largest, values.tolist(), strict=True))


def digests_of(comm: rr.Communicator, array: Array) -> list[str]:
    """SHA-256 of an array on each rank."""
    own = np.frombuffer(hashlib.sha256(array.tobytes()).digest(), np.uint8)
    return [row.tobytes().hex() for row in comm.all_gather(own).reshape(comm.size, -1)]


def failures_of(different: dict[str, float], tolerance: float, digests: list[str]) -> list[str]:
    """What is wrong, one sentence each. Equal on all ranks."""
    failures = []
    for name, value in different.items():
        if not value <= tolerance:
            failures.append(f"{name}: difference {value:.2e} of its largest element, above {tolerance:.2e}")
    if len(set(digests)) != 1:
        shown = ", ".join(digest[:8] for digest in digests)
        failures.append(f"the output differs between ranks, by its sha256: {shown}")
    return failures


# ---- the job ----


def check(comm: rr.Communicator, options: argparse.Namespace) -> dict[str, Any]:
    """Run in parts and in one piece, compare, time. Collective; returns the facts, equal on all ranks."""
    random = np.random.default_rng(options.seed)
    features, hidden, batch = options.features, options.hidden, options.batch
    x, slope = random.normal(size=(batch, features)), random.normal(size=(batch, features))
    weights = [
        (
            random.normal(0, 1 / np.sqrt(features), (features, hidden)),
            random.normal(0, 1 / np.sqrt(hidden), (hidden, features)),
        )
        for _ in range(options.blocks)
    ]
    clock = Clock()
    blocks = []
    for a, b in weights:
        own_a = np.ascontiguousarray(np.array_split(a, comm.size, axis=1)[comm.rank], options.dtype)
        own_b = np.ascontiguousarray(np.array_split(b, comm.size, axis=0)[comm.rank], options.dtype)
        blocks.append(ParallelBlock(comm, own_a, own_b, batch, clock))
    mine = x.astype(options.dtype), slope.astype(options.dtype)

    found = in_parts(blocks, *mine)
    expected = in_one_piece(weights, x, slope)
    different = differences(comm, found, expected)
    digests = digests_of(comm, found["output"])

    comm.barrier()
    clock.seconds = 0.0
    begin_s = time.perf_counter()
    for _ in range(options.repeat):
        in_parts(blocks, *mine)
    times = comm.all_gather(np.array([time.perf_counter() - begin_s, clock.seconds]))
    tolerance = tolerance_of(options, comm.size)
    return {
        "world": comm.size,
        "tolerance": tolerance,
        "differences": different,
        "output_sha256": digests,
        "total_s": times[0::2].tolist(),
        "communication_s": times[1::2].tolist(),
        "failures": failures_of(different, tolerance, digests),
    }


def report(facts: dict[str, Any], repeat: int) -> None:
    """For people."""
    tolerance = facts["tolerance"]
    print(f"largest difference from one process, of the largest element (tolerance {tolerance:.2e}):")
    print("  " + "  ".join(f"{name} {value:.2e}" for name, value in facts["differences"].items()))
    shares = 100 * np.array(facts["communication_s"]) / np.array(facts["total_s"])
    each_ms = max(facts["total_s"]) / repeat * 1e3
    print(
        f"forward and backward {each_ms:.2f} ms, mean of {repeat}; "
        f"communication: {shares.mean():.0f} % of it ({shares.max():.0f} % on the rank with most)"
    )
    if not facts["failures"]:
        print(f"output equal bit by bit on all ranks: sha256 {facts['output_sha256'][0][:16]}...")
    sys.stdout.flush()
    for failure in facts["failures"]:
        print(f"tensor_parallel: FAILED: {failure}", file=sys.stderr)


def arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="A network with its weights split over the ranks, compared with it in one piece.",
        epilog="Run it as: rdmaring run -n RANKS scripts/tensor_parallel.py [options]",
    )
    add = parser.add_argument
    add("--blocks", type=int, default=2, help="each of two weight matrices (default: 2)")
    add("--features", type=int, default=128, help="columns of x (default: 128)")
    add("--hidden", type=int, default=512, help="columns of A, split over the ranks (default: 512)")
    add("--batch", type=int, default=128, help="rows of x (default: 128)")
    add("--dtype", choices=("float32", "float64"), default="float32", help="in parts (default: float32)")
    add("--repeat", type=int, default=50, help="passes to time (default: 50)")
    add("--seed", type=int, default=1, help="of inputs and weights (default: 1)")
    add("--json", type=Path, metavar="FILE", help="write differences, digests and times to FILE")
    options = parser.parse_args(given)
    sizes = (options.blocks, options.features, options.hidden, options.batch, options.repeat)
    if min(sizes) < 1 or options.seed < 0:
        parser.error("sizes and --repeat are integers > 0, --seed an integer >= 0")
    if options.json is not None and not options.json.parent.is_dir():
        parser.error(f"--json {options.json}: there is no directory {options.json.parent}")
    return options


def main(given: list[str] | None = None) -> int:
    options = arguments(given)
    settings = {name: value for name, value in vars(options).items() if name != "json"}
    with rr.init() as comm:
        if comm.rank == 0:
            shown = ", ".join(f"{name} {value}" for name, value in settings.items())
            print(f"world size {comm.size}; {shown}", flush=True)
        facts = check(comm, options)
        if comm.rank == 0:
            report(facts, options.repeat)
            if options.json is not None:
                options.json.write_text(json.dumps(settings | facts))
    return 1 if facts["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
