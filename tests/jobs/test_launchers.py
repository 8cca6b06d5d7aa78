"""Launchers as they are: Open MPI, MPICH, Intel MPI, torchrun and Slurm start ranks that find each other."""

from __future__ import annotations

import json
import socket
import textwrap
from pathlib import Path
from typing import Any

import pytest
from launchers import (
    PRELUDE,
    PYTHON,
    RDMARING,
    ROOT,
    TIMEOUT_S,
    TWICE,
    Mpi,
    Ran,
    check_sums,
    installed,
    packages_of,
    run,
    said,
    slurm,
)


@pytest.fixture(scope="module", params=["openmpi", "mpich", pytest.param("impi", marks=pytest.mark.long)])
def mpi(request: pytest.FixtureRequest) -> Mpi:
    return Mpi(request.param)


@pytest.fixture(scope="module", params=["mpich", pytest.param("impi", marks=pytest.mark.long)])
def hydra(request: pytest.FixtureRequest) -> Mpi:
    return Mpi(request.param)


# In place of ssh: Hydra's proxies of "two hosts" run beside each other here; what they say is what passes there.
AGENT = """#!/bin/sh
while case "$1" in -*) true ;; *) false ;; esac; do shift; done
shift
exec sh -c "$*"
"""


@pytest.fixture
def two_hosts(tmp_path: Path) -> tuple[str, ...]:
    agent = tmp_path / "agent"
    agent.write_text(AGENT)
    agent.chmod(0o755)
    return ("-launcher", "ssh", "-launcher-exec", str(agent), "-hosts", "hosta,hostb", "-ppn", "2")


def test_ranks_of_mpirun_find_each_other(mpi: Mpi, tmp_path: Path) -> None:
    check_sums(mpi.run(tmp_path, 3, TWICE), 3)


def test_a_world_of_one_under_mpirun(mpi: Mpi, tmp_path: Path) -> None:
    check_sums(mpi.run(tmp_path, 1, TWICE), 1)


def test_an_mpi_communicator_is_enough(mpi: Mpi, tmp_path: Path) -> None:
    ran = mpi.run(
        tmp_path,
        3,
        """
        from mpi4py import MPI
        half = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank == 2)
        with rr.init(mpi=MPI.COMM_WORLD, timeout_s=30) as comm, rr.init(mpi=half, timeout_s=30) as part:
            assert (comm.rank, part.size) == (MPI.COMM_WORLD.rank, 1 if comm.rank == 2 else 2)
            sums(comm)
            sums(comm)
        """,
    )
    check_sums(ran, 3)


def test_ranks_of_mpiexec_on_several_hosts_meet_by_pmi(hydra: Mpi, tmp_path: Path, two_hosts: tuple[str, ...]) -> None:
    check_sums(hydra.run(tmp_path, 3, TWICE, *two_hosts), 3)


def test_mpi_can_be_initialised_after_a_meeting_by_pmi(hydra: Mpi, tmp_path: Path, two_hosts: tuple[str, ...]) -> None:
    ran = hydra.run(tmp_path, 3, TWICE + "from mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\n", *two_hosts)
    check_sums(ran, 3)


def test_pmi_is_left_to_an_mpi_library_that_is_there_first(
    hydra: Mpi, tmp_path: Path, two_hosts: tuple[str, ...]
) -> None:
    ran = hydra.run(
        tmp_path,
        2,
        """
        from mpi4py import MPI
        try:
            rr.init(timeout_s=30)
        except rr.SetupError as error:
            say(text=str(error), hint=error.hint)
        """,
        *two_hosts[:-1],
        "1",
    )
    assert ran.code == 0, ran.output
    for each in said(ran):
        assert "an MPI library is in this process" in each["text"]
        assert "mpi=MPI.COMM_WORLD" in each["hint"] and "RDMARING_RENDEZVOUS=host:port" in each["hint"]
    assert len(said(ran)) == 2


def test_one_variable_says_where_ranks_meet(hydra: Mpi, tmp_path: Path, two_hosts: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    check_sums(hydra.run(tmp_path, 3, TWICE, *two_hosts, RDMARING_RENDEZVOUS=f"127.0.0.1:{port}"), 3)


def test_two_jobs_at_once_do_not_mix(mpi: Mpi, tmp_path: Path) -> None:
    """Each job of three starts a second one of two meanwhile, from its rank 0."""
    inner = tmp_path / "inner"
    inner.mkdir()
    script = inner / "ranks.py"
    script.write_text(PRELUDE + TWICE)
    command = [*mpi.command(2), str(script)]
    ran = mpi.run(
        tmp_path,
        3,
        f"""
        import re, subprocess
        with rr.init(timeout_s=30) as comm:
            sums(comm)
            if comm.rank == 0:
                launchers = r"(OMPI_(?!ALLOW)|PMIX?_|PRTE_|HYD|MPI_|I_MPI_)"
                env = {{k: v for k, v in os.environ.items() if not re.match(launchers, k)}}
                command = {command!r}
                inner = subprocess.run(command, env=env, capture_output=True, text=True, timeout=40)
                ranks = re.findall(r"SAY (.*)", inner.stdout)
                say(inner=[json.loads(text)["size"] for text in ranks], code=inner.returncode, err=inner.stderr[-500:])
            comm.barrier(timeout_s=40)
        """,
    )
    assert ran.code == 0, ran.output
    nested = [each for each in said(ran) if "inner" in each]
    assert [(each["inner"], each["code"]) for each in nested] == [([2] * 4, 0)], ran.output
    assert sorted(each["rank"] for each in said(ran) if "rank" in each) == [0, 1, 2]


# ---- the same weights ----

TRAIN = (str(ROOT / "scripts" / "train_digits.py"), "--mode", "overlapped", "--epochs", "2", "--target", "0", "--json")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """SHA-256 of what two ranks of `rdmaring run` learn, each rank's."""
    path = tmp_path_factory.mktemp("train") / "run.json"
    ran = run([RDMARING, "run", "-n", "2", *TRAIN, str(path)], {}, TIMEOUT_S)
    assert ran.code == 0, ran.output
    return digests(path)


def digests(path: Path) -> list[str]:
    found = json.loads(path.read_text())["runs"][0]["weights_sha256"]
    assert len(found) == 2
    return list(found)


def test_training_gives_the_same_weights_under_mpirun(mpi: Mpi, weights: list[str], tmp_path: Path) -> None:
    path = tmp_path / "mpi.json"
    ran = run([*mpi.command(2), *TRAIN, str(path)], mpi.env({}), TIMEOUT_S)
    assert ran.code == 0, ran.output
    assert digests(path) == weights


# ---- torchrun ----


@pytest.fixture(scope="module")
def torch_packages() -> str:
    """A build without CUDA where an index has one: a fifth of the size."""
    try:
        return packages_of(installed("torch", "torch==2.13.0+cpu"))
    except pytest.skip.Exception:
        return packages_of(installed("torch-any", "torch"))


def torchrun(packages: str, world: int, *command: str) -> Ran:
    launcher = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world), "--no-python"]
    return run([*launcher, PYTHON, *command], {"PYTHONPATH": packages}, 2 * TIMEOUT_S)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_ranks_of_torchrun_find_each_other(torch_packages: str, tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(PRELUDE + TWICE)
    check_sums(torchrun(torch_packages, 3, str(script)), 3)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_training_gives_the_same_weights_under_torchrun(
    torch_packages: str, weights: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "torchrun.json"
    ran = torchrun(torch_packages, 2, *TRAIN, str(path))
    assert ran.code == 0, ran.output
    assert digests(path) == weights


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_torchs_own_store_is_enough(torch_packages: str, tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(
        PRELUDE
        + textwrap.dedent(
            """
            from torch.distributed import PrefixStore, TCPStore
            rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), size, is_master=False)
            mine = PrefixStore("mine", store)
            with rr.init(store=mine, timeout_s=30) as comm, rr.init(size - 1 - rank, size, store=mine) as again:
                sums(comm)
                assert again.rank == size - 1 - rank
                sums(again)
            """
        )
    )
    check_sums(torchrun(torch_packages, 3, str(script)), 3)


# ---- Slurm ----


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Any:
    ports = []
    for _ in range(2):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            ports.append(probe.getsockname()[1])
    with slurm(tmp_path_factory.mktemp("slurm"), (ports[0], ports[1])) as own:
        yield own


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("plugin", ["none", "pmi2"])
def test_ranks_of_srun_find_each_other(cluster: dict[str, str], tmp_path: Path, plugin: str) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(PRELUDE + TWICE)
    command = ["srun", f"--mpi={plugin}", "--overcommit", "-n", "3", PYTHON, str(script)]
    check_sums(run(command, cluster, TIMEOUT_S), 3)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_training_gives_the_same_weights_under_srun(
    cluster: dict[str, str], weights: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "srun.json"
    ran = run(["srun", "--overcommit", "-n", "2", PYTHON, *TRAIN, str(path)], cluster, TIMEOUT_S)
    assert ran.code == 0, ran.output
    assert digests(path) == weights
