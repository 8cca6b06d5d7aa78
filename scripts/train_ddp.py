"""Data-parallel training of a small transformer on scikit-learn's handwritten digits, over rdmaring and over gloo.

    python scripts/train_ddp.py -n 2
    python scripts/train_ddp.py -n 4 --steps 100 --json ddp.json
    torchrun --nproc-per-node 2 scripts/train_ddp.py

One model a variant, all from one seed, is wrapped into DistributedDataParallel: `gloo`, `rdmaring`, `plan`
(rdmaring with rdmaring.torch.plan_hook) and `alone`, which never exchanges gradients (`no_sync()`). The
variants take turns, --block steps each, so that what else the machine does meets all alike. The exposed
communication of a variant is its step less that of `alone`: what does not hide behind the backward pass.

Exit code: 0 if the losses of every step are gloo's and the loss falls to --target of the first; else 1; 2 for wrong
arguments. Two ranks' losses are equal to 1e-6. The sums of more are rounded in another order than gloo's, and training
multiplies a difference by ten every 10 to 15 steps: 5e-5 is accepted in the first ten steps, 1e-2 later. With --double
it is 1e-9 throughout.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch_world

VARIANTS = ("gloo", "rdmaring", "plan", "alone")
TOLERANCE, TOLERANCE_DOUBLE = 1e-6, 1e-9
FIRST_STEPS, TOLERANCE_FIRST, TOLERANCE_LATER = 10, 5e-5, 1e-2  # of more than 2 ranks
RATE = 1e-3
WARM_STEPS = 3  # DDP rebuilds its buckets after the first


def digits(seed: int) -> Any:
    """Images (n, 16 patches, 4 pixels) in 0..1 and labels (n,), in the seed's order."""
    import torch
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    images = torch.tensor(pixels, dtype=torch.float32).div(16).reshape(-1, 4, 2, 4, 2)
    patches = images.permute(0, 1, 3, 2, 4).reshape(-1, 16, 4)
    return patches[order], torch.tensor(labels)[order]


def transformer(options: argparse.Namespace) -> Any:
    """A classifier of sequences of 16 patches."""
    import torch
    from torch import nn

    torch.manual_seed(options.seed)

    class Digits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Linear(4, options.width)
            self.places = nn.Parameter(torch.randn(16, options.width) * 0.02)
            layer = nn.TransformerEncoderLayer(
                options.width, 4, 4 * options.width, 0.0, batch_first=True, norm_first=True
            )
            self.layers = nn.TransformerEncoder(layer, options.layers, enable_nested_tensor=False)
            self.head = nn.Linear(options.width, 10)

        def forward(self, patches: torch.Tensor) -> torch.Tensor:
            return self.head(self.layers(self.embed(patches) + self.places).mean(1))

    return Digits().double() if options.double else Digits()


class Variant:
    """One model, how it communicates, and what was seen of it."""

    def __init__(self, name: str, options: argparse.Namespace, gloo: Any) -> None:
        import torch
        from torch.nn.parallel import DistributedDataParallel

        import rdmaring.torch as ours

        self.name = name
        group = gloo if name in ("gloo", "alone") else None
        self.model = DistributedDataParallel(
            transformer(options), process_group=group, bucket_cap_mb=options.bucket_mib
        )
        if name == "plan":
            self.model.register_comm_hook(ours.Buckets(), ours.plan_hook)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=RATE)
        self.loss: list[float] = []
        self.step_s: list[float] = []

    def step(self, patches: Any, labels: Any) -> None:
        """On this rank's part of the batch."""
        from torch.nn.functional import cross_entropy

        begin_s = time.perf_counter()
        with self.model.no_sync() if self.name == "alone" else contextlib.nullcontext():
            self.optimizer.zero_grad()
            loss = cross_entropy(self.model(patches), labels)
            loss.backward()
        self.optimizer.step()
        self.step_s.append(time.perf_counter() - begin_s)
        self.loss.append(loss.item())


def train(options: argparse.Namespace) -> list[Variant]:
    """All variants, in turns."""
    import torch
    import torch.distributed as dist

    gloo = dist.new_group(backend="gloo")
    variants = [Variant(name, options, gloo) for name in VARIANTS]
    patches, labels = digits(options.seed)
    patches = patches.double() if options.double else patches
    rank, world = dist.get_rank(), dist.get_world_size()
    for begin in range(0, options.steps, options.block):
        turn = (begin // options.block) % len(variants)
        for variant in variants[turn:] + variants[:turn]:
            dist.barrier()
            for step in range(begin, min(begin + options.block, options.steps)):
                first = step * options.batch * world + rank * options.batch
                mine = torch.arange(first, first + options.batch) % len(labels)
                variant.step(patches[mine], labels[mine])
    return variants


def facts_of(variants: list[Variant]) -> dict[str, dict[str, Any]]:
    """Of all ranks: the mean loss of each step, and the median over the steps of the slowest rank's time."""
    import torch
    import torch.distributed as dist

    facts: dict[str, dict[str, Any]] = {}
    for variant in variants:
        every: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, (variant.loss, variant.step_s))
        loss = torch.tensor([each[0] for each in every], dtype=torch.float64).mean(0).tolist()
        slowest_s = [max(times) for times in zip(*(each[1][WARM_STEPS:] for each in every), strict=True)]
        facts[variant.name] = {"loss": loss, "step_s": statistics.median(slowest_s)}
    for each in facts.values():
        each["exposed_s"] = max(0.0, each["step_s"] - facts["alone"]["step_s"])
    return facts


def tolerance_of(step: int, world: int, double: bool) -> float:
    """By how much a loss may differ from gloo's, in parts of it."""
    if double:
        return TOLERANCE_DOUBLE
    if world == 2:
        return TOLERANCE
    return TOLERANCE_FIRST if step < FIRST_STEPS else TOLERANCE_LATER


def failures_of(facts: dict[str, dict[str, Any]], world: int, options: argparse.Namespace) -> list[str]:
    """What is wrong, one sentence each."""
    target = options.target
    theirs = facts["gloo"]["loss"]
    failures = []
    for name in ("rdmaring", "plan"):
        for step, (own, other) in enumerate(zip(facts[name]["loss"], theirs, strict=True)):
            if abs(own - other) > tolerance_of(step, world, options.double) * max(1.0, abs(other)):
                failures.append(f"{name}: the loss of step {step} is {own!r}, gloo's is {other!r}")
                break
    last = statistics.mean(theirs[-5:])
    if last > theirs[0] * target:
        failures.append(
            f"the loss went from {theirs[0]:.4f} to {last:.4f}, not below {target} of it: give more --steps"
        )
    return failures


def report(facts: dict[str, dict[str, Any]], parameters: int, mib: float, world: int) -> None:
    """The table, for people."""
    print(f"{parameters} parameters, {mib:.1f} MiB of gradients; world size {world}; times: medians")
    print(f"{'variant':<10} {'first loss':>10} {'last loss':>10} {'step':>10} {'exposed communication':>24}")
    for name, each in facts.items():
        share = 100 * each["exposed_s"] / each["step_s"]
        exposed = "-" if name == "alone" else f"{each['exposed_s'] * 1e3:.2f} ms ({share:.0f} %)"
        print(
            f"{name:<10} {each['loss'][0]:>10.5f} {each['loss'][-1]:>10.5f} "
            f"{each['step_s'] * 1e3:>7.2f} ms {exposed:>24}"
        )
    for name in ("rdmaring", "plan"):
        print(f"step of gloo / step of {name}: {facts['gloo']['step_s'] / facts[name]['step_s']:.2f}")
    sys.stdout.flush()


def rank_main(options: argparse.Namespace) -> int:
    """What a rank does."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("rdmaring")
    variants = train(options)
    facts = facts_of(variants)
    world, rank = dist.get_world_size(), dist.get_rank()
    failures = failures_of(facts, world, options)
    if rank == 0:
        parameters = sum(each.numel() for each in variants[0].model.parameters())
        mib = sum(each.numel() * each.element_size() for each in variants[0].model.parameters()) / 2**20
        report(facts, parameters, mib, world)
        for failure in failures:
            print(f"train_ddp: FAILED: {failure}", file=sys.stderr)
        if options.json is not None:
            chosen = {name: value for name, value in vars(options).items() if name not in ("json", "n")}
            document = {"world": world, "parameters": parameters, **chosen, "failures": failures, "variants": facts}
            options.json.write_text(json.dumps(document))
    dist.barrier()
    dist.destroy_process_group()
    return 1 if failures else 0


def arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Data-parallel training of a small transformer over rdmaring and over gloo, in turns.",
        epilog="Exit code: 0 if the losses are gloo's and fall to --target; else 1; 2 for wrong arguments.",
    )
    add = parser.add_argument
    add("-n", type=int, default=2, help="ranks, where no launcher has made this process one (default: 2)")
    add("--steps", type=int, default=60, help="of each variant (default: 60)")
    add("--block", type=int, default=5, help="steps of a variant before the next has its turn (default: 5)")
    add("--batch", type=int, default=32, help="images of a rank and step (default: 32)")
    add("--width", type=int, default=128, help="of the transformer, a multiple of 4 (default: 128)")
    add("--layers", type=int, default=4, help="of the transformer (default: 4)")
    add("--bucket-mib", type=float, default=1.0, help="of DDP's gradient buckets (default: 1)")
    add("--target", type=float, default=0.8, help="last losses over the first, to be reached (default: 0.8)")
    add("--seed", type=int, default=1, help="of weights and order of the images (default: 1)")
    add("--double", action="store_true", help="in float64, where losses are equal to 1e-9 at any number of ranks")
    add("--json", type=Path, metavar="FILE", help="write losses and times to FILE")
    options = parser.parse_args(given)
    if min(options.n, options.block, options.batch, options.layers) < 1 or options.steps <= WARM_STEPS:
        parser.error(f"-n, --block, --batch and --layers take integers > 0, --steps integers > {WARM_STEPS}")
    if options.width < 4 or options.width % 4:
        parser.error(f"--width is {options.width}; accepted are multiples of 4")
    return torch_world.check(parser, options, {"torch": "torch", "sklearn": "examples"})


if __name__ == "__main__":
    sys.exit(torch_world.main(arguments(None), rank_main))
