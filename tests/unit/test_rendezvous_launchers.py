"""What launchers set, replayed: rank, world, and the place where all ranks of a job can meet."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.rendezvous_ranks import LONG_S, SECRET, all_ranks, free_port

from rdmaring.rendezvous import Place, RendezvousError, detect, join
from rdmaring.rendezvous.environment import is_described
from rdmaring.rendezvous.hostlist import expand

# As seen under mpirun of 5.0 and of 4.1, on two hosts; the second host's daemon is number 1.
OPEN_MPI_5 = {
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-login-node-7-12478@1",
    "PMIX_SERVER_URI2": "prterun-login-node-7-12478@0.0;tcp4://127.0.0.1:59909",
}
OPEN_MPI_4 = {
    **OPEN_MPI_5,
    "PMIX_NAMESPACE": "1361903617",
    "PMIX_SERVER_URI2": "1361903616.0;tcp4://127.0.0.1:47821",
    "OMPI_MCA_orte_hnp_uri": "1361903616.0;tcp://192.0.2.2,198.51.100.7:60521;tcp6://[fd00::2]:54925",
    "OMPI_MCA_orte_local_daemon_uri": "1361903616.0;tcp://192.0.2.2,198.51.100.7:60521;tcp6://[fd00::2]:54925",
}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "4", "PMI_FD": "7", "MPI_LOCALNRANKS": "2", "MPI_LOCALRANKID": "1"}
SLURM = {
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "node[01-02]",
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_CLUSTER_NAME": "c",
}
NOBODY = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}


def hosts(place: Place) -> set[str]:
    return {host for host, _ in place.addresses}


# ---- where ranks on several hosts meet ----


def test_open_mpi_5_ranks_meet_on_the_host_of_mpirun() -> None:
    place = detect(OPEN_MPI_5)
    assert (place.rank, place.world, place.local_rank, place.hosted_by) == (0, 4, 0, "rank 0")
    assert hosts(place) == {"login-node-7"}
    elsewhere = {"PMIX_SERVER_URI2": "prterun-login-node-7-12478@0.1;tcp4://127.0.0.1:5", "OMPI_COMM_WORLD_RANK": "3"}
    other = detect(OPEN_MPI_5 | elsewhere)
    assert (other.addresses, other.job) == (place.addresses, place.job)


def test_open_mpi_4_ranks_meet_at_an_address_of_the_host_of_mpirun() -> None:
    place = detect(OPEN_MPI_4)
    assert hosts(place) == {"192.0.2.2", "198.51.100.7", "fd00::2"}
    other = detect(OPEN_MPI_4 | {"OMPI_COMM_WORLD_RANK": "2", "OMPI_MCA_orte_local_daemon_uri": "1361903616.1;x"})
    assert (other.addresses, other.job) == (place.addresses, place.job)


@pytest.mark.parametrize("env", [OPEN_MPI_5, OPEN_MPI_4], ids=["5", "4"])
def test_rank_0_away_from_mpirun_is_refused_with_what_to_set(env: dict[str, str]) -> None:
    away = {name: value.replace("@0.0;", "@0.1;").replace("616.0;", "616.1;") for name, value in env.items()}
    away["OMPI_MCA_orte_hnp_uri"] = env.get("OMPI_MCA_orte_hnp_uri", "")
    with pytest.raises(
        RendezvousError, match=r"rank 0 of 4, but not on the host of mpirun \((login-node-7|192[.]0[.]2[.]2)\)"
    ) as caught:
        detect(away)
    assert "RDMARING_RENDEZVOUS=host:port" in caught.value.hint


def test_slurm_ranks_meet_on_the_first_host_of_their_step() -> None:
    place = detect(SLURM)
    assert (place.rank, place.world, place.local_rank, place.hosted_by) == (1, 4, 1, "rank 0")
    assert hosts(place) == {"node01"}
    assert detect(SLURM | {"SLURM_PROCID": "3", "SLURM_NODEID": "1"}).addresses == place.addresses


def test_hydras_ranks_on_several_hosts_meet_by_pmi() -> None:
    place = detect(HYDRA)
    assert (place.rank, place.world, place.local_rank, place.addresses, place.pmi) == (1, 4, 1, (), True)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (
            {**SLURM, "SLURM_STEP_NODELIST": "node[1"},
            r"SLURM_STEP_NODELIST does not tell its hosts: host list 'node\[1'",
        ),
        ({**SLURM, "SLURM_PROCID": "0", "SLURM_NODEID": "1"}, r"rank 0 of 4, but not on the first host of its step"),
        ({**SLURM, "SLURM_STEP_ID": ""}, "SLURM_JOB_ID and SLURM_STEP_ID"),
        ({**HYDRA, "PMI_SIZE": "2", "PMI_FD": "999"}, "PMI_FD=999 does not lead to its proxy"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "PMI_FD, by which ranks tell"),
        ({**OPEN_MPI_5, "PMIX_NAMESPACE": "strange"}, "do not tell where mpirun runs"),
        ({**OPEN_MPI_5, "OMPI_COMM_WORLD_RANK": "4"}, "OMPI_COMM_WORLD_RANK is 4, but OMPI_COMM_WORLD_SIZE is 4"),
        ({**SLURM, "SLURM_PROCID": "x"}, "SLURM_PROCID is 'x'"),
        ({"RDMARING_RENDEZVOUS": "h:5"}, "nothing tells this process its rank"),
    ],
)
def test_what_gives_no_place_is_refused_in_words(env: dict[str, str], words: str) -> None:
    with pytest.raises(RendezvousError, match=words):
        detect(env)


LAUNCHED = {"Open MPI 5": OPEN_MPI_5, "Open MPI 4": OPEN_MPI_4, "Hydra": HYDRA, "Slurm": SLURM}


@pytest.mark.parametrize("name", LAUNCHED)
def test_one_variable_gives_the_place_and_the_launcher_the_rest(name: str) -> None:
    env = LAUNCHED[name] | {"RDMARING_RENDEZVOUS": "node9:5"}
    place = detect(env)
    assert (place.world, place.addresses, place.hosted_by, place.pmi) == (4, (("node9", 5),), "rank 0", False)
    own = env | {"RDMARING_RANK": "2", "RDMARING_WORLD_SIZE": "3"}
    assert (detect(own).rank, detect(own).world) == (2, 3)


@pytest.mark.parametrize("name", [name for name in LAUNCHED if name != "Hydra"])
def test_two_jobs_of_a_launcher_look_at_unlike_ports_and_prove_unlike_things(name: str) -> None:
    one = LAUNCHED[name]
    other = {key: value.replace("1361903", "99").replace("12478", "99") for key, value in one.items()}
    other |= {"SLURM_STEP_ID": "1"} if name == "Slurm" else {}
    assert detect(one).job != detect(other).job
    assert set(detect(one).addresses) != set(detect(other).addresses)


@pytest.mark.parametrize(
    "env",
    [
        NOBODY,
        {"PMI_RANK": "0", "PMI_SIZE": "1"},
        {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
        # A batch script has these, but no step: what it starts without srun is alone.
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "77"},
    ],
)
def test_a_world_of_one_needs_no_place(env: dict[str, str]) -> None:
    assert (detect(env).world, detect(env).hosted_by) == (1, "nobody")
    assert not is_described(env)


def test_launchers_inside_launchers() -> None:
    """The innermost wins: mpirun in a batch job or under srun's proxies, torchrun under srun."""
    torchrun = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "5"}
    assert detect(SLURM | OPEN_MPI_5).world == 4
    assert hosts(detect(SLURM | OPEN_MPI_5)) == {"login-node-7"}
    assert detect(SLURM | HYDRA).pmi
    assert hosts(detect(SLURM | torchrun)) == {"h"}
    # srun --mpi=pmi2 sets PMI_* too, but no proxy's variables.
    assert hosts(detect(SLURM | {"PMI_RANK": "1", "PMI_SIZE": "4", "PMI_FD": "7"})) == {"node01"}


# ---- on one host, for real ----


def one_host(name: str, rank: int, proxy: socket.socket) -> Mapping[str, str]:
    secret = {"RDMARING_SECRET": SECRET.decode()}
    if name == "Open MPI":
        own = {"OMPI_COMM_WORLD_LOCAL_SIZE": "4", "OMPI_COMM_WORLD_RANK": str(rank)}
        return OPEN_MPI_5 | {"PMIX_NAMESPACE": f"prterun-h-{os.getpid()}@1"} | own | secret
    if name == "Slurm":
        own = {"SLURM_STEP_NODELIST": "node7", "SLURM_PROCID": str(rank), "SLURM_JOB_ID": str(os.getpid())}
        return SLURM | own | secret
    return HYDRA | {"MPI_LOCALNRANKS": "4", "PMI_FD": str(proxy.fileno()), "PMI_RANK": str(rank)} | secret


@pytest.mark.parametrize("name", ["Open MPI", "Hydra", "Slurm"])
def test_ranks_of_one_host_meet_on_loopback(name: str) -> None:
    ends = [socket.socketpair() for _ in range(4)]

    def body(rank: int) -> bytes:
        env = one_host(name, rank, ends[rank][0])
        assert hosts(detect(env)) == {"127.0.0.1"}
        with join(timeout_s=LONG_S, env=env) as meeting:
            return meeting.exchange(b"%d" % rank)

    try:
        assert all_ranks(4, body) == [b"0123"] * 4
    finally:
        for pair in ends:
            pair[0].close()
            pair[1].close()


@pytest.mark.parametrize("name", LAUNCHED)
def test_one_variable_is_enough_to_meet(name: str) -> None:
    address = f"127.0.0.1:{free_port()}"
    variable = {"Hydra": "PMI_RANK", "Slurm": "SLURM_PROCID"}.get(name, "OMPI_COMM_WORLD_RANK")

    def body(rank: int) -> bytes:
        env = LAUNCHED[name] | {variable: str(rank), "RDMARING_RENDEZVOUS": address, "RDMARING_SECRET": "s"}
        with join(timeout_s=LONG_S, env=env) as meeting:
            return meeting.exchange(b"%d" % rank)

    assert all_ranks(4, body) == [b"0123"] * 4


# ---- host lists ----


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", ["a"]),
        ("node[01-03,7],gpu5", ["node01", "node02", "node03", "node7", "gpu5"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("r[0-1]n[1,3]-ib", ["r0n1-ib", "r0n3-ib", "r1n1-ib", "r1n3-ib"]),
        ("b,a[2-2],c.example", ["b", "a2", "c.example"]),
    ],
)
def test_host_lists_are_written_out(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    "text",
    ["", ",", "a,", ",a", "a,,b", "n[", "n]", "n[]", "n[1", "n[a]", "n[2-1]", "n[1-2-3]", "n[[1]]", "a b", "n[1-]"],
)
def test_what_is_no_host_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="host list"):
        expand(text)


@pytest.mark.parametrize(
    "text", ["n[0-999999999]", "n[0-9][0-9][0-9][0-9][0-9]", "a[0-65534],b,c", "n[" + "1," * 70000 + "1]"]
)
def test_a_host_list_does_not_grow_without_bound(text: str) -> None:
    with pytest.raises(ValueError, match="host"):
        expand(text)


@given(st.text(alphabet="ab[]-,019 ", max_size=30))
def test_a_damaged_host_list_is_refused_or_read_but_never_anything_else(text: str) -> None:
    try:
        names = expand(text, hosts_max=1000)
    except ValueError:
        return
    assert 1 <= len(names) <= 1000
    assert all(name and not set(name) & set("[], ") for name in names)


@given(
    prefix=st.sampled_from(["n", "node-", "a0b"]),
    first=st.integers(0, 999),
    count=st.integers(1, 50),
    width=st.integers(1, 5),
)
def test_a_range_is_every_number_in_order(prefix: str, first: int, count: int, width: int) -> None:
    low, high = f"{first:0{width}}", f"{first + count - 1:0{width}}"
    assert expand(f"{prefix}[{low}-{high}]") == [f"{prefix}{n:0{width}}" for n in range(first, first + count)]
