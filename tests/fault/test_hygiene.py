"""What a process leaves behind: by exec, by exits without close, at interpreter shutdown, by a lone exception."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from nodes import FAR
from worlds import Ran, run_world

WHERE = {"shm": "", "tcp": FAR}  # one node; a node for each rank

# How rank 1 goes while rank 0 waits in the operation after.
GOES = {
    "exec": "os.execv('/bin/sh', ['sh', '-c', 'ls -l /proc/self/fd'])",
    "_exit": "os._exit(3)",
    "exit": "sys.exit(3)",
    "exception": "raise RuntimeError('lone')",
    "works": "works = [comm.all_reduce(np.ones(1 << 18), async_op=True) for _ in range(4)]; sys.exit(0)",
    "thread": "threading.Thread(target=comm.barrier, daemon=True).start(); time.sleep(0.3); sys.exit(0)",
}


def run(where: str, source: str, tmp_path: Path, *options: str) -> Ran:
    return run_world(2, WHERE[where] + textwrap.dedent(source), tmp_path, *options, timeout_s=90)


def left() -> set[str]:
    """Shared memory and sockets with a name that outlive a job."""
    named = {line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines() if "rdmaring" in line}
    return {path.name for path in Path("/dev/shm").iterdir() if "rdmaring" in path.name} | named


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("how", GOES)
def test_a_rank_that_goes_leaves_nothing_and_holds_nobody(how: str, where: str, tmp_path: Path) -> None:
    ran = run(
        where,
        f"""
        comm = rr.init(timeout_s=30)
        x = comm.empty(1 << 16)
        comm.all_reduce(x)
        comm.all_reduce(np.ones(4))
        if comm.rank == 1:
            time.sleep(0.3)  # rank 0 is through these, too
            {GOES[how]}
        time.sleep(1.0)
        said_error(lambda: [comm.all_reduce(np.ones(1 << 17)) for _ in range(5)])
        say(waited=True)
        """,
        tmp_path,
        "--keep-going",
    )
    assert ran.of(0, "waited"), ran.output
    assert ran.of(0, "error") is not None and ran.of(0, "seconds") < 20, ran.output
    assert ran.of(0, "hint") and ran.of(0, "cause")
    if how == "exec":
        assert "rdmaring" not in ran.output.split("/proc/self/fd")[-1].split("SAY")[0] and "memfd" not in ran.output
    if how == "exception":
        assert "RuntimeError: lone" in ran.output
    assert not left()


@pytest.mark.parametrize("where", WHERE)
def test_no_signal_handler_and_no_word_behind_the_users_back(where: str, tmp_path: Path) -> None:
    ran = run(
        where,
        """
        LIBC = 3 << 31  # signals 32 and 33, which the C library takes for itself when a thread starts
        def handlers():
            masks = [line.split() for line in open("/proc/self/status") if line[:6] in ("SigCgt", "SigIgn", "SigBlk")]
            caught = [(name, int(mask, 16) & ~LIBC) for name, mask in masks]
            return caught + [repr(signal.getsignal(number)) for number in sorted(signal.valid_signals())]
        before = handlers()
        comm = rr.init(timeout_s=30)
        x = np.ones(1 << 16); comm.all_reduce(x); comm.all_reduce(x, async_op=True).wait()
        same = handlers() == before
        comm.close()
        say(same=same, after=handlers() == before)
        """,
        tmp_path,
    )
    assert ran.code == 0, ran.output
    for rank in (0, 1):
        assert ran.of(rank, "same") and ran.of(rank, "after")
    assert all("SAY" in line for line in ran.output.splitlines()), "something was printed or logged"


LOGS = "import logging, rdmaring; rdmaring.init().close(); logging.getLogger('rdmaring').{}('a word')"


@pytest.mark.parametrize(
    ("level", "said", "heard"),
    [("", "warning", False), ("", "critical", False), ("info", "info", True), ("error", "warning", False)],
)
def test_the_logger_is_silent_unless_asked(level: str, said: str, heard: bool, tmp_path: Path) -> None:
    command = [sys.executable, "-c", LOGS.format(said)]
    done = subprocess.run(
        command, env={"PATH": "/usr/bin", "RDMARING_LOG": level, "HOME": str(tmp_path)}, cwd=tmp_path,
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert ("a word" in done.stderr) == heard and not done.stdout, done.stderr
