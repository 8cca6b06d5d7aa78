"""One shaped edge among fast ones, between network namespaces: the verdict is `slow`, and names the edge."""

from __future__ import annotations

from pathlib import Path

import pytest
from beds import run_hosts
from verdicts import PREFERRED, PRELUDE, slow_edge


@pytest.mark.long
def test_a_slow_edge_is_named_at_a_time_out(tmp_path: Path) -> None:
    """The ring's edge 1->2 at 8 Mbit/s: 16 MB over three ranks need some 21 s there."""
    source = """
comm = rr.init(timeout_s=60)
x = np.ones(4_000_000, np.float32)
judged_with_processor(lambda: comm.all_reduce(x, algorithm="ring", timeout_s=4))
"""
    ran = run_hosts(3, 1, PRELUDE + PREFERRED + source, tmp_path, "--edge", "1-2:8mbit", timeout_s=90)
    slow_edge(ran, 3, 1, 2)
