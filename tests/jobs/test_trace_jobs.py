"""Traces of real ranks: what was sent, who was late, what is lost, clocks that differ, programs that fail."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from worlds import RDMARING, run_world

from rdmaring.diagnose.trace import read, summarize
from rdmaring.diagnose.trace.records import OPEN, OPERATION, RECEIVE, REDUCE, SEND

RING = """
import pathlib
count, registered = {count}, {registered}
with rr.init() as comm:
    x = comm.empty(count) if registered else np.zeros(count, np.float32)
    x[:] = 1
    comm.all_reduce(x, algorithm="ring")
    with comm.trace("{path}") as tracing:
        comm.all_reduce(x, algorithm="ring")
        comm.all_reduce(x, algorithm="ring")
    summary = tracing.summary()
    say(right=bool((x == comm.size ** 3).all()), summary=summary is not None)
"""


@pytest.mark.parametrize(("world", "registered"), [(2, False), (3, False), (4, True)])
def test_what_a_ring_sends(world: int, registered: bool, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    count = 12 * (1 << 16)  # divides by 2, 3 and 4: all chunks are equal
    ran = run_world(world, RING.format(count=count, registered=registered, path=path), tmp_path)
    assert ran.code == 0, ran.output
    assert all(ran.of(rank, "right") for rank in range(world))
    assert [ran.of(rank, "summary") for rank in range(world)] == [True] + [False] * (world - 1)
    trace = read(path)
    assert trace.lost == 0 and len(trace.ranks) == world
    for rank in trace.ranks:
        sends, receives = rank.of(SEND), rank.of(RECEIVE)
        assert set(sends["peer"].tolist()) == {(rank.rank + 1) % world}
        assert set(receives["peer"].tolist()) == {(rank.rank - 1) % world}
        # an all-reduce of B bytes sends 2(N-1)/N of them over each link; two were traced
        assert int(sends["bytes"].sum()) == int(receives["bytes"].sum()) == 2 * 2 * (world - 1) * count * 4 // world
        # and reduces (N-1)/N of them on each rank
        assert int(rank.of(REDUCE)["bytes"].sum()) == 2 * (world - 1) * count * 4 // world
        assert (rank.records["end_ns"] >= rank.records["begin_ns"]).all()
        operations = rank.of(OPERATION)
        assert len(operations) == 2 and (operations["bytes"] == count * 4).all()
        within = rank.records[rank.records["op"] == operations[1]["op"]]
        assert (within["begin_ns"] >= operations[1]["begin_ns"]).all()
        assert (within["end_ns"] <= operations[1]["end_ns"]).all()
    for rank in trace.ranks:  # one clock: a slice is never here before it was sent
        sent = {
            (int(r["op"]), int(r["order"]), int(r["slice"])): r
            for r in trace.ranks[(rank.rank - 1) % world].of(SEND)
            if r["detail"] != 1  # what is read in place out of a sender's input is there from its OPEN on
        }
        matched = 0
        for receive in rank.of(RECEIVE):
            send = sent.get((int(receive["op"]), int(receive["order"]), int(receive["slice"])))
            if send is not None:
                matched += 1
                assert send["begin_ns"] <= receive["end_ns"] and send["bytes"] == receive["bytes"]
        assert matched > 0
    found = summarize(trace)
    assert {(e.source, e.destination) for e in found.edges} == {(r, (r + 1) % world) for r in range(world)}
    assert found.clock_error_ns == 0 and found.aligned


def test_a_late_rank_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    source = f"""
    with rr.init() as comm:
        x = np.ones(1 << 18, np.float32)
        comm.all_reduce(x, algorithm="ring")
        with comm.trace("{path}"):
            if comm.rank == 1:
                time.sleep(0.3)
            comm.all_reduce(x, algorithm="ring")
    """
    ran = run_world(3, source, tmp_path)
    assert ran.code == 0, ran.output
    trace = read(path)
    found = summarize(trace)
    for rank in (0, 2):
        late = trace.ranks[rank].of(OPEN)
        assert late[late["peer"] == 1]["end_ns"].max() - late["begin_ns"].min() > 0.25e9
        assert found.ranks[rank].open_s > 0.25
    assert found.ranks[1].open_s < 0.1
    assert found.slowest_rank == 1


def test_a_full_ring_counts_what_is_lost(tmp_path: Path) -> None:
    source = """
    with rr.init() as comm:
        x = np.ones(1, np.float32)
        with comm.trace(record_count=64) as tracing:
            for _ in range(100):
                comm.all_reduce(x)
        if comm.rank == 0:
            records = tracing.trace.ranks[1].records
            say(kept=len(records), lost=tracing.trace.ranks[1].lost, first=int(records["op"][0]),
                last=int(records["op"][-1]))
        try:
            with comm.trace():
                with comm.trace():
                    pass
        except rr.RdmaringError as error:
            say(error=type(error).__name__, text=str(error))
    """
    ran = run_world(2, source, tmp_path)
    assert ran.code == 0, ran.output
    assert (ran.of(0, "kept"), ran.of(0, "lost")) == (64, 36)
    assert ran.of(0, "last") - ran.of(0, "first") == 63, "the newest are kept"
    assert ran.of(0, "error") == "ArgumentError" and "traced already" in ran.of(0, "text")


def test_clocks_that_differ_are_aligned_within_the_error_that_is_told(tmp_path: Path) -> None:
    source = """
    from rdmaring.diagnose.trace.clocks import align
    with rr.init() as comm:
        shift = 10**12 * comm.rank
        found = align(comm, clock=lambda: time.monotonic_ns() + shift, name=comm.rank)
        say(off=found.offset_ns + shift, error=found.error_ns)
        same = align(comm)
        say(same=[same.offset_ns, same.error_ns])
    """
    ran = run_world(3, source, tmp_path)
    assert ran.code == 0, ran.output
    for rank in range(3):
        assert abs(ran.of(rank, "off")) <= ran.of(rank, "error")
        assert ran.of(rank, "same") == [0, 0]
    assert ran.of(1, "error") < 50e6


def test_a_whole_program(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    source = """
    comm = rr.init()
    comm.all_reduce(np.ones(1 << 16, np.float32), algorithm="ring")
    if len(sys.argv) > 1 and comm.rank == 1:
        raise SystemExit("enough")
    comm.all_reduce(np.ones(4, np.float32))
    comm.close()
    """
    ran = run_world(2, source, tmp_path, env={"RDMARING_TRACE": str(path)})
    assert ran.code == 0, ran.output
    trace = read(path)
    assert all(len(each.of(OPERATION)) >= 2 for each in trace.ranks)
    assert not list(tmp_path.glob("*.rank*"))


def test_a_program_that_fails_leaves_each_rank_s_own(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    source = """
    with rr.init() as comm:
        comm.all_reduce(np.ones(1 << 16, np.float32), algorithm="ring")
        if comm.rank == 1:
            raise RuntimeError("enough")
        comm.all_reduce(np.ones(1 << 16, np.float32), algorithm="ring")
    """
    ran = run_world(2, source, tmp_path, env={"RDMARING_TRACE": str(path)})
    assert ran.code != 0
    assert not path.exists()
    trace = read(tmp_path / "t.json.rank0", tmp_path / "t.json.rank1")
    assert not trace.aligned
    last = trace.ranks[0].of(OPERATION)[-1]
    assert last["flags"] == 1, "the operation that failed is there, marked"


def test_the_command(tmp_path: Path) -> None:
    def rdmaring(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [RDMARING, "trace", *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=100, env=os.environ
        )

    ran = rdmaring("-n", "2", "--bytes", "1M", "--algorithm", "ring", "--iters", "2", "--out", "a.json", "--json")
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert told["world"] == 2 and [e["bytes"] for e in told["edges"]] == [2 << 20] * 2
    shown = rdmaring("show", "a.json", "--json")
    assert json.loads(shown.stdout) == told
    text = rdmaring("show", "a.json").stdout
    assert "# overlap: in" in text and "one clock" in text and "0 -> 1" in text
    assert rdmaring("show", "missing.json").returncode == 1
    assert rdmaring().returncode == 2
    assert rdmaring("-n", "2", "--bytes", "lots").returncode == 2
    assert "Examples" in rdmaring("--help").stdout


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mib", [1, 16])
def test_the_cost_is_small(mib: int, tmp_path: Path) -> None:
    """Below 3 %, as far as this machine can tell: what it cannot tell from nothing is printed."""
    source = f"""
    from rdmaring.diagnose.trace.cost import measure
    with rr.init() as comm:
        for same in (True, False):
            found = measure(comm, {mib} << 20, {400 if mib == 1 else 100}, same=same)
            say(**{{"same" if same else "traced": found.__dict__}})
    """
    ran = run_world(2, source, tmp_path, timeout_s=500)
    assert ran.code == 0, ran.output
    same, traced = ran.of(0, "same"), ran.of(0, "traced")
    print(same, traced)
    noise = max(0.0, same["high"] - 1)
    assert traced["ratio"] < 1.03 + noise, (same, traced)
