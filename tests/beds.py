"""Runs a piece of Python, or any command, on the ranks of a test bed, as worlds.py does on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest
from worlds import PRELUDE, Ran, collect

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
END_S = 30.0  # for a bed to end by itself when its time is over


def run_hosts(
    hosts: int,
    ranks: int,
    source: str | Sequence[str],
    tmp_path: Path,
    *options: str,
    env: dict[str, str] | None = None,
    timeout_s: float = 60,
    args: tuple[str, ...] = (),
) -> Ran:
    """``source`` on ``hosts`` network namespaces with ``ranks`` ranks each; ``options`` are those of scripts/hosts.

    source: Python, which sees what worlds.PRELUDE has; or a command, as a list.
    """
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    line = ["hosts", "--hosts", str(hosts), "--ranks", str(ranks), *options]
    return run_bed(line, source, tmp_path, env, timeout_s, args)


def run_softroce(
    guests: int,
    ranks: int,
    source: str | Sequence[str],
    tmp_path: Path,
    *options: str,
    env: dict[str, str] | None = None,
    timeout_s: float = 240,
    args: tuple[str, ...] = (),
) -> Ran:
    """The same in ``guests`` guests with soft-RoCE; ``options`` are those of scripts/softroce.

    Files under ``tmp_path`` that were written before are seen in the guests; what these write, nobody sees.
    A test needs `pytest.mark.timeout` with more than timeout_s, which holds for the boot too.
    """
    line = ["softroce", "--guests", str(guests), "--ranks", str(ranks), *options]
    return run_bed(line, source, tmp_path, env, timeout_s, args)


def run_bed(
    line: Sequence[str],
    source: str | Sequence[str],
    tmp_path: Path,
    env: dict[str, str] | None,
    timeout_s: float,
    args: tuple[str, ...] = (),
) -> Ran:
    """``line``: the name of the script and its options."""
    if isinstance(source, str):
        script = tmp_path / "ranks.py"
        script.write_text(PRELUDE + textwrap.dedent(source))
        source = [sys.executable, str(script)]
    name, *options = line
    done = subprocess.run(
        [*bed(name), "--timeout", f"{timeout_s:g}", *options, "--", *source, *args],
        env=environment(env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        timeout=timeout_s + END_S,
        check=False,
    )
    if done.returncode == 2 and f"scripts/{name}: missing: " in done.stdout:
        pytest.skip(done.stdout)
    return collect(done.returncode, done.stdout)


def bed(name: str) -> list[str]:
    """A script under this Python, which the guests then use too."""
    return [sys.executable, str(SCRIPTS / name)]


def environment(env: dict[str, str] | None = None) -> dict[str, str]:
    """In which `rdmaring` and `python` are those under test."""
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
    return {**os.environ, "PATH": path, **(env or {})}
