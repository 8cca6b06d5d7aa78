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
        comm.all_reduce(np.ones(count, np.float32), algorithm="naive")
        say(naive=[comm.last.sent_bytes, comm.last.received_bytes])
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
