"""Every collective by every algorithm in real worlds, at large sizes, with all bits drawn: results compared bit by bit.

bits_world draws the cases and says what is compared, bits_expected what reductions must give. A failure names the seed
and the number of the case: SEED and ONLY run it again.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from beds import run_softroce
from bits_expected import Arithmetic, Expected, unlike
from bits_world import names_of
from nodes import FAR
from schedules_random import random_schedule
from verbs.simulated import run_verbs
from worlds import Ran, run_world

from rdmaring.schedule import generate

TESTS = Path(__file__).resolve().parents[1]
KIB, MIB = 1 << 10, 1 << 20

BEGIN = f"""
sys.path.insert(0, "{TESTS}")
from bits_world import drawn_cases, forwarded_cases, run_cases

def tell(comm, ran):
    say(**{{**ran, "faults": ran["faults"][:4]}}, wrong=len(ran["faults"]),
        transports=sorted({{link.transport for link in comm.links}}))
"""

RUN = (
    BEGIN
    + """
seed, most = int(os.environ["SEED"]), int(os.environ["MOST"])
parts = [int(part) for part in os.environ["PARTS"].split()]
only = [int(number) for number in os.environ.get("ONLY", "").split()]
with rr.init(timeout_s=100, require=os.environ.get("REQUIRE") or None) as comm:
    cases = drawn_cases(comm, seed, float(os.environ["SECONDS"]), parts, most, int(os.environ["LEAST"]), only)
    tell(comm, run_cases(comm, seed, most, cases))
"""
)


def settings(seconds: float, least: int, parts: tuple[int, ...], most: int, seed: int, **more: str) -> dict[str, str]:
    given = {
        "SEED": str(seed),
        "SECONDS": str(seconds),
        "LEAST": str(least),
        "PARTS": " ".join(map(str, parts)),
        "MOST": str(most),
        **more,
    }
    return {name: os.environ.get(name, value) if name == "SEED" else value for name, value in given.items()}


def check(ran: Ran, world: int, transports: list[str], least: int) -> set[str]:
    """No rank found anything wrong; which collectives and algorithms ran."""
    assert ran.code == 0, ran.output[-6000:]
    for rank in range(world):
        assert ran.of(rank, "wrong") == 0, ran.output[-6000:]
        assert ran.of(rank, "transports") == transports
        assert ran.of(rank, "cases") >= least
    return set(ran.of(0, "names"))


SMALL_SLOTS = {"RDMARING_SLOT_BYTES": "16384", "RDMARING_SLOT_COUNT": "3"}
CI_PARTS = (512 * KIB, MIB, MIB, 4 * MIB)
# ranks, program before init, transports, environment
WORLDS: dict[str, tuple[int, str, list[str], dict[str, str]]] = {
    "shm": (4, "", ["shm"], {}),
    "shm-small-slots-crc": (3, "", ["shm"], {**SMALL_SLOTS, "RDMARING_CHECK": "crc"}),
    "tcp": (3, FAR, ["tcp"], {}),
    "nodes-of-two": (4, FAR, ["shm", "tcp"], {"PER": "2"}),
}
LONG_WORLDS: dict[str, tuple[int, str, list[str], dict[str, str]]] = {
    **WORLDS,
    "two": (2, "", ["shm"], {}),
    "eight": (8, "", ["shm"], {}),
    "five-crc": (5, "", ["shm"], {"RDMARING_CHECK": "crc"}),
    "tcp-crc": (2, FAR, ["tcp"], {"RDMARING_CHECK": "crc"}),
    "tcp-streams": (3, FAR, ["tcp"], {"RDMARING_TCP_STREAMS": "3"}),
    "scattered": (6, FAR, ["shm", "tcp"], {"PER": "2", "INTERLEAVED": "1"}),
}


@pytest.mark.parametrize("kind", WORLDS)
def test_sampled(kind: str, tmp_path: Path) -> None:
    world, before, transports, env = WORLDS[kind]
    seconds, least = (7.0, 40) if kind == "shm" else (3.0, 12)
    env = settings(seconds, least, CI_PARTS, 20 * MIB, len(kind), **env)
    check(run_world(world, before + RUN, tmp_path, env=env, timeout_s=110), world, transports, least)


def test_blocks_forwarded_through_scratch(tmp_path: Path) -> None:
    """Whoever holds a block for another stores nothing into it after it has come: probes of cache distance did."""
    source = """
with rr.init(timeout_s=100) as comm:
    tell(comm, run_cases(comm, 1, 40 << 20, forwarded_cases(comm.size)))
"""
    check(run_world(4, BEGIN + source, tmp_path, timeout_s=110), 4, ["shm"], 24)


@pytest.mark.parametrize("spec", ["seed=5", "seed=11,delay_us=200,reorder=1"])
def test_sampled_over_verbs(spec: str, tmp_path: Path) -> None:
    env = settings(3.0, 8, (64 * KIB, 512 * KIB), 4 * MIB, len(spec), RDMARING_VERBS_QPS="2")
    ran = run_verbs(3, RUN, tmp_path, spec, env=env, timeout_s=110)
    check(ran.ran, 3, ["verbs"], 8)
    ran.clean(3)


@pytest.mark.long
@pytest.mark.timeout(700)
@pytest.mark.parametrize("kind", LONG_WORLDS)
def test_all_of_them(kind: str, tmp_path: Path) -> None:
    """Each collective by each algorithm three times at least, up to 12 MiB a part."""
    world, before, transports, env = LONG_WORLDS[kind]
    everything = names_of(1)
    env = settings(60, 3 * len(everything), (*CI_PARTS, 12 * MIB), min(48 * MIB, 12 * MIB * world), 1, **env)
    ran = run_world(world, before + RUN, tmp_path, env=env, timeout_s=650)
    assert check(ran, world, transports, 3 * len(everything)) == set(map(str, everything))


@pytest.mark.long
@pytest.mark.timeout(700)
@pytest.mark.parametrize(
    "spec", ["seed=6", "seed=12,delay_us=200,reorder=1", "seed=17,max_sge=1,max_qp_wr=140,max_inline=64"]
)
def test_all_of_them_over_verbs(spec: str, tmp_path: Path) -> None:
    everything = names_of(1)
    env = settings(60, 2 * len(everything), (512 * KIB, MIB), 6 * MIB, 1, RDMARING_VERBS_QPS="3")
    ran = run_verbs(4, RUN, tmp_path, spec, env={**env, "PER": "2"}, timeout_s=650)
    assert check(ran.ran, 4, ["shm", "verbs"], 2 * len(everything)) == set(map(str, everything))
    ran.clean(4)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_all_of_them_over_soft_roce(tmp_path: Path) -> None:
    """Guests compute some fifty times slower than their host: sizes are small."""
    everything = names_of(1)
    env = settings(60, len(everything), (64 * KIB, 512 * KIB), 2 * MIB, 1, REQUIRE="rdma")
    ran = run_softroce(2, 1, RUN, tmp_path, env=env, timeout_s=850)
    assert check(ran, 2, ["verbs"], len(everything)) == set(map(str, everything))


# ---- what finds a wrong bit must be able to ----

FLIPPED = """
import bits_world
whole = bits_world.World.array
def array(self, rng, kind, count, dtype):
    self.last = whole(self, rng, kind, count, dtype)
    return self.last
bits_world.World.array = array
called = bits_world.Run.call
def call(self, name, *arguments, **more):
    called(self, name, *arguments, **more)
    if self.rank == 1:
        for piece in reversed(self.world.last):
            if piece.size and PLACE == "result":
                piece.view(np.uint8)[-1] ^= 64
                break
        if PLACE == "around":
            self.world.arenas["ordinary"].memory[:] = 0
bits_world.Run.call = call
"""


@pytest.mark.parametrize("place", ["result", "around"])
def test_a_flipped_bit_is_found_in_each_case(place: str, tmp_path: Path) -> None:
    source = BEGIN + f"PLACE = '{place}'\n{FLIPPED}" + RUN.removeprefix(BEGIN)
    least = len(names_of(3))
    env = settings(0, least, (4 * KIB,), 64 * KIB, 3)
    ran = run_world(2, source, tmp_path, env=env, timeout_s=100)
    assert ran.of(1, "cases") == least, ran.output
    # other cases are empty on this rank, refused, or leave nothing there
    assert ran.of(1, "wrong") > 0.6 * least, ran.output
    assert ran.of(0, "wrong") == 0, ran.output


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.uint8])
def test_what_is_expected_is_the_sum_in_rank_order(dtype: Any) -> None:
    """The reference against numpy by hand: ``direct`` adds in rank order, in float32 for 16-bit floats, rounds once."""
    numbers = np.random.default_rng(3)
    given = [(numbers.random(100) * 200).astype(dtype) for _ in range(3)]
    expected = Expected(generate("all_reduce", "direct", 3), [0, 40, 40, 100], Arithmetic(np.dtype(dtype), "sum"))
    wide = np.float32 if np.dtype(dtype).itemsize == 2 else dtype
    want = ((given[0].astype(wide) + given[1].astype(wide)) + given[2].astype(wide)).astype(dtype)
    give: Callable[[int, int, int], Any] = lambda rank, begin, end: given[rank][begin:end]  # noqa: E731
    for chunk in range(3):
        for begin, end, found in expected.of_chunk(2, chunk, give):
            assert not unlike(found, want[begin:end], computed=True).size
    changed = want.copy()
    changed.view(np.uint8)[0] ^= 1
    assert list(unlike(changed, want, computed=True)) == [0]


def test_what_is_expected_of_random_rows_is_near_the_sum() -> None:
    numbers = np.random.default_rng(4)
    given = [numbers.random(60) for _ in range(5)]
    for seed in range(20):
        schedule = random_schedule(random.Random(seed), "all_reduce", 5)
        offsets = [60 * chunk // schedule.chunk_count for chunk in range(schedule.chunk_count + 1)]
        expected = Expected(schedule, offsets, Arithmetic(np.dtype(np.float64), "avg", 0.2))
        for chunk in range(schedule.chunk_count):
            for begin, end, found in expected.of_chunk(seed % 5, chunk, lambda rank, a, b: given[rank][a:b]):
                np.testing.assert_allclose(found, np.mean([x[begin:end] for x in given], axis=0), rtol=1e-15)
