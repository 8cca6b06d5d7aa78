"""Algorithms of the caller's own: proven first, then run by the same engine on every transport."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nodes import FAR
from worlds import run_world

from rdmaring.schedule import Buffer, Flag, Op, Receive, Row, ScheduleError, Send, generate, load, own, save
from rdmaring.schedule.own_rows import proven

# A chain: partial sums go up from rank to rank, the result comes down again.
CHAIN = """
from rdmaring.schedule import Buffer, Flag, Op, Receive, Row, Send

def chain(rank, world):
    up, down, top = rank + 1, rank - 1, rank == world - 1
    if world == 1:
        return [Row(0, Buffer.OUTPUT, 0, 1, Op.COPY, operand=Buffer.INPUT, flags=Flag.FIRST | Flag.LAST)]
    home = (Send(down, Buffer.OUTPUT),) if rank else ()
    if rank == 0:
        rows = [Row(0, Buffer.INPUT, 0, 1, Op.NONE, sends=(Send(up, None),))]
    else:
        rows = [Row(
            rank - 1, Buffer.OUTPUT if top else Buffer.SCRATCH, 0, 1, Op.REDUCE, operand=Buffer.INPUT, operand_at=1,
            receives=(Receive(down, Buffer.INPUT if rank == 1 else Buffer.SCRATCH),),
            sends=home if top else (Send(up, None),), flags=Flag.FIRST | (Flag.LAST if top else Flag.TRANSIT),
        )]
    if not top:
        step = 2 * (world - 1) - 1 - rank
        receives = (Receive(up, Buffer.OUTPUT),)
        rows.append(Row(step, Buffer.OUTPUT, 0, 1, Op.COPY, receives=receives, sends=home))
    return rows
"""

RUN = """
import rdmaring.schedule.own_rows as room
with rr.init(timeout_s=60) as comm:
    r, n = comm.rank, comm.size
    for count in (0, 1, 5, 70_001, 1_500_000):
        x = np.arange(count) % 97 + float(r)
        want = n * (np.arange(count) % 97) + n * (n - 1) / 2
        assert np.array_equal(comm.all_reduce(x, out=np.empty_like(x), algorithm=chain), want)
        comm.all_reduce(x, op="avg", algorithm=chain)
        assert np.allclose(x, want / n, rtol=1e-15)
    assert comm.last.steps == 2 * (n - 1)
    step = comm.plan_all_reduce(x, algorithm=chain)
    step()
    assert step.algorithm == "chain"
    proofs = room._emitted.cache_info().misses
    say(proofs=proofs, transports=sorted({link.transport for link in comm.links}))
"""


@pytest.mark.parametrize("world", [1, 2, 5])
def test_an_own_algorithm_runs_on_shared_memory(world: int, tmp_path: Path) -> None:
    ran = run_world(world, CHAIN + RUN, tmp_path)
    assert ran.code == 0, ran.output
    for rank in range(world):
        assert ran.of(rank, "proofs") == 1
        assert ran.of(rank, "transports") == (["shm"] if world > 1 else [])


def test_an_own_algorithm_runs_over_tcp(tmp_path: Path) -> None:
    ran = run_world(3, FAR + CHAIN + RUN, tmp_path)
    assert ran.code == 0, ran.output
    assert [ran.of(rank, "transports") for rank in range(3)] == [["tcp"]] * 3


def test_ranks_with_different_algorithms_are_told(tmp_path: Path) -> None:
    source = (
        CHAIN
        + """
from dataclasses import replace

def other(rank, world):
    rows = chain(rank, world)
    return [replace(rows[0], operand_at=0)] if rank else rows   # adds in the other order: right, but not the same

comm = rr.init(timeout_s=20)
x = np.ones(1 << 16)
said_error(lambda: comm.all_reduce(x, algorithm=other if comm.rank else chain))
"""
    )
    ran = run_world(2, source, tmp_path)
    assert [ran.of(rank, "error") for rank in range(2)] == ["MismatchError"] * 2, ran.output
    assert max(ran.of(rank, "seconds") for rank in range(2)) < 5


def test_wrong_rows_and_wrong_arguments_are_refused_and_lose_nothing(tmp_path: Path) -> None:
    source = (
        CHAIN
        + """
from rdmaring.schedule import generate

def deaf(rank, world):
    rows = chain(rank, world)
    if rank == 1:
        taken = Row(0, Buffer.SCRATCH, 0, 1, Op.COPY, receives=rows[0].receives)
        given = Row(1, Buffer.OUTPUT, 0, 1, Op.COPY, operand=Buffer.SCRATCH, sends=rows[0].sends, flags=Flag.LAST)
        return [taken, given]
    return rows

comm = rr.init(timeout_s=20)
x = np.ones(100)
others = generate("broadcast", "ring", 2, 0), generate("all_reduce", "ring", 3)
for wrong in (deaf, lambda rank, world: None, *others, 7):
    try:
        comm.all_reduce(x, algorithm=wrong)
    except (ValueError, TypeError) as error:
        say(text=str(error), name=type(error).__name__)
assert np.array_equal(comm.all_reduce(x, algorithm=chain), np.full(100, 2.0))
"""
    )
    ran = run_world(2, source, tmp_path)
    assert ran.code == 0, ran.output
    messages = [
        r"rank 0 chunk 0: ends without the contribution of rank 1 \(holds those of ranks 0\)",
        r"rank 0: <lambda> must return a list of Row, not NoneType",
        r"a schedule for broadcast of 2 ranks with root 0; this call is all_reduce of 2 ranks",
        r"a schedule for all_reduce of 3 ranks; this call is all_reduce of 2 ranks",
        r"algorithm is a int; accepted are a name, a function that emits rows, a Schedule, or None",
    ]
    names = ["ArgumentError"] * 4 + ["ArgumentTypeError"]
    for rank in range(2):
        assert [what["name"] for what in ran.said[rank]] == names, ran.output
        for what, message in zip(ran.said[rank], messages, strict=True):
            assert re.search(message, what["text"]), (what, message)


def test_a_schedule_from_a_file_runs(tmp_path: Path) -> None:
    save(generate("all_reduce", "ring", 2, order=[1, 0]), tmp_path / "two.rrs")
    save(generate("reduce", "direct", 2, 1), tmp_path / "root1.rrs")
    source = f"""
from rdmaring.schedule import load
comm = rr.init(timeout_s=20)
x = np.arange(10_000.0) + comm.rank
comm.all_reduce(x, algorithm=load("{tmp_path}/two.rrs"))
assert np.array_equal(x, 2 * np.arange(10_000.0) + 1)
comm.reduce(x, root=1, algorithm=load("{tmp_path}/root1.rrs"))
assert np.array_equal(x, (2 * np.arange(10_000.0) + 1) * (1 + comm.rank))
"""
    ran = run_world(2, source, tmp_path)
    assert ran.code == 0, ran.output


# ---- without ranks ----


def _chain() -> Callable[[int, int], list[Row]]:
    space: dict[str, Any] = {}
    exec(CHAIN, space)
    chain: Callable[[int, int], list[Row]] = space["chain"]
    return chain


def test_the_window_is_found() -> None:
    """All rows that wait for a peer's receive must be open: with the chunks of ten ranks, eleven rows."""

    def all_to_all(rank: int, world: int) -> list[Row]:
        rows = [
            Row(0, Buffer.INPUT, peer, peer + 1, Op.NONE, sends=(Send(peer, None),))
            for peer in range(world)
            if peer != rank
        ]
        receives = tuple(Receive(peer, Buffer.INPUT) for peer in range(world) if peer != rank)
        flags = Flag.FIRST | Flag.LAST
        reduce = Row(0, Buffer.OUTPUT, rank, rank + 1, Op.REDUCE, operand=Buffer.INPUT, receives=receives, flags=flags)
        return [*rows, replace(reduce, operand_at=rank)]

    found = proven(all_to_all, "reduce_scatter", 10, None)
    assert found.window == 16
    assert found is proven(all_to_all, "reduce_scatter", 10, None)
    with pytest.raises(ScheduleError, match="waits for ever"):
        proven(own(window=2)(all_to_all), "reduce_scatter", 10, None)


def test_rooted_functions_get_the_root_and_names_are_cut() -> None:
    def a_name_of_more_than_23_bytes(rank: int, world: int, root: int) -> list[Row]:
        if rank == root:
            sends = tuple(Send(peer, Buffer.OUTPUT) for peer in range(world) if peer != root)
            return [Row(0, Buffer.OUTPUT, 0, 1, Op.COPY, operand=Buffer.INPUT, sends=sends, flags=Flag.FIRST)]
        return [Row(0, Buffer.OUTPUT, 0, 1, Op.COPY, receives=(Receive(root, Buffer.OUTPUT),))]

    found = proven(a_name_of_more_than_23_bytes, "broadcast", 4, 2)
    assert (found.root, found.algorithm) == (2, "a_name_of_more_than_23_")
    assert proven(own(name="short")(a_name_of_more_than_23_bytes), "broadcast", 4, 2).algorithm == "short"
    for wrong in ({"name": "x" * 24}, {"name": ""}, {"window": 1}):
        with pytest.raises(ScheduleError, match="must"):
            own(**wrong)


def test_a_doubled_contribution_is_named() -> None:
    chain = _chain()

    def twice(rank: int, world: int) -> list[Row]:
        rows = chain(rank, world)
        if rank == 2:  # adds the input to the finished sum once more
            more = replace(rows[0], operand=Buffer.OUTPUT, operand_at=0, receives=(), sends=(), flags=Flag(0))
            rows[0] = replace(rows[0], sends=(), flags=Flag.FIRST)
            rows += [replace(more, step=1, receives=(Receive(0, Buffer.INPUT),), sends=(Send(1, Buffer.OUTPUT),))]
            rows[1] = replace(rows[1], flags=Flag.LAST)
        if rank == 0:
            rows.insert(1, Row(1, Buffer.INPUT, 0, 1, Op.NONE, sends=(Send(2, None),)))
        return rows

    with pytest.raises(ScheduleError, match="rank 2 row 1 chunk 0: adds the contribution of rank 0 twice"):
        proven(twice, "all_reduce", 3, None)


def test_files_come_back_and_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "chain.rrs"
    save(proven(_chain(), "all_reduce", 4, None), path)
    back = load(path)
    assert proven(back, "all_reduce", 4, None) is back
    assert back == proven(_chain(), "all_reduce", 4, None)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ScheduleError, match=r"chain\.rrs: the file's CRC"):
        load(path)


def test_a_schedule_is_proven_again_where_it_is_another_object() -> None:
    right = generate("all_reduce", "ring", 3)
    assert proven(right, "all_reduce", 3, None) is right
    wrong = replace(right, make_rows=lambda rank: right.rows(rank)[:-1], _cache={})
    with pytest.raises(ScheduleError, match="rank"):
        proven(wrong, "all_reduce", 3, None)
