"""Worlds in which something is wrong, and what each rank's verdict says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from worlds import Ran, run_world

# FAR=1: each rank is a node of its own, so edges are TCP. Ranks tell their verdict, and what the logger told.
PRELUDE = """
import logging
me = int(os.environ["RDMARING_RANK"])
if os.environ.get("FAR"):
    os.environ["RDMARING_HOST_ID"] = f"node-{me // int(os.environ.get('PER', '1'))}"
lines = []
class Kept(logging.Handler):
    def emit(self, record):
        lines.append(record.getMessage())
logging.getLogger("rdmaring").addHandler(Kept())

def judged(call):
    begin = time.monotonic()
    try:
        call()
    except rr.RdmaringError as error:
        v = error.verdict
        say(error=type(error).__name__, text=str(error), seconds=time.monotonic() - begin, at=time.time(),
            log=[line for line in lines], verdict=None if v is None else v.as_dict(), link=error.link)
        return
    say(error=None, verdict=None, seconds=time.monotonic() - begin)

def stop_soon(pid, after_s):
    # The child of a child: nobody waits for it.
    if os.fork() == 0:
        time.sleep(after_s); os.kill(pid, signal.SIGSTOP); os._exit(0)
"""
# A loaded machine takes the processor from ranks, and then no edge is called slow. Not all control groups allow this.
PREFERRED = """
try:
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
except PermissionError as error:
    print(f"not preferred: {error}")

def judged_with_processor(call):
    waited = lambda: int(open("/proc/thread-self/schedstat").read().split()[1]) / 1e9
    before, begin = waited(), time.monotonic()
    judged(call)
    say(starved=(waited() - before) / (time.monotonic() - begin))
"""
# Over the edge 1->2 a message waits for its turn: so many bytes a second.
SLOW_EDGE = """
from rdmaring.transport import Sockets
class Throttled(Sockets):
    name = "throttled"
    next = 0.0
    def send(self, head, body):
        slow = self.edge.rank == 1 and self.edge.peer == 2
        if slow and time.monotonic() < self.next:
            return False
        taken = super().send(head, body)
        if taken and slow:
            self.next = time.monotonic() + len(body) / 1e6
        return taken
    def due_s(self):
        return self.next if self.next > time.monotonic() else None
"""
# Rank 1 is held inside the operation while it waits for the last rank, which enters late: sleep() is the handler of a
# signal whose number is the seconds. It is killed when the others are through.
HELD = (
    PREFERRED
    + """
import ctypes
comm = rr.init(timeout_s=30)
x = np.ones(300_000)
pids = comm.all_gather(np.array([os.getpid()]))
libc = ctypes.CDLL(None)
libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
libc.signal(signal.SIGVTALRM, ctypes.cast(libc.sleep, ctypes.c_void_p))
main = threading.main_thread().ident
comm.barrier()
if comm.rank == 1:
    threading.Timer(0.3, lambda: signal.pthread_kill(main, signal.SIGVTALRM)).start()
if comm.rank == comm.size - 1:
    time.sleep(0.8)
judged(lambda: comm.all_reduce(x, algorithm="ring", timeout_s=4))
if comm.rank == 0:
    time.sleep(1)  # the others are through
    os.kill(int(pids[1]), signal.SIGKILL)
"""
)
FAR = {"shm": {}, "tcp": {"FAR": "1"}, "mixed": {"FAR": "1", "PER": "2"}}


def run(world: int, source: str, tmp_path: Path, where: str = "shm", timeout_s: float = 60) -> Ran:
    return run_world(world, PRELUDE + source, tmp_path, "--keep-going", env=FAR[where], timeout_s=timeout_s)


def verdict(ran: Ran, rank: int) -> dict[str, Any]:
    found = ran.of(rank, "verdict")
    assert found is not None, ran.output
    return dict(found)


def slow_edge(ran: Ran, world: int, rank: int, peer: int) -> dict[str, Any] | None:
    """All say that this edge is slow. None: no rank says so, for a rank of them wanted a processor."""
    found = [ran.of(each, "verdict") for each in range(world)]
    if max(ran.of(each, "starved") for each in range(world)) > 0.2 and found == [None] * world:
        return None
    for each in found:
        assert each is not None and (each["kind"], each["rank"], each["peer"]) == ("slow", rank, peer), ran.output
        assert "bytes were under way on it" in each["evidence"][0], each
        assert "wanted a processor" in each["evidence"][1], each
    return dict(found[0])


def agreed(ran: Ran, ranks: tuple[int, ...], kind: str, culprit: int | None) -> dict[str, Any]:
    """All of ``ranks`` say the same class and place, and have logged the line once; returns the first's verdict."""
    for rank in ranks:
        each = verdict(ran, rank)
        assert each["kind"] == kind, ran.output
        if culprit is not None:
            assert each["rank"] == culprit, ran.output
        if each["peer"] is not None:
            assert ran.of(rank, "link") == f"{each['rank']}->{each['peer']}", ran.output
        lines = ran.of(rank, "log")
        assert [line for line in lines if each["text"] in line] == [f"rank {rank}: {each['text']}"], lines
    return verdict(ran, ranks[0])
