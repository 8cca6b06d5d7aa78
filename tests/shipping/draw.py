"""Cases by seed: each transport, schedule, size, kind of memory and machine."""

from __future__ import annotations

import random
from itertools import accumulate, pairwise
from typing import Any

from schedules_random import goes_in_rounds, random_schedule
from shipping.machine import Case

from rdmaring.schedule import ALGORITHMS, SHAPED, Buffer, Flag, Op, Receive, Row, Schedule, Send, generate, own
from rdmaring.schedule.channels import channels_of
from rdmaring.schedule.collectives import COLLECTIVES
from rdmaring.schedule.own_rows import proven

REDUCING = ("all_reduce", "reduce_scatter", "reduce")
INTEGERS = ("int64", "uint64", "int32", "uint32", "int16", "uint8", "int8")
COPIED = (*INTEGERS, "float64", "float32", "float16", "uint16")
SERIAL_STARTS = (0, 0, 1000, (1 << 32) - 3, (1 << 32) - 40, (1 << 63) - 5)


def built_in(dice: random.Random, world: int) -> Schedule:
    collective, algorithm = dice.choice(sorted(ALGORITHMS))
    root = dice.randrange(world) if COLLECTIVES[collective].rooted else None
    nodes = tuple(dice.randrange(3) for _ in range(world)) if algorithm in SHAPED else None
    channels = channels_of(collective, dice.choice([1, 1, 2, 3]))
    return generate(collective, algorithm, world, root, nodes=nodes, channels=channels)


def mixed(dice: random.Random, world: int) -> Schedule:
    """An all_reduce in segments of few or many chunks, each reduced by one rank.

    The leader's links carry results and inputs in turn: what needs a place in the link and what is read where it lies,
    so that any number of the one kind stands between two of the other. The others' inputs are there before.
    """
    few, many = [1, 3, 5, 8, 17, 33], [20, 30, 40, 50, 58, 62, 63, 64, 80]
    lengths = [dice.choice(many if n % 2 else few) for n in range(dice.randrange(3, 9))]
    leader = dice.randrange(world)
    second = dice.choice([rank for rank in range(world) if rank != leader])
    owners = [second if n % 2 else leader for n in range(len(lengths))]
    segments = list(zip(owners, pairwise([0, *accumulate(lengths)]), strict=True))
    in_turn = dice.randrange(4) == 0

    def give(owner: int, chunks: tuple[int, int]) -> Row:
        return Row(0, Buffer.INPUT, *chunks, Op.NONE, sends=(Send(owner, None),))

    def take(rank: int, owner: int, chunks: tuple[int, int]) -> Row:
        if rank != owner:
            return Row(1, Buffer.OUTPUT, *chunks, Op.COPY, receives=(Receive(owner, Buffer.OUTPUT),))
        peers = [peer for peer in range(world) if peer != owner]
        return Row(
            0,
            Buffer.OUTPUT,
            *chunks,
            Op.REDUCE,
            operand=Buffer.INPUT,
            operand_at=0,
            receives=tuple(Receive(peer, Buffer.INPUT) for peer in peers),
            sends=tuple(Send(peer, Buffer.OUTPUT) for peer in peers),
            flags=Flag.FIRST | Flag.LAST,
        )

    def rows(rank: int, _: int) -> list[Row]:
        if in_turn:
            each = [[give(*segment)] * (rank != segment[0]) + [take(rank, *segment)] for segment in segments]
            return [row for rows in each for row in rows]
        if rank != leader:
            early = [give(*segment) for segment in segments if segment[0] != rank]
            return early + [take(rank, *segment) for segment in segments]
        turns = [take(rank, *segment) if segment[0] == rank else give(*segment) for segment in segments]
        return turns + [take(rank, *segment) for segment in segments if segment[0] != rank]

    return proven(own(name="mixed", window=2 * len(lengths))(rows), "all_reduce", world, None)


def sizes(dice: random.Random, chunk_count: int, slot_bytes: int, size: int) -> list[int]:
    """Elements of each chunk: around the borders of slots, up to four of them."""
    slot = slot_bytes // size
    borders = [1, 2, slot - 1, slot, slot + 1, 2 * slot - 1, 2 * slot, 2 * slot + 1, 3 * slot + 1, 4 * slot]
    way = dice.randrange(6)
    if way == 0:
        return [dice.choice([0, 0, 1, slot])] * chunk_count
    if way == 1:
        return [dice.choice([0, 1, 7, slot + 1]) for _ in range(chunk_count)]
    if way == 2:
        return [dice.choice(borders)] * chunk_count
    if way == 3:
        return [dice.randrange(4 * slot) for _ in range(chunk_count)]
    return [dice.choice([0, *borders]) for _ in range(chunk_count)]


def in_rounds(schedule: Schedule) -> bool:
    """Rows of several chunks are refused in rounds."""
    rows = [row for rank in range(schedule.world) for row in schedule.rows(rank)]
    return goes_in_rounds(schedule) and all(row.chunk_end - row.chunk_begin <= 1 for row in rows)


def machine(dice: random.Random, transport: str, channels: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """How slow each part of the world is, and how much a link holds."""
    sim = {
        "latency_ns": dice.choice([0, 100, 5000]),
        "jitter_ns": dice.choice([0, 1000, 50000]),
        "combine_ps_per_byte": dice.choice([0, 100, 1000]),
        "stall_ns": dice.choice([0, 0, 100000]),
        "slot_bytes": dice.choice([4096, 4096, 8192, 12288]),
        "slot_count": dice.choice([1, 1, 2, 3, 8]),
        "registered": dice.choice([0, 1, 2, 2, 2, 3, 4]),
        "channels": dice.choice([1, channels]),
    }
    links = {
        "window": dice.choice([0, 0, 0, 1, 2, 8]),
        "serial_start": dice.choice(SERIAL_STARTS),
        "streams": dice.choice([1, 1, 2, 4]),
        "pipe_bytes": dice.choice([100, 1000, 10000, 100000]),
        "hold": dice.choice([0, 0, 3, 10, 50]),
        "wait_ms": 20000,
    }
    return sim, links


def case(transport: str, seed: int) -> Case:
    dice = random.Random(f"{transport}/{seed}")
    world = dice.choice([2, 2, 3, 3, 4, 5, 8] if transport != "verbs" else [2, 2, 2, 3, 4])
    if dice.randrange(5) == 0:
        schedule = mixed(dice, 2 if dice.randrange(3) else 3)
        made = about(transport, seed, schedule, dice)
        size = int(made.dtype.lstrip("uintfloa")) // 8
        # One slice a chunk, so that a segment has as many slices as chunks.
        made.offsets = [n * made.slice_bytes // size for n in range(schedule.chunk_count + 1)]
        made.round_count = 1
        made.sim["registered"] = dice.choice([5, 5, made.sim["registered"]])
        if made.check and dice.randrange(2):
            made.check = False
            made.sim.pop("corrupt_transfer", None)
        return made
    if dice.randrange(3) == 0:
        # A world of one links nobody. Relays of counts are for schedules that are bound to them: not here.
        return about(transport, seed, random_schedule(dice, dice.choice(sorted(COLLECTIVES)), min(world, 5)), dice)
    return about(transport, seed, built_in(dice, world), dice)


def about(transport: str, seed: int, schedule: Schedule, dice: random.Random) -> Case:
    """A case that runs this schedule."""
    collective = schedule.collective
    channels = 1 + max((row.channel for rank in range(schedule.world) for row in schedule.rows(rank)), default=0)
    sim, links = machine(dice, transport, channels)
    dtype = dice.choice(INTEGERS if collective in REDUCING else COPIED)
    size = int(dtype.lstrip("uintfloa")) // 8
    shape = sizes(dice, schedule.chunk_count, sim["slot_bytes"], size)
    # Of all ranks' vectors together: a case takes some milliseconds.
    limit = 3 << 20 if transport != "stream" else min(1 << 20, links["pipe_bytes"] << 10)
    while sum(shape) * size * schedule.world > limit:
        shape = [elements // 2 for elements in shape]
    sim["seed"] = seed
    sim["operations"] = dice.choice([1, 1, 2, 3]) if collective in ("all_reduce", "broadcast") else 1
    if transport == "sim":  # its memory lies in one piece
        sim["registered"] = min(sim["registered"], 2)
    check = dice.random() < 0.35
    if check and dice.randrange(5) == 0 and transport != "sim":
        sim["corrupt_transfer"] = dice.randrange(1, 30)
    elif dice.randrange(25) == 0:
        times = {"kill_ns": dice.choice([0, 300, 3000, 30000, 300000]), "detect_ns": dice.choice([0, 5000])}
        sim |= {"kill_rank": dice.randrange(schedule.world), **times}
    return Case(
        transport,
        schedule,
        [0, *accumulate(shape)],
        seed,
        dtype=dtype,
        op=dice.choice(["sum", "sum", "prod", "min", "max"]) if collective in REDUCING else "sum",
        in_place=dice.random() < 0.4 and collective in ("all_reduce", "reduce"),
        round_count=dice.choice([1, 1, 2, 3, 7]) if in_rounds(schedule) else 1,
        slice_bytes=dice.choice([4096, 4096, 8192]),
        check=check,
        sim=sim,
        links=links,
    )
