"""The reference and the C engine in one ring over TCP: docs/WIRE.md is true of both."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from nodes import FAR
from worlds import PRELUDE, RDMARING, Ran, collect

from rdmaring.transport import reference_edges, reference_verbs

RING = Path(__file__).with_name("ring_of_both.py")


def ring(world: int, *arguments: str, env: dict[str, str] | None = None, script: Path = RING) -> Ran:
    done = subprocess.run(
        [RDMARING, "run", "-n", str(world), str(script), "--wire", "tcp", "--timeout", "40", *arguments],
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )
    return collect(done.returncode, done.stdout)


def said(ran: Ran, world: int, dtype: str, count: int) -> list[Any]:
    return [ran.of(rank, f"{dtype} {count}") for rank in range(world)]


# 1 and 1000 go as tiny messages, 4097 in two hops, 300 000 by the ring, in slices
@pytest.mark.parametrize("world", [2, 3, 4])
def test_sums_of_both_are_right(world: int) -> None:
    counts, dtypes = (1, 1000, 4097, 300_000), ("float32", "bfloat16", "int32")
    ran = ring(world, "--count", *map(str, counts), "--dtype", *dtypes)
    assert ran.code == 0, ran.output
    assert ran.of(0, "transports") == ["tcp"]
    for dtype in dtypes:
        for count in counts:
            each = said(ran, world, dtype, count)
            assert each[0]["wrong"] == 0
            assert each == [each[0]] * world, ran.output  # checksums, too


@pytest.mark.parametrize("streams", [1, 3])
def test_streams_are_taken_in_turn(streams: int) -> None:
    options = ["--count", "1000003", "--algorithm", "ring", "--streams", str(streams)]
    ran = ring(3, *options, env={"RDMARING_TCP_STREAMS": str(streams)})
    assert ran.code == 0, ran.output
    assert [each["wrong"] for each in said(ran, 3, "float32", 1000003)] == [0, 0, 0]


def test_another_call_is_a_mismatch_on_both(tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(
        PRELUDE
        + FAR
        + """
from rdmaring.transport import reference
if me == 1:
    try:
        reference.main()
    except reference.WireError as error:
        say(text=str(error))
else:
    comm = rr.init(timeout_s=30)
    comm.all_reduce(np.ones(5000, np.float32), algorithm="direct")
    said_error(lambda: comm.all_reduce(np.ones(300_001, np.float32), algorithm="ring"))
"""
    )
    ran = ring(3, "--count", "5000", "300000", "--rounds", "1", script=script)
    for rank in (0, 2):
        assert ran.of(rank, "error") == "MismatchError", ran.output
        assert "300001" in ran.of(rank, "text")
    assert "called another operation" in ran.of(1, "text") or "disagree" in ran.of(1, "text"), ran.output


def test_a_stranger_does_not_stop_it(tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(
        PRELUDE
        + FAR
        + """
import socket
from rdmaring.transport import reference, reference_edges
if me == 1:
    made = reference_edges.Meeting.__init__
    def with_stranger(self, *given, **more):
        made(self, *given, **more)
        self.stranger = socket.create_connection(("127.0.0.1", self.listener.getsockname()[1]))
        self.stranger.sendall(b"GET / HTTP/1.1\\r\\n" * 9)
    reference_edges.Meeting.__init__ = with_stranger
    sys.exit(reference.main())
comm = rr.init(timeout_s=30)
x = reference.values(me, 0, 5000, np.dtype("float32"))
comm.all_reduce(x, algorithm="direct")
say(wrong=reference.wrong_in(x, 0, world))
comm.barrier()
comm.close()
""".replace("import socket\n", "import socket, sys\n")
    )
    ran = ring(2, "--count", "5000", "--rounds", "1", script=script)
    assert ran.code == 0, ran.output
    assert ran.of(0, "wrong") == 0


def test_the_command_tells_what_it_takes() -> None:
    line = [sys.executable, "-m", "rdmaring.transport.reference", "--help"]
    done = subprocess.run(line, capture_output=True, text=True, check=True, cwd="/")
    assert "--grant" in done.stdout


def test_without_pyverbs_it_says_what_to_install(tmp_path: Path) -> None:
    blocked = tmp_path / "pyverbs"
    blocked.mkdir()
    (blocked / "__init__.py").write_text("")
    sys.path.insert(0, str(tmp_path))
    try:
        with pytest.raises(reference_edges.WireError, match="install python3-pyverbs"):
            reference_verbs.verbs()
    finally:
        sys.path.remove(str(tmp_path))
        for name in [name for name in sys.modules if name.split(".")[0] == "pyverbs"]:
            del sys.modules[name]
