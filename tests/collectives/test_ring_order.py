"""Rings in other orders than 0, 1, ..., N - 1, on real ranks."""

from __future__ import annotations

import random
import re
from itertools import pairwise
from pathlib import Path

import pytest
from worlds import run_world

from rdmaring.topology import order_within, ring_order

SUMS = """
comm = rr.init(reorder=ORDER, timeout_s=60) if ORDER is not None else rr.init(timeout_s=60)
N, R = comm.size, comm.rank

def vector(rank, n):
    return np.random.default_rng([rank, n]).integers(-99, 99, n).astype(np.float64)

def check(comm, members):
    for n in (0, 1, N + 1, 4097, 300001):
        total = np.sum([vector(r, n) for r in members], axis=0)
        mine = vector(members[comm.rank], n)
        assert np.array_equal(comm.all_reduce(mine.copy(), algorithm="biring"), total)
        assert np.array_equal(comm.all_reduce(mine.copy(), algorithm="ring"), total)
        if n > N:
            to = {peer for peer, (sent, _) in comm.last_links.items() if sent}
        cut = np.array_split(total, comm.size)[comm.rank]
        assert np.array_equal(comm.reduce_scatter(mine, algorithm="ring"), cut)
        parts = np.array_split(mine, comm.size)
        for algorithm in ("ring", "biring"):
            whole = comm.all_gather(parts[comm.rank], out=np.zeros(n), algorithm=algorithm)
            assert np.array_equal(whole, np.concatenate(
                [np.array_split(vector(r, n), comm.size)[i] for i, r in enumerate(members)]))
        for root in range(comm.size):
            x = mine.copy()
            comm.broadcast(x, root, algorithm="ring")
            assert np.array_equal(x, vector(members[root], n))
            out = np.zeros(n)
            comm.reduce(mine, root, out=out, algorithm="ring")
            assert np.array_equal(out, total if comm.rank == root else np.zeros(n))
    return sorted(to)
"""


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_all_collectives_by_a_ring_in_a_random_order(world: int, tmp_path: Path) -> None:
    order = random.Random(world).sample(range(world), world)
    source = f"ORDER = {order}\n" + SUMS + "say(to=check(comm, range(N)))\n"
    ran = run_world(world, source, tmp_path)
    assert ran.code == 0, ran.output
    for place, rank in enumerate(order):
        assert ran.of(rank, "to") == [order[(place + 1) % world]] * (world > 1)


def test_the_variable_sets_the_order_and_groups_keep_it(tmp_path: Path) -> None:
    source = (
        """
ORDER = None
"""
        + SUMS
        + """
say(world=check(comm, range(N)))
group = comm.split(0 if R != 1 else 1, key=-R)      # ranks 3, 2, 0 of the world are its ranks 0, 1, 2
if R != 1:
    say(group=check(group, [3, 2, 0]))
plain = comm.dup()
say(dup=check(plain, range(N)))
"""
    )
    ran = run_world(4, source, tmp_path, env={"RDMARING_RING_ORDER": "0,2,1,3"})
    assert ran.code == 0, ran.output
    assert [ran.of(rank, "world") for rank in range(4)] == [[2], [3], [1], [0]]
    assert [ran.of(rank, "dup") for rank in range(4)] == [[2], [3], [1], [0]]
    # the group's ring visits the world's ranks 0, 2, 3, which are its own 2, 1, 0
    assert [ran.of(rank, "group") for rank in (0, 2, 3)] == [[1], [0], [2]]


def test_false_goes_before_the_variable(tmp_path: Path) -> None:
    source = "ORDER = False\n" + SUMS + "say(to=check(comm, range(N)))\n"
    ran = run_world(3, source, tmp_path, env={"RDMARING_RING_ORDER": "0,2,1"})
    assert ran.code == 0, ran.output
    assert [ran.of(rank, "to") for rank in range(3)] == [[1], [2], [0]]


def test_ranks_with_different_orders_are_told(tmp_path: Path) -> None:
    source = """
    rank = int(os.environ["RDMARING_RANK"])
    comm = rr.init(reorder=[0, 1, 2, 3] if rank else [0, 2, 1, 3], timeout_s=20)
    said_error(lambda: comm.all_reduce(np.ones(1 << 16), algorithm="ring"))
    """
    ran = run_world(4, source, tmp_path)
    names = {ran.of(rank, "error") for rank in range(4)}
    assert names <= {"MismatchError", "PeerFailedError"} and "MismatchError" in names, ran.output
    assert max(ran.of(rank, "seconds") for rank in range(4)) < 5


@pytest.mark.parametrize(
    ("argument", "variable", "message"),
    [
        ("[0, 1]", "", "the ring order .* is 0,1; accepted is each of the ranks 0..2 once"),
        ("[0, 1, 1]", "", "the ring order .* is 0,1,1; accepted"),
        ("7", "", "reorder is 7; accepted are a sequence of ranks"),
        ("None", "0,1,2,3", "the ring order .* is 0,1,2,3; accepted is each of the ranks 0..2 once"),
        ("None", "0;1;2", "RDMARING_RING_ORDER is '0;1;2'; accepted are ranks between commas"),
    ],
)
def test_orders_that_do_not_fit(argument: str, variable: str, message: str, tmp_path: Path) -> None:
    source = f"""
    try:
        rr.init(reorder={argument}, timeout_s=20)
    except rr.ArgumentError as error:
        say(text=str(error))
    """
    ran = run_world(3, source, tmp_path, env={"RDMARING_RING_ORDER": variable} if variable else None)
    for rank in range(3):
        assert re.search(message, ran.of(rank, "text"))


@pytest.mark.parametrize(
    ("nodes", "order"),
    [
        ([], ()),
        ([7, 7, 7], (0, 1, 2)),
        ([0, 0, 1, 1, 2], (0, 1, 2, 3, 4)),
        ([5, 5, 3, 3], (0, 1, 2, 3)),
        ([0, 1, 0, 1], (0, 2, 1, 3)),
        ([2, 0, 1, 2, 0, 1, 2], (0, 3, 6, 1, 4, 2, 5)),
    ],
)
def test_a_ring_visits_each_node_once(nodes: list[int], order: tuple[int, ...]) -> None:
    assert ring_order(nodes) == order


@pytest.mark.parametrize("seed", range(20))
def test_random_nodes_are_visited_once_and_groups_keep_their_turn(seed: int) -> None:
    numbers = random.Random(seed)
    nodes = [numbers.randrange(4) for _ in range(numbers.randrange(1, 12))]
    order = ring_order(nodes)
    assert sorted(order) == list(range(len(nodes)))
    visited = [nodes[rank] for rank in order]
    changes = sum(before != after for before, after in pairwise(visited))
    assert changes == len(set(nodes)) - 1
    members = numbers.sample(range(len(nodes)), numbers.randrange(1, len(nodes) + 1))
    within = [members[place] for place in order_within(order, members)]
    assert within == [rank for rank in order if rank in members]
