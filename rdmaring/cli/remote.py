"""A subcommand that starts itself as one rank on each of several hosts, by ssh or another such agent."""

from __future__ import annotations

import contextlib
import random
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from rdmaring.rendezvous.launchers import CANDIDATE_PORT_FIRST, CANDIDATE_PORT_LAST

GRACE_S = 5.0  # for the others, once one host's rank has failed
POLL_S = 0.05

# The secret comes by standard input: arguments can be read by every user of a host.
SHELL = "read -r RDMARING_SECRET; export RDMARING_SECRET; exec env {variables} {command}"


def start_on_hosts(subcommand: str, arguments: Sequence[str], hosts: Sequence[str], agent: str) -> int:
    """Run ``rdmaring SUBCOMMAND ARGUMENTS`` as rank i on ``hosts[i]``; rank 0 writes to our own output.

    agent: what runs a command line on a host: ``AGENT HOST COMMAND``, as ssh does. `rdmaring` must be installed at the
    same path on every host. Returns the first failing exit code.
    """
    port = random.SystemRandom().randint(CANDIDATE_PORT_FIRST, CANDIDATE_PORT_LAST)
    secret = secrets.token_hex(16)
    program = [str(Path(sys.executable).with_name("rdmaring")), subcommand, *arguments]
    running: list[subprocess.Popen[str]] = []
    try:
        for rank, host in enumerate(hosts):
            variables = {
                "RDMARING_RANK": rank,
                "RDMARING_WORLD_SIZE": len(hosts),
                "RDMARING_LOCAL_RANK": 0,
                "RDMARING_RENDEZVOUS": f"{_bracketed(hosts[0])}:{port}",
            }
            line = SHELL.format(
                variables=" ".join(f"{name}={shlex.quote(str(value))}" for name, value in variables.items()),
                command=shlex.join(program),
            )
            each = subprocess.Popen([*shlex.split(agent), host, line], stdin=subprocess.PIPE, text=True)
            running.append(each)
            assert each.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it has ended: its exit code tells
                each.stdin.write(secret + "\n")
                each.stdin.close()
        return _wait(running, hosts, subcommand)
    except OSError as error:
        click.echo(f"rdmaring {subcommand}: cannot start {agent!r}: {error}", err=True)
        return 1
    finally:
        for each in running:
            if each.poll() is None:
                each.terminate()
        for each in running:
            each.wait()


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _wait(running: Sequence[subprocess.Popen[str]], hosts: Sequence[str], subcommand: str) -> int:
    """The first failing exit code; the others then get GRACE_S to say why themselves."""
    failed = 0
    deadline = float("inf")
    while time.monotonic() < deadline:
        codes = [each.poll() for each in running]
        for host, code in zip(hosts, codes, strict=True):
            if code and not failed:
                failed = code if code > 0 else 128 - code
                deadline = time.monotonic() + GRACE_S
                if host != hosts[0]:
                    click.echo(f"rdmaring {subcommand}: on {host} it ended with status {failed}", err=True)
        if all(code is not None for code in codes):
            break
        time.sleep(POLL_S)
    return failed
