"""The enqueue executor: its lists, executed over plain memory in seeded orders, against the progress executor.

Replay a failure by its seed. Every run looks for accesses that nothing orders, whether or not the run at hand met them
in the wrong order.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import numpy as np
import pytest
from engine import simulated
from engine.simulated import Case, prepared

from rdmaring._native import error_here, ffi, lib
from rdmaring.schedule import ALGORITHMS, generate
from rdmaring.schedule.channels import channels_of
from rdmaring.schedule.collectives import COLLECTIVES
from rdmaring.schedule.enqueue import Cut, enqueue_list

DTYPES = ("int64", "float32", "float64", "float16", "uint8", "int16")
SLOT_BYTES = 4096


class Ran(NamedTuple):
    status: int
    result: Any
    outputs: list[np.ndarray[Any, Any]]


def enqueue(case: Case, **spec: Any) -> Ran:
    world = prepared(case)
    result = ffi.new("rr_enqueue_sim_result *")
    given = {"seed": case.seed, "slot_bytes": SLOT_BYTES, "slot_count": 2, "channels": case.channels, **spec}
    status = lib.rr_enqueue_sim_run(
        case.world,
        ffi.new("rr_enqueue_sim_spec *", given),
        world.plan,
        world.rows,
        world.input_addresses,
        world.output_addresses,
        result,
    )
    return Ran(status, result, world.outputs)


def draw(collective: str, algorithm: str, seed: int) -> Case:
    dice = random.Random(f"{collective}/{algorithm}/{seed}")
    world = dice.choice([1, 2, 2, 3, 3, 4, 5])
    reduces = collective in ("all_reduce", "reduce", "reduce_scatter")
    dtype = dice.choice(DTYPES)
    scratch = collective in ("reduce_scatter", "reduce", "gather", "scatter") and algorithm != "direct"
    return Case(
        collective,
        algorithm,
        world,
        # Chunks from empty ones to some that exceed all slots together.
        dice.choice([0, 1, world - 1, 513, 4000, 10_001]),
        seed,
        root=dice.randrange(world) if COLLECTIVES[collective].rooted else None,
        dtype=dtype,
        op=dice.choice(
            ["sum", "prod", "min", "max", "avg"] if dtype.startswith("float") else ["sum", "prod", "min", "max"]
        )
        if reduces
        else "sum",
        in_place=dice.random() < 0.5 and collective in ("all_reduce", "reduce"),
        round_count=dice.choice([1, 2, 3, 7]) if scratch else 1,
        channels=channels_of(collective, dice.choice([1, 1, 2, 3])),
        sim={"seed": seed, "slot_bytes": SLOT_BYTES, "slot_count": 2, "operations": 1},
    )


def agree(case: Case, **spec: Any) -> Any:
    ran = enqueue(case, **spec)
    assert ran.status == 0, f"{case} {spec}: {error_here()}"
    assert ran.result.races == 0, f"{case} {spec}: {ffi.string(ran.result.race)!r}"
    case.sim |= {"channels": case.channels}
    status, _, outputs, _ = simulated.run(case)
    assert status == 0, f"{case}: {error_here()}"
    for rank, (ours, theirs) in enumerate(zip(ran.outputs, outputs, strict=True)):
        assert ours.tobytes() == theirs.tobytes(), f"rank {rank} of {case} {spec}"
    return ran.result


@pytest.mark.parametrize(("collective", "algorithm"), sorted(ALGORITHMS))
def test_equal_to_the_progress_executor_in_every_bit(collective: str, algorithm: str) -> None:
    for seed in range(12):
        slots = random.Random(seed).choice([1, 1, 2, 3, 8])
        agree(draw(collective, algorithm, seed), slot_count=slots, one_queue=seed % 3 == 0)


@pytest.mark.long
def test_thousands_of_orders() -> None:
    for seed in range(100, 300):
        for collective, algorithm in sorted(ALGORITHMS):
            slots = random.Random(seed).choice([1, 1, 2, 3, 8])
            agree(draw(collective, algorithm, seed), slot_count=slots, one_queue=seed % 3 == 0)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter"])
def test_partial_sums_in_float32(collective: str, seed: int) -> None:
    case = Case(collective, "ring", 2 + seed % 4, 9001, seed, dtype="float16", wire="float32", slice_bytes=4096)
    case.sim = {"seed": seed, "slot_bytes": 8192, "slot_count": 2, "operations": 1}
    agree(case, slot_bytes=8192)


@pytest.mark.parametrize("one_queue", [0, 1])
@pytest.mark.parametrize(
    ("collective", "algorithm"), [("all_reduce", "ring"), ("all_gather", "direct"), ("reduce", "tree")]
)
def test_the_same_list_at_every_call(collective: str, algorithm: str, one_queue: int) -> None:
    """The simulator compares the lists of all calls; flags are as before when an operation has ended."""
    for slots in (1, 2, 3, 5):
        case = draw(collective, algorithm, slots)
        case.in_place = False
        agree(case, slot_count=slots, operations=4, one_queue=one_queue)


@pytest.mark.parametrize("world", [2, 3, 4, 8])
@pytest.mark.parametrize("in_place", [False, True])
def test_at_most_eight_calls_a_slice_and_step(world: int, in_place: bool) -> None:
    slices = 12
    count = world * slices * SLOT_BYTES // 8
    case = Case("all_reduce", "ring", world, count, 1, in_place=in_place)
    ran = enqueue(case, slot_count=4)
    assert ran.status == 0
    steps = 2 * (world - 1)
    ends = 1 + 1 + 2  # one record and a wait to begin, a record and a wait to end
    assert ran.result.calls <= world * (8 * slices * steps + ends)
    assert ran.result.copied_bytes == world * count * 8 * steps // world


@pytest.mark.parametrize("seed", range(6))
def test_c_lists_what_python_proved(seed: int) -> None:
    for collective, algorithm in sorted(ALGORITHMS):
        case = draw(collective, algorithm, seed)
        case.count = case.count if case.count > 1 else 5000
        world = prepared(case)
        schedule = generate(collective, algorithm, case.world, case.root, channels=case.channels)
        size = np.dtype(case.dtype).itemsize
        for rank in range(case.world):
            world.plan.schedule = world.rows[rank]
            found = ffi.new("rr_enqueue_listed[20000]")
            number = ffi.new("uint64_t *")
            assert (
                lib.rr_enqueue_list(rank, case.world, SLOT_BYTES, case.channels, world.plan, found, 20000, number) == 0
            ), error_here()
            offsets = [size * world.table[chunk] for chunk in range(schedule.chunk_count + 1)]
            cut = Cut(offsets, SLOT_BYTES, case.round_count, size)
            want = [
                (
                    item.round,
                    item.row,
                    item.slice,
                    -1 if item.send is None else item.send,
                    2 * item.stream.channel + item.stream.copy,
                    sorted(item.after),
                )
                for item in enqueue_list(schedule.rows(rank), cut, channels=case.channels)
            ]
            got = [
                (item.round, item.row, item.slice, item.send, item.stream, sorted(item.after[0 : item.after_count]))
                for item in found[0 : number[0]]
            ]
            assert got == want, f"rank {rank} of {case}"


FAULTS = {
    "ready unawaited": lib.RR_FAULT_READY_UNAWAITED,
    "credit unawaited": lib.RR_FAULT_CREDIT_UNAWAITED,
    "flag kept": lib.RR_FAULT_FLAG_KEPT,
    "pass unawaited": lib.RR_FAULT_PASS_UNAWAITED,
    "input unawaited": lib.RR_FAULT_INPUT_UNAWAITED,
    "output unawaited": lib.RR_FAULT_OUTPUT_UNAWAITED,
    "early credit": lib.RR_FAULT_EARLY_CREDIT,
    "early ready": lib.RR_FAULT_EARLY_READY,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_wherever_it_is(fault: str) -> None:
    """Found: an unordered access, a lost signal, or a deadlock, in every order of execution."""
    for seed in range(3):
        case = Case("all_reduce", "ring", 3, 3 * 4 * SLOT_BYTES // 8, seed, in_place=True)
        spec = {"fault": FAULTS[fault], "operations": 2, "slot_count": 2}
        places = enqueue(case, **spec, fault_at=1 << 30).result.fault_places
        assert places >= 3
        tried = random.Random(seed).sample(range(places), min(places, 25))
        for place in tried:
            if fault == "credit unawaited" and place % (places // 3) < 2:
                continue  # the first use of each slot ever: its credit is there from the beginning
            if fault == "early credit" and place % (places // 3) >= places // 3 - 2:
                continue  # the last use of each slot: nobody fills it again
            ran = enqueue(case, **spec, fault_at=place)
            assert ran.status in (0, lib.RR_ERR_TIMEOUT)
            assert ran.result.races or ran.status == lib.RR_ERR_TIMEOUT, f"{fault} at {place} of {places}, seed {seed}"


@pytest.mark.parametrize(
    ("collective", "algorithm"), [("reduce", "ring"), ("reduce", "binomial"), ("gather", "binomial")]
)
def test_scratch_overwritten_too_early_is_found(collective: str, algorithm: str) -> None:
    """Cells are used again two rounds later. (In a ring of its own result peers imply the order: see below.)"""
    case = Case(collective, algorithm, 4, 40_000, 1, root=1, round_count=8)
    fault = {"fault": lib.RR_FAULT_SEND_UNAWAITED, "slot_count": 4}
    places = enqueue(case, **fault, fault_at=1 << 30).result.fault_places
    assert places >= 6
    for place in range(places):
        ran = enqueue(case, **fault, fault_at=place)
        assert ran.status == 0 and ran.result.races, f"{place} of {places}"


def test_what_a_ring_orders_by_itself() -> None:
    """In place, a chunk's result comes round only after all have read what this rank sent: the wait adds no order."""
    case = Case("all_reduce", "ring", 3, 3 * 4 * SLOT_BYTES // 8, 1, in_place=True)
    fault = {"fault": lib.RR_FAULT_SEND_UNAWAITED, "slot_count": 2}
    places = enqueue(case, **fault, fault_at=1 << 30).result.fault_places
    assert places >= 3
    for place in range(places):
        ran = enqueue(case, **fault, fault_at=place)
        assert ran.status == 0 and not ran.result.races


@pytest.mark.parametrize("world", [2, 3, 5])
def test_receives_first_is_a_deadlock_in_one_queue_only(world: int) -> None:
    for seed in range(5):
        case = Case("all_reduce", "ring", world, world * 6 * SLOT_BYTES // 8, seed, in_place=True)
        spec = {"fault": lib.RR_FAULT_RECEIVES_FIRST, "slot_count": 2}
        assert enqueue(case, **spec, one_queue=1).status == lib.RR_ERR_TIMEOUT
        assert enqueue(case, **spec).status == 0
