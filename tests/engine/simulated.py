"""Runs schedules on the real engine over simulated links, and says what the sum must be."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rdmaring import chunks
from rdmaring._native import check, ffi, lib
from rdmaring.buffers import CODE_BY_NAME, REDOP_CODE
from rdmaring.plan import COLLECTIVE_CODE
from rdmaring.schedule import generate
from rdmaring.schedule.channels import PER_RANK
from rdmaring.schedule.encode import encode_rank


@dataclass
class Case:
    """One simulated run; what is not given is drawn from the seed."""

    collective: str
    algorithm: str
    world: int
    count: int
    seed: int
    root: int | None = None
    dtype: str = "int64"
    op: str = "sum"
    in_place: bool = False
    round_count: int = 1
    slice_bytes: int = 4096
    wire: str | None = None
    channels: int = 1
    sim: dict[str, Any] = field(default_factory=dict)
    nodes: tuple[int, ...] | None = None
    check: bool = False


def drawn_sim(seed: int) -> dict[str, Any]:
    """A machine by seed: from instantaneous to slow, with one to eight credits."""
    dice = random.Random(seed)
    return {
        "seed": seed,
        "latency_ns": dice.choice([0, 100, 5000]),
        "jitter_ns": dice.choice([0, 1000, 50000]),
        "transfer_ps_per_byte": dice.choice([0, 100, 1000]),
        "combine_ps_per_byte": dice.choice([0, 100, 1000]),
        "stall_ns": dice.choice([0, 0, 100000]),
        "slot_count": dice.choice([1, 1, 2, 3, 8]),
        "registered": dice.choice([0, 1, 2]),
        "operations": dice.choice([1, 1, 3]),
    }


def inputs_of(case: Case) -> list[np.ndarray[Any, Any]]:
    """Each rank's whole vector: small integers, so that sums are exact in any order."""
    rng = np.random.default_rng(case.seed)
    return [rng.integers(-9, 10, case.count).astype(case.dtype) for _ in range(case.world)]


@dataclass
class World:
    """What C is given for a case, and what keeps it alive."""

    plan: Any
    table: Any
    rows: list[Any]
    given: list[np.ndarray[Any, Any]]
    outputs: list[np.ndarray[Any, Any]]  # in vector coordinates
    offsets: list[int]
    input_addresses: list[Any]
    output_addresses: list[Any]


def prepared(case: Case) -> World:
    schedule = generate(
        case.collective,
        case.algorithm,
        case.world,
        case.root,
        nodes=case.nodes,
        wire=case.wire,
        channels=case.channels,
    )
    offsets = chunks.even(case.count, schedule.chunk_count // case.channels)
    size = np.dtype(case.dtype).itemsize
    if case.channels == 1:
        cut = offsets
    elif case.collective in PER_RANK:
        cut = chunks.pieces(offsets, case.channels, size)
    else:
        cut = chunks.intervals(case.count, case.channels, len(offsets) - 1, size, schedule.weights)
    plan = ffi.new("rr_plan_spec *")
    plan.collective = COLLECTIVE_CODE[case.collective]
    plan.dtype = CODE_BY_NAME[case.dtype]
    plan.redop = REDOP_CODE[case.op]
    plan.root = -1 if case.root is None else case.root
    plan.count = case.count
    plan.scale = 1.0
    table = ffi.new("uint64_t[]", cut)
    plan.chunk_offsets = table
    plan.slice_bytes = case.slice_bytes
    plan.round_count = case.round_count
    plan.wide = case.wire is not None
    plan.check = case.check
    rows = []
    for rank in range(case.world):
        encoded = encode_rank(schedule, rank)
        out = ffi.new("rr_schedule **")
        check(lib.rr_schedule_decode(encoded, len(encoded), rank, out))
        rows.append(ffi.gc(out[0], lib.rr_schedule_free))
    given = inputs_of(case)
    outputs = [x if case.in_place else np.full(case.count, 77).astype(case.dtype) for x in given]

    def address(array: np.ndarray[Any, Any], begin: int) -> Any:
        return ffi.cast("void *", array.ctypes.data + begin * size)

    own_in, own_out = case.collective in ("all_gather", "gather"), case.collective in ("reduce_scatter", "scatter")
    starts_in = [offsets[r] if own_in else 0 for r in range(case.world)]
    starts_out = [offsets[r] if own_out else 0 for r in range(case.world)]
    if case.collective == "all_to_all":  # outputs lie in the whole vector's coordinates here
        starts_in = [offsets[r * case.world] for r in range(case.world)]
    if case.collective == "broadcast":
        outputs = given
    return World(
        plan,
        table,
        rows,
        given,
        outputs,
        offsets,
        [address(x, b) for x, b in zip(given, starts_in, strict=True)],
        [address(x, b) for x, b in zip(outputs, starts_out, strict=True)],
    )


def run(case: Case) -> tuple[int, Any, list[np.ndarray[Any, Any]], list[int]]:
    """Status, the simulator's result, every rank's output in vector coordinates, the chunk table."""
    world = prepared(case)
    spec = ffi.new("rr_sim_spec *", {"kill_rank": -1, "slot_bytes": 8192, "slot_count": 2, "operations": 1, **case.sim})
    result = ffi.new("rr_sim_result *")
    status = lib.rr_sim_run(
        case.world, spec, world.plan, world.rows, world.input_addresses, world.output_addresses, result
    )
    return status, result, world.outputs, world.offsets
