"""Who is measured with whom, and how much goes over an edge."""

from __future__ import annotations

import numpy as np
import pytest

from rdmaring.diagnose.links.measure import (
    MESSAGE_BYTES_MAX,
    MESSAGES_MAX,
    MESSAGES_MIN,
    PILOT_BYTES,
    dose,
    expected_bytes,
    pairs_of,
)


@pytest.mark.parametrize("world", range(2, 12))
def test_a_tournament_has_every_ordered_pair_once_and_no_rank_twice_in_a_round(world: int) -> None:
    rounds = pairs_of(world)
    pairs = [pair for batch in rounds for pair in batch]
    assert sorted(pairs) == [(a, b) for a in range(world) for b in range(world) if a != b]
    for batch in rounds:
        ranks = [rank for pair in batch for rank in pair]
        assert len(set(ranks)) == len(ranks)
    assert len(rounds) == 2 * (world - 1 + world % 2)


@pytest.mark.parametrize("share_s", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("rough_gb_s", [1e-4, 0.0125, 0.025, 1.0, 12.5, 50.0])
def test_a_dose_fills_its_share_of_the_time(rough_gb_s: float, share_s: float) -> None:
    found = dose(rough_gb_s, share_s)
    assert PILOT_BYTES <= found.nbytes <= MESSAGE_BYTES_MAX
    assert MESSAGES_MIN <= found.count <= MESSAGES_MAX
    took_s = (found.count + 1) * found.nbytes / (rough_gb_s * 1e9)
    least_s = (MESSAGES_MIN + 1) * PILOT_BYTES / (rough_gb_s * 1e9)
    assert took_s <= max(share_s, least_s) * 1.001
    if share_s > least_s and found.count < MESSAGES_MAX:
        assert took_s > share_s / 4


def test_data_differ_by_seed_and_direction() -> None:
    one = expected_bytes(1, (0, 1), 1000)
    assert np.array_equal(one, expected_bytes(1, (0, 1), 1000))
    for other in (expected_bytes(2, (0, 1), 1000), expected_bytes(1, (1, 0), 1000)):
        assert np.count_nonzero(one == other) < 20  # one in 256 by chance
