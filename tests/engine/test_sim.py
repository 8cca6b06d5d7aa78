"""The engine over simulated links: every schedule, many worlds, seeded delays, one credit, several operations."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engine import simulated
from engine.simulated import Case, drawn_sim, inputs_of, run

from rdmaring._native import error_here
from rdmaring.schedule import ALGORITHMS, SHAPED, Row, generate
from rdmaring.schedule.channels import channels_of
from rdmaring.schedule.collectives import COLLECTIVES

SEEDS_A_CASE = 12


def draw(collective: str, algorithm: str, seed: int, **fixed: Any) -> Case:
    dice = random.Random(f"{collective}/{algorithm}/{seed}")
    world = dice.choice([1, 2, 3, 4, 5, 8])
    rooted = COLLECTIVES[collective].rooted
    sim = drawn_sim(seed)
    if collective not in ("all_reduce", "broadcast"):
        sim["operations"] = 1  # the output of one run is not the input of the next
    scratch = collective in ("reduce_scatter", "reduce", "gather", "scatter") and algorithm != "direct"
    case = Case(
        collective,
        algorithm,
        world,
        dice.choice([0, 1, 2, 7, world, 513, 4000, 20000]),
        seed,
        root=dice.randrange(world) if rooted else None,
        in_place=dice.random() < 0.5 and collective in ("all_reduce", "reduce"),
        round_count=dice.choice([1, 2, 3, 7]) if scratch else 1,
        sim=sim,
        channels=channels_of(collective, dice.choice([1, 1, 2, 3])),
    )
    if algorithm in SHAPED:
        case.nodes = tuple(dice.randrange(3) for _ in range(world))
        case.round_count = dice.choice([1, 2, 3, 7])  # its rows have one chunk each
    sim["channels"] = dice.choice([1, case.channels])  # links an edge: all channels share one, or each has its own
    for name, value in fixed.items():
        setattr(case, name, value)
    return case


def expected(case: Case, offsets: list[int]) -> list[tuple[Any, np.ndarray[Any, Any]]]:
    """What each rank's output holds where it must hold something, by numpy."""
    given = inputs_of(case)
    total = np.sum([x.astype(np.int64) for x in given], axis=0)
    for _ in range(case.sim.get("operations", 1) - 1):  # each run begins with the sums of the run before
        total = total * case.world
    whole = slice(0, case.count)
    results = []
    for rank in range(case.world):
        part = slice(offsets[rank], offsets[rank + 1]) if len(offsets) == case.world + 1 else whole
        if case.collective == "all_reduce":
            results.append((whole, total))
        elif case.collective == "all_to_all":
            chunks = [s * case.world + rank for s in range(case.world)]
            places = [np.arange(offsets[chunk], offsets[chunk + 1]) for chunk in chunks]
            want = np.concatenate([given[s][where] for s, where in enumerate(places)])
            results.append((np.concatenate(places), want))
        elif case.collective == "scatter":
            results.append((part, given[case.root or 0][part]))
        elif case.collective == "gather":
            parts = [given[r][offsets[r] : offsets[r + 1]] for r in range(case.world)]
            untouched = np.full(case.count, 77)
            results.append((whole, np.concatenate(parts) if rank == case.root else untouched))
        elif case.collective == "reduce_scatter":
            results.append((part, total[part]))
        elif case.collective == "all_gather":
            parts = [given[r][offsets[r] : offsets[r + 1]] for r in range(case.world)]
            results.append((whole, np.concatenate(parts)))
        elif case.collective == "broadcast":
            results.append((whole, given[case.root or 0]))
        elif rank == case.root:
            results.append((whole, total))
        else:  # reduce: the others' inputs are left alone
            results.append((whole, given[rank] if case.in_place else np.full(case.count, 77)))
    return results


@pytest.mark.parametrize(("collective", "algorithm"), sorted(ALGORITHMS))
def test_right_on_any_machine(collective: str, algorithm: str) -> None:
    for seed in range(SEEDS_A_CASE * (5 if algorithm in SHAPED else 1)):
        case = draw(collective, algorithm, seed)
        status, result, outputs, offsets = run(case)
        assert status == 0, f"{case}: {error_here()}, stuck rank {result.stuck_rank} row {result.stuck_row}"
        assert result.finished == case.world
        for rank, (where, want) in enumerate(expected(case, offsets)):
            np.testing.assert_array_equal(outputs[rank][where], want, err_msg=f"rank {rank} of {case}")


@pytest.mark.long
def test_thousands_of_machines() -> None:
    for seed in range(100, 400):
        for collective, algorithm in sorted(ALGORITHMS):
            case = draw(collective, algorithm, seed)
            status, result, outputs, offsets = run(case)
            assert status == 0, f"{case}: {error_here()}, stuck rank {result.stuck_rank}"
            for rank, (where, want) in enumerate(expected(case, offsets)):
                np.testing.assert_array_equal(outputs[rank][where], want, err_msg=f"rank {rank} of {case}")


def test_same_seed_same_run() -> None:
    case = draw("all_reduce", "ring", 5, world=4, count=20000)
    first, second = run(case)[1], run(case)[1]
    assert (first.elapsed_ns, first.transfers) == (second.elapsed_ns, second.transfers)
    other = draw("all_reduce", "ring", 5, world=4, count=20000)
    other.sim["seed"] = 6
    assert run(other)[1].elapsed_ns != first.elapsed_ns or not case.sim["jitter_ns"]


@pytest.mark.parametrize("algorithm", ["ring", "biring", "tree", "halving", "direct", "naive"])
def test_death_is_an_error_that_names_the_rank(algorithm: str) -> None:
    for seed in range(20):
        world = random.Random(seed).choice([2, 3, 4, 8])
        victim = seed % world
        sim = {"seed": seed, "latency_ns": 1000, "jitter_ns": 500, "transfer_ps_per_byte": 1000, "slot_count": 2}
        sim |= {"kill_rank": victim, "kill_ns": 3000 + 997 * seed, "detect_ns": 5000}
        case = Case("all_reduce", algorithm, world, 200000, seed, sim=sim)
        status, result, _, _ = run(case)
        assert status == -20, f"{case}: {error_here()}"
        assert result.blamed == victim, f"seed {seed}"
        assert result.finished < world and result.stuck_rank == -1


@pytest.mark.parametrize("world", [2, 4, 8])
@pytest.mark.parametrize("collective", ["reduce_scatter", "all_reduce"])
def test_transfers_overlap_with_reductions(world: int, collective: str) -> None:
    """Equal cost a byte for the link and the device: the whole takes hardly longer than the busier one alone."""
    count, slice_bytes, ps_per_byte = 1 << 20, 8192, 1000
    sim = {"seed": 1, "transfer_ps_per_byte": ps_per_byte, "combine_ps_per_byte": ps_per_byte, "slot_count": 8}
    case = Case(collective, "ring", world, count, 1, slice_bytes=slice_bytes, sim=sim)
    status, result, _, _ = run(case)
    assert status == 0
    larger = max(result.busiest_link_ns, result.busiest_device_ns)
    chunk_ns = count * 8 / world * ps_per_byte / 1000
    halves = 2 if collective == "all_reduce" else 1
    assert larger == pytest.approx((world - 1) * halves * chunk_ns, rel=0.01)
    # Fill: the first slice of each step must cross and be reduced before the next rank can begin with it.
    fill = 2 * halves * (world - 1) * slice_bytes * ps_per_byte / 1000
    assert result.elapsed_ns <= 1.15 * larger + fill
    serial = result.busiest_link_ns + result.busiest_device_ns
    assert result.elapsed_ns < 0.85 * serial or collective == "all_reduce"


@pytest.mark.parametrize("world", [4, 7, 8])
@pytest.mark.parametrize("collective", ["all_reduce", "broadcast", "reduce"])
def test_a_tree_is_as_fast_as_its_busiest_link_or_device(world: int, collective: str) -> None:
    """Slices follow each other down all hops: only the first slice's way is added, however many hops there are."""
    count, slice_bytes, ps_per_byte = 1 << 18, 8192, 1000
    sim = {"seed": 1, "transfer_ps_per_byte": ps_per_byte, "combine_ps_per_byte": ps_per_byte, "slot_count": 8}
    root = None if collective == "all_reduce" else 1
    status, result, _, _ = run(Case(collective, "tree", world, count, 1, root=root, slice_bytes=slice_bytes, sim=sim))
    assert status == 0
    half_ns = count * 8 / 2 * ps_per_byte / 1000
    # Every link carries a half down a tree, and in an all_reduce another one up the other.
    assert result.busiest_link_ns == pytest.approx(half_ns * (2 if collective == "all_reduce" else 1), rel=0.01)
    larger = max(result.busiest_link_ns, result.busiest_device_ns)
    hops = generate(collective, "tree", world, root).step_count
    assert result.elapsed_ns <= larger + 2 * (hops + 1) * slice_bytes * ps_per_byte / 1000


def test_a_wrong_table_is_found_when_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A canary: without one send the simulated world stops, and says so."""
    good = generate("all_reduce", "ring", 3, None)

    def without_first_send(rank: int) -> tuple[Row, ...]:
        rows = good.rows(rank)
        return rows if rank else (replace(rows[0], sends=()), *rows[1:])

    broken = replace(good, make_rows=without_first_send, _cache={})
    monkeypatch.setattr(simulated, "generate", lambda *_, **__: broken)
    status, result, _, _ = run(Case("all_reduce", "ring", 3, 3000, 1))
    assert status in (-40, -21), "a missing send is a deadlock or a protocol error"
    assert status != -40 or result.stuck_rank >= 0
