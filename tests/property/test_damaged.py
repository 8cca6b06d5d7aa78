"""Schedules damaged by hand, their checksums made right: refused where they are bound, or they stay inside the arrays.

The engine runs what C lets through over simulated links, all ranks in one process, with arrays that end where memory
ends; the links tell of a reach into a peer's memory outside its arrays, which binding should have refused.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import own_algorithms as own
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdmaring import chunks
from rdmaring._native import ffi, lib
from rdmaring.buffers import CODE_BY_NAME
from rdmaring.plan import COLLECTIVE_CODE
from rdmaring.schedule import Schedule, ScheduleError, generate
from rdmaring.schedule.collectives import collective_named
from rdmaring.schedule.encode import decode_file, encode_rank
from rdmaring.schedule.own_rows import proven
from rdmaring.schedule.verify import verify

WORLD, ROOT, COUNT = 3, 1, 613
DTYPE = np.dtype(np.int64)
HEADER, ROW = 64, 64
libc = ctypes.CDLL(None, use_errno=True)
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


@functools.cache
def bases() -> list[Schedule]:
    """Right ones of all collectives."""
    rooted = [("gather", own.gather_direct), ("gather", own.gather_copies), ("gather", own.gather_chain)]
    rooted += [("scatter", own.scatter_direct), ("scatter", own.scatter_copies)]
    flat: list[tuple[str, Any]] = [("all_gather", own.all_gather_direct), ("all_gather", own.all_gather_copies)]
    flat += [("reduce_scatter", own.reduce_scatter_direct), ("reduce_scatter", own.reduce_scatter_copies)]
    flat += [("all_to_all", each) for each in (own.all_to_all_direct, own.all_to_all_copies, own.all_to_all_landing)]
    flat += [("all_to_all", own.all_to_all_by_way_of)]
    made = [proven(each, collective, WORLD, ROOT) for collective, each in rooted]
    made += [proven(each, collective, WORLD, None) for collective, each in flat]
    named = [("all_reduce", name) for name in ("ring", "direct", "direct1", "tree", "halving")]
    made += [generate(collective, name, WORLD) for collective, name in named]
    made += [generate(each, "binomial", WORLD, ROOT) for each in ("broadcast", "reduce", "gather", "scatter")]
    return made


# ---- arrays that end where memory ends ----


def guarded(count: int) -> np.ndarray[Any, Any]:
    nbytes = count * DTYPE.itemsize
    room = -(-max(nbytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
    whole = mmap.mmap(-1, room + 2 * mmap.PAGESIZE)
    array = np.frombuffer(whole, np.uint8)
    for page in (0, mmap.PAGESIZE + room):
        assert libc.mprotect(array.ctypes.data + page, mmap.PAGESIZE, 0) == 0
    return array[mmap.PAGESIZE + room - nbytes : mmap.PAGESIZE + room].view(DTYPE)


@dataclass
class Arrays:
    """Of one rank; no plan is asked how large they are."""

    input: np.ndarray[Any, Any]
    output: np.ndarray[Any, Any]


def extent(held: Sequence[int], table: Sequence[int]) -> tuple[int, int]:
    return (table[held[0]], table[held[-1] + 1]) if len(held) else (0, 0)


def arrays_of(schedule: Schedule, table: Sequence[int], rank: int) -> Arrays:
    collective = collective_named(schedule.collective)
    if collective.per_rank_chunks:
        collective = replace(collective, parts=schedule.chunk_count // WORLD)
    begin, end = extent(collective.input_chunks(rank, schedule.chunk_count, schedule.root), table)
    given = guarded(end - begin)
    given[:] = np.random.default_rng(rank).integers(-(2**63), 2**63, COUNT, dtype=DTYPE)[begin:end]
    if schedule.collective == "all_to_all":  # outputs lie in the whole vector's coordinates here
        return Arrays(given, guarded(COUNT))
    begin, end = extent(collective.output_chunks(rank, schedule.chunk_count, schedule.root), table)
    return Arrays(given, guarded(end - begin))


def wanted(schedule: Schedule, table: Sequence[int], world: Sequence[Arrays], rank: int) -> np.ndarray[Any, Any] | None:
    """What the rank must end with; None: nothing."""
    edges = [table[r * schedule.chunk_count // WORLD] for r in range(WORLD + 1)]
    mine, at_root = slice(edges[rank], edges[rank + 1]), rank == schedule.root
    inputs = [each.input for each in world]
    match schedule.collective:
        case "all_reduce":
            return np.sum(inputs, axis=0, dtype=DTYPE)
        case "reduce":
            return np.sum(inputs, axis=0, dtype=DTYPE) if at_root else None
        case "reduce_scatter":
            return np.sum(inputs, axis=0, dtype=DTYPE)[mine]
        case "broadcast":
            return inputs[ROOT]
        case "scatter":
            return inputs[ROOT][mine]
        case "gather":
            return np.concatenate(inputs) if at_root else None
        case "all_gather":
            return np.concatenate(inputs)
    return None


# ---- damage ----


def counts_of(table: bytes) -> tuple[int, int]:
    """Rows, and entries of the arrays behind them, in a rank's table."""
    rows, *pairs = struct.unpack_from("<4I", table, 28)
    return rows, sum(pairs)


# Of a row's words 1 to 9: buffer, chunk_begin, chunk_end, cell, op, operand, operand_cell, operand_at, flags.
PLAUSIBLE = [(0, 2), (0, 9), (0, 9), (0, 3), (0, 2), (-1, 2), (0, 3), (0, 2), (0, 31)]


@st.composite
def damages(draw: st.DrawFn) -> tuple[Schedule, list[bytes]]:
    """A right schedule's tables with one to three words changed: of rows, or of their receives, sends and afters."""
    schedule = draw(st.sampled_from(bases()))
    tables = [bytearray(encode_rank(schedule, rank)) for rank in range(WORLD)]
    for _ in range(draw(st.integers(1, 3))):
        table = draw(st.sampled_from(tables))
        rows, pairs = counts_of(table)
        if draw(st.booleans()) or not pairs:
            word = draw(st.integers(1, 9))
            at, bounds = HEADER + ROW * draw(st.integers(0, rows - 1)) + 4 * word, PLAUSIBLE[word - 1]
        else:
            word = draw(st.integers(0, 2 * pairs - 1))
            at, bounds = HEADER + ROW * rows + 4 * word, (-1, 2) if word % 2 else (0, WORLD - 1)
        if draw(st.integers(0, 9)):
            value = draw(st.integers(*bounds))
        else:
            value = draw(st.sampled_from([-2, 2**31 - 1, -(2**31), 1 << 24, 1 << 16]))
        struct.pack_into("<i", table, at, value)
    return schedule, [bytes(table) for table in tables]


def as_file(tables: Sequence[bytes]) -> bytes:
    """As ``encode_file`` writes it."""
    name, begin = b"damaged", 40 + 8 * (len(tables) + 1)
    offsets = [begin + sum(map(len, tables[:rank])) for rank in range(len(tables) + 1)]
    head = struct.pack("<4I24s", 0x46535252, 2, len(tables), len(name), name)
    body = head + struct.pack(f"<{len(offsets)}Q", *offsets) + b"".join(tables)
    return body + struct.pack("<I", zlib.crc32(body))


def is_proven(tables: Sequence[bytes]) -> bool:
    try:
        verify(decode_file(as_file(tables)))
    except ScheduleError:
        return False
    return True


def bound_and_run(
    schedule: Schedule, tables: Sequence[bytes], rounds: int, registered: int, seed: int
) -> tuple[str, str, bool]:
    """The status, what was said, and whether the results are right."""
    decoded = []
    for rank, table in enumerate(tables):
        out = ffi.new("rr_schedule **")
        if lib.rr_schedule_decode(table, len(table), rank, out) < 0:
            return (*said(), False)
        decoded.append(ffi.gc(out[0], lib.rr_schedule_free))
    if len({lib.rr_schedule_chunk_count(each) for each in decoded}) > 1:
        return "schedule", "they are of several schedules", False
    collective = schedule.collective
    parts = schedule.chunk_count // WORLD if collective_named(collective).per_rank_chunks else 0
    edges = [0, 100, 100, COUNT]  # the root has nothing
    table_of_chunks = chunks.pieces(edges, parts, 8) if parts else chunks.even(COUNT, schedule.chunk_count)
    if collective == "all_to_all":
        table_of_chunks = [COUNT * c * c // schedule.chunk_count**2 for c in range(schedule.chunk_count + 1)]
    world = [arrays_of(schedule, table_of_chunks, rank) for rank in range(WORLD)]
    before = [each.input.copy() for each in world]
    offsets = ffi.new("uint64_t[]", list(table_of_chunks))
    plan = ffi.new("rr_plan_spec *")
    plan.collective, plan.dtype = COLLECTIVE_CODE[collective], CODE_BY_NAME["int64"]
    plan.root = -1 if schedule.root is None else schedule.root
    plan.count, plan.scale, plan.chunk_offsets, plan.round_count = COUNT, 1.0, offsets, rounds
    plan.algorithm, plan.slice_bytes = b"damaged", 4096
    sim = {"slot_bytes": 8192, "slot_count": 2, "operations": 1, "kill_rank": -1}
    sim |= {"seed": seed, "registered": registered}
    result = ffi.new("rr_sim_result *")
    arrays = [each.input for each in world], [each.output for each in world]
    addresses = [[ffi.cast("void *", array.ctypes.data) for array in some] for some in arrays]
    status = lib.rr_sim_run(WORLD, ffi.new("rr_sim_spec *", sim), plan, decoded, *addresses, result)
    for each, was in zip(world, before, strict=True):
        assert np.array_equal(each.input, was), "an input was written"
    right = True
    for rank, each in enumerate(world):
        want = wanted(schedule, table_of_chunks, world, rank)
        right = right and (want is None or np.array_equal(each.output, want))
    return (*said(), right) if status < 0 else ("RR_OK", "", right)


def said() -> tuple[str, str]:
    record = ffi.new("rr_error *")
    lib.rr_last_error(record)
    return ffi.string(lib.rr_status_name(record.status)).decode(), ffi.string(record.message).decode()


def in_a_child(call: Any) -> tuple[int, str]:
    """Its exit status and what it says: it may die."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.write(writer, repr(call()).encode()[:4000])
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read().decode()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text


@given(damages(), st.integers(1, 3), st.integers(0, 2), st.integers(0, 99))
@settings(max_examples=200, deadline=None)
def test_damaged_schedules_bind_and_stay_inside_or_are_refused(
    damaged: tuple[Schedule, list[bytes]], rounds: int, registered: int, seed: int
) -> None:
    schedule, tables = damaged
    code, text = in_a_child(lambda: bound_and_run(schedule, tables, rounds, registered, seed))
    assert code == 0 and text, f"exit status {code}: {text}"
    status, message, right = eval(text)
    assert "remote access error" not in message, message  # binding let it through
    if is_proven(tables):
        one_round = "moves several chunks" in message  # which the schedule is not asked
        assert one_round or (status == "RR_OK" and right), (status, message)


@pytest.mark.parametrize("base", range(len(bases())), ids=[f"{each.collective}-{each.algorithm}" for each in bases()])
def test_undamaged_ones_are_right(base: int) -> None:
    """So the tests above see right results where there are some."""
    schedule = bases()[base]
    tables = [encode_rank(schedule, rank) for rank in range(WORLD)]
    assert is_proven(tables)
    assert bound_and_run(schedule, tables, 1, 1, base) == ("RR_OK", "", True)
