"""Launchers for tests: installed once below .cache, each into a folder of its own, since they exclude each other."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".cache" / "launchers" / f"py{sys.version_info[0]}.{sys.version_info[1]}"
INSTALL_TIMEOUT_S = 600
# What launchers set, and what users set for them: none of it may leak from the session into a test.
LAUNCHERS_OWN = re.compile(
    r"(RDMARING|OMPI|PMIX?|PRTE|HYD|MPI|I_MPI|SLURM|TORCHELASTIC)_|(RANK|WORLD_SIZE|LOCAL_RANK|MASTER_(ADDR|PORT))$"
)
PYTHON = sys.executable
RDMARING = str(Path(PYTHON).with_name("rdmaring"))
TIMEOUT_S = 60

PRELUDE = """
import json, os, sys
import numpy as np
import rdmaring as rr

def say(**what):
    # One write: launchers cut what ranks print between writes.
    os.write(1, ("SAY " + json.dumps(what) + "\\n").encode())

def sums(comm):
    x = np.arange(1000.0) + comm.rank
    comm.all_reduce(x)
    say(rank=comm.rank, size=comm.size, sums=[x[0], x[1], x[-1], x.sum()])
"""

TWICE = """
with rr.init(timeout_s=30) as comm, rr.init(timeout_s=30) as again:
    sums(comm)
    sums(again)
"""


class Ran(NamedTuple):
    """How a launcher ended and all that it and its ranks printed."""

    code: int
    output: str


def installed(name: str, *requirements: str) -> Path:
    """The folder with bin and lib of these Python packages; skips where they cannot be had."""
    prefix = FOLDER / name
    prefix.mkdir(parents=True, exist_ok=True)
    with open(prefix / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs may share the checkout
        marker = prefix / "installed"
        if not marker.exists() or marker.read_text() != " ".join(requirements):
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-warn-script-location"]
            command += ["--disable-pip-version-check", "--prefix", str(prefix), *requirements]
            ran = run(command, {}, INSTALL_TIMEOUT_S)
            if ran.code:
                shutil.rmtree(prefix / "lib", ignore_errors=True)
                pytest.skip(f"{name} cannot be installed: {ran.output.strip()[-300:]}")
            marker.write_text(" ".join(requirements))
    return prefix


def packages_of(prefix: Path) -> str:
    """Its site-packages, for PYTHONPATH."""
    found = sorted(str(path) for path in prefix.glob("lib/python*/site-packages"))
    assert found, f"no Python package below {prefix}"
    return found[0]


def environment(own: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without any launcher's variables, and with ``own``."""
    kept = {name: value for name, value in os.environ.items() if not LAUNCHERS_OWN.match(name)}
    # One thread: the order in which a matrix product adds must not depend on the launcher.
    return {**kept, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **own}


def run(command: list[str], own: Mapping[str, str], timeout_s: float) -> Ran:
    """Run to the end; at the timeout the whole process group is killed, and what it printed is shown."""
    process = subprocess.Popen(
        command,
        env=environment(own),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        pytest.fail(f"{command[:4]} did not end within {timeout_s:g} s:\n{output}")
    return Ran(process.returncode, output)


def said(ran: Ran) -> list[dict[str, Any]]:
    return [json.loads(text) for text in re.findall(r"SAY (\{.*\})", ran.output)]


def check_sums(ran: Ran, world: int, rounds: int = 2) -> None:
    """In every round every rank has the sum of ``arange(1000) + rank`` over the ranks; it told four facts of it."""
    assert ran.code == 0, ran.output
    spoken = [each for each in said(ran) if "sums" in each]
    assert sorted(each["rank"] for each in spoken) == sorted([*range(world)] * rounds), ran.output
    ranks = world * (world - 1) / 2
    for each in spoken:
        assert each["size"] == world
        assert each["sums"] == [ranks, world + ranks, 999 * world + ranks, 499500 * world + 1000 * ranks]


class Mpi:
    """One of the MPI implementations, and how its launcher starts Python."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.prefix = installed(name, {"impi": "impi-rt"}.get(name, name), "mpi4py")

    def command(self, world: int, *options: str) -> list[str]:
        if self.name == "openmpi":
            mapping = [] if "--map-by" in options else ["--map-by", ":OVERSUBSCRIBE"]
            return [str(self.prefix / "bin/mpirun"), *mapping, "-n", str(world), *options, PYTHON]
        return [str(self.prefix / "bin/mpiexec.hydra"), *options, "-n", str(world), PYTHON]

    def env(self, own: Mapping[str, str]) -> dict[str, str]:
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        libraries = {
            "LD_LIBRARY_PATH": str(self.prefix / "lib"),
            "FI_PROVIDER_PATH": str(self.prefix / "lib"),
            "FI_PROVIDER": "tcp",
            "OMPI_MCA_btl": "self,sm",
        }
        return {**(root if os.geteuid() == 0 else {}), **libraries, "PYTHONPATH": packages_of(self.prefix), **own}

    def run(self, tmp_path: Path, world: int, source: str, *options: str, **own: str) -> Ran:
        script = tmp_path / "ranks.py"
        script.write_text(PRELUDE + textwrap.dedent(source))
        return run([*self.command(world, *options), str(script)], self.env(own), TIMEOUT_S)


# ---- Debian's packages ----


def need_commands(commands: tuple[str, ...], packages: tuple[str, ...]) -> None:
    """Commands of Debian's packages, installed where root can; skips elsewhere."""
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    missing = [name for name in commands if shutil.which(name, path=path) is None]
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        pytest.skip(f"{', '.join(missing)} missing: as root, apt-get install {' '.join(packages)}")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
    for command in (["apt-get", "update", "-qq"], install):
        ran = run(command, quiet, INSTALL_TIMEOUT_S)
        if ran.code:
            pytest.skip(f"{' '.join(packages)} cannot be installed: {ran.output.strip()[-300:]}")


# ---- Slurm ----

SLURM_PACKAGES = ("munge", "slurm-client", "slurmctld", "slurmd")
SLURM_CONF = """
ClusterName=rdmaring-test
SlurmctldHost=localhost
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
SchedulerType=sched/builtin
SelectType=select/linear
SlurmdParameters=config_overrides
NodeName=localhost CPUs=4 State=UNKNOWN
PartitionName=all Nodes=localhost Default=YES MaxTime=INFINITE State=UP
"""


@contextmanager
def slurm(folder: Path, ports: tuple[int, int]) -> Iterator[dict[str, str]]:
    """A cluster of this one host, with its own munge; yields the environment of its clients."""
    need_commands(("munged", "srun", "slurmctld", "slurmd"), SLURM_PACKAGES)
    if os.geteuid() != 0:
        pytest.skip("slurmd starts tasks as root only")
    for name in ("state", "spool"):
        (folder / name).mkdir()
    folder.chmod(0o755)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    conf = folder / "slurm.conf"
    conf.write_text(SLURM_CONF.format(folder=folder, controller_port=ports[0], node_port=ports[1], user="root"))
    own = {"SLURM_CONF": str(conf), "PATH": os.environ["PATH"] + ":/usr/sbin"}
    munge = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket"]
    munge += [f"--pid-file={folder}/munge.pid", f"--seed-file={folder}/munge.seed", f"--log-file={folder}/munge.log"]
    commands = [munge, ["slurmctld", "-D"], ["slurmd", "-D", "-N", "localhost"]]
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            with open(folder / f"{command[0]}.out", "wb") as output:
                daemon = subprocess.Popen(
                    command, env=environment(own), stdin=subprocess.DEVNULL, stdout=output, stderr=output
                )
            daemons.append(daemon)
            if command is munge:
                _wait(lambda: (folder / "munge.socket").exists(), folder)
        _wait(lambda: "idle" in run(["sinfo", "-h", "-o", "%T"], own, 30).output, folder)
        yield own
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            daemon.wait(30)


def _wait(ready: object, folder: Path, timeout_s: float = 30) -> None:
    assert callable(ready)
    until = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > until:
            logs = "\n".join(f"{path.name}:\n{path.read_text()[-2000:]}" for path in sorted(folder.glob("*.log")))
            pytest.fail(f"Slurm is not ready after {timeout_s:g} s\n{logs}")
        time.sleep(0.1)
