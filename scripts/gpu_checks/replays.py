"""One list of an all_reduce, captured in a graph and launched again and again; after each launch numpy's sums.

    python -m gpu_checks.replays REPLAYS

Two processes on device 0, which speak by IPC memory and flags alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cuda_sim.child import command

WORLD = Path(__file__).resolve().parents[2] / "tests" / "cuda" / "list_world.py"
RANKS = 2
LIMIT_S = 90.0


def run(replays: int) -> dict[str, object]:
    """Status of each rank and what it said; a rank that is left alone is ended."""
    case = {"collective": "all_reduce", "algorithm": "ring", "world": RANKS, "count": 2 * 5 * 512 + 7, "slots": 2}
    text = json.dumps({**case, "replays": replays})
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        lines = [command(str(WORLD), "replay", folder, str(rank), text) for rank in range(RANKS)]
        ranks = [subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for line in lines]
        while time.monotonic() < begin + LIMIT_S and any(rank.poll() is None for rank in ranks):
            if any(rank.poll() for rank in ranks):
                break  # the other waits for it
            time.sleep(0.02)
        for rank in ranks:
            rank.kill()
        said = [rank.communicate()[0][-1000:] for rank in ranks]
    states = [rank.returncode for rank in ranks]
    ok = states == [0] * RANKS
    return {"ok": ok, "replays": replays, "states": states, "output": "" if ok else "\n".join(said),
            "seconds": time.monotonic() - begin}  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]))))
