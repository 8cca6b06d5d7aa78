"""Runs a piece of Python on N ranks as a user does, and collects what the ranks say."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# The installed command: `python -m` would find the source tree in the working directory first.
RDMARING = str(Path(sys.executable).with_name("rdmaring"))

PRELUDE = """
import json, os, signal, sys, threading, time
import numpy as np
import rdmaring as rr

saying = threading.Lock()

def say(**what):
    with saying:
        print("SAY " + json.dumps(what), flush=True)

def said_error(call):
    begin = time.monotonic()
    try:
        call()
    except rr.RdmaringError as error:
        say(error=type(error).__name__, text=str(error), peer=error.peer, cause=error.cause, hint=error.hint,
            op=error.op, collective=error.collective, seconds=time.monotonic() - begin, at=time.time())
        return error
    say(error=None, seconds=time.monotonic() - begin)
"""


@dataclass
class Ran:
    """What one run of a world printed, by rank."""

    code: int
    output: str
    said: dict[int, list[dict[str, Any]]] = field(default_factory=dict)

    def of(self, rank: int, key: str) -> Any:
        """The last thing that the rank said of ``key``."""
        found = [what[key] for what in self.said.get(rank, []) if key in what]
        assert found, f"rank {rank} said nothing of {key!r}:\n{self.output}"
        return found[-1]


def run_world(
    world: int,
    source: str,
    tmp_path: Path,
    *options: str,
    env: dict[str, str] | None = None,
    timeout_s: float = 60,
    args: tuple[str, ...] = (),
) -> Ran:
    """``source`` on ``world`` ranks under `rdmaring run`; survivors go on when one fails."""
    script = tmp_path / "ranks.py"
    script.write_text(PRELUDE + textwrap.dedent(source))
    line = [RDMARING, "run", "-n", str(world), *options, str(script), *args]
    done = subprocess.run(
        line,
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return collect(done.returncode, done.stdout)


def collect(code: int, output: str) -> Ran:
    """What the ranks said, out of lines prefixed by rank."""
    ran = Ran(code, output)
    for rank, text in re.findall(r"^\[(\d+)\] SAY (.*)$", output, re.MULTILINE):
        ran.said.setdefault(int(rank), []).append(json.loads(text))
    return ran
