"""A shared library built on rdmaring_link.h serves the edges between nodes."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from nodes import FAR, SUMS
from worlds import run_world

import rdmaring

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "native" / "examples" / "link_socket.c"
INCLUDE = Path(rdmaring.__file__).parent / "include"


def build(tmp_path: Path, source: str, *options: str) -> Path:
    """The C source as a shared library, compiled as its author would."""
    code, library = tmp_path / "lib.c", tmp_path / "lib.so"
    code.write_text(source)
    warnings = ["-Wall", "-Wextra", "-pedantic", "-Werror"]
    flags = ["-std=c99", "-D_GNU_SOURCE", *warnings, *options, "-shared", "-fPIC", f"-I{INCLUDE}"]
    done = subprocess.run(
        [os.environ.get("CC", "cc"), *flags, "-o", library, code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return library


@pytest.mark.parametrize("world", [2, 3])
def test_the_example_serves_all_collectives(world: int, tmp_path: Path) -> None:
    library = build(tmp_path, EXAMPLE.read_text())
    ran = run_world(world, FAR + SUMS, tmp_path, env={"RDMARING_LINK": str(library)}, timeout_s=110)
    assert ran.code == 0, ran.output
    assert ran.of(0, "transports") == ["socket"]


def test_init_takes_the_path_and_a_node_keeps_its_shared_memory(tmp_path: Path) -> None:
    library = build(tmp_path, EXAMPLE.read_text())
    source = SUMS.replace("timeout_s=60", f"timeout_s=60, transport={str(library)!r}")
    ran = run_world(4, FAR + source, tmp_path, env={"PER": "2"}, timeout_s=110)
    assert ran.code == 0, ran.output
    assert ran.of(0, "transports") == ["shm", "socket"]


def test_a_dead_rank_is_told_as_such(tmp_path: Path) -> None:
    library = build(tmp_path, EXAMPLE.read_text())
    source = """
comm = rr.init(timeout_s=30)
x = np.ones(100_000, np.float32)
comm.all_reduce(x)
if comm.rank == 1:
    time.sleep(0.3)  # the others are through the first operation too
    say(at=time.time())
    os.kill(os.getpid(), signal.SIGKILL)
said_error(lambda: [comm.all_reduce(x) for _ in range(1000)])
"""
    ran = run_world(2, FAR + source, tmp_path, env={"RDMARING_LINK": str(library)})
    assert ran.of(0, "error") == "PeerDiedError", ran.output
    assert ran.of(0, "at") - ran.of(1, "at") < 1.5, ran.output


# Each change of the example, and what is said of it.
REFUSED = {
    "no symbol": (r"\brr_link_transport\b", "other_name", "exports no rr_link_transport()"),
    "version": (r"RR_MESSAGE_VERSION, sizeof", "RR_MESSAGE_VERSION + 1, sizeof", "is a transport of version 3"),
    "size": (r"sizeof\(rr_message_transport\), \"", '8, "', "gives a table of 8 bytes"),
    "no receive": (r"wire_send, wire_receive,", "wire_send, NULL,", "gives a table without receive"),
    "name": (r'"socket"', '"a name of its own"', "has the name 'a name of its own'"),
    "no table": (r"return &table;", "return NULL;", "gives NULL"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_transport_is_refused(case: str, tmp_path: Path) -> None:
    pattern, instead, words = REFUSED[case]
    source, count = re.subn(pattern, instead, EXAMPLE.read_text())
    assert count >= 1
    library = build(tmp_path, source, "-Wno-unused", "-Wno-missing-prototypes")
    ran = run_world(2, FAR + "said_error(lambda: rr.init(timeout_s=20))", tmp_path, env={"RDMARING_LINK": str(library)})
    for rank in range(2):
        assert ran.of(rank, "error") == "SetupError", ran.output
        assert words in ran.of(rank, "text"), ran.output


def test_a_path_to_nothing_is_refused_with_what_was_expected(tmp_path: Path) -> None:
    ran = run_world(2, FAR + "said_error(lambda: rr.init(timeout_s=20, transport='/nowhere/lib.so'))", tmp_path)
    for rank in range(2):
        assert ran.of(rank, "error") == "SetupError", ran.output
        assert "/nowhere/lib.so" in ran.of(rank, "text")
        assert "a shared library that exports rr_link_transport() (rdmaring_link.h)" in ran.of(rank, "text")


def test_ranks_that_name_different_transports_are_refused(tmp_path: Path) -> None:
    library = build(tmp_path, EXAMPLE.read_text())
    source = f"""
if me == 1:
    os.environ["RDMARING_LINK"] = {str(library)!r}
said_error(lambda: rr.init(timeout_s=20))
"""
    ran = run_world(2, FAR + source, tmp_path)
    for rank in range(2):
        assert ran.of(rank, "error") == "SetupError", ran.output
        assert "rank 1 wants edges between nodes served by socket" in ran.of(0, "text")


# Where rank 1 fails, the line before which it does, how, and what is heard of it.
FAILING = {
    "open": (
        "\twire->edge = edge;",
        'strcpy(edge->why, "no card"); return RR_MESSAGE_FAILED;',
        "failed in open(): no card",
    ),
    "send": (
        "\tsent = sendmsg",
        'return say(wire->edge, "ink", ENOSPC);',
        "failed in send(): ink: No space left on device",
    ),
    "too much": ("\tsent = sendmsg", "return 1 << 20;", "failed in send(): it returned 1048576 and gave no reason"),
    "receive": (
        "\tif (got > 0)\n",
        'return say(wire->edge, "ear", EIO);',
        "failed in receive(): ear: Input/output error",
    ),
}


@pytest.mark.parametrize("case", FAILING)
def test_a_transports_failure_is_told_on_both_ranks(case: str, tmp_path: Path) -> None:
    before, failure, words = FAILING[case]
    source = EXAMPLE.read_text()
    assert source.count(before) == 1
    edge = "edge" if case == "open" else "wire->edge"
    library = build(tmp_path, source.replace(before, f"if ({edge}->rank == 1) {{ {failure} }}\n{before}"))
    ran = run_world(
        2,
        FAR
        + """
comm = rr.init(timeout_s=20)
said_error(lambda: comm.all_reduce(np.ones(10_000, np.float32)))
""",
        tmp_path,
        env={"RDMARING_LINK": str(library)},
    )
    assert ran.of(1, "error") == "LinkError", ran.output
    assert f"the edge to rank 0 by the transport socket {words}" in ran.of(1, "text")
    assert ran.of(1, "peer") == 0
    assert ran.of(0, "error") == "PeerFailedError", ran.output
    assert words in ran.of(0, "text")
    assert max(ran.of(0, "seconds"), ran.of(1, "seconds")) < 2
