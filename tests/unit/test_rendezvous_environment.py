"""Where a rank finds the rendezvous and the secret: arguments, launchers, the user's file."""

from __future__ import annotations

import socket
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from unit.rendezvous_ranks import LONG_S, SECRET, all_ranks, free_port, serving

from rdmaring.rendezvous import RendezvousError, detect, join
from rdmaring.rendezvous.launchers import CANDIDATE_COUNT, candidate_ports
from rdmaring.rendezvous.secret import load_secret, secret_path
from rdmaring.rendezvous.sockets import format_address

TORCHRUN = {
    "RANK": "0",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
}


def test_candidate_ports_are_distinct_stable_and_not_the_stores() -> None:
    ports = candidate_ports("job", taken=0)
    assert len(set(ports)) == CANDIDATE_COUNT
    assert ports == candidate_ports("job", taken=0)
    assert set(ports) != set(candidate_ports("other", taken=0))
    assert ports[0] not in candidate_ports("job", taken=ports[0])
    assert all(1024 < port < 32768 for port in ports)


def torchrun_env(port: int, rank: int) -> dict[str, str]:
    own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_PORT": str(port)}
    return TORCHRUN | own | {"RDMARING_SECRET": SECRET.decode()}


def test_torchrun_ranks_meet_beside_the_store() -> None:
    port = free_port()

    def body(rank: int) -> bytes:
        with join(timeout_s=LONG_S, env=torchrun_env(port, rank)) as meeting:
            assert meeting.rank == rank
            return meeting.exchange(b"%d" % rank)

    assert all_ranks(2, body) == [b"01", b"01"]


@pytest.mark.parametrize("kind", ["silent", "another job", "garbage"])
def test_a_foreign_server_at_a_candidate_port_confuses_nobody(kind: str) -> None:
    port = free_port()
    place = detect(torchrun_env(port, 1))

    def body(rank: int) -> bytes:
        with join(timeout_s=LONG_S, env=torchrun_env(port, rank)) as meeting:
            return meeting.exchange(b"%d" % rank)

    first = place.addresses[0]
    if kind == "another job":
        with serving(2, *first, job="another job"):
            assert all_ranks(2, body) == [b"01", b"01"]
        return
    with socket.create_server(first) as foreign:
        if kind == "garbage":
            foreign.settimeout(LONG_S)

            def answer() -> None:
                connection, _ = foreign.accept()
                with connection:
                    connection.sendall(b"SSH-2.0-x\r\n")
                    connection.recv(4096)

            threading.Thread(target=answer, daemon=True).start()
        assert all_ranks(2, body) == [b"01", b"01"]


def test_own_variables_go_before_torchruns() -> None:
    own = {"RDMARING_RANK": "3", "RDMARING_WORLD_SIZE": "4", "RDMARING_RENDEZVOUS": "127.0.0.1:5"}
    place = detect(TORCHRUN | own)
    assert (place.rank, place.world, place.local_rank, place.hosted_by) == (3, 4, 3, "rank 0")
    place = detect(TORCHRUN | own | {"RDMARING_RENDEZVOUS_HOSTED": "1", "RDMARING_LOCAL_RANK": "1"})
    assert (place.local_rank, place.addresses, place.hosted_by) == (1, (("127.0.0.1", 5),), "launcher")


def test_nothing_set_is_a_world_of_one() -> None:
    place = detect({})
    assert (place.rank, place.world, place.hosted_by) == (0, 1, "nobody")


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"RDMARING_RANK": "0"}, "RDMARING_WORLD_SIZE is not"),
        ({"RDMARING_WORLD_SIZE": "2"}, "RDMARING_RANK is not"),
        ({"RDMARING_RANK": "2", "RDMARING_WORLD_SIZE": "2"}, "count from 0"),
        ({"RDMARING_RANK": "-1", "RDMARING_WORLD_SIZE": "2"}, "'-1'"),
        ({"RDMARING_RANK": "0", "RDMARING_WORLD_SIZE": "2"}, "RDMARING_RENDEZVOUS"),
        ({"RDMARING_RANK": "0", "RDMARING_WORLD_SIZE": "2", "RDMARING_RENDEZVOUS": "x"}, "host:port"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR"),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, "Open MPI"),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "8"}, "Slurm"),
    ],
)
def test_a_wrong_environment_is_told_in_words(env: dict[str, str], words: str) -> None:
    with pytest.raises(RendezvousError, match=words):
        detect(env)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, None, None), "rank is given without world"),
        ((None, 2, None), "world is given without rank"),
        ((2, 2, "h:1"), "rank is 2, expected 0 to 1"),
        ((-1, 2, "h:1"), "rank is -1"),
        ((0, 0, "h:1"), "world is 0"),
        ((0, 2, None), "address is missing"),
        ((0, 2, "h"), "address 'h'"),
        ((None, None, "h:1"), "address is given without rank and world"),
    ],
)
def test_wrong_arguments_are_told_in_words(arguments: tuple[int, int, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        join(*arguments, env={})


def test_rank_0_says_that_its_port_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(RendezvousError, match="taken by another process") as caught:
            join(0, 2, format_address(taken.getsockname()), 0.3, env={"RDMARING_SECRET": "s"})
    assert caught.value.timed_out


def test_rank_0_says_that_the_address_is_not_its_own() -> None:
    with pytest.raises(RendezvousError, match=r"cannot listen at 192\.0\.2\.1:5"):  # a documentation address
        join(0, 2, "192.0.2.1:5", 0.3, env={"RDMARING_SECRET": "s"})


# ---- the secret ----


def test_the_secret_file_is_made_once_by_whoever_comes_first(tmp_path: Path) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    with ThreadPoolExecutor(16) as pool:
        secrets = set(pool.map(lambda _: load_secret(env), range(64)))
    assert len(secrets) == 1
    assert len(bytes.fromhex(secrets.pop().decode())) == 32
    path = secret_path(env)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["secret"]


def test_the_environment_goes_before_the_file(tmp_path: Path) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path), "RDMARING_SECRET": "given"}
    assert load_secret(env) == b"given"
    assert not (tmp_path / "rdmaring").exists()


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o400])
def test_a_secret_file_of_another_mode_is_refused(tmp_path: Path, mode: int) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    load_secret(env)
    secret_path(env).chmod(mode)
    with pytest.raises(RendezvousError, match=f"mode {mode:04o}"):
        load_secret(env)


def test_a_secret_file_that_is_a_link_or_empty_is_refused(tmp_path: Path) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    load_secret(env)
    path = secret_path(env)
    path.write_text("\n")
    with pytest.raises(RendezvousError, match="empty"):
        load_secret(env)
    path.unlink()
    (tmp_path / "elsewhere").write_text("x")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RendezvousError, match="secret"):
        load_secret(env)
