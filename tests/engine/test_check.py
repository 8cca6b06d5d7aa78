"""A checksum of every slice: nothing that is right is refused, and no turned bit passes."""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from engine.simulated import Case, run
from engine.test_sim import draw, expected

from rdmaring._native import error_here
from rdmaring.errors import CorruptError
from rdmaring.schedule import ALGORITHMS

SEEDS_A_CASE = 6


@pytest.mark.parametrize(("collective", "algorithm"), sorted(ALGORITHMS))
def test_right_bytes_pass_on_every_machine(collective: str, algorithm: str) -> None:
    for seed in range(SEEDS_A_CASE):
        case = draw(collective, algorithm, seed, check=True)
        status, _, outputs, offsets = run(case)
        assert status == 0, f"{case}: {error_here()}"
        for rank, (where, want) in enumerate(expected(case, offsets)):
            np.testing.assert_array_equal(outputs[rank][where], want, err_msg=f"rank {rank} of {case}")


def corrupted(seed: int) -> tuple[int, Case, Any]:
    """A checked run in which one bit of one transfer is turned, if there are so many."""
    dice = random.Random(seed)
    collective, algorithm = dice.choice(sorted(key for key in ALGORITHMS if key[1] != "naive"))
    case = draw(
        collective, algorithm, seed, check=True, world=dice.choice([2, 3, 4, 5]), count=dice.choice([513, 20000])
    )
    case.root = None if case.root is None else case.root % case.world
    if case.nodes is not None:
        case.nodes = tuple(dice.randrange(2) for _ in range(case.world))
    case.sim["corrupt_transfer"] = dice.randrange(1, 12)
    status, result, _, _ = run(case)
    return status, case, result


def test_a_turned_bit_is_found_and_placed() -> None:
    found = 0
    for seed in range(150):
        status, case, result = corrupted(seed)
        assert status == (-22 if result.corrupted else 0), f"{case}: {error_here()}"
        if result.corrupted:
            error = error_here()
            assert isinstance(error, CorruptError)
            assert "came otherwise than it was sent: chunk" in str(error)
            assert "CRC32C" in str(error)
            assert "it changed on this hop" in str(error)
            ends = re.search(r"from rank (\d) to rank (\d) in step", str(error))
            assert ends
            assert ends[1] != ends[2]
            found += 1
    assert found > 50


def damaged(seed: int, *, scratch: bool, algorithms: list[tuple[str, str]]) -> tuple[int, Case, Any, list[int]]:
    """A checked run in which one bit of a rank's memory is turned, and the ranks whose sums are then wrong."""
    dice = random.Random(seed)
    collective, algorithm = dice.choice(algorithms)
    case = draw(
        collective, algorithm, seed, check=True, world=dice.choice([3, 4, 5, 8]), count=dice.choice([513, 20000])
    )
    case.root = None if case.root is None else case.root % case.world
    if case.nodes is not None:
        case.nodes = tuple(dice.randrange(2) for _ in range(case.world))
    case.sim |= {"operations": 1, "combine_ps_per_byte": 0}  # a pass takes no time: nothing turns in the middle of one
    case.sim |= {"damage_turn": dice.randrange(1, 20), "damage_scratch": int(scratch)}
    status, result, outputs, offsets = run(case)
    if status != 0:
        return status, case, result, []
    wants = enumerate(expected(case, offsets))
    return status, case, result, [rank for rank, (where, want) in wants if (outputs[rank][where] != want).any()]


@pytest.mark.parametrize("scratch", [False, True], ids=["output", "scratch"])
def test_a_bit_that_turns_in_memory_is_found_by_whoever_reads_it(scratch: bool) -> None:
    """Whatever lies in a rank's memory between two looks: no other rank's result is ever wrong without an error."""
    words: Counter[str] = Counter()
    for seed in range(500):
        status, case, result, wrong = damaged(seed, scratch=scratch, algorithms=sorted(ALGORITHMS))
        if status == 0:
            # Nobody read it any more. In the output it stays, after the last look: that rank's alone.
            assert wrong in ([], [result.damaged_rank] if not scratch else []), f"seed {seed}: {case}"
            words["unread"] += result.corrupted
            continue
        error = error_here()
        assert isinstance(error, CorruptError), f"seed {seed}: {case}: {error}"
        assert f"the memory of rank {result.damaged_rank}" in str(error), f"seed {seed}: {case}: {error}"
        forwarded = re.search(r"from rank (\d) to rank (\d) in step \d+ is not what its origin had", str(error))
        if forwarded:
            assert int(forwarded[1]) == result.damaged_rank != int(forwarded[2])
            assert "this hop's own sum is right" in str(error)
            words["by the next"] += 1
        elif "came otherwise than it was sent" in str(error):
            assert "read in place" in str(error), f"seed {seed}: {case}: {error}"
            words["in place"] += 1
        else:
            assert str(error).startswith(f"the memory of rank {result.damaged_rank} changed")
            words["by itself"] += 1
    assert min(words["by the next"], words["in place"], words["by itself"]) > 5, words


@pytest.mark.parametrize(
    ("collective", "algorithm", "scratch"),
    [
        ("broadcast", "ring", False),
        ("broadcast", "tree", False),
        ("broadcast", "binomial", False),
        ("all_gather", "ring", False),
        ("gather", "binomial", True),
        ("scatter", "binomial", True),
        ("all_reduce", "ring", False),
        ("all_reduce", "tree", False),
        ("all_reduce", "halving", False),
        ("all_reduce", "hierarchical", False),
        ("reduce_scatter", "halving", True),
        ("reduce", "tree", True),
    ],
)
def test_a_forwarder_or_reducer_is_named(collective: str, algorithm: str, scratch: bool) -> None:
    assert (collective, algorithm) in ALGORITHMS
    named = 0
    for seed in range(60):
        status, case, result, _ = damaged(seed, scratch=scratch, algorithms=[(collective, algorithm)])
        if status == 0:
            continue
        assert f"the memory of rank {result.damaged_rank}" in str(error_here()), f"seed {seed}: {case}"
        named += 1
    assert named >= 3


def test_without_a_check_a_turned_bit_is_a_wrong_result() -> None:
    """A canary: the bits that are turned matter."""
    wrong = 0
    for seed in range(40):
        case = Case(
            "all_reduce", "ring", 3, 3000, seed, sim={"seed": seed, "registered": 0, "corrupt_transfer": 1 + seed % 8}
        )
        status, result, outputs, offsets = run(case)
        assert status == 0
        assert result.corrupted == 1
        wants = expected(case, offsets)
        wrong += any((outputs[rank][where] != want).any() for rank, (where, want) in enumerate(wants))
    assert wrong == 40
