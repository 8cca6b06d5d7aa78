"""The reference, by pyverbs, in one ring with two C ranks: docs/WIRE.md is true of verbs, too."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from beds import run_softroce

import rdmaring

RING = Path(__file__).resolve().parents[1] / "transport" / "ring_of_both.py"
TIMEOUT_S = 500


@pytest.mark.timeout(TIMEOUT_S + 60)
@pytest.mark.parametrize(
    ("options", "qps", "counts"),
    [
        # 100: beside their lines. 300 000: two slices a chunk. Every second round into granted memory, both ways.
        pytest.param(("--algorithm", "ring", "--grant"), 2, (100, 300_000), id="ring"),
        # Tiny messages, two hops, the ring; the reference grants nothing.
        pytest.param((), 1, (1000, 4097, 300_000), id="chosen", marks=pytest.mark.long),
    ],
)
def test_two_c_ranks_and_the_reference(
    options: tuple[str, ...], qps: int, counts: tuple[int, ...], tmp_path: Path
) -> None:
    pure = tmp_path / "pure"
    pure.mkdir()
    (pure / "rdmaring").symlink_to(Path(rdmaring.__file__).parent)
    dtypes = ("float32", "float16")
    line = [sys.executable, str(RING), "--wire", "verbs", "--timeout", "300", "--rounds", "2", *options]
    line += ["--qps", str(qps), "--dtype", *dtypes, "--count", *map(str, counts)]
    # pyverbs is the distribution's, and so is the Python that can load it.
    env = {"REFERENCE_PYTHON": "/usr/bin/python3", "REFERENCE_PATH": str(pure), "RDMARING_VERBS_QPS": str(qps)}
    ran = run_softroce(3, 1, line, tmp_path, env=env, timeout_s=TIMEOUT_S)
    assert ran.code == 0, ran.output
    assert ran.of(0, "transports") == ran.of(2, "transports") == ["verbs"]
    for dtype in dtypes:
        for count in counts:
            each = [ran.of(rank, f"{dtype} {count}") for rank in range(3)]
            assert each[0]["wrong"] == 0
            assert each == [each[0]] * 3, ran.output  # checksums, too
