"""Assembly and rounds: real sockets on loopback, ranks as threads, some of which do not come."""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from launchers import need_commands
from unit.rendezvous_ranks import LONG_S, SECRET, all_ranks, enter, free_port, serving

from rdmaring.rendezvous import Rendezvous, RendezvousError, join
from rdmaring.rendezvous.protocol import ROUND_BYTES_MAX
from rdmaring.rendezvous.server import Server
from rdmaring.rendezvous.sockets import listen, parse_address


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


SCOPED = """
import sys
from concurrent.futures import ThreadPoolExecutor
from rdmaring.rendezvous import join
address = sys.argv[1]
def body(rank):
    with join(rank, 3, address, 20, env={"RDMARING_SECRET": "s"}) as meeting:
        return meeting.exchange(b"%d" % rank)
with ThreadPoolExecutor(3) as pool:
    print(list(pool.map(body, range(3))))
"""
# A network namespace of its own, which ends with the command: no address of the machine is needed.
LINK_LOCAL = """
set -e
ip link set lo up
ip link add wire0 type veth peer name wire1
ip address add fe80::1/64 dev wire0 nodad
ip link set wire0 up; ip link set wire1 up
exec "$@"
"""


def test_a_scoped_link_local_address(tmp_path: Path) -> None:
    if not Path("/proc/net/if_inet6").exists():
        return  # this kernel has no IPv6 at all
    need_commands(("ip",), ("iproute2",))
    unshare = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--net", "--map-root-user"]
    inside = ["sh", "-c", LINK_LOCAL, "sh", sys.executable, "-c", SCOPED, "[fe80::1%wire0]:29400"]
    done = subprocess.run([*unshare, *inside], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == str([b"012"] * 3), done.stderr


SOCKETS = """
import os, sys
from rdmaring.rendezvous import Rendezvous
meeting = Rendezvous.connect(
    [("127.0.0.1", int(sys.argv[1]))], 1, int(sys.argv[2]), sys.argv[3].encode(), 20, host="here"
)
meeting.exchange(b"1")
print(sum(os.readlink(f"/proc/self/fd/{fd}").startswith("socket:") for fd in os.listdir("/proc/self/fd")
          if os.path.islink(f"/proc/self/fd/{fd}")))
"""


@pytest.mark.parametrize("world", [2, 9])
def test_a_rank_needs_one_socket_however_many_there_are(world: int, tmp_path: Path) -> None:
    with serving(world) as address, ThreadPoolExecutor(world) as pool:
        command = [sys.executable, "-c", SOCKETS, str(address[1]), str(world), SECRET.decode()]
        others = [rank for rank in range(world) if rank != 1]
        waiting = [pool.submit(lambda r=rank: enter(address, r, world, wire="").exchange(b"x")) for rank in others]
        done = subprocess.run(
            command, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.stdout.strip() == "1", done.stderr
        assert all(each.result() for each in waiting)


def test_of_several_addresses_the_one_that_answers_is_found() -> None:
    """In front: nobody, a name that does not exist, and a stranger who proves nothing."""
    with serving(2) as address, socket.create_server(("127.0.0.1", 0)) as stranger:
        wrong = [("127.0.0.1", free_port()), ("no-such-host.invalid", 5), stranger.getsockname()]

        def body(rank: int) -> bytes:
            places = [*wrong, address] if rank else [address]
            with Rendezvous.connect(places, rank, 2, SECRET, LONG_S, host="here") as meeting:
                return meeting.exchange(b"%d" % rank)

        assert all_ranks(2, body) == [b"01", b"01"]


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
    "R.connect([('127.0.0.1', int(sys.argv[1]))], 1, 3, sys.argv[2].encode(), 60, host='here', wire='wire 1')",
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


@pytest.mark.parametrize("host", ["node..example", "n" * 64, "\udcff"], ids=["empty part", "long part", "no text"])
def test_what_can_be_no_name_of_a_host_is_said(host: str) -> None:
    with pytest.raises(RendezvousError, match="is no name of a host"):
        join(1, 2, f"{host}:29400", 0.4, env={"RDMARING_SECRET": "s"})
    env = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": host, "MASTER_PORT": "29500", "RDMARING_SECRET": "s"}
    with pytest.raises(RendezvousError, match="is no name of a host"):
        join(timeout_s=0.4, env=env)


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


def test_a_rank_that_dies_while_others_assemble_may_come_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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
        process.wait()
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
Rendezvous.connect([("127.0.0.1", int(sys.argv[1]))], 1, 2, sys.argv[2].encode(), 20, host="here", wire="wire 1")
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
