"""Calls of one thread beside close(), abort(), the collector and fork() of another; and who comes after whom."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from verbs_sim import build
from worlds import run_world

HERE = Path(__file__).parent
ACTIONS = ("close", "abort", "collected", "fork")


def beside(
    world: int, action: str, seed: int, tmp_path: Path, *, some: int = 0, env: dict[str, str] | None = None
) -> None:
    program = (HERE / "beside_calls.py").read_text().replace("from __future__ import annotations\n", "")
    args = (action, str(seed), str(some))
    ran = run_world(world, program, tmp_path, env=env, timeout_s=120, args=args)
    assert ran.code == 0, ran.output
    for rank in range(world):
        assert ran.of(rank, "cases") == some or (not some and ran.of(rank, "cases") > 30), ran.output


@pytest.mark.parametrize("action", ACTIONS)
def test_every_method_beside_another_thread(action: str, tmp_path: Path) -> None:
    beside(2, action, 1, tmp_path)


@pytest.mark.parametrize("action", ACTIONS)
def test_a_world_of_one(action: str, tmp_path: Path) -> None:
    beside(1, action, 2, tmp_path, some=10)


@pytest.mark.parametrize("action", ACTIONS)
def test_over_tcp(action: str, tmp_path: Path) -> None:
    beside(2, action, 3, tmp_path, some=8, env={"APART": "1", "RDMARING_TRANSPORT": "tcp"})


@pytest.mark.parametrize("action", ["close", "collected"])
def test_over_verbs(action: str, tmp_path: Path) -> None:
    simulated = build.environment("seed=4", fabric=str(tmp_path), sysfs_root=tmp_path / "sysfs")
    beside(2, action, 4, tmp_path, some=8, env={**simulated, "APART": "1", "RDMARING_TRANSPORT": "verbs"})


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 16))
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("action", ACTIONS)
def test_other_seeds(action: str, apart: bool, seed: int, tmp_path: Path) -> None:
    beside(2 + seed % 2, action, seed, tmp_path, env={"APART": "1", "RDMARING_TRANSPORT": "tcp"} if apart else None)


WAITS = {
    "barrier": "comm.barrier()",
    "recv": "comm.recv(np.ones(9), 1)",
    "works": "works = [comm.all_reduce(np.ones(3000), async_op=True) for _ in range(3)]; works[2].wait()",
}


@pytest.mark.parametrize("how", ["close()", "abort('by another thread')"])
@pytest.mark.parametrize("wait", WAITS)
def test_a_call_that_waits_is_ended_at_once(wait: str, how: str, tmp_path: Path) -> None:
    """Rank 1 is late: rank 0 has been inside long enough to have returned from C several times."""
    ran = run_world(
        2,
        f"""
        comm = rr.init(timeout_s=30)
        comm.barrier()
        if comm.rank == 0:
            threading.Timer(0.25, lambda: comm.{how}).start()
            said_error(lambda: exec({WAITS[wait]!r}))
            said_error(comm.barrier)
        else:
            time.sleep(0.8)
            for _ in range(2):  # the first may find all that it needs of rank 0
                said_error(comm.barrier)
        """,
        tmp_path,
    )
    assert ran.code == 0, ran.output
    first, later = ran.said[0]
    assert first["error"] == "AbortedError" and first["seconds"] < 0.75, ran.output
    assert later["error"] == ("ClosedError" if how == "close()" else "AbortedError"), ran.output
    assert ran.of(1, "error") == "AbortedError", ran.output


def test_several_threads_close_and_abort(tmp_path: Path) -> None:
    """All come back, with the communicator closed; abort() finds it open or closed."""
    ran = run_world(
        2,
        """
        world = rr.init(timeout_s=30)
        for turn in range(8):
            comm = world.dup()
            ends = []
            def end(number):
                try:
                    comm.close() if number % 2 else comm.abort(f"reason {number}")
                    ends.append("ended")
                except rr.ClosedError:
                    ends.append("closed")
            threads = [threading.Thread(target=end, args=(number,)) for number in range(6)]
            for thread in threads: thread.start()
            try:
                while True: comm.all_reduce(np.ones(999))
            except (rr.ClosedError, rr.AbortedError, rr.PeerClosedError) as error:
                say(error=type(error).__name__)
            for thread in threads: thread.join()
            assert len(ends) == 6 and comm._closed, ends
            world.barrier()
        """,
        tmp_path,
    )
    assert ran.code == 0, ran.output


def test_shrink_beside_close(tmp_path: Path) -> None:
    """It is shrink() that waits here, for a rank that does not come."""
    ran = run_world(
        2,
        """
        comm = rr.init(timeout_s=30)
        comm.barrier()
        if comm.rank == 0:
            threading.Timer(0.3, comm.close).start()
            said_error(lambda: comm.shrink(timeout_s=4))
        else:
            time.sleep(1)
        """,
        tmp_path,
        "--keep-going",
    )
    assert ran.of(0, "error") in ("ClosedError", None), ran.output  # rank 1 has ended: rank 0 may go on alone
    assert ran.of(0, "seconds") < 6
    assert "ignored" not in ran.output


SIGNALS = """
world = rr.init(timeout_s=30)
comm = world.dup()
x = np.ones(1 << 18)

class Enough(Exception):
    pass

def handler(number, frame):
    if WHAT == "raise":
        raise Enough
    said_error(lambda: exec(WHAT))

signal.signal(signal.SIGUSR1, handler)
comm.barrier()
if comm.rank == 0:
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
    try:
        WAIT
        say(outer=None, right=bool((x == 2).all()))
    except (rr.RdmaringError, Enough) as error:
        say(outer=type(error).__name__)
else:
    time.sleep(0.6)
    try:
        PEER
        say(outer=None)
    except rr.RdmaringError as error:
        say(outer=type(error).__name__)
    time.sleep(0.2)
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
world.barrier()
"""
# what a handler does: what it is told, how the call around it ends, and the peer's. docs/FOOTGUNS.md says so
HANDLERS = {
    "comm.close()": (None, "AbortedError", "AbortedError"),
    "comm.abort('in a handler')": (None, "AbortedError", "AbortedError"),
    "comm.all_reduce(np.ones(5))": ("ArgumentError", None, None),
    "raise": (None, "Enough", "AbortedError"),
}
OUTERS = {
    "a collective": ("comm.all_reduce(x)", "comm.all_reduce(x)"),
    "a message": ("x *= 2\n        comm.send(np.ones(1 << 20), 1)", "comm.recv(np.ones(1 << 20), 0)"),
}


@pytest.mark.parametrize("outer", OUTERS)
@pytest.mark.parametrize("what", HANDLERS)
def test_a_handler_of_a_signal(what: str, outer: str, tmp_path: Path) -> None:
    wait, peer = OUTERS[outer]
    told, ends, peer_ends = HANDLERS[what]
    if outer == "a message" and "all_reduce" in what:
        pytest.skip("a message in flight refuses no collective")
    source = SIGNALS.replace("WAIT", wait).replace("PEER", peer)
    ran = run_world(2, f"WHAT = {what!r}\n" + source, tmp_path)
    assert ran.code == 0, ran.output
    if what != "raise":
        assert ran.said[0][0]["error"] == told, ran.output
    if told:
        assert "a call is in flight" in ran.said[0][0]["text"]
    assert ran.of(0, "outer") == ends, ran.output
    assert ran.of(1, "outer") == peer_ends, ran.output


def test_the_progress_thread_knows_a_new_communicator(tmp_path: Path) -> None:
    """At the address of the one before it, within the thread's lingering: it slept on the old one's descriptor."""
    library = tmp_path / "epoll_counts.so"
    compiler = os.environ.get("CC", "cc")
    subprocess.run(
        [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(HERE / "epoll_counts.c"), "-ldl"], check=True
    )
    ran = run_world(
        4,
        """
        import ctypes
        os.environ["RDMARING_HOST_ID"] = f"node-{int(os.environ['RDMARING_RANK']) // 2}"
        comm = rr.init(timeout_s=60)
        def one(of):
            of.barrier()
            if of.rank == 1: time.sleep(0.1)
            work = of.all_reduce(np.ones(20000, np.float32), async_op=True)
            while not work.done(): time.sleep(0.002)
            work.wait()
        addresses = []
        def made(of):
            addresses.append(int(rr._native.ffi.cast("uintptr_t", of._handle)))
            return of
        for turn in range(5):
            a = made(comm.dup()); keep = comm.dup()
            one(a); a.close(); del a
            b = made(comm.split(comm.node)); one(b); b.close(); del b; keep.close(); comm.barrier()
        again = sum(one == other for one, other in zip(addresses[::2], addresses[1::2]))
        say(failures=ctypes.CDLL(os.environ["LD_PRELOAD"]).epoll_failures(), again=again)
        """,
        tmp_path,
        env={"LD_PRELOAD": str(library)},
    )
    assert ran.code == 0, ran.output
    assert sum(ran.of(rank, "again") for rank in range(4)) > 0, "no address was given twice"
    assert [ran.of(rank, "failures") for rank in range(4)] == [0] * 4
