"""Built-in schedules against the formulas of their algorithms."""

from __future__ import annotations

import ast
import sys
from itertools import permutations
from pathlib import Path

import pytest
from unit.schedule.cases import NAMES, reordered, schedules, title
from unit.schedule.formulas import FORMULAS

import rdmaring.schedule
from rdmaring.schedule import (
    ALGORITHMS,
    After,
    Buffer,
    Flag,
    Kind,
    Op,
    Receive,
    Row,
    ScheduleError,
    Send,
    algorithms_of,
    generate,
)
from rdmaring.schedule.collectives import COLLECTIVES
from rdmaring.schedule.rows import sent_by_rows


@pytest.mark.parametrize("name", NAMES, ids="-".join)
def test_steps_and_bytes_are_those_of_the_formula(name: tuple[str, str]) -> None:
    for schedule in schedules(range(1, 34), [name]):
        steps, wanted = FORMULAS[name](schedule.world)
        assert schedule.step_count == steps, title(schedule)
        for rank in range(schedule.world):
            sent = sent_by_rows(schedule.rows(rank), schedule.chunk_count)
            place = (rank - (schedule.root or 0)) % schedule.world
            assert sent == wanted(place), f"{title(schedule)} rank {rank}"
            assert sent == schedule.sent(rank)


def test_links_of_the_ring_carry_equal_shares() -> None:
    for world in range(2, 10):
        for collective in ("all_reduce", "reduce_scatter", "all_gather"):
            schedule = generate(collective, "ring", world)
            for rank in range(world):
                peers = {send.peer for row in schedule.rows(rank) for send in row.sends}
                assert peers == {(rank + 1) % world}


def test_naive_root_takes_part_in_all_reduce_traffic_and_others_in_their_own() -> None:
    """(N - 1) vectors in and (N - 1) out: every transfer has rank 0 at one end."""
    schedule = generate("all_reduce", "naive", 6)
    for rank in range(1, 6):
        rows = schedule.rows(rank)
        assert {send.peer for row in rows for send in row.sends} == {0}
        assert {receive.peer for row in rows for receive in row.receives} == {0}


def test_ring_of_three_row_by_row() -> None:
    onward, landing = (Send(1, None),), (Send(1, Buffer.OUTPUT),)
    from_input, from_output = (Receive(2, Buffer.INPUT),), (Receive(2, Buffer.OUTPUT),)
    partial = Flag.FIRST | Flag.TRANSIT
    assert generate("all_reduce", "ring", 3).rows(0) == (
        Row(0, Buffer.INPUT, 2, 3, Op.NONE, sends=onward),
        Row(
            0,
            Buffer.OUTPUT,
            1,
            2,
            Op.REDUCE,
            operand=Buffer.INPUT,
            operand_at=1,
            receives=from_input,
            sends=onward,
            flags=partial,
        ),
        Row(
            1,
            Buffer.OUTPUT,
            0,
            1,
            Op.REDUCE,
            operand=Buffer.INPUT,
            operand_at=1,
            receives=from_output,
            sends=landing,
            flags=Flag.FIRST | Flag.LAST,
        ),
        Row(
            2,
            Buffer.OUTPUT,
            2,
            3,
            Op.COPY,
            receives=from_output,
            sends=landing,
            after=(After(0, Kind.RELEASED),),
        ),
        Row(3, Buffer.OUTPUT, 1, 2, Op.COPY, receives=from_output, after=(After(1, Kind.RELEASED),)),
    )


@pytest.mark.parametrize("world", [2, 3, 5, 8])
def test_direct_combines_in_rank_order(world: int) -> None:
    for collective, algorithm in (
        ("all_reduce", "direct"),
        ("all_reduce", "direct1"),
        ("reduce_scatter", "direct"),
    ):
        schedule = generate(collective, algorithm, world)
        for rank in range(world):
            (row,) = [row for row in schedule.rows(rank) if row.op is Op.REDUCE]
            sources = [receive.peer for receive in row.receives]
            sources.insert(row.operand_at, rank)
            assert sources == list(range(world))


@pytest.mark.parametrize("name", NAMES, ids="-".join)
def test_one_rank_alone_has_one_row(name: tuple[str, str]) -> None:
    (schedule,) = schedules([1], [name])
    (row,) = schedule.rows(0)
    assert (row.op, row.operand, row.buffer) == (Op.COPY, Buffer.INPUT, Buffer.OUTPUT)
    assert not row.sends and not row.receives and schedule.step_count == 0
    reduces = name[0] in ("all_reduce", "reduce_scatter", "reduce")
    assert row.flags == (Flag.FIRST | Flag.LAST if reduces else Flag.FIRST)


def test_copies_are_only_made_where_they_are_needed() -> None:
    """A copy of the input is the own part of what is not added, the root's of a broadcast, or what one-shot sends."""
    for schedule in schedules(range(2, 9)):
        for rank in range(schedule.world):
            copies = [row for row in schedule.rows(rank) if row.op is Op.COPY and row.operand is not None]
            if schedule.collective == "all_gather":
                assert [(row.chunk_begin, row.chunk_end) for row in copies] == [(rank, rank + 1)]
            elif schedule.collective in ("gather", "scatter"):
                assert len(copies) == (rank == schedule.root)
            elif schedule.collective == "all_to_all":
                own = rank * schedule.world + rank
                assert [(row.chunk_begin, row.chunk_end) for row in copies] == [(own, own + 1)]
            elif schedule.collective == "broadcast":
                assert len(copies) == (schedule.chunk_count if rank == schedule.root else 0)
            elif schedule.algorithm == "direct1":
                (copy,) = copies
                assert copy.buffer is Buffer.SCRATCH and Flag.TRANSIT in copy.flags
            else:
                assert not copies


def test_only_the_rows_of_the_rank_asked_for_are_made() -> None:
    """The table of one rank of twenty thousand: two rows for each other rank, not for each pair."""
    schedule = generate("all_reduce", "ring", 20_000)
    rows = schedule.rows(7_777)
    assert len(rows) == 2 * 20_000 - 1
    assert rows[-1].chunk_begin == (7_777 + 1) % 20_000


def test_identities_differ_and_stay() -> None:
    identities = [schedule.identity for schedule in schedules(range(1, 18))]
    assert len(set(identities)) == len(identities)
    # sha256("all_reduce/ring/1/4/None"), first 8 bytes as a little-endian number
    assert generate("all_reduce", "ring", 4).identity == 0xACBDCF97D5C0B94E
    assert generate("all_reduce", "ring", 4) == generate("all_reduce", "ring", 4)


def test_barrier_is_an_all_reduce() -> None:
    assert generate("barrier", "direct", 5) == generate("all_reduce", "direct", 5)


def test_algorithms_are_listed() -> None:
    assert {"ring", "biring", "tree", "halving", "direct", "direct1", "naive"} <= set(algorithms_of("all_reduce"))
    assert {"ring", "tree", "binomial", "direct"} <= set(algorithms_of("broadcast"))
    assert algorithms_of("barrier") == algorithms_of("all_reduce")
    assert {name for name, _ in ALGORITHMS} == set(COLLECTIVES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gossip", "ring", 4), "collective must be one of all_reduce, .* not 'gossip'"),
        (("all_gather", "naive", 4), "algorithm of all_gather must be one of ring, .*direct; not 'naive'"),
        (("all_reduce", "ring", 0), "world must be in 1.."),
        (("all_reduce", "ring", 1 << 21), "world must be in 1.."),
        (("broadcast", "ring", 4), "root of broadcast must be in 0..3, not None"),
        (("broadcast", "ring", 4, 4), "root of broadcast must be in 0..3, not 4"),
        (("reduce", "direct", 4, -1), "root of reduce must be in 0..3, not -1"),
        (("all_reduce", "ring", 4, 0), "all_reduce has no root"),
    ],
)
def test_bad_arguments_say_what_is_accepted(arguments: tuple[str, str, int], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        generate(*arguments)


def test_a_ring_visits_the_ranks_in_the_order_given() -> None:
    for order, schedule in reordered(range(2, 9), NAMES):
        both = schedule.algorithm == "biring"
        after = {rank: order[(place + 1) % len(order)] for place, rank in enumerate(order)}
        before = {follower: rank for rank, follower in after.items()}
        for rank in range(schedule.world):
            targets = {after[rank], before[rank]} if both else {after[rank]}
            sources = {after[rank], before[rank]} if both else {before[rank]}
            for row in schedule.rows(rank):
                assert {send.peer for send in row.sends} <= targets, order
                assert {receive.peer for receive in row.receives} <= sources, order


def test_an_order_is_in_the_identity_and_where_it_begins_is_not() -> None:
    plain = generate("all_reduce", "ring", 4)
    assert generate("all_reduce", "ring", 4, order=(0, 1, 2, 3)) == plain
    assert generate("all_reduce", "ring", 4, order=(2, 3, 0, 1)) == plain
    other = generate("all_reduce", "ring", 4, order=(0, 2, 1, 3))
    assert other.identity != plain.identity
    turned = generate("all_reduce", "ring", 4, order=(1, 3, 0, 2))
    assert turned == other
    assert all(turned.rows(rank) == other.rows(rank) for rank in range(4))
    identities = {generate("all_reduce", "ring", 4, order=(0, *rest)).identity for rest in permutations((1, 2, 3))}
    assert len(identities) == 6


@pytest.mark.parametrize(
    ("algorithm", "order", "message"),
    [
        ("ring", (0, 1, 1, 3), "order must name each rank 0..3 once, not 0,1,1,3"),
        ("ring", (0, 1, 2), "order must name each rank 0..3 once, not 0,1,2"),
        ("ring", (), "order must name each rank 0..3 once, not none"),
        ("direct", (0, 1, 2, 3), "direct visits no ring; order is taken by biring, ring"),
    ],
)
def test_bad_orders_say_what_is_accepted(algorithm: str, order: tuple[int, ...], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        generate("all_reduce", algorithm, 4, order=order)


@pytest.mark.parametrize("rank", [-1, 4])
def test_rank_out_of_range(rank: int) -> None:
    with pytest.raises(ScheduleError, match=f"rank must be in 0..3, not {rank}"):
        generate("all_reduce", "ring", 4).rows(rank)


def test_the_package_needs_only_the_standard_library() -> None:
    """All but the simulator, which reckons with arrays over all ranks."""
    folder = Path(rdmaring.schedule.__file__).parent
    files = [file for file in folder.glob("*.py") if not file.name.startswith("simulate")]
    assert len(files) > 10
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                own = name == "rdmaring.schedule" or name.startswith("rdmaring.schedule.")
                assert own or name.split(".")[0] in sys.stdlib_module_names, f"{file.name} imports {name}"
