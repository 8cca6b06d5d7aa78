"""A checksum of every slice: nothing that is right is refused, and no turned bit passes."""

from __future__ import annotations

import random
import re
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
            ends = re.search(r"from rank (\d) to rank (\d) in step", str(error))
            assert ends
            assert ends[1] != ends[2]
            found += 1
    assert found > 50


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
