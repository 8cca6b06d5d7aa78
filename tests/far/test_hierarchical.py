"""Hierarchical all-reduce between nodes on one machine: sums, rounding, hops, and phases that overlap."""

from __future__ import annotations

from pathlib import Path

import pytest
from worlds import Ran, run_world

from rdmaring.diagnose.trace import read
from rdmaring.diagnose.trace.records import REDUCE, SEND
from rdmaring.schedule import Buffer, Op, generate

# NODES: the node of each rank.
PLACED = """
NODES = [int(node) for node in os.environ["NODES"].split(",")]
os.environ["RDMARING_HOST_ID"] = f"node-{NODES[int(os.environ['RDMARING_RANK'])]}"
"""

SUMS = """
import ml_dtypes
bfloat16 = np.dtype(ml_dtypes.bfloat16)
names = list(dict.fromkeys(NODES))
with rr.init(timeout_s=60) as comm:
    r, n = comm.rank, comm.size
    inputs = np.random.default_rng(5).standard_normal((n, 300_001)).astype(np.float32).astype(bfloat16)
    sums = []
    for node in names:
        near = inputs[[rank for rank in range(n) if NODES[rank] == node]].astype(np.float32)
        sums.append(np.add.accumulate(near, axis=0)[-1].astype(bfloat16).astype(np.float32))
    twice = np.add.accumulate(np.array(sums), axis=0)[-1].astype(bfloat16)
    for registered in (False, True):
        for count in (1, 5, 4097, 300_001):
            for algorithm in ("hierarchical", "hierarchical-ring"):
                x = comm.empty(count) if registered else np.empty(count, np.float32)
                x[:] = np.arange(count) % 7 + r
                out = comm.all_reduce(x, out=comm.empty(count) if registered else np.empty(count, np.float32),
                                      algorithm=algorithm)
                want = np.arange(count) % 7 * n + n * (n - 1) / 2
                assert np.array_equal(out, want), (count, algorithm, out[:9], want[:9])
                assert np.array_equal(x, np.arange(count) % 7 + r)
                comm.all_reduce(x, op="avg", algorithm=algorithm)
                np.testing.assert_allclose(x, want / n, rtol=1e-6)
            x = comm.empty(count, bfloat16) if registered else np.empty(count, bfloat16)
            x[:] = inputs[r, :count]
            comm.all_reduce(x, algorithm="hierarchical")
            assert np.array_equal(x.view(np.uint16), twice[:count].view(np.uint16))
    pieces = [np.full(k, r + 1.0, np.float32) for k in [3] * 30 + [70_000, 1, 12_345]]
    works = [comm.all_reduce(pieces, algorithm="hierarchical", async_op=True) for _ in range(3)]
    [work.wait() for work in works]
    assert all((piece == n * (n + 1) / 2 * n * n).all() for piece in pieces)
    say(nodes=comm._nodes, steps=comm.last.steps)
"""

HOPS = """
from rdmaring.transport import Delaying
DELAY_S = 0.2
with rr.init(timeout_s=60, transport=Delaying(DELAY_S)) as comm:
    x = comm.empty(16384)  # 64 KiB
    for algorithm in ("ring", "hierarchical"):
        plan = comm.plan_all_reduce(x, algorithm=algorithm)
        plan()
        begin = time.monotonic()
        for _ in range(3):
            plan()
        say(**{algorithm: (time.monotonic() - begin) / 3 / DELAY_S})
"""

TRACED = """
with rr.init(timeout_s=60) as comm:
    x = comm.empty(4 * (1 << 20) // 4)
    x[:] = 1
    comm.all_reduce(x, algorithm="hierarchical")
    with comm.trace("{path}"):
        comm.all_reduce(x, algorithm="hierarchical")
    say(right=bool((x == comm.size ** 2).all()))
"""


def run_placed(nodes: list[int], source: str, tmp_path: Path) -> Ran:
    ran = run_world(len(nodes), PLACED + source, tmp_path, env={"NODES": ",".join(map(str, nodes))}, timeout_s=100)
    assert ran.code == 0, ran.output
    return ran


@pytest.mark.parametrize(
    ("nodes", "steps"),
    [
        ([0, 0, 1, 1], 3),
        ([0, 1, 0, 1], 3),
        ([0, 0, 1, 1, 1], 3),
        ([0, 1, 1, 2, 2, 2], 4),
        ([0, 1, 2], 2),
        ([0, 0, 0], 2),
    ],
    ids=["2x2", "2x2-interleaved", "2+3", "1+2+3", "3x1", "1x3"],
)
def test_sums_and_their_rounding(nodes: list[int], steps: int, tmp_path: Path) -> None:
    """float16s are rounded once in the node and once between nodes, in the order of ranks and of nodes."""
    ran = run_placed(nodes, SUMS, tmp_path)
    for rank in range(len(nodes)):
        assert ran.of(rank, "nodes") == nodes
        assert ran.of(rank, "steps") == steps


def test_one_hop_between_two_nodes_where_the_ring_has_four(tmp_path: Path) -> None:
    """Two nodes of four ranks, 64 KiB, a delay that outweighs all else. One hop more each: ranks say what they call."""
    ran = run_placed([0] * 4 + [1] * 4, HOPS, tmp_path)
    for rank in range(8):
        ring, hierarchical = ran.of(rank, "ring"), ran.of(rank, "hierarchical")
        assert ring >= 4.8, ran.output
        assert 1.9 <= hierarchical < 2.4, ran.output
        assert ring / hierarchical >= 2, ran.output


def test_bytes_move_between_nodes_before_the_inner_half_ends(tmp_path: Path) -> None:
    nodes = [0, 0, 1, 1]
    path = tmp_path / "t.json"
    ran = run_placed(nodes, TRACED.format(path=path), tmp_path)
    assert all(ran.of(rank, "right") for rank in range(4))
    schedule = generate("all_reduce", "hierarchical", 4, nodes=nodes)
    for rank in read(path).ranks:
        rows = schedule.rows(rank.rank)
        sums = [
            index for index, row in enumerate(rows) if row.op is Op.REDUCE and row.receives[0].source is Buffer.INPUT
        ]
        reduced = rank.of(REDUCE)
        of_node = reduced[[int(row) in sums for row in reduced["row"]]]
        sends = rank.of(SEND)
        far = sends[[nodes[int(peer)] != nodes[rank.rank] for peer in sends["peer"]]]
        assert len(of_node) >= 4 and int(far["bytes"].sum()) == 2 << 20  # its half of the vector, in slices
        assert far["begin_ns"].min() < of_node["end_ns"].max(), "nothing crosses before the node's sums are complete"
