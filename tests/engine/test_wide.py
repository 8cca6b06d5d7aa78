"""Rows with float32 in part, on the real engine over simulated links: replay a failure by its seed."""

from __future__ import annotations

import numpy as np
import pytest
from engine.simulated import Case, drawn_sim, inputs_of, run


@pytest.mark.parametrize("seed", range(40))
def test_wide_rings_over_random_links(seed: int) -> None:
    dice = np.random.default_rng(seed)
    case = Case(
        str(dice.choice(["all_reduce", "reduce_scatter"])),
        "ring",
        int(dice.integers(1, 9)),
        int(dice.choice([0, 1, 5, 2047, 30_001])),
        seed,
        dtype="float16",
        op=str(dice.choice(["sum", "avg"])),
        in_place=bool(dice.integers(2)),
        round_count=int(dice.integers(1, 4)),
        wire="float32",
        sim=drawn_sim(seed) | {"operations": 1},
    )
    given = [x.copy() for x in inputs_of(case)]
    status, _, outputs, offsets = run(case)
    assert status == 0
    # Integers up to 9 * 8: exact in float32, so that every order gives this.
    total = np.sum([x.astype(np.float32) for x in given], axis=0)
    want = (total * np.float32(1 / case.world) if case.op == "avg" else total).astype(np.float16)
    for rank, output in enumerate(outputs):
        part = slice(offsets[rank], offsets[rank + 1]) if case.collective == "reduce_scatter" else slice(None)
        assert np.array_equal(output[part], want[part]), (case, rank)
