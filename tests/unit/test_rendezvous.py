"""The rendezvous: real sockets on loopback, ranks as threads, strangers among them."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdmaring.rendezvous import Rendezvous, RendezvousError, detect, join
from rdmaring.rendezvous.environment import CANDIDATE_COUNT, candidate_ports
from rdmaring.rendezvous.protocol import (
    FRAME_BYTES_MAX_BEFORE_PROOF,
    ROUND_BYTES_MAX,
    FrameReader,
    Member,
    ProtocolError,
    decode_member,
    encode_member,
    frame,
    rank_list,
)
from rdmaring.rendezvous.secret import load_secret, secret_path
from rdmaring.rendezvous.server import Server
from rdmaring.rendezvous.sockets import format_address, listen, parse_address

SECRET = b"a secret of this test"
LONG_S = 20.0


@contextmanager
def serving(world: int, host: str = "127.0.0.1", port: int = 0, job: str = "") -> Iterator[tuple[str, int]]:
    server = Server(listen(host, port), world, SECRET, job)
    server.start()
    try:
        yield parse_address(server.address)
    finally:
        server.stop()


def enter(
    address: tuple[str, int],
    rank: int,
    world: int,
    timeout_s: float = LONG_S,
    secret: bytes = SECRET,
    job: str = "",
) -> Rendezvous:
    return Rendezvous.connect([address], rank, world, secret, timeout_s, host="here", job=job)


def all_ranks(world: int, body: Callable[[int], object], ranks: list[int] | None = None) -> list[object]:
    """What body(rank) returns or raises, each rank on its own thread."""
    ranks = list(range(world)) if ranks is None else ranks

    def outcome(rank: int) -> object:
        try:
            return body(rank)
        except RendezvousError as error:
            return error

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(outcome, ranks))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


# ---- frames and words ----


@given(
    bodies=st.lists(st.tuples(st.sampled_from("JB"), st.binary(max_size=200)), max_size=8),
    cut=st.integers(1, 50),
)
def test_frames_survive_any_cut_of_the_stream(bodies: list[tuple[str, bytes]], cut: int) -> None:
    stream = b"".join(frame(kind, body) for kind, body in bodies)  # type: ignore[arg-type]
    reader = FrameReader(1000)
    found = []
    for start in range(0, len(stream), cut):
        reader.feed(stream[start : start + cut])
        while (whole := reader.next()) is not None:
            found.append(whole)
    assert found == bodies


@pytest.mark.parametrize("length", [0, 1001, 2**32 - 1])
def test_a_frame_out_of_bounds_is_refused_before_its_body_comes(length: int) -> None:
    reader = FrameReader(1000)
    reader.feed(struct.pack("<I", length))
    with pytest.raises(ProtocolError, match=str(length)):
        reader.next()


MEMBER = Member(3, 4, "0.1.0", 1, "host", 77, 5.0, 6.0)


def test_a_member_survives_the_wire() -> None:
    assert decode_member(encode_member(MEMBER)) == MEMBER


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rank", 4),
        ("rank", True),
        ("rank", "3"),
        ("world", 0),
        ("world", 1 << 40),
        ("host", "x" * 300),
        ("host", "a\nb"),
        ("pid", -1),
        ("assembly_timeout_s", float("nan")),
        ("round_timeout_s", 0),
    ],
)
def test_a_damaged_member_is_refused(field: str, value: object) -> None:
    fields = json.loads(encode_member(MEMBER)) | {field: value}
    with pytest.raises(ProtocolError):
        decode_member(json.dumps(fields))


@pytest.mark.parametrize("text", ["[" * 4000, "{", "null", "[]", '"x"', "\x00"])
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError):
        decode_member(text)


@pytest.mark.parametrize(
    ("ranks", "words"),
    [([3], "rank 3"), ([0, 1], "ranks 0, 1"), ([0, 1, 2, 5], "ranks 0-2, 5"), ([7, 5], "ranks 5, 7")],
)
def test_rank_list(ranks: list[int], words: str) -> None:
    assert rank_list(ranks) == words


def test_rank_list_says_how_many_it_left_out() -> None:
    assert rank_list(range(0, 100, 2)).endswith("30 and 34 more")


@pytest.mark.parametrize("text", ["h:1", "10.0.0.1:65535", "[::1]:29400", "[fe80::1%eth0]:5"])
def test_addresses_round_trip(text: str) -> None:
    assert format_address(parse_address(text)) == text


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":5", "host:0", "host:65536", "host:-1", "::1:80", "h:\u0663"]
)
def test_a_wrong_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="address"):
        parse_address(text)


# ---- assembly and rounds ----


@pytest.mark.parametrize("world", [2, 3, 7])
def test_every_round_gathers_in_rank_order(world: int) -> None:
    def part(rank: int, turn: int) -> bytes:
        return hashlib.sha256(f"{rank} {turn}".encode()).digest()

    def body(rank: int) -> None:
        with enter(address, rank, world) as meeting:
            assert [member.rank for member in meeting.members] == list(range(world))
            assert meeting.members[rank].pid == os.getpid()
            assert meeting.local_ranks == tuple(range(world))
            for turn in range(20):
                expected = b"".join(part(other, turn) for other in range(world))
                assert meeting.exchange(part(rank, turn)) == expected

    with serving(world) as address:
        assert all_ranks(world, body) == [None] * world


def test_the_largest_round_passes_and_a_larger_one_is_refused_here() -> None:
    def body(rank: int) -> str:
        with enter(address, rank, 2) as meeting:
            with pytest.raises(ValueError, match=str(ROUND_BYTES_MAX)):
                meeting.exchange(bytes(ROUND_BYTES_MAX + 1))
            everything = meeting.exchange(bytes([rank]) * ROUND_BYTES_MAX)
            return hashlib.sha256(everything).hexdigest()

    expected = hashlib.sha256(bytes(ROUND_BYTES_MAX) + b"\x01" * ROUND_BYTES_MAX).hexdigest()
    with serving(2) as address:
        assert all_ranks(2, body) == [expected] * 2


def test_an_empty_round_is_a_barrier() -> None:
    with serving(2) as address:
        assert all_ranks(2, lambda rank: enter(address, rank, 2).exchange(b"")) == [b"", b""]


def test_a_world_of_one_needs_no_server() -> None:
    with join(0, 1, env={}) as meeting:
        assert meeting.exchange(b"alone") == b"alone"
        assert meeting.local_ranks == (0,)
    with pytest.raises(ValueError, match="closed"):
        meeting.exchange(b"")


def test_ipv6() -> None:
    try:
        listeners = listen("::1", 0)
    except OSError as error:
        assert not Path("/proc/net/if_inet6").exists(), error  # this kernel has no IPv6 at all
        return
    port = listeners[0].getsockname()[1]
    listeners[0].close()
    with serving(2, "::1", port) as address:
        assert address[0] == "::1"
        assert all_ranks(2, lambda rank: enter(address, rank, 2).exchange(b"%d" % rank)) == [b"01", b"01"]


def test_a_rank_may_come_before_the_server() -> None:
    port = free_port()

    def body(rank: int) -> bytes:
        if rank == 0:
            time.sleep(0.3)
        with join(rank, 2, f"127.0.0.1:{port}", LONG_S, env={"RDMARING_SECRET": "s"}) as meeting:
            return meeting.exchange(b"%d" % rank)

    assert all_ranks(2, body) == [b"01", b"01"]


def test_one_job_can_meet_again_and_again_also_while_an_earlier_meeting_is_open() -> None:
    address = f"localhost:{free_port()}"
    env = {"RDMARING_SECRET": "s"}

    def body(rank: int) -> None:
        first = join(rank, 3, address, LONG_S, env=env)
        with join(rank, 3, address, LONG_S, env=env) as second:
            assert second.exchange(b"%d" % rank) == b"012"
        assert first.exchange(b"%d" % (2 * rank)) == b"024"
        first.close()
        for _ in range(5):
            with join(rank, 3, address, LONG_S, env=env) as again:
                assert again.exchange(b"%d" % rank) == b"012"

    assert all_ranks(3, body) == [None] * 3


def test_an_idle_server_uses_no_cpu() -> None:
    with serving(2) as address:
        with socket.create_connection(address):
            before = time.process_time()
            time.sleep(0.5)
            assert time.process_time() - before < 0.05


# ---- who does not come, or leaves ----

WAITING_RANK = [
    sys.executable,
    "-c",
    "import sys; from rdmaring.rendezvous import Rendezvous as R; "
    "R.connect([('127.0.0.1', int(sys.argv[1]))], 1, 3, sys.argv[2].encode(), 60, host='here')",
]


def test_all_who_came_hear_who_did_not() -> None:
    began = time.monotonic()
    with serving(5) as address:
        errors = all_ranks(5, lambda rank: enter(address, rank, 5, timeout_s=0.5), ranks=[0, 2, 4])
    assert 0.4 < time.monotonic() - began < 4
    for error in errors:
        assert isinstance(error, RendezvousError)
        assert error.missing_ranks == (1, 3)
        assert error.timed_out
        assert "ranks 1, 3 of 5 did not come; ranks 0, 2, 4 did" in str(error)


def test_the_others_hear_that_rank_0_which_hosts_did_not_come() -> None:
    with pytest.raises(RendezvousError, match="rank 0, which hosts it, did not come") as caught:
        join(1, 2, f"127.0.0.1:{free_port()}", 0.4, env={"RDMARING_SECRET": "s"})
    assert caught.value.missing_ranks == (0,)
    assert caught.value.timed_out


def test_a_launcher_that_is_gone_is_not_waited_for() -> None:
    env = {
        "RDMARING_RANK": "1",
        "RDMARING_WORLD_SIZE": "2",
        "RDMARING_RENDEZVOUS": f"127.0.0.1:{free_port()}",
        "RDMARING_RENDEZVOUS_HOSTED": "1",
        "RDMARING_SECRET": "s",
    }
    began = time.monotonic()
    with pytest.raises(RendezvousError, match="launcher"):
        join(timeout_s=30, env=env)
    assert time.monotonic() - began < 5


def test_after_a_failed_assembly_the_same_job_can_assemble() -> None:
    with serving(2) as address:
        assert isinstance(all_ranks(1, lambda rank: enter(address, rank, 2, 0.2))[0], RendezvousError)
        assert all_ranks(2, lambda rank: enter(address, rank, 2).exchange(b"%d" % rank)) == [b"01", b"01"]


def test_a_rank_that_dies_while_others_assemble_may_come_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.INFO, "rdmaring"),
        serving(3) as address,
        ThreadPoolExecutor(1) as pool,
        subprocess.Popen([*WAITING_RANK, str(address[1]), SECRET.decode()], cwd=tmp_path) as process,
    ):
        waiting = pool.submit(lambda: enter(address, 0, 3).exchange(b"0"))
        until = time.monotonic() + LONG_S
        while "rank 1 came" not in caplog.text:
            assert time.monotonic() < until
            time.sleep(0.01)
        process.kill()
        results = all_ranks(3, lambda rank: enter(address, rank, 3).exchange(b"%d" % rank), ranks=[1, 2])
        assert [waiting.result(), *results] == [b"012"] * 3


@pytest.mark.parametrize("kind", ["closes", "is lost"])
def test_a_rank_that_leaves_in_a_round_is_named_to_the_others(kind: str) -> None:
    def body(rank: int) -> bytes:
        meeting = enter(address, rank, 3)
        if rank == 1:
            time.sleep(0.2)
            if kind == "closes":
                meeting.close()
            else:
                meeting.close_in_child()  # the socket ends without a word
            raise RendezvousError("left")
        return meeting.exchange(b"x")

    began = time.monotonic()
    with serving(3) as address:
        errors = all_ranks(3, body)
    assert time.monotonic() - began < 5
    for error in (errors[0], errors[2]):
        assert isinstance(error, RendezvousError)
        assert error.missing_ranks == (1,)
        assert f"rank 1 (pid {os.getpid()})" in str(error)
        assert ("has left" if kind == "closes" else "was lost") in str(error)


def test_a_rank_that_left_before_the_round_is_named_too() -> None:
    left = threading.Event()

    def body(rank: int) -> bytes:
        meeting = enter(address, rank, 2)
        if rank == 1:
            meeting.close()
            left.set()
            return b""
        assert left.wait(LONG_S)
        return meeting.exchange(b"x")

    with serving(2) as address:
        error = all_ranks(2, body)[0]
    assert isinstance(error, RendezvousError)
    assert error.missing_ranks == (1,)


def test_a_rank_that_is_late_in_a_round_is_named_to_all() -> None:
    def body(rank: int) -> bytes:
        meeting = enter(address, rank, 3, timeout_s=0.5)
        if rank == 2:
            time.sleep(1.0)
        return meeting.exchange(b"x")

    with serving(3) as address:
        errors = all_ranks(3, body)
    for error in errors:
        assert isinstance(error, RendezvousError)
        assert error.missing_ranks == (2,)
        assert "rank 2 did not take part" in str(error)


def test_parts_of_unlike_size_are_an_error_on_all() -> None:
    with serving(3) as address:
        errors = all_ranks(3, lambda rank: enter(address, rank, 3).exchange(bytes(4 + (rank == 1))))
    for error in errors:
        assert "rank 1 5 bytes" in str(error)


def test_the_end_of_the_server_is_told_in_words() -> None:
    def body(rank: int) -> bytes:
        meeting = enter(address, rank, 2)
        assembled.wait(LONG_S)
        if rank == 0:
            server.stop()
        assembled.wait(LONG_S)
        return meeting.exchange(b"x")

    assembled = threading.Barrier(2)
    server = Server(listen("127.0.0.1", 0), 2, SECRET)
    server.start()
    address = parse_address(server.address)
    for error in all_ranks(2, body):
        assert isinstance(error, RendezvousError)
        assert "lost the rendezvous" in str(error)


FORKING_RANK = """
import os, sys, time
from rdmaring.rendezvous import Rendezvous
Rendezvous.connect([("127.0.0.1", int(sys.argv[1]))], 1, 2, sys.argv[2].encode(), 20, host="here")
if os.fork() == 0:
    print(os.getpid(), flush=True)
    time.sleep(60)
os._exit(0)
"""


def test_a_forked_child_does_not_hide_the_death_of_its_parent(tmp_path: Path) -> None:
    with serving(2) as address:
        command = [sys.executable, "-c", FORKING_RANK, str(address[1]), SECRET.decode()]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
            meeting = enter(address, 0, 2)
            assert process.stdout is not None
            child = int(process.stdout.readline())
            try:
                began = time.monotonic()
                with pytest.raises(RendezvousError, match="rank 1"):
                    meeting.exchange(b"x")
                assert time.monotonic() - began < 5
            finally:
                os.kill(child, 9)


# ---- strangers and mistakes ----


def throw(address: tuple[str, int], data: bytes) -> bytes:
    """Send bytes to the server; what it answers until it closes."""
    with socket.create_connection(address, timeout=LONG_S) as stranger:
        stranger.sendall(data)
        answer = b""
        try:
            while more := stranger.recv(4096):
                answer += more
        except ConnectionResetError:
            pass
        return answer


HELLO = frame("J", b'{"hello": "rdmaring", "protocol": 1, "nonce": "00"}')
STRANGERS = {
    "a web browser": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a length of 2^60": struct.pack("<Q", 1 << 60),
    "just over the bound": struct.pack("<I", FRAME_BYTES_MAX_BEFORE_PROOF + 1),
    "an empty frame": struct.pack("<I", 0),
    "an unknown kind": struct.pack("<I", 1) + b"Z",
    "raw bytes": frame("B", b"x"),
    "no JSON": frame("J", b"\xff\xfe{"),
    "deep JSON": frame("J", b"[" * 4000),
    "another hello": frame("J", b'{"hello": "world", "protocol": 1, "nonce": "00"}'),
    "no nonce": frame("J", b'{"hello": "rdmaring", "protocol": 1}'),
    "a wrong proof": HELLO
    + frame("J", json.dumps({"member": encode_member(MEMBER), "proof": "0" * 64}).encode()),
    "a proof that is no text": HELLO + frame("J", b'{"member": "x", "proof": [1]}'),
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_a_stranger_is_closed_and_logged_once_and_the_job_goes_on(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    def body(rank: int) -> bytes:
        if rank == 1:
            throw(address, STRANGERS[kind])
        return enter(address, rank, 2).exchange(b"%d" % rank)

    with caplog.at_level(logging.WARNING, "rdmaring"), serving(2) as address:
        assert all_ranks(2, body) == [b"01", b"01"]
    assert [record.message.count("stranger") for record in caplog.records] == [1]


def test_a_port_scan_is_logged_and_a_flood_of_them_is_not(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "rdmaring"), serving(2) as address:
        for _ in range(40):
            socket.create_connection(address).close()
        assert all_ranks(2, lambda rank: enter(address, rank, 2).exchange(b"%d" % rank)) == [b"01", b"01"]
    assert len(caplog.records) == 10
    assert "no more of them" in caplog.records[-1].message


def test_many_silent_connections_do_not_keep_the_job_out() -> None:
    with serving(2) as address:
        silent = [socket.create_connection(address) for _ in range(300)]
        try:
            assert all_ranks(2, lambda rank: enter(address, rank, 2).exchange(b"%d" % rank)) == [b"01", b"01"]
        finally:
            for each in silent:
                each.close()


def test_another_secret_is_refused_with_what_to_do() -> None:
    with serving(2) as address:
        with pytest.raises(RendezvousError, match="not this job's rendezvous") as caught:
            enter(address, 0, 2, secret=b"another")
    assert "RDMARING_SECRET" in caught.value.hint


def test_the_server_proves_the_secret_first_and_never_sees_ours() -> None:
    """An impostor that accepts anything learns no proof and no member."""
    heard = []

    def impostor() -> None:
        connection, _ = listener.accept()
        with connection:
            heard.append(connection.recv(4096))
            connection.sendall(frame("J", json.dumps({"nonce": "11", "proof": "0" * 64}).encode()))
            heard.append(connection.recv(4096))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=impostor)
        thread.start()
        with pytest.raises(RendezvousError, match="proof"):
            enter(listener.getsockname(), 0, 2)
        thread.join()
    assert b'"hello"' in heard[0]
    assert heard[1] == b""


def test_a_rank_that_is_taken_is_refused_in_words_and_the_job_goes_on() -> None:
    with serving(2) as address, ThreadPoolExecutor(1) as pool:
        first = pool.submit(lambda: enter(address, 1, 2).exchange(b"1"))
        time.sleep(0.2)
        with pytest.raises(RendezvousError, match=f"rank 1 is taken.*pid {os.getpid()} on the same host"):
            enter(address, 1, 2)
        assert enter(address, 0, 2).exchange(b"0") == b"01"
        assert first.result() == b"01"


def test_another_world_size_is_refused_in_words() -> None:
    with serving(2) as address:
        with pytest.raises(RendezvousError, match="world of 3 ranks, but this job has 2"):
            enter(address, 0, 3)


# ---- what launchers set ----

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
