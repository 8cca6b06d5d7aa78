"""send and recv: order, sizes, both directions at once, beside collectives; and what ends them."""

from __future__ import annotations

from pathlib import Path

import pytest
from nodes import FAR
from worlds import run_world

EXCHANGES = """
comm = rr.init(timeout_s=60)
r, n = comm.rank, comm.size
right, left = (r + 1) % n, (r - 1) % n

def vector(rank, count, dtype, salt=0):
    return np.random.default_rng((4, rank, salt)).integers(0, 90, count).astype(dtype)

for count, dtype in ((0, "f4"), (1, "f8"), (5, "f8"), (6, "f8"), (1000, "i2"), (70_001, "f4"), (1 << 20, "f4")):
    got = np.full(count, 7, dtype)
    work = comm.send(vector(r, count, dtype), right, async_op=True)   # a ring: all send at once
    assert comm.recv(got, left) is got
    work.wait()
    assert np.array_equal(got, vector(left, count, dtype)), (count, dtype)
    for peer in range(n):                                             # everybody with everybody, and a collective
        if peer != r:
            comm.send(vector(r, count, dtype, peer), peer, async_op=True)
    total = np.full(5000, r + 1.0)
    between = comm.all_reduce(total, async_op=True)
    for peer in reversed(range(n)):
        if peer != r:
            got = comm.recv(np.full(count, 7, dtype), peer)
            assert np.array_equal(got, vector(peer, count, dtype, r)), (count, dtype, peer)
    between.wait()
    assert (total == n * (n + 1) / 2).all()
inbox = [np.zeros(k % 7 * 1000, "i8") for k in range(30)]              # many outstanding keep their order
works = [comm.recv(x, left, async_op=True) for x in inbox]
works += [comm.send(np.full(k % 7 * 1000, k, "i8"), right, async_op=True) for k in range(30)]
for work in works:
    work.wait()
assert all((x == k).all() for k, x in enumerate(inbox))
x = comm.empty(300_000, np.float32); x[:] = r
y = comm.empty(300_000, np.float32)
work = comm.recv(y, left, async_op=True)
comm.send(x, right)
work.wait()
assert (y == left).all()
comm.barrier()
say(ok=True)
"""


@pytest.mark.parametrize(("world", "far"), [(2, False), (3, False), (5, False), (2, True), (3, True)])
def test_exchanges(world: int, far: bool, tmp_path: Path) -> None:
    ran = run_world(world, (FAR if far else "") + EXCHANGES, tmp_path, timeout_s=110, env={"PER": "1"})
    assert ran.code == 0, ran.output
    assert all(ran.of(rank, "ok") for rank in range(world))


START = """
comm = rr.init(timeout_s=30)
r = comm.rank
x = np.ones(1 << 20, np.float32)
comm.barrier()
"""


@pytest.mark.parametrize("far", [False, True], ids=["shm", "tcp"])
@pytest.mark.parametrize("wrong", ["x[:-1]", "x.view(np.int32)"], ids=["count", "dtype"])
def test_another_size_or_dtype_is_told_on_both(wrong: str, far: bool, tmp_path: Path) -> None:
    # Sockets may take all of a message before its head is read: then the sender learns it in its next call.
    calls = f"comm.recv({wrong}, 0) if r else [comm.send(x, 1), comm.barrier()]"
    source = (FAR if far else "") + START + f"said_error(lambda: {calls})\n"
    ran = run_world(2, source, tmp_path, env={"PER": "1"})
    for rank in range(2):
        assert ran.of(rank, "error") == "MismatchError", ran.output
        text = ran.of(rank, "text")
        assert "from rank 0 to rank 1: it is sent as 4194304 bytes of float32" in text, ran.output
        assert ("4194300 bytes of float32" if "-1" in wrong else "4194304 bytes of int32") in text


@pytest.mark.parametrize("far", [False, True], ids=["shm", "tcp"])
def test_a_dead_peer_is_named(far: bool, tmp_path: Path) -> None:
    end = "os.kill(os.getpid(), signal.SIGKILL) if r == 1 else said_error(lambda: comm.recv(x, 1))\n"
    ran = run_world(2, (FAR if far else "") + START + end, tmp_path, env={"PER": "1"})
    assert (ran.of(0, "error"), ran.of(0, "peer")) == ("PeerDiedError", 1), ran.output


def test_time_abort_and_close_end_it(tmp_path: Path) -> None:
    ran = run_world(
        2,
        START
        + """
a, b, c = comm.dup(), comm.dup(), comm.dup()
if r == 0:
    said_error(lambda: a.recv(x, 1, timeout_s=0.3))
    work = b.send(x, 1, async_op=True)
    threading.Timer(0.2, b.abort).start()
    said_error(work.wait)
    said_error(lambda: c.recv(x, 1))
else:
    c.close()
    time.sleep(2)
for call in (lambda: comm.send(x, r), lambda: comm.send([x, x], 1 - r), lambda: comm.recv(x, 2)):
    try:
        call()
    except rr.ArgumentError:
        continue
    raise SystemExit("accepted")
comm.barrier()
say(ok=True)
""",
        tmp_path,
    )
    assert ran.code == 0, ran.output
    errors = [what["error"] for what in ran.said[0] if "error" in what]
    assert errors == ["OperationTimeoutError", "AbortedError", "PeerClosedError"], ran.output
