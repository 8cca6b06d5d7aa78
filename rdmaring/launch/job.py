"""A job: its command, what each rank finds in its environment, and its run from start to end."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rdmaring.launch.child import Child
from rdmaring.launch.cpus import rank_cpus
from rdmaring.launch.guard import Guard
from rdmaring.launch.loop import Loop, Rules
from rdmaring.launch.signals import Signals
from rdmaring.rendezvous.secret import SECRET_BYTES
from rdmaring.rendezvous.server import Server
from rdmaring.rendezvous.sockets import listen


@dataclass(frozen=True)
class Job:
    """What to run.

    command: the program and its arguments; a .py file is run with this interpreter.
    ranks: how many, on this machine.
    grace_s: how long the others may go on after the first rank has failed.
    keep_going: after a failure the others run to their own end.
    pin: bind each rank to a CPU (see ``rank_cpus``); None: where ranks outnumber CPUs that nothing else keeps busy.
    env: variables set for every rank, over the launcher's own.
    direct: rank 0 writes to the launcher's own output and error: no prefix, and a terminal stays one.
    """

    command: Sequence[str]
    ranks: int
    grace_s: float = 10.0
    keep_going: bool = False
    pin: bool | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    direct: bool = False


class CommandError(Exception):
    """The command cannot be run; exit_code is what a shell would give."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def run_job(job: Job) -> int:
    """Run all ranks to their end, and nothing of them outlives the call. Main thread only.

    Returns the exit code: 0; or that of the first rank that failed; or 128 + the signal that ended us.

    Raises:
        CommandError: there is no such program, or it cannot be run.
    """
    command = resolve(job.command)
    secret = secrets.token_hex(SECRET_BYTES)
    server = Server(listen("127.0.0.1", 0), job.ranks, secret.encode())
    try:
        with Signals() as signals:
            # The server's thread starts when all forks are done.
            children, guard = _start(job, command, server.address, secret)
            server.start()
            return Loop(Rules(job.grace_s, job.keep_going), children, guard, signals).run()
    finally:
        server.stop(flush_s=0.0)


def resolve(command: Sequence[str]) -> list[str]:
    """The command as it is executed. Raises CommandError."""
    name = command[0]
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise CommandError(f"{name}: no such file in {Path.cwd()}", 127)
        return [sys.executable, *command]
    found = shutil.which(name)
    if found is None:
        if Path(name).is_file() and os.sep in name:
            raise CommandError(f"{name}: not executable (chmod +x it, or name its interpreter)", 126)
        raise CommandError(f"{name}: no such command", 127)
    return [found, *command[1:]]


def rank_env(job: Job, rank: int, address: str, secret: str) -> dict[str, str]:
    cpus = len(os.sched_getaffinity(0))
    defaults = {
        "PYTHONUNBUFFERED": "1",
        # Numeric libraries start a thread per CPU in every rank, otherwise.
        "OMP_NUM_THREADS": str(max(1, cpus // job.ranks)),
    }
    own = {
        "RDMARING_RANK": str(rank),
        "RDMARING_WORLD_SIZE": str(job.ranks),
        "RDMARING_LOCAL_RANK": str(rank),
        "RDMARING_RENDEZVOUS": address,
        "RDMARING_RENDEZVOUS_HOSTED": "1",
        "RDMARING_SECRET": secret,
    }
    return defaults | dict(os.environ) | own | dict(job.env)


def _start(job: Job, command: Sequence[str], address: str, secret: str) -> tuple[list[Child], Guard]:
    children: list[Child] = []
    try:
        for rank, cpu in enumerate(rank_cpus(job.ranks, job.pin)):
            stdin = None if rank == 0 else subprocess.DEVNULL
            direct = job.direct and rank == 0
            children.append(Child(rank, command, rank_env(job, rank, address, secret), cpu, stdin, direct))
        return children, Guard(child.pid for child in children)
    except OSError as error:
        for child in children:
            child.send(signal.SIGKILL)
        while not all(child.status is not None or child.look() for child in children):
            time.sleep(0.01)
        raise CommandError(f"{command[0]}: {error.strerror or error}", 126) from error
