"""Verdicts and their bounds over verbs (the substitute libibverbs): as on shared memory and TCP."""

from __future__ import annotations

from pathlib import Path

import pytest
from verbs.simulated import run_verbs
from verdicts import PRELUDE, agreed


@pytest.mark.parametrize("count", [2, 1 << 18], ids=["tiny", "large"])
def test_died(count: int, tmp_path: Path) -> None:
    source = f"""
comm = rr.init(timeout_s=30)
x = np.ones({count}, np.float32)
comm.all_reduce(x)
if comm.rank == 1:
    time.sleep(0.3)  # the others are through the first operation too
    say(at=time.time())
    os.kill(os.getpid(), signal.SIGKILL)
judged(lambda: [comm.all_reduce(x) for _ in range(3)])
"""
    ran = run_verbs(3, PRELUDE + source, tmp_path).ran
    agreed(ran, (0, 2), "died", 1)
    for rank in (0, 2):
        assert ran.of(rank, "at") - ran.of(1, "at") < 1.5, ran.output


def test_mismatch(tmp_path: Path) -> None:
    source = """
comm = rr.init(timeout_s=30)
comm.all_reduce(np.ones(1000))
if comm.rank == 2:
    time.sleep(0.2)
judged(lambda: comm.all_reduce(np.ones(50_001 if comm.rank == 2 else 50_000)))
"""
    ran = run_verbs(3, PRELUDE + source, tmp_path).ran
    agreed(ran, (0, 1, 2), "mismatch", 2)
    assert ran.of(2, "seconds") < 0.5, ran.output


def test_a_rank_in_user_code(tmp_path: Path) -> None:
    source = """
comm = rr.init(timeout_s=30)
x = np.ones(300_000)
comm.barrier()
if comm.rank == 1:
    time.sleep(3)
judged(lambda: comm.all_reduce(x, algorithm="ring", timeout_s=1.5))
"""
    ran = run_verbs(3, PRELUDE + source, tmp_path).ran
    agreed(ran, (0, 2), "never_entered", 1)


def test_abort_reaches_all(tmp_path: Path) -> None:
    source = """
comm = rr.init(timeout_s=30)
x = np.ones(300_000)
comm.barrier()
if comm.rank == 0:
    time.sleep(0.5)
    begin = time.monotonic()
    comm.abort("enough")
    say(abort_s=time.monotonic() - begin, aborted=time.time())
else:
    judged(lambda: comm.all_reduce(x))
"""
    ran = run_verbs(3, PRELUDE + source, tmp_path).ran
    assert ran.of(0, "abort_s") < 1, ran.output
    for rank in (1, 2):
        assert ran.of(rank, "error") == "AbortedError" and ran.of(rank, "verdict") is None, ran.output
        assert ran.of(rank, "at") - ran.of(0, "aborted") < 2, ran.output
