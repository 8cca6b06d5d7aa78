"""Steps and bytes are counted on the links, and held to the formulas."""

from __future__ import annotations

from pathlib import Path

import pytest
from worlds import run_world


@pytest.mark.parametrize("world", range(2, 10))
def test_ring_sends_what_the_formula_says(world: int, tmp_path: Path) -> None:
    ran = run_world(
        world,
        """
        comm = rr.init(timeout_s=60)
        count = 64 * comm.size * 50
        for make in (lambda: np.ones(count, np.float32), lambda: comm.empty(count, np.float32)):
            comm.all_reduce(make(), algorithm="ring")
            last, links = comm.last, comm.last_links
            say(ring=[last.steps, last.sent_bytes, last.received_bytes],
                peers={str(p): list(b) for p, b in links.items() if any(b)})
        work = comm.all_reduce(np.ones(count, np.float32), algorithm="ring", async_op=True)
        comm.barrier()
        work.wait()
        assert work.stats.steps == 2 * (comm.size - 1) and work.links == links, (work.links, links)
        comm.all_reduce(np.ones(count, np.float32), algorithm="naive")
        say(naive=[comm.last.sent_bytes, comm.last.received_bytes])
        comm.all_reduce(np.ones(2, np.float32), algorithm="direct1")
        say(tiny={str(p): list(b) for p, b in comm.last_links.items()})
        """,
        tmp_path,
    )
    assert ran.code == 0, ran.output
    vector_bytes = 64 * world * 50 * 4
    share = 2 * (world - 1) * vector_bytes // world
    for rank in range(world):
        for what in [w for w in ran.said[rank] if "ring" in w]:
            assert what["ring"] == [2 * (world - 1), share, share]
            right, left = str((rank + 1) % world), str((rank - 1) % world)
            peers = what["peers"]
            assert set(peers) == {right, left}
            if world > 2:
                assert peers[right] == [share, 0] and peers[left] == [0, share]
        assert ran.of(rank, "tiny") == {str(p): [8, 8] for p in range(world) if p != rank}
        # naive: root 0 receives N-1 vectors and sends N-1: (N-1)/N of what all ranks receive in the reduce half
        sent, received = ran.of(rank, "naive")
        busy = (world - 1) * vector_bytes
        assert (sent, received) == ((busy, busy) if rank == 0 else (vector_bytes, vector_bytes))


def test_page_stores_of_a_tiny_operation() -> None:
    """The progress page costs a tiny operation two stores: counted in the source of its fast path."""
    run = (Path(__file__).parents[2] / "native/src/run.c").read_text()
    begin = run.index("static rr_status run_tiny")
    body = run[begin : run.index("\n}\n", begin)]
    stores = body.count("rr_publish64(&page->") + body.count("rr_note64(&page->")
    assert stores == 2


def test_memory_of_links_is_bounded(tmp_path: Path) -> None:
    ran = run_world(
        4,
        """
        def shared_kib():
            return sum(int(l.split()[1]) for l in open("/proc/self/smaps") if l.startswith("Pss:"))
        comm = rr.init(timeout_s=60)
        x = np.ones(1 << 24, np.float32)
        comm.reduce_scatter(np.ones(4), algorithm="ring")
        before = shared_kib()
        comm.all_reduce(x, algorithm="ring")
        comm.all_reduce(x, algorithm="direct")
        part = comm.reduce_scatter(x, algorithm="ring")
        comm.reduce(x, root=1, algorithm="ring")
        del part
        say(grown=shared_kib() - before, per_link=max(l.slot_bytes * l.slot_count for l in comm.links))
        """,
        tmp_path,
    )
    assert ran.code == 0, ran.output
    for rank in range(4):
        assert ran.of(rank, "per_link") <= 8 << 20
        # three links out, three in, scratch of two rounds: far below the 64 MiB vector
        assert ran.of(rank, "grown") < 24 << 10, ran.output


def test_slots_shrink_to_the_budget_or_the_set_up_says_so(tmp_path: Path) -> None:
    source = """
        said_error(lambda: say(slot=rr.init(timeout_s=20).links[0].slot_bytes))
        """
    small = run_world(3, source, tmp_path, env={"RDMARING_MEMORY_BUDGET": str(1 << 20)})
    assert small.code == 0, small.output
    assert small.of(1, "slot") < 256 << 10
    none = run_world(3, source, tmp_path, env={"RDMARING_MEMORY_BUDGET": "10000"})
    for rank in range(3):
        assert none.of(rank, "error") == "OutOfMemoryError", none.output
        assert "of the budget of 10000 (RDMARING_MEMORY_BUDGET)" in none.of(rank, "text")


def test_the_budget_is_of_the_process(tmp_path: Path) -> None:
    """More communicators, smaller slots; a rank that has fewer takes what the others can."""
    ran = run_world(
        2,
        """
        comm = rr.init(timeout_s=20)
        alone = comm.split(comm.rank) if True else None
        more = [comm.dup() for _ in range(4)]
        sizes = [c.links[0].slot_bytes for c in (comm, *more)]
        for c in more:
            x = np.ones(300000); c.all_reduce(x); assert (x == 2).all()
        say(sizes=sizes)
        """,
        tmp_path,
        env={"RDMARING_MEMORY_BUDGET": str(10 << 20)},
    )
    assert ran.code == 0, ran.output
    sizes = ran.of(0, "sizes")
    assert sizes == ran.of(1, "sizes") and sizes[0] == 256 << 10
    # four slots a link and for what all peers read, and one's bytes for messages, for each of the two ranks
    assert sizes[-1] < sizes[0] and sum(2 * (4 + 1) * size for size in sizes) <= 10 << 20


def test_waiting_and_idle_ranks_use_no_cpu(tmp_path: Path) -> None:
    ran = run_world(
        3,
        """
        comm = rr.init(timeout_s=30)
        comm.barrier()
        begin = time.process_time()
        time.sleep(1.0)
        idle = time.process_time() - begin
        comm.barrier()
        if comm.rank == 0:
            time.sleep(1.0)
        begin = time.process_time()
        comm.all_reduce(np.ones(100000))
        waited = time.process_time() - begin
        begin = time.process_time()
        work = None if comm.rank == 0 else comm.all_reduce(np.ones(100000), async_op=True)
        time.sleep(1.0)
        outstanding = time.process_time() - begin
        (work or comm.all_reduce(np.ones(100000), async_op=True)).wait()
        say(idle=idle, waited=waited, outstanding=outstanding)
        """,
        tmp_path,
    )
    assert ran.code == 0, ran.output
    for rank in range(3):
        assert ran.of(rank, "idle") < 0.02
        assert ran.of(rank, "waited") < 0.2, "a second of waiting sleeps after a few milliseconds"
        assert ran.of(rank, "outstanding") < 0.2
