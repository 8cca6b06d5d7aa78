"""all_to_all, gather and scatter on real ranks: against numpy, and what happens where two ranks' counts differ."""

from __future__ import annotations

from pathlib import Path

import pytest
from nodes import FAR, PARTS
from worlds import run_world


@pytest.mark.parametrize("world", [1, 2, 3, 4, 5, 8])
def test_in_one_node(world: int, tmp_path: Path) -> None:
    ran = run_world(world, PARTS, tmp_path, timeout_s=110)
    assert ran.code == 0, ran.output
    assert all(ran.of(rank, "ok") for rank in range(world))


def test_through_small_slots_alone(tmp_path: Path) -> None:
    env = {"RDMARING_CMA": "0", "RDMARING_SLOT_BYTES": "4096"}
    ran = run_world(3, PARTS, tmp_path, env=env, timeout_s=110)
    assert ran.code == 0, ran.output


@pytest.mark.parametrize(("world", "per"), [(3, 1), (4, 2)])
def test_between_nodes(world: int, per: int, tmp_path: Path) -> None:
    ran = run_world(world, FAR + PARTS, tmp_path, env={"PER": str(per)}, timeout_s=110)
    assert ran.code == 0, ran.output
    assert all(ran.of(rank, "ok") for rank in range(world))


DIFFER = """
comm = rr.init(timeout_s=30)
r, n = comm.rank, comm.size
comm.barrier()
give, get = [5000] * n, [5000] * n
wrong = {"more": 9001, "less": 40, "none": 0, "slices": 900_000}[os.environ["WRONG"]]
if r == 2:
    get[1] = wrong  # rank 1 sends it 5000
x = np.ones(sum(give), np.float32)
work = comm.all_to_all(x, counts=(give, get), async_op=True)
said_error(lambda: work.wait())
said_error(lambda: comm.barrier())
"""


@pytest.mark.parametrize("far", [False, True], ids=["shm", "tcp"])
@pytest.mark.parametrize("wrong", ["more", "less", "none", "slices"])
def test_counts_that_differ_are_a_mismatch_that_names_both(wrong: str, far: bool, tmp_path: Path) -> None:
    ran = run_world(3, (FAR if far else "") + DIFFER, tmp_path, env={"WRONG": wrong, "PER": "1"})
    text = ran.of(2, "text")
    want = {"more": 36004, "less": 160, "none": 0, "slices": 3_600_000}[wrong]
    assert f"rank 2, expects {want} bytes, rank 1 sends 20000" in text, ran.output
    for rank in range(3):
        errors = [what for what in ran.said[rank] if what.get("error")]
        assert errors and all(what["error"] == "MismatchError" for what in errors), ran.output
        assert all(what["seconds"] < 5 for what in errors), ran.output
        assert "rank 2, expects" in errors[0]["text"], ran.output


def test_one_rank_with_counts_and_one_without_is_a_mismatch(tmp_path: Path) -> None:
    ran = run_world(
        2,
        """
        comm = rr.init(timeout_s=30)
        said_error(lambda: comm.all_to_all(np.ones(8), counts=([4, 4], [4, 4]) if comm.rank else None))
        """,
        tmp_path,
    )
    for rank in range(2):
        assert ran.of(rank, "error") == "MismatchError", ran.output
        assert "counts by pair" in ran.of(rank, "text") and "of 16 float64" in ran.of(rank, "text")
