"""Launchers that are not ours: what their variables say, and where the ranks they start can meet.

None but torchrun tells the ranks an address. Ranks that are all on one host meet on its loopback; over several
hosts the place follows from what the launcher does tell every rank, or rank 0 passes it on by PMI. The port
is one of sixteen that follow from the job's name, which is the same on every rank and unlike that of other jobs.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, NoReturn

from rdmaring.rendezvous.hostlist import expand
from rdmaring.rendezvous.place import Place, Started, number, rank_and_world
from rdmaring.rendezvous.protocol import RendezvousError

CANDIDATE_COUNT = 16
# Below the ports that Linux hands out by itself (32768 and up), above those of common services.
CANDIDATE_PORT_FIRST, CANDIDATE_PORT_LAST = 20000, 32767
LOOPBACK = "127.0.0.1"

Env = Mapping[str, str]


class Launcher(NamedTuple):
    """at_work: whether it started this process. read: rank, world, job. meet: where, for a world of 2 or more."""

    name: str
    at_work: Callable[[Env], bool]
    read: Callable[[Env], Started]
    meet: Callable[[Env, Started], Place]


def candidate_ports(job: str, taken: int) -> list[int]:
    """16 distinct ports derived from ``job``, the same on every rank, none equal to ``taken``."""
    ports: list[int] = []
    span = CANDIDATE_PORT_LAST - CANDIDATE_PORT_FIRST + 1
    draw = 0
    while len(ports) < CANDIDATE_COUNT:
        digest = hashlib.sha256(f"rdmaring {job} {draw}".encode(errors="surrogatepass")).digest()
        port = CANDIDATE_PORT_FIRST + int.from_bytes(digest[:8], "little") % span
        if port != taken and port not in ports:
            ports.append(port)
        draw += 1
    return ports


def _at(host: str, found: Started, taken: int = 0) -> Place:
    addresses = tuple((host, port) for port in candidate_ports(found.job, taken))
    return Place(found.rank, found.world, found.local_rank, addresses, "rank 0", found.job)


def _refuse(found: Started, why: str) -> NoReturn:
    raise RendezvousError(
        f"{found.launcher} started this process as rank {found.rank} of {found.world}, but {why}",
        hint="set RDMARING_RENDEZVOUS=host:port on all ranks, a free port of rank 0's host; "
        "or, in a program that uses mpi4py, rdmaring.init(mpi=MPI.COMM_WORLD)",
    )


# ---- torchrun ----


def _torchrun(env: Env) -> Started:
    rank, world = rank_and_world(env, "RANK", "WORLD_SIZE")
    job = " ".join(env.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"))
    return Started("torchrun", rank, world, number(env, "LOCAL_RANK", rank), job)


def _meet_torchrun(env: Env, found: Started) -> Place:
    host, port = env.get("MASTER_ADDR"), env.get("MASTER_PORT", "")
    if not host or not re.fullmatch("[0-9]{1,5}", port):
        raise RendezvousError(
            f"RANK and WORLD_SIZE={found.world} are set, but MASTER_ADDR={host!r} and MASTER_PORT={port!r} "
            f"give no place to meet",
            hint="torchrun sets all four; or give rank, world and address to init()",
        )
    return _at(host, found, taken=int(port))  # MASTER_PORT itself is where torch's own store listens


# ---- Open MPI ----

# Names of a job and of its daemons: "prterun-node7-4711@1" (5.x), a number (4.x). mpirun's own daemon is number 0.
_PRTE_NAMESPACE = re.compile(r"prte(?:run)?-(?P<host>.+)-[0-9]+@[0-9]+")
_DAEMON = re.compile(r"[^;]*\.(?P<number>[0-9]+);.*")
_TCP_HOSTS = re.compile(r"tcp6?://(?P<hosts>[^;]*):[0-9]+")


def _open_mpi(env: Env) -> Started:
    rank, world = rank_and_world(env, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    # In 4.x the number of a job repeats after 2^16 mpiruns; where mpirun listens makes it unique.
    job = f"Open MPI {env.get('PMIX_NAMESPACE', '')} {env.get('OMPI_MCA_orte_hnp_uri', '')}"
    return Started("Open MPI", rank, world, number(env, "OMPI_COMM_WORLD_LOCAL_RANK", rank), job)


def _meet_open_mpi(env: Env, found: Started) -> Place:
    if number(env, "OMPI_COMM_WORLD_LOCAL_SIZE", 0) == found.world:
        if not env.get("PMIX_NAMESPACE"):
            _refuse(found, "PMIX_NAMESPACE, which tells its jobs apart, is not set")
        return _at(LOOPBACK, found)
    hosts = _mpirun_hosts(env)
    if not hosts:
        _refuse(found, "on several hosts, and its variables do not tell where mpirun runs")
    if found.rank == 0:
        daemon = env.get("OMPI_MCA_orte_local_daemon_uri") or env.get("PMIX_SERVER_URI2", "")
        own = _DAEMON.fullmatch(daemon)
        if own is None or own["number"] != "0":
            _refuse(found, f"not on the host of mpirun ({hosts[0]}), which is the only place that all ranks know")
    ports = candidate_ports(found.job, 0)
    addresses = tuple((host, port) for port in ports for host in hosts)
    return Place(found.rank, found.world, found.local_rank, addresses, "rank 0", found.job)


def _mpirun_hosts(env: Env) -> list[str]:
    """Name or addresses of the host where mpirun runs: 5.x names it in the job's name, 4.x lists addresses."""
    named = _PRTE_NAMESPACE.fullmatch(env.get("PMIX_NAMESPACE", ""))
    if named is not None:
        return [named["host"]]
    hosts: list[str] = []
    for found in _TCP_HOSTS.finditer(env.get("OMPI_MCA_orte_hnp_uri", "")):
        hosts += [host.strip("[]") for host in found["hosts"].split(",") if host]
    return hosts


# ---- Hydra: MPICH, Intel MPI ----


def _hydra(env: Env) -> Started:
    rank, world = rank_and_world(env, "PMI_RANK", "PMI_SIZE")
    return Started("MPICH's or Intel MPI's mpiexec", rank, world, number(env, "MPI_LOCALRANKID", rank))


def _meet_hydra(env: Env, found: Started) -> Place:
    if "PMI_FD" not in env:
        _refuse(found, "PMI_FD, by which ranks tell each other addresses, is not set")
    if number(env, "MPI_LOCALNRANKS", 0) != found.world:
        return Place(found.rank, found.world, found.local_rank, (), "rank 0", found.job, pmi=True)
    # PMI is left alone where loopback will do: a rank that has spoken it and is killed takes all others along.
    job = f"Hydra {_proxy(env, found)}"
    return _at(LOOPBACK, replace(found, job=job))


def _proxy(env: Env, found: Started) -> str:
    """The process of mpiexec at the other end of PMI_FD: the same for all ranks of a host, and for no other job."""
    try:
        with socket.socket(fileno=os.dup(number(env, "PMI_FD"))) as connection:
            record = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid = struct.unpack("3i", record)[0]
        # The start time, in clock ticks since boot, stands 20 fields after the name, which may hold blanks.
        start = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError as error:
        _refuse(found, f"PMI_FD={env.get('PMI_FD')} does not lead to its proxy ({error.strerror})")
    return f"{pid} {start}"


# ---- Slurm ----


def _slurm_at_work(env: Env) -> bool:
    # Not SLURM_NTASKS: a batch script has that too, and whatever it starts without srun is no task of a step.
    return "SLURM_PROCID" in env and "SLURM_STEP_NUM_TASKS" in env


def _slurm(env: Env) -> Started:
    rank, world = rank_and_world(env, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
    names = ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID")
    job = "Slurm " + " ".join(env.get(name, "") for name in names)
    return Started("Slurm", rank, world, number(env, "SLURM_LOCALID", rank), job)


def _meet_slurm(env: Env, found: Started) -> Place:
    text = env.get("SLURM_STEP_NODELIST", "")
    if not env.get("SLURM_JOB_ID") or not env.get("SLURM_STEP_ID"):
        _refuse(found, "SLURM_JOB_ID and SLURM_STEP_ID, which tell its jobs apart, are not both set")
    try:
        hosts = expand(text)
    except ValueError as error:
        _refuse(found, f"SLURM_STEP_NODELIST does not tell its hosts: {error}")
    if len(hosts) == 1:
        return _at(LOOPBACK, found)
    if found.rank == 0 and number(env, "SLURM_NODEID", 0) != 0:
        _refuse(found, f"not on the first host of its step ({hosts[0]}), where the others look for it")
    return _at(hosts[0], found)


LAUNCHERS = (
    Launcher("torchrun", lambda env: "RANK" in env and "WORLD_SIZE" in env, _torchrun, _meet_torchrun),
    Launcher("Open MPI", lambda env: "OMPI_COMM_WORLD_SIZE" in env, _open_mpi, _meet_open_mpi),
    Launcher(
        "MPICH's or Intel MPI's mpiexec",
        lambda env: "PMI_SIZE" in env and ("MPI_LOCALNRANKS" in env or not _slurm_at_work(env)),
        _hydra,
        _meet_hydra,
    ),
    Launcher("Slurm", _slurm_at_work, _slurm, _meet_slurm),
)
