"""Rank 0 tells where it listens by what the program already has: a store, an MPI communicator, the launcher's PMI."""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.managers import SyncManager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.rendezvous_ranks import LONG_S, DictStore, all_ranks, store_rank

from rdmaring.rendezvous import RendezvousError, join, pmi
from rdmaring.rendezvous.boards import RECORD_BYTES_MAX, Record, decode_record, encode_failure, encode_record, proof_of
from rdmaring.rendezvous.interfaces import nearest_first, own_addresses
from rdmaring.rendezvous.pmi import PmiBoard

ONE_SECRET = {"RDMARING_SECRET": "s"}


class MpiWorld:
    """What ranks as threads share in place of MPI."""

    def __init__(self, size: int) -> None:
        self.size, self.barrier, self.sent = size, threading.Barrier(size), b""

    def comm(self, rank: int) -> MpiComm:
        return MpiComm(self, rank)


class MpiComm:
    """The part of an mpi4py communicator that is used."""

    def __init__(self, world: MpiWorld, rank: int) -> None:
        self.world, self.rank = world, rank

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return self.world.size

    def Bcast(self, buffer: bytearray, root: int) -> None:
        if self.rank == root:
            self.world.sent = bytes(buffer)
        self.world.barrier.wait(LONG_S)
        assert len(buffer) == len(self.world.sent)
        buffer[:] = self.world.sent
        self.world.barrier.wait(LONG_S)


# ---- a store ----


def test_processes_meet_by_a_store_again_and_again() -> None:
    context = multiprocessing.get_context("spawn")
    with SyncManager(ctx=context) as manager:
        shared, answers = manager.dict(), manager.Queue()
        processes = [context.Process(target=store_rank, args=(rank, 3, shared, answers)) for rank in range(3)]
        for process in processes:
            process.start()
        try:
            found = sorted(answers.get(timeout=60) for _ in processes)
        finally:
            for process in processes:
                process.join(20)
                process.kill()
        assert found == [(rank, b"012", b"987") for rank in range(3)]
        assert sorted(shared.keys()) == ["rdmaring/1", "rdmaring/2"]


def by_store(world: int, env: Callable[[int], dict[str, str]], shared: dict[str, bytes] | None = None) -> list[object]:
    kept: dict[str, bytes] = {} if shared is None else shared

    def body(rank: int) -> bytes:
        with join(rank, world, None, 5.0, env(rank), store=DictStore(kept, 5.0)) as meeting:
            return meeting.exchange(b"%d" % rank)

    return all_ranks(world, body)


def test_the_store_carries_a_fresh_secret_and_no_file_is_made(tmp_path: Any) -> None:
    secrets = set()
    for _ in range(2):
        shared: dict[str, bytes] = {}
        assert by_store(2, lambda rank: {"XDG_CONFIG_HOME": str(tmp_path)}, shared) == [b"01", b"01"]
        secrets.add(json.loads(shared["rdmaring/1"])["secret"])
    assert len(secrets) == 2
    assert all(len(bytes.fromhex(secret)) == 32 for secret in secrets)
    assert list(tmp_path.iterdir()) == []


def test_a_secret_of_the_environment_goes_before_and_is_not_put_there() -> None:
    shared: dict[str, bytes] = {}
    assert by_store(2, lambda rank: {"RDMARING_SECRET": "own secret"}, shared) == [b"01", b"01"]
    assert b"own secret" not in shared["rdmaring/1"]
    assert json.loads(shared["rdmaring/1"])["secret"] == ""


@pytest.mark.parametrize("other", [{}, {"RDMARING_SECRET": "t"}])
def test_another_secret_than_rank_0s_is_told_at_once(other: dict[str, str]) -> None:
    began = time.monotonic()
    shared: dict[str, bytes] = {}

    def body(rank: int) -> None:
        join(rank, 2, None, 2.0, other if rank else ONE_SECRET, store=DictStore(shared))

    errors = all_ranks(2, body)
    assert "rank 0 has another secret than this rank" in str(errors[1])
    assert isinstance(errors[0], RendezvousError)
    assert errors[0].missing_ranks == (1,)
    assert time.monotonic() - began < 5


def test_rank_and_world_may_come_from_the_launcher_that_has_no_place() -> None:
    launched = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}  # two hosts, nothing else known
    shared: dict[str, bytes] = {}

    def body(rank: int) -> bytes:
        env = launched | {"OMPI_COMM_WORLD_RANK": str(rank)}
        with join(timeout_s=LONG_S, env=env, store=DictStore(shared)) as meeting:
            return meeting.exchange(b"%d" % rank)

    assert all_ranks(2, body) == [b"01", b"01"]


def test_a_store_that_stays_empty_is_told_in_words() -> None:
    with pytest.raises(RendezvousError, match=r"did not give 'rdmaring/1', which rank 0 sets: TimeoutError") as caught:
        join(1, 2, None, LONG_S, {}, store=DictStore({}, timeout_s=0.1))
    assert caught.value.missing_ranks == (0,)


def test_a_stores_own_wait_bounds_the_time() -> None:
    class Waiting(DictStore):
        def wait(self, keys: list[str], timeout: Any) -> None:
            raise RuntimeError(f"waited {timeout.total_seconds():g} s for {keys}")

    with pytest.raises(RendezvousError, match=r"waited 7 s for \['rdmaring/1'\]"):
        join(1, 2, None, 7.0, {}, store=Waiting({}))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"store": object()}, "store is <object.*expected an object with set"),
        ({"store": DictStore({})}, "store is given without rank and world"),
        ({"mpi": "world"}, "mpi is 'world', expected an mpi4py communicator"),
        ({"mpi": MpiComm(MpiWorld(3), 1), "rank": 0, "world": 3}, r"rank and world are \(0, 3\), but .* \(1, 3\)"),
        ({"mpi": MpiComm(MpiWorld(3), 1), "address": "h:1"}, "address and mpi are given"),
        ({"mpi": MpiComm(MpiWorld(3), 1), "store": DictStore({})}, "store and mpi are given"),
    ],
)
def test_wrong_arguments_are_told_in_words(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        join(**arguments, env={})


def test_a_store_that_gives_text_is_refused() -> None:
    with pytest.raises(ValueError, match="returned str, expected bytes"):
        join(1, 2, env={}, store=DictStore({"rdmaring/1": "text"}))  # type: ignore[dict-item]


# ---- an MPI communicator ----


@pytest.mark.parametrize("env", [{}, ONE_SECRET])
def test_ranks_meet_by_an_mpi_communicator(env: dict[str, str]) -> None:
    world = MpiWorld(3)

    def body(rank: int) -> bytes:
        with join(timeout_s=LONG_S, env=env, mpi=world.comm(rank)) as meeting:
            assert (meeting.rank, meeting.world) == (rank, 3)
            return meeting.exchange(b"%d" % rank)

    for _ in range(2):
        assert all_ranks(3, body) == [b"012"] * 3


def test_a_communicator_of_one_needs_nobody() -> None:
    with join(env={}, mpi=MpiWorld(1).comm(0)) as meeting:
        assert meeting.exchange(b"alone") == b"alone"


def test_all_hear_why_rank_0_cannot_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(port: int) -> None:
        raise OSError(98, "Address already in use")

    monkeypatch.setattr(importlib.import_module("rdmaring.rendezvous.join"), "listen_everywhere", full)
    world = MpiWorld(2)
    errors = all_ranks(2, lambda rank: join(timeout_s=LONG_S, env={}, mpi=world.comm(rank)))
    assert str(errors[0]) == "rank 0 cannot listen: Address already in use"
    assert str(errors[1]) == "rank 0 failed: rank 0 cannot listen: Address already in use"


# ---- the launcher's PMI ----


class Hydra:
    """mpiexec's end of PMI-1, for ranks as threads; how it answers can be changed."""

    def __init__(self, world: int) -> None:
        self.pairs = [socket.socketpair() for _ in range(world)]
        self.barrier = threading.Barrier(world)
        self.space: dict[str, str] = {}
        self.asked: list[list[str]] = [[] for _ in range(world)]
        self.answers: dict[str, bytes] = {}
        self.threads = [threading.Thread(target=self.serve, args=(rank,)) for rank in range(world)]
        for thread in self.threads:
            thread.start()

    def serve(self, rank: int) -> None:
        with self.pairs[rank][1] as connection, connection.makefile("rb") as lines:
            for line in lines:
                fields = dict(word.partition("=")[::2] for word in line.decode().split())
                self.asked[rank].append(fields["cmd"])
                answer = self.answers.get(fields["cmd"])
                if answer == b"":
                    return
                try:
                    connection.sendall(answer or self.answer(fields))
                except (threading.BrokenBarrierError, BrokenPipeError):
                    return

    def answer(self, fields: dict[str, str]) -> bytes:
        command = fields["cmd"]
        if command == "put":
            self.space[fields["key"]] = fields["value"]
        if command == "barrier_in":
            self.barrier.wait(LONG_S)
        known = {
            "init": "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1",
            "get_my_kvsname": "cmd=my_kvsname rc=0 kvsname=kvs_1_0",
            "put": "cmd=put_result rc=0",
            "barrier_in": "cmd=barrier_out tag=0",
            "get": f"cmd=get_result rc=0 msg=success value={self.space.get(fields.get('key', ''), '')}",
            "finalize": "cmd=finalize_ack",
        }
        return known[command].encode() + b"\n"

    def close(self) -> None:
        for pair in self.pairs:
            pair[0].close()
            with contextlib.suppress(OSError):  # its thread has closed it
                pair[1].shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join()


def talk_of(hydra: Hydra, rank: int, monkeypatch: pytest.MonkeyPatch) -> PmiBoard:
    monkeypatch.setattr(pmi, "_talk", None)
    return PmiBoard({"PMI_FD": str(hydra.pairs[rank][0].fileno())})


def test_a_record_passes_by_pmi_and_the_descriptor_blocks_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    hydra = Hydra(1)
    try:
        board = talk_of(hydra, 0, monkeypatch)
        for size in (1, 2, 3, board.record_bytes_max):
            record = os.urandom(size)
            assert board.pass_on(record, LONG_S) == record
        assert os.get_blocking(hydra.pairs[0][0].fileno())
        assert hydra.asked[0] == ["init", "get_my_kvsname", *["put", "barrier_in", "get"] * 4]
        assert max(len(value) for value in hydra.space.values()) <= pmi.VALUE_CHARS_MAX
        assert list(hydra.space) == [f"rdmaring-{turn}" for turn in range(1, 5)]
    finally:
        hydra.close()


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({"init": b""}, "closed its PMI"),
        ({"init": b"x" * 20000}, "answers without end"),
        ({"init": b"cmd=response_to_init rc=-1\n"}, "answered PMI's init with 'cmd=response_to_init rc=-1'"),
        ({"get": b"cmd=get_result rc=0 value=A\n"}, "damaged"),
        ({"barrier_in": b"nonsense\n"}, "answered PMI's barrier_in with 'nonsense'"),
    ],
)
def test_a_pmi_that_fails_is_told_in_words(
    answers: dict[str, bytes], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hydra = Hydra(1)
    try:
        hydra.answers = answers
        with pytest.raises(RendezvousError, match=words) as caught:
            talk_of(hydra, 0, monkeypatch).pass_on(b"record", LONG_S)
        assert "RDMARING_RENDEZVOUS=host:port" in caught.value.hint
    finally:
        hydra.close()


def test_ranks_that_do_not_come_to_pmis_barrier_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    hydra = Hydra(2)
    try:
        with pytest.raises(RendezvousError, match="not all ranks of this mpiexec came") as caught:
            talk_of(hydra, 0, monkeypatch).pass_on(b"record", 0.2)
        assert caught.value.timed_out
    finally:
        hydra.barrier.abort()
        hydra.close()


# ---- what is passed on ----

RECORD = Record(("h1", "h2"), 29400, "boot", "nonce", proof_of(b"s", "nonce"))


@given(st.binary(max_size=300))
def test_a_damaged_record_is_refused(body: bytes) -> None:
    with pytest.raises(RendezvousError, match="damaged"):
        decode_record(body, b"s")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("port", 0),
        ("port", 1 << 16),
        ("hosts", "h"),
        ("hosts", ["h"] * 17),
        ("hosts", [5]),
        ("host", "x" * 300),
        ("job", 1),
    ],
)
def test_a_field_out_of_bounds_is_refused(field: str, value: object) -> None:
    fields = json.loads(encode_record(RECORD, RECORD_BYTES_MAX)) | {field: value}
    with pytest.raises(RendezvousError, match="damaged"):
        decode_record(json.dumps(fields).encode(), b"s")


def test_a_record_of_another_version_is_told_so() -> None:
    with pytest.raises(RendezvousError, match="speaks protocol version 1, this rank's 2"):
        decode_record(b'{"rdmaring": 1}', b"s")


@pytest.mark.parametrize("bytes_max", [300, 765, RECORD_BYTES_MAX])
def test_hosts_that_do_not_fit_are_left_out_from_behind(bytes_max: int) -> None:
    many = Record(tuple(f"host{n:036}" for n in range(40)), 29400, "boot", "nonce", proof_of(b"s", "nonce"))
    body = encode_record(many, bytes_max)
    assert len(body) <= bytes_max
    found, secret = decode_record(body, b"s")
    assert found.hosts == many.hosts[: len(found.hosts)]
    assert len(found.hosts) == min(16, (bytes_max - len(encode_record(many, 0))) // 43)
    assert secret == b"s"


def test_a_long_failure_is_cut() -> None:
    body = encode_failure(RendezvousError("why " * 1000), 765)
    assert len(body) <= 765
    with pytest.raises(RendezvousError, match="rank 0 failed: why why"):
        decode_record(body, None)


def test_own_addresses_are_of_use_to_others() -> None:
    """Each can be bound here; none is loopback or needs an interface's name."""
    addresses = own_addresses()
    assert len(set(addresses)) == len(addresses)
    for address in addresses:
        assert not address.startswith(("127.", "169.254.", "fe80:")) and address != "::1"
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family) as probe:
            probe.bind((address, 0))


def test_addresses_of_our_own_networks_are_tried_first() -> None:
    own = ["10.1.0.7", "192.168.5.2", "fd00:1::7"]
    hosts = ["node7", "172.17.0.1", "fd00:2::1", "10.1.9.9", "192.168.5.9", "fd00:1::9", "2001:db8::1"]
    found = nearest_first(hosts, own)
    assert set(found[:2]) == {"192.168.5.9", "fd00:1::9"}
    assert found[2] == "10.1.9.9"
    assert found[-1] == "node7"
    assert sorted(found) == sorted(hosts)
    assert nearest_first(hosts, []) == [*hosts[1:], "node7"]


def test_a_record_does_not_show_its_secret() -> None:
    assert "hidden" not in repr(Record((), 1, "h", "j", "p", "hidden"))


def test_threads_of_one_process_may_join_by_stores_of_their_own() -> None:
    """Rounds are counted for each store object, and counts end with it."""
    for _ in range(3):
        assert by_store(2, lambda rank: {}) == [b"01", b"01"]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: by_store(2, lambda rank: {}), range(4))) == [[b"01", b"01"]] * 4
