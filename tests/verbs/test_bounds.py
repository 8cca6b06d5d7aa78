"""send, recv, all_to_all, gather, scatter over verbs (the substitute library): a failed rank is named, and in time."""

from __future__ import annotations

from pathlib import Path

import pytest
from bounds import SOURCE, check
from verbs.simulated import run_verbs


@pytest.mark.parametrize(
    ("fault", "within_s"),
    [("killed", 15.0), ("mismatch", 15.0), pytest.param("stopped", 15.0, marks=pytest.mark.long)],
)
def test_a_failed_rank_is_named_by_whoever_needs_it(fault: str, within_s: float, tmp_path: Path) -> None:
    ran = run_verbs(3, f"FAULT = {fault!r}\n" + SOURCE, tmp_path, timeout_s=100, options=("--keep-going",)).ran
    check(ran, fault, within_s)
