"""Launchers over several hosts: each host is a network namespace with a host name of its own."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from launchers import PRELUDE, PYTHON, TIMEOUT_S, Mpi, Ran, check_sums, environment, need_commands, run

# In place of ssh, and to start launchers on the first host.
AGENT = """#!/bin/sh
while case "$1" in -*) true ;; *) false ;; esac; do shift; done
host=$1; shift
exec ip netns exec "$host" unshare --uts sh -c "hostname $host && mount --bind {hosts} /etc/hosts && $*"
"""

ON_TWO_HOSTS = """
import socket
os.environ["RDMARING_HOST_ID"] = socket.gethostname()  # both hosts have one boot id here
with rr.init(timeout_s=30) as comm, rr.init(timeout_s=30) as again:
    say(at=socket.gethostname(), as_rank=comm.rank)
    assert {link.transport for link in comm.links} == {"shm", "tcp"}
    sums(comm)
    sums(again)
"""


class TwoHosts:
    """Their names, and the agent that runs a command line on one of them."""

    def __init__(self, folder: Path) -> None:
        self.names = (f"rdmaring{os.getpid()}n1", f"rdmaring{os.getpid()}n2")
        hosts = folder / "hosts"
        lines = [f"198.18.77.{number} {name}" for number, name in enumerate(self.names, 1)]
        hosts.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        self.agent = folder / "agent"
        self.agent.write_text(AGENT.format(hosts=hosts))
        self.agent.chmod(0o755)

    def make(self) -> None:
        for name in self.names:
            ip("netns", "add", name)
        first, second = self.names
        ip("link", "add", "wire0", "netns", first, "type", "veth", "peer", "name", "wire0", "netns", second)
        for number, name in enumerate(self.names, 1):
            ip("-n", name, "address", "add", f"198.18.77.{number}/24", "dev", "wire0")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "wire0", "up")

    def remove(self) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)

    def run(self, host: int, command: list[str], env: dict[str, str]) -> Ran:
        return run([str(self.agent), self.names[host], *command], env, TIMEOUT_S)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def two_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoHosts]:
    need_commands(("ip",), ("iproute2",))
    if os.geteuid() != 0:
        pytest.skip("hosts as network namespaces need root")
    hosts = TwoHosts(tmp_path_factory.mktemp("hosts"))
    try:
        hosts.make()
        yield hosts
    finally:
        hosts.remove()


@pytest.fixture(scope="module", params=["openmpi", "mpich", pytest.param("impi", marks=pytest.mark.long)])
def mpi(request: pytest.FixtureRequest) -> Mpi:
    return Mpi(request.param)


def over(hosts: TwoHosts, mpi: Mpi, names: tuple[str, str], tmp_path: Path) -> Ran:
    """Four ranks, two on each of ``names``; mpirun itself runs on the first host."""
    script = tmp_path / "ranks.py"
    script.write_text(PRELUDE + ON_TWO_HOSTS)
    agent = str(hosts.agent)
    if mpi.name == "openmpi":
        options = ["--prtemca", "plm_ssh_agent", agent, "--host", ",".join(f"{name}:2" for name in names)]
        options += ["--map-by", "ppr:2:node:OVERSUBSCRIBE"]
    else:
        options = ["-launcher", "ssh", "-launcher-exec", agent, "-hosts", ",".join(names), "-ppn", "2"]
        if mpi.name == "mpich":
            options += ["-localhost", hosts.names[0]]
    env = mpi.env({}) | {"OMPI_MCA_btl": "self,sm,tcp"}
    return hosts.run(0, [*mpi.command(4, *options), str(script)], env)


def places(ran: Ran) -> dict[int, str]:
    said = re.findall(r'SAY \{"at": "(\w+)", "as_rank": (\d)\}', ran.output)
    return {int(rank): host for host, rank in said}


def test_ranks_of_mpirun_on_two_hosts_form_one_ring(two_hosts: TwoHosts, mpi: Mpi, tmp_path: Path) -> None:
    first, second = two_hosts.names
    ran = over(two_hosts, mpi, (first, second), tmp_path)
    check_sums(ran, 4)
    assert places(ran) == {0: first, 1: first, 2: second, 3: second}


def test_rank_0_away_from_mpirun(two_hosts: TwoHosts, mpi: Mpi, tmp_path: Path) -> None:
    """PMI passes any host's address on; Open MPI tells only its own, so the job ends with what to set."""
    first, second = two_hosts.names
    ran = over(two_hosts, mpi, (second, first), tmp_path)
    if mpi.name == "openmpi":
        assert ran.code != 0
        assert f"rank 0 of 4, but not on the host of mpirun ({first})" in ran.output
        assert "Set RDMARING_RENDEZVOUS=host:port on all ranks" in ran.output
    else:
        check_sums(ran, 4)
        assert places(ran) == {0: second, 1: second, 2: first, 3: first}


def test_ranks_of_a_slurm_step_on_two_hosts_meet_on_the_first(two_hosts: TwoHosts, tmp_path: Path) -> None:
    """Slurm's environment is replayed: a node cannot be had twice on one machine."""
    script = tmp_path / "ranks.py"
    script.write_text(PRELUDE + ON_TWO_HOSTS)
    step = {
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_STEP_NODELIST": f"{two_hosts.names[0][:-1]}[1-2]",
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_ID": "0",
        "RDMARING_SECRET": "of this test",
    }
    started = []
    for rank in range(4):
        own = step | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank % 2), "SLURM_NODEID": str(rank // 2)}
        command = [str(two_hosts.agent), two_hosts.names[rank // 2], PYTHON, str(script)]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        started.append(subprocess.Popen(command, env=environment(own), text=True, **pipes))  # type: ignore[call-overload]
    try:
        output = "".join(process.communicate(timeout=TIMEOUT_S)[0] for process in started)
    finally:
        for process in started:
            process.kill()
            process.wait()
    check_sums(Ran(max(process.returncode for process in started), output), 4)
