"""Jobs in the background, and what `rdmaring why` says of them from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from verdicts import FAR, PRELUDE
from worlds import PRELUDE as COMMON
from worlds import RDMARING


@contextmanager
def job(
    world: int,
    source: str,
    tmp_path: Path,
    where: str = "shm",
    before: str = "",
    options: str = "timeout_s=60",
    by: tuple[str, ...] = (),
) -> Iterator[tuple[int, list[int]]]:
    """A world in the background: the launcher's pid, and the ranks'. Killed at the end.

    before: what its ranks run first; options: of their init(). by: a command that runs the launcher,
    in a pid namespace of its own: then the ranks' pids are not ours, and they end with it.
    """
    script = tmp_path / "ranks.py"
    told = f"""
{before}
comm = rr.init({options})
pids = comm.all_gather(np.array([os.getpid()]))
if comm.rank == 0:
    open({str(tmp_path / "pids")!r}, "w").write(json.dumps(pids.tolist()) + "\\n")
comm.barrier()
"""
    script.write_text(COMMON + textwrap.dedent(PRELUDE) + told + textwrap.dedent(source))
    line = [*by, RDMARING, "run", "-n", str(world), "--keep-going", str(script)]
    pids: list[int] = []
    with subprocess.Popen(line, env={**os.environ, **FAR[where]}, stdout=subprocess.DEVNULL) as launcher:
        try:
            until = time.monotonic() + 40
            while not (tmp_path / "pids").exists() or not (tmp_path / "pids").read_text().endswith("\n"):
                assert time.monotonic() < until and launcher.poll() is None, "the world did not begin"
                time.sleep(0.05)
            pids = json.loads((tmp_path / "pids").read_text())
            yield launcher.pid, pids
        finally:
            for pid in [] if by else pids:
                os.kill(pid, signal.SIGKILL) if Path(f"/proc/{pid}").exists() else None
            (launcher.kill if by else launcher.terminate)()  # unshare waits for its child, which ends with it


def why(*arguments: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [RDMARING, "why", "--json", *arguments], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def stuck(pid: int) -> dict[str, Any]:
    """The verdict of the job's communicator, once there is one."""
    until = time.monotonic() + 20
    while True:
        code, document = why(str(pid))
        if code == 1:
            return dict(document["groups"][0])
        assert time.monotonic() < until, document
        time.sleep(0.2)
