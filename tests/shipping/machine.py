"""Runs one case on the engines of all ranks over links that ship, in one process; see src/shipping.h."""

from __future__ import annotations

import functools
import importlib.util
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import cffi
import numpy as np
from shipping import build

from rdmaring.buffers import CODE_BY_NAME, REDOP_CODE
from rdmaring.plan import COLLECTIVE_CODE
from rdmaring.schedule import Schedule
from rdmaring.schedule.encode import encode_rank

TRANSPORTS = ("shm", "stream", "verbs")
OWN = "sim"  # link_sim, which does not ship
UNTOUCHED = 0x5D
LINK, CORRUPT = -20, -22  # rr_status
SPEC = """
typedef struct rr_shipping_spec {
    uint32_t transport, window;
    uint64_t serial_start;
    uint32_t streams, pipe_bytes, hold, wait_ms, reserved;
    ...;
} rr_shipping_spec;
"""
RUN = """
rr_status rr_shipping_run(int32_t world, const rr_sim_spec *spec, const rr_shipping_spec *shipping,
                          const rr_plan_spec *plan_spec, const rr_schedule *const *schedules, void *const *inputs,
                          void *const *outputs, rr_sim_result *out);
"""


@dataclass
class Case:
    """All that a run depends on."""

    transport: str
    schedule: Schedule
    offsets: list[int]  # of all chunks, in elements
    seed: int
    dtype: str = "int64"
    op: str = "sum"
    in_place: bool = False
    round_count: int = 1
    slice_bytes: int = 4096
    check: bool = False
    sim: dict[str, Any] = field(default_factory=dict)
    links: dict[str, Any] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return self.offsets[-1]

    def own(self, rank: int) -> slice:
        """The elements of the chunks that belong to a rank, where chunks belong to ranks."""
        parts = self.schedule.chunk_count // self.schedule.world
        return slice(self.offsets[rank * parts], self.offsets[(rank + 1) * parts])

    def __str__(self) -> str:
        made = self.schedule
        sizes = [end - begin for begin, end in pairwise(self.offsets)]
        shape = ", ".join(f"{len(list(run))} of {size}" for size, run in groupby(sizes))
        return (
            f"seed {self.seed} over {self.transport}: {made.collective} by {made.algorithm} among {made.world}, "
            f"root {made.root}, {self.dtype} {self.op}{', in place' if self.in_place else ''}"
            f"{', check crc' if self.check else ''}, rounds {self.round_count}, slices {self.slice_bytes}, "
            f"chunks {shape}, sim {self.sim}, links {self.links}"
        )


class Library:
    """The library's sources and the adapters, as one shared object."""

    def __init__(self, path: Path, headers: Path) -> None:
        found = importlib.util.spec_from_file_location("make_extension", headers.parent / "make_extension.py")
        assert found is not None and found.loader is not None
        maker = importlib.util.module_from_spec(found)
        found.loader.exec_module(maker)
        self.ffi = cffi.FFI()
        names = ("rdmaring_verdict.h", "rdmaring.h")
        self.ffi.cdef("".join(maker.declarations((headers / name).read_text(encoding="utf-8")) for name in names))
        self.ffi.cdef(SPEC.replace("    ...;\n", "") + RUN)
        self.lib = self.ffi.dlopen(str(path))

    def error(self) -> str:
        record = self.ffi.new("rr_error *")
        self.lib.rr_last_error(record)
        return self.ffi.string(record.message).decode(errors="replace")


@functools.cache
def library(root: Path = build.ROOT) -> Library:
    return Library(build.library(root), root / "native" / "include")


@dataclass
class Ran:
    status: int
    error: str
    result: Any
    given: list[np.ndarray[Any, Any]]  # before the run
    outputs: list[np.ndarray[Any, Any]]  # in vector coordinates
    before: list[np.ndarray[Any, Any]]  # what outputs held


def values(case: Case) -> list[np.ndarray[Any, Any]]:
    """Each rank's whole vector, every bit drawn."""
    rng = np.random.default_rng(case.seed)
    size = np.dtype(case.dtype).itemsize
    return [rng.integers(0, 256, case.count * size, np.uint8).view(case.dtype) for _ in range(case.schedule.world)]


def _plan(native: Library, case: Case) -> tuple[Any, list[Any]]:
    plan = native.ffi.new("rr_plan_spec *")
    table = native.ffi.new("uint64_t[]", case.offsets)
    plan.collective = COLLECTIVE_CODE[case.schedule.collective]
    plan.dtype = CODE_BY_NAME[case.dtype]
    plan.redop = REDOP_CODE[case.op]
    plan.root = -1 if case.schedule.root is None else case.schedule.root
    plan.count = case.count
    plan.scale = 1.0
    plan.chunk_offsets = table
    plan.slice_bytes = case.slice_bytes
    plan.round_count = case.round_count
    plan.check = case.check
    rows = []
    for rank in range(case.schedule.world):
        encoded = encode_rank(case.schedule, rank)
        out = native.ffi.new("rr_schedule **")
        if native.lib.rr_schedule_decode(encoded, len(encoded), rank, out) != 0:
            raise AssertionError(f"{case}: {native.error()}")
        rows.append(native.ffi.gc(out[0], native.lib.rr_schedule_free))
    return (plan, table), rows


def run(case: Case, native: Library | None = None) -> Ran:
    native = native or library()
    ffi = native.ffi
    world, collective = case.schedule.world, case.schedule.collective
    (plan, table), rows = _plan(native, case)
    given = values(case)
    size = np.dtype(case.dtype).itemsize
    inputs = [x.copy() for x in given]
    outputs = inputs
    if not case.in_place and collective != "broadcast":
        outputs = [np.full(case.count * size, UNTOUCHED, np.uint8).view(case.dtype) for _ in given]
    before = [x.copy() for x in outputs]

    def address(array: np.ndarray[Any, Any], begin: int) -> Any:
        return ffi.cast("void *", array.ctypes.data + begin * size)

    own_in = collective in ("all_gather", "gather", "all_to_all")
    own_out = collective in ("reduce_scatter", "scatter")
    starts_in = [case.own(r).start if own_in else 0 for r in range(world)]
    starts_out = [case.own(r).start if own_out else 0 for r in range(world)]
    spec = ffi.new("rr_sim_spec *", {"kill_rank": -1, "slot_bytes": 4096, "slot_count": 2, "operations": 1, **case.sim})
    result = ffi.new("rr_sim_result *")
    pointers = (
        [address(x, b) for x, b in zip(inputs, starts_in, strict=True)],
        [address(x, b) for x, b in zip(outputs, starts_out, strict=True)],
    )
    if case.transport == OWN:
        status = native.lib.rr_sim_run(world, spec, plan, rows, *pointers, result)
    else:
        links = ffi.new("rr_shipping_spec *", {"transport": TRANSPORTS.index(case.transport), **case.links})
        status = native.lib.rr_shipping_run(world, spec, links, plan, rows, *pointers, result)
    del table
    return Ran(status, native.error() if status else "", result, given, outputs, before)


def _reduced(case: Case, given: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    ufunc = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[case.op]
    total = given
    for _ in range(case.sim.get("operations", 1)):  # each run begins with what the run before has left
        total = [ufunc.reduce(total, dtype=case.dtype)] * len(given)
    return total[0]


def expected(case: Case, ran: Ran) -> list[np.ndarray[Any, Any]]:
    """What each rank's output holds, by numpy: all of it, also what nothing was to touch."""
    collective, world, root = case.schedule.collective, case.schedule.world, case.schedule.root
    given, wants = ran.given, [x.copy() for x in ran.before]
    if collective in ("all_reduce", "reduce_scatter", "reduce"):
        total = _reduced(case, given)
    for rank, want in enumerate(wants):
        own = case.own(rank)
        if collective == "all_reduce" or (collective == "reduce" and rank == root):
            want[:] = total
        elif collective == "reduce_scatter":
            want[own] = total[own]
        elif collective == "broadcast":
            want[:] = given[root or 0]
        elif collective == "scatter":
            want[own] = given[root or 0][own]
        elif collective == "all_gather" or (collective == "gather" and rank == root):
            for r in range(world):
                want[case.own(r)] = given[r][case.own(r)]
        elif collective == "all_to_all":
            for source in range(world):
                chunk = source * world + rank
                part = slice(case.offsets[chunk], case.offsets[chunk + 1])
                want[part] = given[source][part]
    return wants


def verify(case: Case, native: Library | None = None) -> Ran:
    """Run it; raise AssertionError, which names the case, where anything is not as it must be."""
    ran = run(case, native)
    said = f"{ran.error} (status {ran.status}); stuck rank {ran.result.stuck_rank} row {ran.result.stuck_row}\n{case}"
    killed = case.sim.get("kill_rank", -1)
    if ran.result.corrupted:
        assert ran.status == CORRUPT, said
        return ran
    if killed >= 0 and ran.status:
        assert ran.status == LINK, said
        assert ran.result.blamed == killed, said
        assert ran.result.finished < case.schedule.world, said
        return ran
    assert ran.status == 0, said
    assert ran.result.finished == case.schedule.world or killed >= 0, said
    if killed >= 0:  # it died when nobody needed it any more
        return ran
    for rank, (out, want) in enumerate(zip(ran.outputs, expected(case, ran), strict=True)):
        wrong = np.flatnonzero(out.view(np.uint8) != want.view(np.uint8))
        assert not wrong.size, f"rank {rank}: {wrong.size} bytes are wrong, the first is {wrong[0]}\n{case}"
    return ran
