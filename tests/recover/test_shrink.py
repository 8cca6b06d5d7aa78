"""Survivors go on: whoever dies, wherever ranks are; and where they may not, it is said why."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from worlds import Ran, run_world

# NODES: of each rank; ranks on different ones meet over TCP, and cannot prove each other's deaths.
PRELUDE = """
rank = int(os.environ["RDMARING_RANK"])
NODES = os.environ.get("NODES", "")
if NODES:
    os.environ["RDMARING_HOST_ID"] = NODES[rank]

def used():
    return len(os.listdir("/proc/self/fd")), threading.active_count()

def shrunk(comm, timeout_s=20):
    begin = time.monotonic()
    try:
        found = comm.shrink(timeout_s=timeout_s)
    except rr.RdmaringError as error:
        say(error=type(error).__name__, text=str(error), seconds=time.monotonic() - begin)
        raise SystemExit(3)
    say(seconds=time.monotonic() - begin, rank=found.rank, size=found.size, old=found.recovered.old_ranks,
        lost=found.recovered.lost, last=found.recovered.last_common_op)
    return found

def works(comm):
    "All collectives, and all links, give what they should."
    n, total = comm.size, comm.size * (comm.size + 1) // 2
    mine = float(comm.rank + 1)
    good = []
    for count in (3, 200_000):
        for algorithm in (None, "ring", "direct"):
            good.append(bool((comm.all_reduce(np.full(count, mine), algorithm=algorithm) == total).all()))
        good.append(bool((comm.all_gather(np.full(count, mine)) == np.repeat(np.arange(1.0, n + 1), count)).all()))
        good.append(bool((comm.broadcast(np.full(count, mine), root=n - 1) == n).all()))
        good.append(bool((comm.reduce_scatter(np.full(count * n, mine)) == total).all()))
        good.append(bool((comm.all_to_all(np.full(count * n, mine)) == np.repeat(np.arange(1.0, n + 1), count)).all()))
    works = [comm.all_reduce(np.full(50_000, mine), async_op=True) for _ in range(3)]
    good += [bool((work.wait() == total).all()) for work in works]
    half = comm.split(comm.rank % 2)
    good.append(half.all_reduce(np.ones(9))[0] == half.size)
    half.close()
    comm.barrier()
    say(good=all(good), size=comm.size, links=sorted({link.transport for link in comm.links}))

def die():
    time.sleep(0.7)  # the others have finished what this rank has
    os.kill(os.getpid(), signal.SIGKILL)

def ended():
    say(after=used())
"""

KILLED = """
before = used()
comm = rr.init(timeout_s=30)
say(before=before)
x = np.ones(100_000)
comm.all_reduce(x)
if comm.rank in KILL:
    die()
said_error(lambda: comm.all_reduce(x))
comm = shrunk(comm)
works(comm)
comm.close()
ended()
"""


def world(size: int, source: str, tmp_path: Path, nodes: str = "", timeout_s: float = 120) -> Ran:
    env = {"NODES": nodes} if nodes else {}
    return run_world(size, PRELUDE + textwrap.dedent(source), tmp_path, "--keep-going", env=env, timeout_s=timeout_s)


def check_survivors(ran: Ran, size: int, killed: set[int], transports: list[str]) -> None:
    survivors = [rank for rank in range(size) if rank not in killed]
    for new, rank in enumerate(survivors):
        assert ran.of(rank, "old") == survivors, ran.output
        assert ran.of(rank, "lost") == sorted(killed)
        assert ran.of(rank, "rank") == new
        assert ran.of(rank, "size") == len(survivors)
        assert ran.of(rank, "last") == 1
        assert ran.of(rank, "good"), ran.output
        assert ran.of(rank, "links") == transports
        assert ran.of(rank, "after") == ran.of(rank, "before"), "a descriptor or a thread is left"


@pytest.mark.parametrize(("size", "killed"), [(3, {1}), (4, {0}), (4, {0, 2}), (3, {0, 1})])
def test_survivors_of_a_node_go_on(size: int, killed: set[int], tmp_path: Path) -> None:
    """Also a minority: all others are proven dead."""
    ran = world(size, f"KILL = {killed}" + KILLED, tmp_path)
    check_survivors(ran, size, killed, ["shm"] if size - len(killed) > 1 else [])
    for rank in set(range(size)) - killed:
        assert ran.of(rank, "seconds") < 10  # nobody was waited for


@pytest.mark.parametrize(
    ("nodes", "killed", "transports"),
    [("abc", {0}, ["tcp"]), ("aabbc", {0, 4}, ["shm", "tcp"])],
)
def test_survivors_on_several_nodes_go_on(nodes: str, killed: set[int], transports: list[str], tmp_path: Path) -> None:
    ran = world(len(nodes), f"KILL = {killed}" + KILLED, tmp_path, nodes)
    survivors = [rank for rank in range(len(nodes)) if rank not in killed]
    for rank in survivors:
        assert ran.of(rank, "old") == survivors, ran.output
        assert ran.of(rank, "good"), ran.output
        assert ran.of(rank, "after") == ran.of(rank, "before")
        assert set(ran.of(rank, "links")) <= set(transports)
        # a process that is gone refuses connections: its node's host is not waited for
        assert ran.of(rank, "seconds") < 9


def test_a_minority_may_not_go_on_and_says_why(tmp_path: Path) -> None:
    ran = world(
        4,
        """
        comm = rr.init(timeout_s=30)
        comm.all_reduce(np.ones(100_000))
        if comm.rank in (2, 3):
            die()
        if comm.rank == 1:
            time.sleep(8)  # lives, and does not come
            os._exit(0)
        said_error(lambda: comm.all_reduce(np.ones(100_000)))
        shrunk(comm, timeout_s=3)
        """,
        tmp_path,
        "aabb",
    )
    assert ran.of(0, "error") == "NoQuorumError", ran.output
    text = ran.of(0, "text")
    assert "rank 0 of 4 came within 3 s" in text
    assert "rank 1: its process" in text and "lives, but it has not called shrink()" in text
    assert text.count("it is on another node and not to be reached") == 2 and "Connection refused" in text
    assert 2.5 < ran.of(0, "seconds") < 6


def test_a_busy_rank_is_waited_for(tmp_path: Path) -> None:
    """Rank 0, which hosts the rendezvous, computes for seconds while rank 2 dies and rank 1 wants to go on."""
    ran = world(
        3,
        """
        comm = rr.init(timeout_s=30)
        comm.all_reduce(np.ones(100_000))
        if comm.rank == 2:
            die()
        if comm.rank == 0:
            time.sleep(3)
        said_error(lambda: comm.all_reduce(np.ones(100_000)))
        comm = shrunk(comm, timeout_s=30)
        works(comm)
        """,
        tmp_path,
    )
    for rank in (0, 1):
        assert ran.of(rank, "old") == [0, 1], ran.output
        assert ran.of(rank, "good")
    assert ran.of(1, "seconds") > 2


def test_who_comes_too_late_is_told_that_the_others_went_on(tmp_path: Path) -> None:
    ran = world(
        3,
        """
        comm = rr.init(timeout_s=30)
        comm.all_reduce(np.ones(100_000))
        if comm.rank == 0:
            time.sleep(9)
            said_error(lambda: comm.all_reduce(np.ones(100_000)))
            shrunk(comm, timeout_s=5)
        comm.abort("the test says so")
        comm = shrunk(comm, timeout_s=4)
        works(comm)
        time.sleep(9)
        comm.barrier()
        """,
        tmp_path,
    )
    for rank in (1, 2):
        assert ran.of(rank, "old") == [1, 2], ran.output
        assert ran.of(rank, "good")
    assert ran.of(0, "error") == "LeftOutError", ran.output
    assert "rank 0 came too late: ranks 1, 2 went on without it" in ran.of(0, "text")
    assert ran.of(0, "seconds") < 3


def test_a_shrunk_communicator_shrinks_again(tmp_path: Path) -> None:
    ran = world(
        5,
        """
        before = used()
        comm = rr.init(timeout_s=30)
        say(before=before)
        for dies in (4, 0, 1):  # in the ranks of the communicator of that time
            for _ in range(3):
                comm.all_reduce(np.ones(50_000))
            if comm.rank == dies:
                die()
            said_error(lambda: comm.all_reduce(np.ones(50_000)))
            comm = shrunk(comm)
            works(comm)
        comm.close()
        ended()
        """,
        tmp_path,
    )
    for rank in (1, 3):
        assert [each["old"] for each in ran.said[rank] if "old" in each] == [[0, 1, 2, 3], [1, 2, 3], [0, 2]], (
            ran.output
        )
        assert [each["good"] for each in ran.said[rank] if "good" in each] == [True] * 3
        assert ran.of(rank, "after") == ran.of(rank, "before")


# Of the survivors that have agreed one dies before all have met again.
KILLED_LATER = """
from rdmaring import group
from rdmaring.recover.survivors import Survivors
comm = rr.init(timeout_s=30)
x = np.ones(100_000)
comm.all_reduce(x)
if comm.rank == FIRST:
    die()
said_error(lambda: comm.all_reduce(x))
end = lambda: os.kill(os.getpid(), signal.SIGKILL)
create = group.create
def create_and_die(rank, size, gather, settings):
    rounds = []
    def counted(mine):
        rounds.append(gather(mine))
        if len(rounds) == 2:  # all tell that they are ready to map each other
            end()
        return rounds[-1]
    return create(rank, size, counted, settings)
if rank == THEN and AT == "meeting":
    Survivors.meet = lambda *_: end()
elif rank == THEN:
    group.create = create_and_die
comm = shrunk(comm)
works(comm)
comm.close()
"""


@pytest.mark.parametrize(
    ("nodes", "then", "at"),
    [
        pytest.param("", 0, "meeting", id="its-host"),
        pytest.param("", 3, "meeting", id="another", marks=pytest.mark.long),
        pytest.param("", 3, "joining", id="before-it-connects"),
        pytest.param("abbcc", 0, "meeting", id="far-host", marks=pytest.mark.long),
        pytest.param("abbcd", 4, "meeting", id="far"),
    ],
)
def test_one_more_dies_before_the_survivors_have_met(nodes: str, then: int, at: str, tmp_path: Path) -> None:
    """Nobody waits for it until the time for meeting (8 s) or mapping (20 s) is over."""
    size, first = len(nodes) or 4, 2
    ran = world(size, f"FIRST, THEN, AT = {first}, {then}, {at!r}" + KILLED_LATER, tmp_path, nodes)
    survivors = [rank for rank in range(size) if rank not in (first, then)]
    for rank in survivors:
        assert ran.of(rank, "old") == survivors, ran.output
        assert ran.of(rank, "good"), ran.output
        assert ran.of(rank, "seconds") < 7, ran.output


def test_all_may_survive(tmp_path: Path) -> None:
    """Nobody has died: one is inside an operation, the others call shrink()."""
    ran = world(
        3,
        """
        comm = rr.init(timeout_s=30)
        comm.all_reduce(np.ones(50_000))
        comm.barrier()
        if comm.rank == 0:
            said_error(lambda: comm.all_reduce(np.ones(1000)))
        comm = shrunk(comm)
        works(comm)
        half = comm.split(0)
        said_error(half.shrink)
        """,
        tmp_path,
    )
    for rank in range(3):
        assert ran.of(rank, "old") == [0, 1, 2], ran.output
        assert ran.of(rank, "last") == 2
        assert ran.of(rank, "good")
        assert ran.of(rank, "error") == "UnsupportedError"
    assert ran.said[0][0]["error"] == "AbortedError" and "shrink() was called" in ran.said[0][0]["text"]


def test_a_world_of_one_shrinks_to_itself(tmp_path: Path) -> None:
    ran = world(
        1,
        """
        comm = rr.init()
        comm.abort()
        comm = shrunk(comm)
        works(comm)
        """,
        tmp_path,
    )
    assert ran.code == 0, ran.output
    assert ran.of(0, "old") == [0]
    assert ran.of(0, "good")
