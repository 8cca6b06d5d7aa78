"""Ranks of torch.distributed for the scripts beside this one: started here, or by any launcher that torch knows."""

from __future__ import annotations

import argparse
import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Callable


def is_rank() -> bool:
    """Whether a launcher has made this process a rank."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def run(world: int, command: list[str]) -> int:
    """Start the command as ranks 0..world-1 of this machine; the first exit code that is not 0, or 0.

    One that fails takes the others with it.
    """
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    ranks = []
    for rank in range(world):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
        own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        ranks.append(subprocess.Popen([sys.executable, *command], env={**os.environ, **own}))
    code = 0
    try:
        waiting = list(ranks)
        while waiting:
            for process in list(waiting):
                try:
                    ended = process.wait(timeout=0.1)
                except subprocess.TimeoutExpired:
                    continue
                waiting.remove(process)
                if ended and not code:
                    code = ended
                    for other in waiting:
                        other.terminate()
    finally:
        for process in ranks:
            if process.poll() is None:
                process.kill()
                process.wait()
    return code


def check(parser: argparse.ArgumentParser, options: argparse.Namespace, needed: dict[str, str]) -> argparse.Namespace:
    """The options, if all modules are there (module: the extra that brings it) and --json can be written."""
    for module, extra in needed.items():
        if importlib.util.find_spec(module) is None:
            parser.error(f"{module} is missing: pip install 'rdmaring[{extra}]'")
    if options.json is not None and not options.json.parent.is_dir():
        parser.error(f"--json {options.json}: there is no directory {options.json.parent}")
    return options


def main(options: argparse.Namespace, rank_main: Callable[[argparse.Namespace], int]) -> int:
    """The exit code: of this rank, or of ``options.n`` of them that are started."""
    return rank_main(options) if is_rank() else run(options.n, sys.argv)
