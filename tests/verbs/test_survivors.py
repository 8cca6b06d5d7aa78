"""A rank that dies among ranks joined by verbs: the others go on with right sums, and nothing of lost links is left."""

from __future__ import annotations

import json
from pathlib import Path

from verbs.simulated import NODES, NOTHING_LIVES
from verbs_sim import build
from worlds import run_world

SOURCE = """
comm = rr.init(timeout_s=60)
x = comm.empty(300_000, np.float32)
for k in range(3):
    x[:] = comm.rank + k
    comm.all_reduce(x)
    assert (x == 3 * k + 3).all()
comm.barrier()
half = comm.dup()
if comm.rank == 1:
    time.sleep(1)  # the others are in the operation
    os.kill(os.getpid(), signal.SIGKILL)
said_error(lambda: comm.all_reduce(x))
said_error(half.shrink)
comm = comm.shrink(timeout_s=40)
say(old=comm.recovered.old_ranks, lost=comm.recovered.lost, links=[link.transport for link in comm.links])
y = comm.empty(300_000, np.float32)
for k in range(3):
    y[:] = comm.rank + k
    comm.all_reduce(y)
    assert (y == 2 * k + 1).all()
    one = comm.all_reduce(np.array([float(comm.rank + k)]))
    assert one[0] == 2 * k + 1
say(good=True)
comm.close()
"""


def test_survivors_of_verbs_go_on(tmp_path: Path) -> None:
    report = tmp_path / "report"
    spec = "timeout_percent=2"
    simulated = build.environment(spec, fabric=str(tmp_path), report=report, sysfs_root=tmp_path / "sysfs")
    report.unlink(missing_ok=True)
    env = {**simulated, "RDMARING_TRANSPORT": "verbs"}
    ran = run_world(3, NODES + SOURCE, tmp_path, "--keep-going", env=env, timeout_s=150)
    for rank in (0, 2):
        assert ran.of(rank, "old") == [0, 2], ran.output
        assert (ran.of(rank, "lost"), ran.of(rank, "links")) == ([1], ["verbs"])
        assert ran.of(rank, "good")
        refused = [said for said in ran.said[rank] if "error" in said][-1]
        assert refused["error"] == "UnsupportedError", refused
        assert refused["hint"], refused
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    assert sorted(line["rank"] for line in lines) == [0, 2]
    for line in lines:
        assert line["live"] == NOTHING_LIVES, line
        assert line["violations"] == [], line
