"""Runs cases by seed, in a process of its own: a case that crashes, or a library that is broken, ends no one else.

    python matrix.py TRANSPORT SEED COUNT [--seconds S] [--root TREE]

It ends with status 1 after the first case that fails, and says it in words; the last line that begins with "seed" is of
the case under way. S: of processor time; what is left then is not run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
# What the substitute of libibverbs does on its way, by seed.
FABRICS = (
    "delay_us=0",
    "delay_us=20,reorder=1,reorder_us=100",
    "delay_us=200,reorder=1",
    "delay_us=50,devices=2,max_inline=0",
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("transport")
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--root", type=Path)
    return parser.parse_args()


def main() -> int:
    from shipping import draw, machine

    given = arguments()
    native = machine.library(given.root) if given.root else machine.library()
    for seed in range(given.seed, given.seed + given.count):
        if time.process_time() > given.seconds:
            break
        print(f"seed {seed}", flush=True)
        try:
            machine.verify(draw.case(given.transport, seed), native)
        except AssertionError as error:
            print(f"FAILED: {error}", flush=True)
            return 1
    print(f"passed in {time.process_time():.1f} s")
    return 0


def start(
    transport: str, seed: int, count: int, *, seconds: float | None = None, root: Path | None = None, folder: Path
) -> subprocess.Popen[str]:
    """Begin such a process; ``folder`` names the fabric that the ends of verbs share."""
    from verbs_sim import build

    command = [sys.executable, str(HERE / "matrix.py"), transport, str(seed), str(count)]
    command += ["--seconds", str(seconds)] if seconds is not None else []
    command += ["--root", str(root)] if root is not None else []
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent), "PYTHONFAULTHANDLER": "1"}
    if transport == "verbs":
        words = FABRICS[seed // max(1, count) % len(FABRICS)]
        environment |= build.environment(f"seed={seed},{words}", fabric=str(folder / f"{transport}-{seed}"))
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def tail(said: str) -> str:
    """What a process said, without the seeds that it passed."""
    lines = said.splitlines()
    seeds = [line for line in lines if line.startswith("seed ") and " over " not in line]
    return "\n".join([*seeds[-1:], *(line for line in lines if line not in seeds)])


if __name__ == "__main__":
    sys.exit(main())
