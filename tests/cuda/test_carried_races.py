"""What the host does to slots and flags between nodes, in the race log beside what streams do."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from cuda_sim import race_checker
from gpu_nodes import ONE_SLOT, nodes, of
from gpu_worlds import COLLECTIVES, STREAMS, run_gpus

import rdmaring

EXAMPLES = Path(__file__).resolve().parents[2] / "native" / "examples"
WATCHED = """
from rdmaring._native import ffi, lib
lib.rr_lists_watch(ffi.cast("rr_carried_watch", ctypes.cast(sim.cs_carried, ctypes.c_void_p).value))
"""


def carried_accesses(log: Path) -> set[str]:
    """What carriers told the log."""
    names = set()
    for path in log.glob("*.jsonl"):
        names |= {line.get("call", "") for line in map(json.loads, path.read_text().splitlines())}
    return {name for name in names if name.startswith("carrier_")}


@pytest.mark.parametrize(("per", "one_queue"), [(1, False), (2, False), (2, True)])
def test_no_races(per: int, one_queue: bool, tmp_path: Path) -> None:
    """The log has the host's accesses to slots and flags, too."""
    log = tmp_path / "log"
    source = nodes(per) + STREAMS + WATCHED + "TURNS = 1\n" + COLLECTIVES
    settings = {"seed": 5, "delay_us": 300, "devices": per, "one_queue": one_queue}
    ran = run_gpus(2 * per, source, tmp_path, env=ONE_SLOT, race_log=log, **settings)
    assert of(ran, 2 * per, "bad") == [0] * 2 * per
    assert carried_accesses(log) == {f"carrier_{what}" for what in ("takes", "sets", "reads", "writes")}
    history = race_checker.read(log)
    assert history.standstill() == []
    assert history.races() == []


PLANTED = """
with rr.init(device="cuda", timeout_s=60) as comm:
    p, me = ga.Producer(), comm.rank
    x = everyone(comm, 30_000, np.float32)
    a = ga.Numba(p, x[me])
    comm.all_reduce(a, algorithm="ring")
    comm.all_reduce(a, algorithm="ring")
    comm.synchronize()
    sync(p)
    say(done=True)
"""


@pytest.mark.parametrize("seed", [6, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(100, 120))])
@pytest.mark.parametrize(
    ("plant", "words"),
    [(0, ""), (1, "carrier_reads"), (2, "carrier_writes")],
    ids=["none", "taken before it is read", "here before it has come"],
)
def test_a_link_that_breaks_its_contract_is_a_race(plant: int, words: str, seed: int, tmp_path: Path) -> None:
    """Credit too early, and ready too early, as the carrier gives them when the link is wrong about its memory."""
    library, log = build_link(tmp_path, plant), tmp_path / "log"
    source = nodes() + STREAMS + WATCHED + PLANTED
    env = {**ONE_SLOT, "RDMARING_LINK": str(library)}
    ran = run_gpus(2, source, tmp_path, env=env, race_log=log, seed=seed, delay_us=100)
    assert of(ran, 2, "done") == [True, True]
    races = [str(race) for race in race_checker.check(log)]
    assert bool(races) == bool(plant), races[:3]
    assert all(words in race for race in races)


def build_link(tmp_path: Path, plant: int) -> Path:
    """late_link.c as a library."""
    library = tmp_path / "late.so"
    include = Path(rdmaring.__file__).parent / "include"
    flags = ["-std=c99", "-D_GNU_SOURCE", f"-DPLANT={plant}", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    where = [f"-I{include}", f"-I{EXAMPLES}", "-o", str(library), str(Path(__file__).with_name("late_link.c"))]
    done = subprocess.run([os.environ.get("CC", "cc"), *flags, *where], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return library
