"""send, recv, all_to_all, gather and scatter over shared memory and TCP: a failed rank is named, and in time."""

from __future__ import annotations

from pathlib import Path

import pytest
from bounds import SOURCE, check
from verdicts import run


@pytest.mark.long
@pytest.mark.parametrize("where", ["shm", "tcp"])
@pytest.mark.parametrize(("fault", "within_s"), [("killed", 3.0), ("mismatch", 3.0), ("stopped", 5.0)])
def test_a_failed_rank_is_named_by_whoever_needs_it(fault: str, within_s: float, where: str, tmp_path: Path) -> None:
    check(run(3, f"FAULT = {fault!r}\n" + SOURCE, tmp_path, where), fault, within_s)
