"""A Python class serves the edges between nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
from nodes import FAR, SUMS
from worlds import run_world

from rdmaring import transport

OPEN_BODY_BYTES = 168  # docs/WIRE.md


@pytest.mark.parametrize("world", [2, 3])
def test_sockets_serve_all_collectives(world: int, tmp_path: Path) -> None:
    source = SUMS.replace("timeout_s=60", "timeout_s=60, transport=rdmaring.transport.Sockets")
    ran = run_world(world, FAR + "import rdmaring.transport\n" + source, tmp_path, timeout_s=110)
    assert ran.code == 0, ran.output
    assert ran.of(0, "transports") == ["sockets"]


def test_asynchronous_work_and_other_communicators(tmp_path: Path) -> None:
    source = """
from rdmaring.transport import Sockets
with rr.init(timeout_s=30, transport=Sockets) as comm:
    works = [comm.all_reduce(np.full(100_000, float(k), np.float32), async_op=True) for k in range(8)]
    for k, work in enumerate(works):
        assert (work.wait() == k * comm.size).all()
    half = comm.split(comm.rank % 2)
    other = comm.dup()
    say(transports=sorted({link.transport for c in (half, other) for link in c.links}),
        sum=float(other.all_reduce(np.ones(70_000, np.float32))[0]),
        half=float(half.all_reduce(np.full(9, comm.rank, np.float32))[0]))
    half.close()
    other.close()
"""
    ran = run_world(4, FAR + source, tmp_path)
    assert ran.code == 0, ran.output
    for rank in range(4):
        assert ran.of(rank, "transports") == ["sockets"]
        assert ran.of(rank, "sum") == 4
        assert ran.of(rank, "half") == 2 + 2 * (rank % 2)


@pytest.mark.parametrize("world", [2, 3])
def test_what_is_counted_is_what_the_ring_must_send(world: int, tmp_path: Path) -> None:
    count = 600_000  # divisible by both worlds
    source = f"""
from rdmaring.transport import Delaying
counting = Delaying()
with rr.init(timeout_s=30, transport=counting) as comm:
    x = np.full({count}, comm.rank + 1.0, np.float32)
    comm.all_reduce(x, algorithm="ring")
    assert (x == comm.size * (comm.size + 1) / 2).all()
    to, back = counting.sent((comm.rank + 1) % comm.size), counting.received((comm.rank - 1) % comm.size)
    say(data=to.data_bytes, received=back.data_bytes, other=to.body_bytes - to.data_bytes,
        messages=to.messages - to.data_messages, slices=to.data_messages,
        told=sum(link.sent_bytes for link in comm.links), told_slices=sum(link.sent_slices for link in comm.links))
    comm.barrier()
"""
    ran = run_world(world, FAR + source, tmp_path)
    assert ran.code == 0, ran.output
    for rank in range(world):
        assert ran.of(rank, "data") == ran.of(rank, "received") == 2 * (world - 1) * count * 4 // world
        assert ran.of(rank, "other") == OPEN_BODY_BYTES
        assert ran.of(rank, "messages") == 1
        assert ran.of(rank, "told") == ran.of(rank, "data")
        assert ran.of(rank, "told_slices") == ran.of(rank, "slices")


@pytest.mark.parametrize("delay_s", [0.002, 0.03])
def test_the_delay_asked_for_is_seen(delay_s: float, tmp_path: Path) -> None:
    source = f"""
from rdmaring.transport import Delaying
slow = Delaying({delay_s}, jitter_s={delay_s} / 4, seed=3)
with rr.init(timeout_s=30, transport=slow) as comm:
    x = np.ones(2, np.float64)
    comm.all_reduce(x)
    begin = time.monotonic()
    for _ in range(20):
        comm.all_reduce(x)
    say(seconds=time.monotonic() - begin, sum=float(x[0]), tiny=slow.sent(1 - comm.rank).tiny_messages)
"""
    ran = run_world(2, FAR + source, tmp_path)
    assert ran.code == 0, ran.output
    for rank in range(2):
        # Operation k ends here at least the delay after operation k - 1 ended there, and so on back and forth.
        assert ran.of(rank, "seconds") >= 20 * delay_s, ran.output
        assert ran.of(rank, "seconds") < 20 * (1.25 * delay_s + 0.05), ran.output
        assert ran.of(rank, "sum") == 2.0**21
        assert ran.of(rank, "tiny") == 21


RAISES = """
from rdmaring.transport import Sockets
class Torn(Sockets):
    name = "torn"
    def __init__(self, edge):
        if edge.rank == 1 and WHERE == "open":
            raise ValueError("no card")
        super().__init__(edge)
    def send(self, head, body):
        if self.edge.rank == 1 and WHERE == "send":
            raise ValueError("out of ink")
        if self.edge.rank == 1 and WHERE == "sent":
            return None
        return super().send(head, body)
    def receive(self):
        if self.edge.rank == 1 and WHERE == "receive":
            raise ValueError("deaf")
        message = super().receive()
        if self.edge.rank == 1 and WHERE == "short" and message is not None:
            return message[:-1]
        return message
    def progress(self):
        if self.edge.rank == 1 and WHERE == "progress":
            raise ValueError("stuck")
    def due_s(self):
        if self.edge.rank == 1 and WHERE == "due_s" and armed:
            raise ValueError("no watch")
armed = False
comm = rr.init(timeout_s=20, transport=Torn)
if WHERE == "due_s":
    comm.barrier()  # the edge is open: rank 1 fails while it waits, not when it has sent all that rank 0 needs
    armed = True
    if comm.rank == 0:
        time.sleep(0.3)
said_error(lambda: comm.all_reduce(np.ones(10_000, np.float32)))
comm.close()
"""
WORDS = {
    "open": "failed in open(): Torn raised ValueError: no card (ranks.py:",
    "send": "failed in send(): Torn raised ValueError: out of ink (ranks.py:",
    "sent": "failed in send(): Torn raised TypeError: send() returned None",
    "receive": "failed in receive(): Torn raised ValueError: deaf",
    "short": "failed in receive(): Torn raised ValueError: receive() gave",
    "progress": "failed in progress(): Torn raised ValueError: stuck",
    "due_s": "failed in progress(): Torn raised ValueError: no watch",
}


@pytest.mark.parametrize("where", WORDS)
def test_an_exception_is_told_on_both_ranks(where: str, tmp_path: Path) -> None:
    ran = run_world(2, FAR + RAISES.replace("WHERE", repr(where)), tmp_path, env={"RDMARING_LOG": "error"})
    assert ran.of(1, "error") == "LinkError", ran.output
    assert f"the edge to rank 0 by the transport torn {WORDS[where]}" in ran.of(1, "text")
    assert ran.of(1, "peer") == 0
    assert ran.of(0, "error") == "PeerFailedError", ran.output
    assert WORDS[where] in ran.of(0, "text")
    assert max(ran.of(0, "seconds"), ran.of(1, "seconds")) < 2.5
    assert "Traceback" in ran.output


def test_an_end_of_the_wire_is_told_as_the_death_that_it_was(tmp_path: Path) -> None:
    source = """
from rdmaring.transport import Sockets
comm = rr.init(timeout_s=30, transport=Sockets)
x = np.ones(100_000, np.float32)
comm.all_reduce(x)
if comm.rank == 1:
    time.sleep(0.3)  # the others are through the first operation too
    os.kill(os.getpid(), signal.SIGKILL)
said_error(lambda: [comm.all_reduce(x) for _ in range(1000)])
"""
    ran = run_world(2, FAR + source, tmp_path)
    assert ran.of(0, "error") == "PeerDiedError", ran.output
    assert ran.of(0, "peer") == 1


def test_control_c_is_control_c(tmp_path: Path) -> None:
    source = """
from rdmaring.transport import Sockets
comm = rr.init(timeout_s=30, transport=Sockets)
x = np.ones(10, np.float32)
comm.all_reduce(x)
if comm.rank == 1:
    time.sleep(2)
else:
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    begin = time.monotonic()
    try:
        comm.all_reduce(np.ones(100_000, np.float32))
    except KeyboardInterrupt:
        say(interrupted=time.monotonic() - begin)
"""
    ran = run_world(2, FAR + source, tmp_path)
    assert ran.of(0, "interrupted") < 1.0, ran.output


def test_nothing_is_left_after_close(tmp_path: Path) -> None:
    source = """
from rdmaring.transport import Delaying
slow = Delaying(0.001)
before = None
for turn in range(4):
    with rr.init(timeout_s=30, transport=slow) as comm:
        comm.all_reduce(np.ones(100_000, np.float32))
        served = comm._settings.link_transport
        comm.barrier()
    left = len(os.listdir("/proc/self/fd")), len(served.edges)
    before = before or left
say(grown=left[0] - before[0], open=left[1])
"""
    ran = run_world(2, FAR + source, tmp_path)
    for rank in range(2):
        assert ran.of(rank, "grown") <= 0, ran.output
        assert ran.of(rank, "open") == 0


@pytest.mark.parametrize("given", ["7", "object()", "lambda edge: 7"])
def test_what_is_no_transport_is_refused(given: str, tmp_path: Path) -> None:
    source = f"""
def use():
    with rr.init(timeout_s=20, transport={given}) as comm:
        comm.all_reduce(np.ones(10, np.float32))
said_error(use)
"""
    ran = run_world(2, FAR + source, tmp_path)
    for rank in range(2):
        expected = ("LinkError", "PeerFailedError") if "lambda" in given else ("ArgumentTypeError",)
        assert ran.of(rank, "error") in expected, ran.output
        assert "accepted" in ran.of(rank, "text")


def test_heads_are_parsed_as_they_are_packed() -> None:
    head = transport.Head(0x46545252, transport.Kind.DATA, 0, 7, 1, 2, 4096, 0, 99, 0x1B2C3D4E, 0x9A8B7C6D)
    assert len(head.pack()) == transport.HEAD_BYTES == 48
    assert transport.Head.parse(head.pack()) == head


@pytest.mark.parametrize(("delay_s", "jitter_s"), [(-1.0, 0.0), (0.0, float("nan")), (5000.0, 0.0)])
def test_delays_out_of_range_are_refused(delay_s: float, jitter_s: float) -> None:
    with pytest.raises(ValueError, match="accepted are seconds"):
        transport.Delaying(delay_s, jitter_s=jitter_s)
