"""Schedule files in C: what one rank cannot bind is refused on every rank that loads the file."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import own_algorithms as own
import pytest

from rdmaring import chunks
from rdmaring._native import check, error_here, ffi, lib
from rdmaring.buffers import CODE_BY_NAME
from rdmaring.errors import RdmaringError, UnsupportedError
from rdmaring.plan import COLLECTIVE_CODE
from rdmaring.schedule import Row, Schedule, generate, save
from rdmaring.schedule.own_rows import proven

WORLD, EACH = 3, 40


def by_way_of_the_last(rank: int, world: int) -> list[Row]:
    """Rank 2 alone handles what two others exchange: chunk 1, from rank 0 to rank 1."""
    rows = [own.keep(rank * world + rank)]
    for d in own.others(rank, world):
        way = (rank, d) == (0, 1)
        rows.append(own.give(rank * world + d, 2 if way else d, None if way else own.O))
    if rank == 2:
        rows.append(own.pass_on(0, 1, 0, 0, own.I, 1, own.O))
    for s in own.others(rank, world):
        way = (s, rank) == (0, 1)
        rows.append(own.take(s * world + rank, 2 if way else s, own.S if way else own.I, step=int(way)))
    return rows


def loaded(schedule: Schedule, rank: int, path: Path) -> Any:
    save(schedule, path)
    out = ffi.new("rr_schedule **")
    check(lib.rr_schedule_load(str(path).encode(), rank, out))
    return ffi.gc(out[0], lib.rr_schedule_free)


def run(schedules: list[Any], *, paired: bool, registered: int = 1) -> int:
    """The status of a simulated all_to_all; its results are looked at if it ran."""
    count = WORLD * WORLD * EACH
    offsets = ffi.new("uint64_t[]", chunks.even(count, WORLD * WORLD))
    plan = ffi.new("rr_plan_spec *", {"collective": COLLECTIVE_CODE["all_to_all"], "dtype": CODE_BY_NAME["int64"]})
    plan.root, plan.count, plan.scale, plan.chunk_offsets = -1, count, 1.0, offsets
    plan.paired, plan.slice_bytes, plan.algorithm = paired, 4096, b"of a file"
    sim = {"slot_bytes": 8192, "slot_count": 2, "operations": 1, "kill_rank": -1, "registered": registered}
    given = [np.random.default_rng(rank).integers(-(2**63), 2**63, WORLD * EACH) for rank in range(WORLD)]
    outputs = [np.zeros(count, np.int64) for _ in range(WORLD)]  # in the whole vector's coordinates
    addresses = [[ffi.cast("void *", x.ctypes.data) for x in arrays] for arrays in (given, outputs)]
    spec, result = ffi.new("rr_sim_spec *", sim), ffi.new("rr_sim_result *")
    status = lib.rr_sim_run(WORLD, spec, plan, schedules, *addresses, result)
    for rank in range(WORLD) if status == 0 else ():
        for s in range(WORLD):
            at = (s * WORLD + rank) * EACH
            assert np.array_equal(outputs[rank][at : at + EACH], given[s][rank * EACH : (rank + 1) * EACH])
    return int(status)


def test_a_file_with_a_forwarder_is_refused_on_every_rank(tmp_path: Path) -> None:
    schedule = proven(by_way_of_the_last, "all_to_all", WORLD, None)
    forwarding = [loaded(schedule, rank, tmp_path / "way.rrs") for rank in range(WORLD)]
    plain = [loaded(generate("all_to_all", "direct", WORLD), rank, tmp_path / "direct.rrs") for rank in range(WORLD)]
    assert run(plain, paired=True) == 0
    assert run(forwarding, paired=False) == 0
    for rank in range(WORLD):  # the others have one that binds: so it is this rank that refuses
        mixed = [forwarding[r] if r == rank else plain[r] for r in range(WORLD)]
        assert run(mixed, paired=True) < 0
        error = error_here()
        assert isinstance(error, UnsupportedError)
        assert "row 3 of rank 2 of of a file handles chunk 1, whose length that rank cannot know" in str(error)


@pytest.mark.parametrize("registered", [0, 1])
def test_out_of_scratch_by_pair(registered: int, tmp_path: Path) -> None:
    copies = proven(own.all_to_all_copies, "all_to_all", WORLD, None)
    schedules = [loaded(copies, rank, tmp_path / "copies.rrs") for rank in range(WORLD)]
    assert run(schedules, paired=True, registered=registered) == 0


def test_a_file_whose_tables_are_of_another_world(tmp_path: Path) -> None:
    path = tmp_path / "small.rrs"
    save(generate("all_to_all", "direct", 2), path)
    data = bytearray(path.read_bytes())
    tables = 40 + 8 * 3
    data[tables + 12] = 3  # the world in the header of rank 0's table
    path.write_bytes(bytes(data[:-4]) + zlib.crc32(data[:-4]).to_bytes(4, "little"))
    out = ffi.new("rr_schedule **")
    with pytest.raises(RdmaringError, match=r"small\.rrs is for 2 ranks, its table of rank 0 for 3"):
        check(lib.rr_schedule_load(str(path).encode(), 0, out))
