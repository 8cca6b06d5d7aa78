"""``check="crc"`` on real links: a transport that turns one bit, and one that turns none."""

from __future__ import annotations

from pathlib import Path

import pytest
from worlds import run_world

CORRUPTING = """
from rdmaring.transport.contract import HEAD_BYTES, Head, Kind, Transport
from rdmaring.transport.sockets import Sockets

class Corrupting(Transport):
    name = "corrupting"
    def __init__(self, edge):
        super().__init__(edge)
        self.inner, self.seen = Sockets(edge), 0
    def send(self, head, body): return self.inner.send(head, body)
    def progress(self): self.inner.progress()
    def receive(self):
        message = self.inner.receive()
        if message is None or Head.parse(message).kind != Kind.DATA:
            return message
        self.seen += 1
        if self.edge.rank != 1 or self.seen != TURNED:
            return message
        message = bytearray(message)
        message[HEAD_BYTES + 5] ^= 16
        return message
    def due_s(self): return self.inner.due_s()
    def fileno(self): return self.inner.fileno()
    def close(self): self.inner.close()

"""
APART = """
import os
os.environ["RDMARING_HOST_ID"] = f"node-{os.environ['RDMARING_RANK']}"
"""


def test_a_bit_turned_between_nodes_is_named_where_it_arrives(tmp_path: Path) -> None:
    ran = run_world(
        2,
        APART
        + CORRUPTING.replace("TURNED", "3")
        + """
with rr.init(timeout_s=30, transport=Corrupting, check="crc") as comm:
    x = np.arange(300_000, dtype=np.float32)
    try:
        comm.all_reduce(x, algorithm="ring")
        say(error="none")
    except rr.RdmaringError as error:
        say(error=type(error).__name__, text=str(error), peer=error.peer)
""",
        tmp_path,
        timeout_s=60,
    )
    assert ran.of(1, "error") == "CorruptError", ran.output
    assert ran.of(1, "peer") == 0
    assert "from rank 0 to rank 1" in ran.of(1, "text")
    assert "rank 1" in ran.of(0, "text")


FORWARDER = """
from rdmaring.transport.contract import Head, Kind, Transport
from rdmaring.transport.sockets import Sockets

HELD, TURNED = 16, 13 # slices that land before any is let on; which of them turns. The link's own queue holds 8

class Holding(Transport):
    name = "holding"
    landed = 0
    def __init__(self, edge):
        super().__init__(edge)
        self.inner = Sockets(edge)
    def send(self, head, body):
        if self.edge.rank == 1 and Head.parse(head).kind == Kind.DATA and Holding.landed < HELD:
            return False
        return self.inner.send(head, body)
    def progress(self): self.inner.progress()
    def receive(self):
        message = self.inner.receive()
        if message is not None and self.edge.rank == 1 and Head.parse(message).kind == Kind.DATA:
            Holding.landed += 1
            if Holding.landed == HELD: # what came before this one has landed, and was compared
                assert x[SLICE * TURNED + 5] == 1.0
                x[SLICE * TURNED + 5] = WRONG
        return message
    def due_s(self): return 0.001
    def fileno(self): return self.inner.fileno()
    def close(self): self.inner.close()

SLICE = 65536 // 4
x = np.full(SLICE * 40, 1.0 if os.environ["RDMARING_RANK"] == "0" else 0.0, np.float32)
WRONG = np.nextafter(np.float32(1), np.float32(2)) # one bit
with rr.init(timeout_s=30, transport=Holding, check="crc") as comm:
    try:
        comm.broadcast(x, root=0, algorithm="ring")
        say(error="none", wrong=int((x != 1).sum()))
    except rr.RdmaringError as error:
        say(error=type(error).__name__, text=str(error), peer=error.peer)
"""


def test_a_bit_turned_in_the_memory_of_a_forwarder_is_named_by_the_next_rank(tmp_path: Path) -> None:
    """A slice has landed on rank 1, right, and waits there for credit when its bit turns."""
    ran = run_world(3, APART + FORWARDER, tmp_path, env={"RDMARING_SLOT_BYTES": "65536"}, timeout_s=60)
    assert ran.of(2, "error") == "CorruptError", ran.output
    assert ran.of(2, "peer") == 1
    text = ran.of(2, "text")
    assert "slice 13 from rank 1 to rank 2 in step" in text
    assert "is not what its origin had" in text
    assert "this hop's own sum is right, so it changed in the memory of rank 1 between" in text


POKED = """
import threading
ELEMENTS = 1 << 22
with rr.init(timeout_s=60, check="crc") as comm:
    x = comm.empty(ELEMENTS, np.uint64) if MEMORY == "registered" else np.empty(ELEMENTS, np.uint64)
    told, stop = None, threading.Event()
    def poke():
        rng = np.random.default_rng(5)
        while not stop.is_set():
            places = rng.integers(0, ELEMENTS, 256)
            x[places] ^= np.uint64(1) << np.uint64(40)
    thread = threading.Thread(target=poke)
    if comm.rank == 1:
        thread.start()
    try:
        for _ in range(50):
            if comm.rank == 0:
                x[:] = 7
            comm.broadcast(x, root=0, algorithm="ring")
    except rr.RdmaringError as error:
        told = error
    stop.set()
    if comm.rank == 1:
        thread.join()
    say(error=type(told).__name__, text=str(told))
"""


@pytest.mark.parametrize("memory", ["registered", "ordinary"])
def test_a_rank_of_a_node_whose_memory_is_written_to_meanwhile_is_named(memory: str, tmp_path: Path) -> None:
    ran = run_world(3, f"MEMORY = {memory!r}\n" + POKED, tmp_path, timeout_s=90)
    errors = {rank: ran.of(rank, "error") for rank in range(3)}
    assert "CorruptError" in errors.values(), ran.output
    for rank, error in errors.items():
        assert error in ("CorruptError", "PeerFailedError"), ran.output
        if error == "CorruptError":
            assert "the memory of rank 1" in ran.of(rank, "text")


@pytest.mark.parametrize("apart", [False, True])
def test_right_bytes_pass(apart: bool, tmp_path: Path) -> None:
    """Registered, ordinary and small arrays, in place and out of place; on shared memory and over TCP."""
    ran = run_world(
        3,
        (APART if apart else "")
        + """
with rr.init(timeout_s=60, check="crc") as comm:
    N, R = comm.size, comm.rank
    for n in (1, 5, 1021, 40009, 700001):
        values = [np.random.default_rng([r, n]).integers(-99, 100, n).astype(np.float32) for r in range(N)]
        total = np.sum(values, axis=0, dtype=np.float64)
        held = comm.empty(n, np.float32)
        for algorithm in ("ring", "direct", "direct1", "tree", "halving"):
            for x in (held, np.empty(n, np.float32)):
                x[:] = values[R]
                comm.all_reduce(x, algorithm=algorithm)
                assert (x == total).all(), (n, algorithm)
        assert (comm.all_reduce(values[R], out=np.empty_like(values[R])) == total).all()
        pieces = np.array_split(values[R].copy(), 4)
        comm.all_reduce(pieces)
        assert (np.concatenate(pieces) == total).all()
        part = comm.reduce_scatter(values[R])
        assert (comm.all_gather(part, out=np.empty(n, np.float32)) == total).all()
    halves = np.ones(30000, np.float16)
    comm.all_reduce(halves, wire="float32")
    assert (halves == N).all()
    comm.barrier()
    say(done=True)
""",
        tmp_path,
        timeout_s=100,
    )
    assert ran.code == 0, ran.output
    assert ran.of(2, "done")


def test_ranks_that_differ_in_it_do_not_run(tmp_path: Path) -> None:
    ran = run_world(
        2,
        """
import os
with rr.init(timeout_s=30, check="crc" if os.environ["RDMARING_RANK"] == "1" else None) as comm:
    try:
        comm.all_reduce(np.ones(100_000, np.float32))
    except rr.MismatchError as error:
        say(text=str(error))
""",
        tmp_path,
        timeout_s=60,
    )
    for rank in range(2):
        assert "check" in ran.of(rank, "text"), ran.output


def test_an_unknown_check_is_refused(tmp_path: Path) -> None:
    ran = run_world(
        1,
        """
try:
    rr.init(check="md5")
except rr.ArgumentError as error:
    say(text=str(error))
""",
        tmp_path,
        timeout_s=60,
    )
    assert "check is 'md5'; accepted are 'crc', 'finite', or both between commas" in ran.of(0, "text")
