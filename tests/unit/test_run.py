"""`rdmaring run` as a user meets it: processes, signals, output, exit codes, and nothing left behind."""

from __future__ import annotations

import os
import pty
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdmaring._version import __version__
from rdmaring.launch import output
from rdmaring.launch.cpus import idle_s, in_use, rank_cpus
from rdmaring.launch.output import LinePrefixer

RDMARING = [sys.executable, "-m", "rdmaring.cli.main"]
LONG_S = 20.0
Result = subprocess.CompletedProcess[bytes]


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Result]:
    """run("-n", "2", ...) runs `rdmaring run` in a folder of its own."""

    def start(*arguments: str, env: dict[str, str] | None = None, stdin: bytes = b"") -> Result:
        return subprocess.run(
            [*RDMARING, "run", *arguments],
            cwd=tmp_path,
            env=os.environ | (env or {}),
            input=stdin,
            capture_output=True,
            timeout=60,
        )

    return start


@contextmanager
def running(tmp_path: Path, *arguments: str, **popen: object) -> Iterator[subprocess.Popen[bytes]]:
    """`rdmaring run` going on; killed on leaving, if it still is."""
    with subprocess.Popen([*RDMARING, "run", *arguments], cwd=tmp_path, **popen) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


def script(tmp_path: Path, text: str) -> str:
    head = "import os, signal, subprocess, sys, time\nrank = int(os.environ['RDMARING_RANK'])\n"
    path = tmp_path / "script.py"
    path.write_text(head + text)
    return str(path)


def until(condition: Callable[[], bool], timeout_s: float = LONG_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "this did not come about in time"
        time.sleep(0.02)


def lives(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


# Each rank starts a child of its own, writes both pids to a file, and waits.
WITH_CHILDREN = """
child = subprocess.Popen(["sleep", "100"])
open(f"pids.{rank}.new", "w").write(f"{os.getpid()} {child.pid}")
os.rename(f"pids.{rank}.new", f"pids.{rank}")
time.sleep(100)
"""


def pids(tmp_path: Path, world: int) -> list[int]:
    files = [tmp_path / f"pids.{rank}" for rank in range(world)]
    until(lambda: all(file.exists() for file in files))
    found = [int(pid) for file in files for pid in file.read_text().split()]
    assert all(lives(pid) for pid in found)
    return found


# ---- output ----


@given(data=st.binary(max_size=300).map(lambda raw: raw.replace(b"n", b"\n")), cut=st.integers(1, 40))
def test_lines_are_prefixed_wherever_the_stream_is_cut(data: bytes, cut: int) -> None:
    lines = LinePrefixer(b"[3] ")
    pieces = [data[start : start + cut] for start in range(0, len(data), cut)]
    found = b"".join(lines.feed(piece) for piece in pieces) + lines.finish()
    parts = data.split(b"\n")
    if parts[-1] == b"":
        parts.pop()
    assert found == b"".join(b"[3] " + part + b"\n" for part in parts)


def test_a_line_without_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "LINE_BYTES_MAX", 10)
    lines = LinePrefixer(b"> ")
    assert lines.feed(b"0123456789") == b""
    assert lines.feed(b"a") == b"> 0123456789a\n"
    assert lines.feed(b"b\n") == b"> b\n"


def test_lines_of_all_ranks_come_whole_and_in_order(run: Callable[..., Result], tmp_path: Path) -> None:
    seed, world, count = 20260101, 4, 1500
    print("seed", seed)
    text = f"""
import random
draw = random.Random({seed} + rank)
for turn in range({count}):
    stream = draw.choice([sys.stdout, sys.stderr])
    stream.write("x" * draw.randrange(200))
    stream.flush()
    stream.write(f" {{turn}}" + chr(10))
"""
    result = run("-n", str(world), script(tmp_path, text))
    assert result.returncode == 0
    for rank in range(world):
        draw = random.Random(seed + rank)
        expected: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        for turn in range(count):
            stream = draw.choice(["stdout", "stderr"])
            expected[stream].append(b"[%d] %s %d" % (rank, b"x" * draw.randrange(200), turn))
        own = b"[%d] " % rank
        assert [line for line in result.stdout.splitlines() if line.startswith(own)] == expected["stdout"]
        assert [line for line in result.stderr.splitlines() if line.startswith(own)] == expected["stderr"]
    assert len(result.stdout.splitlines()) + len(result.stderr.splitlines()) == world * count


def test_lines_do_not_mix_where_stdout_and_stderr_are_one(tmp_path: Path) -> None:
    text = "for turn in range(300): print('o' * 5000); print('e' * 5000, file=sys.stderr)\n"
    command = [*RDMARING, "run", "-n", "3", script(tmp_path, text)]
    both = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, cwd=tmp_path)
    whole = [b"[%d] %s" % (rank, letter * 5000) for rank in range(3) for letter in (b"o", b"e")]
    assert sorted(both.stdout.splitlines()) == sorted(whole * 300)


def test_any_byte_passes_and_a_last_line_without_newline_too(run: Callable[..., Result], tmp_path: Path) -> None:
    text = "sys.stdout.buffer.write(bytes(range(256)) + b'\\n\\n' + b'end')\n"
    result = run("-n", "1", script(tmp_path, text))
    before, after = bytes(range(10)), bytes(range(11, 256))
    assert result.stdout == b"[0] " + before + b"\n[0] " + after + b"\n[0] \n[0] end\n"


def test_a_slow_reader_loses_nothing(tmp_path: Path) -> None:
    text = "for turn in range(40000): print('y' * 99)\n"
    with running(tmp_path, "-n", "2", script(tmp_path, text), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        time.sleep(1.0)
        lines = process.stdout.read().splitlines()
        assert process.wait() == 0
    assert sorted(lines) == [b"[0] " + b"y" * 99] * 40000 + [b"[1] " + b"y" * 99] * 40000


def test_a_blocked_reader_does_not_keep_a_signal_out(tmp_path: Path) -> None:
    text = "open(f'go.{rank}', 'w')\nwhile True: print('y' * 999)\n"
    with running(tmp_path, "-n", "2", script(tmp_path, text), stdout=subprocess.PIPE) as process:
        until(lambda: all((tmp_path / f"go.{rank}").exists() for rank in range(2)))
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LONG_S) == 128 + signal.SIGTERM


def test_a_reader_that_leaves_ends_the_job(tmp_path: Path) -> None:
    text = WITH_CHILDREN.replace("time.sleep(100)", "while True: print('y' * 999)")
    with running(tmp_path, "-n", "2", script(tmp_path, text), stdout=subprocess.PIPE) as process:
        found = pids(tmp_path, 2)
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(LONG_S) == 128 + signal.SIGPIPE
        until(lambda: not any(lives(pid) for pid in found), 2)


@pytest.mark.parametrize("no_colour", ["", "1"])
def test_the_prefix_is_coloured_on_a_terminal_only(tmp_path: Path, no_colour: str) -> None:
    master, slave = pty.openpty()
    env = os.environ | {"NO_COLOR": no_colour, "TERM": "xterm"}
    with running(tmp_path, "-n", "1", "echo", "hi", stdout=slave, env=env) as process:
        assert process.wait(LONG_S) == 0
    os.close(slave)
    shown = os.read(master, 4096)
    os.close(master)
    assert shown == (b"[0] hi\r\n" if no_colour else b"\x1b[36m[0]\x1b[0m hi\r\n")


def test_rank_0_reads_standard_input_and_the_others_find_it_empty(run: Callable[..., Result]) -> None:
    result = run("-n", "2", "cat", stdin=b"a line\n")
    assert result.stdout == b"[0] a line\n"


# ---- what ranks find ----


def test_each_rank_knows_its_place(run: Callable[..., Result], tmp_path: Path) -> None:
    names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "RENDEZVOUS_HOSTED"]
    text = f"print(*(os.environ['RDMARING_' + name] for name in {names}), os.environ['PYTHONUNBUFFERED'])\n"
    result = run("-n", "3", script(tmp_path, text))
    expected = [b"[%d] %d 3 %d 1 1" % (rank, rank, rank) for rank in range(3)]
    assert sorted(result.stdout.splitlines()) == expected


# A processor's time is shared out between sessions first: ranks of two would not yield to each other.
def test_ranks_share_the_launchers_session(run: Callable[..., Result], tmp_path: Path) -> None:
    text = "print(os.getsid(0), os.getpgid(0) == os.getpid())\n"
    result = run("-n", "3", script(tmp_path, text))
    assert sorted(result.stdout.splitlines()) == [b"[%d] %d True" % (rank, os.getsid(0)) for rank in range(3)]


def test_a_rank_that_holds_a_terminal_reads_it(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    text = "print(os.getsid(0) == os.getpid(), input() if rank == 0 else '')\n"
    with running(tmp_path, "-n", "2", script(tmp_path, text), stdin=slave, stdout=subprocess.PIPE) as process:
        os.write(master, b"a line\n")
        shown, _ = process.communicate(timeout=LONG_S)
    os.close(slave)
    os.close(master)
    assert sorted(shown.splitlines()) == [b"[0] True a line", b"[1] False "]


def test_the_ranks_meet(run: Callable[..., Result], tmp_path: Path) -> None:
    text = "from rdmaring.rendezvous import join\nprint(join(timeout_s=20).exchange(b'%d' % rank).decode())\n"
    result = run("-n", "4", script(tmp_path, text))
    assert sorted(result.stdout.splitlines()) == [b"[%d] 0123" % rank for rank in range(4)]


def test_every_job_has_a_secret_of_its_own(run: Callable[..., Result]) -> None:
    show = ("-n", "2", "--", "sh", "-c", "echo $RDMARING_SECRET")
    secrets = [line.split()[1] for line in run(*show).stdout.splitlines() + run(*show).stdout.splitlines()]
    assert secrets[0] == secrets[1] != secrets[2] == secrets[3]
    assert len(bytes.fromhex(secrets[0].decode())) == 32


def test_variables_can_be_set(run: Callable[..., Result]) -> None:
    show = ("sh", "-c", 'echo "$A;$EMPTY;$OMP_NUM_THREADS"')
    result = run("-n", "1", "--env", "A=b=c", "--env", "EMPTY=", *show)
    threads = os.environ.get("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))
    assert result.stdout.decode() == f"[0] b=c;;{threads}\n"
    assert run("-n", "1", "--env", "A", "true").returncode == 2


CPUS = sorted(os.sched_getaffinity(0))
SHOW_CPUS = "print(*sorted(os.sched_getaffinity(0)))\n"


def shown_cpus(result: Result) -> list[list[int]]:
    lines = sorted(result.stdout.decode().splitlines(), key=lambda line: int(line[1 : line.index("]")]))
    return [[int(cpu) for cpu in line.split()[1:]] for line in lines]


def test_ranks_are_bound_to_cpus_or_not_as_is_asked(run: Callable[..., Result], tmp_path: Path) -> None:
    world = len(CPUS) + 1
    show = ("-n", str(world), script(tmp_path, SHOW_CPUS))
    assert shown_cpus(run("--pin", *show)) == [[cpu] for cpu in sorted([*CPUS, CPUS[0]])]
    assert shown_cpus(run("--no-pin", *show)) == [CPUS] * world
    assert shown_cpus(run(*show, env={"RDMARING_PIN": "0"})) == [CPUS] * world


def test_ranks_that_outnumber_idle_cpus_are_bound() -> None:
    world = len(CPUS) + 1
    assert rank_cpus(world, None, lambda cpus: False) == sorted([*CPUS, CPUS[0]])
    assert rank_cpus(4 * len(CPUS), True) == sorted(4 * CPUS)  # four neighbours each
    assert rank_cpus(len(CPUS), True) == CPUS
    assert rank_cpus(world, None, lambda cpus: True) == [None] * world
    assert rank_cpus(world - 1, None, lambda cpus: pytest.fail("nobody needs to look")) == [None] * (world - 1)


def test_beside_a_busy_neighbour_ranks_are_not_bound(run: Callable[..., Result], tmp_path: Path) -> None:
    world = len(CPUS) + 1
    neighbour = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        assert shown_cpus(run("-n", str(world), script(tmp_path, SHOW_CPUS))) == [CPUS] * world
    finally:
        neighbour.kill()
        neighbour.wait()


@pytest.mark.parametrize(("idle", "busy"), [(0.09, False), (0.06, False), (0.04, True), (0.0, True)])
def test_a_cpu_is_in_use_if_it_was_idle_for_less_than_half_the_time(idle: float, busy: bool) -> None:
    looks = iter([{0: 5.0, 1: 7.0, 2: 0.0}, {0: 5.1, 1: 7.0 + idle, 2: 0.0}])
    assert in_use([0, 1], 0.1, lambda: next(looks)) is busy


def test_what_the_system_says_of_idle_cpus(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  9 9 9 900 90 9\ncpu0 4 4 4 300 30 4 0\ncpu11 5 5 5 600 60 5 0\nintr 1 2\n")
    ticks = os.sysconf("SC_CLK_TCK")
    assert idle_s(str(stat)) == pytest.approx({0: 330 / ticks, 11: 660 / ticks})
    assert set(CPUS) <= set(idle_s())


def test_ranks_are_not_bound_otherwise_unless_asked(run: Callable[..., Result], tmp_path: Path) -> None:
    show = ("-n", "1", script(tmp_path, SHOW_CPUS))
    assert shown_cpus(run(*show)) == [CPUS]
    assert shown_cpus(run("--pin", *show)) == [[CPUS[0]]]


# ---- the first failure, and what follows ----


@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        ("sys.exit(3)", 3, "exit status 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "killed by SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "killed by SIGSEGV"),
        ("os.kill(os.getpid(), signal.SIGRTMIN + 3)", 165, f"killed by signal {signal.SIGRTMIN + 3}"),
    ],
)
def test_the_first_failure_is_the_exit_code(
    run: Callable[..., Result], tmp_path: Path, how: str, code: int, words: str
) -> None:
    text = f"if rank == 1: {how}\ntime.sleep(0.3)\nsys.exit(9)\n"
    result = run("-n", "3", script(tmp_path, text))
    assert result.returncode == code
    others = "ranks 0, 2 left by themselves (exit status 9)"
    assert result.stderr.decode() == f"rdmaring run: rank 1 failed first: {words}; {others}\n"


def test_one_rank_alone_has_no_others(run: Callable[..., Result]) -> None:
    result = run("-n", "1", "sh", "-c", "exit 7")
    assert (result.returncode, result.stderr) == (7, b"rdmaring run: rank 0 failed: exit status 7\n")


def test_who_has_ended_well_before_the_failure_is_not_spoken_of(run: Callable[..., Result], tmp_path: Path) -> None:
    result = run("-n", "2", script(tmp_path, "if rank == 1: time.sleep(0.5); sys.exit(4)\n"))
    assert (result.returncode, result.stderr) == (4, b"rdmaring run: rank 1 failed first: exit status 4\n")


def test_after_the_grace_come_sigterm_and_sigkill(run: Callable[..., Result], tmp_path: Path) -> None:
    text = """
if rank == 0: signal.signal(signal.SIGTERM, signal.SIG_IGN)
if rank == 1: signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
open(f"ready.{rank}", "w")
while rank == 3 and not all(os.path.exists(f"ready.{other}") for other in range(4)): time.sleep(0.01)
if rank == 3: sys.exit(1)
time.sleep(100)
"""
    began = time.monotonic()
    result = run("-n", "4", "--grace", "0.5", script(tmp_path, text))
    assert 2.5 <= time.monotonic() - began < 10
    assert result.returncode == 1
    assert result.stderr.decode() == (
        "rdmaring run: rank 3 failed first: exit status 1; rank 0 ended by SIGKILL; "
        "rank 1 left on SIGTERM (exit status 5); rank 2 ended by SIGTERM\n"
    )


def test_no_grace(run: Callable[..., Result], tmp_path: Path) -> None:
    began = time.monotonic()
    result = run("-n", "2", "--grace", "0", script(tmp_path, "if rank == 1: sys.exit(1)\ntime.sleep(100)\n"))
    assert (result.returncode, time.monotonic() - began < 5) == (1, True)


def test_keep_going_lets_survivors_run_on(run: Callable[..., Result], tmp_path: Path) -> None:
    text = "if rank == 0: sys.exit(6)\ntime.sleep(1)\nprint('done')\nsys.exit(7 * (rank == 2))\n"
    result = run("-n", "3", "--grace", "0", "--keep-going", script(tmp_path, text))
    assert result.returncode == 6
    assert sorted(result.stdout.splitlines()) == [b"[1] done", b"[2] done"]
    assert result.stderr.decode() == (
        "rdmaring run: rank 0 failed first: exit status 6; rank 1 left by itself (exit status 0); "
        "rank 2 left by itself (exit status 7)\n"
    )


# ---- nothing is left behind ----


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_to_the_launcher_ends_everything(tmp_path: Path, number: signal.Signals, code: int) -> None:
    with running(tmp_path, "-n", "3", script(tmp_path, WITH_CHILDREN), stderr=subprocess.PIPE) as process:
        found = pids(tmp_path, 3)
        process.send_signal(number)
        assert process.wait(LONG_S) == code
        assert process.stderr is not None
        assert f"rdmaring run: ended by {number.name}; ranks 0-2" in process.stderr.read().decode()
    until(lambda: not any(lives(pid) for pid in found), 2)


@pytest.mark.parametrize("times", [1, 2])
def test_ranks_that_ignore_signals_end_too(tmp_path: Path, times: int) -> None:
    stubborn = "[signal.signal(each, signal.SIG_IGN) for each in (signal.SIGINT, signal.SIGTERM)]\n"
    with running(tmp_path, "-n", "2", script(tmp_path, stubborn + WITH_CHILDREN)) as process:
        found = pids(tmp_path, 2)
        began = time.monotonic()
        for _ in range(times):
            process.send_signal(signal.SIGINT)
            time.sleep(0.2)
        assert process.wait(LONG_S) == 130
        assert time.monotonic() - began < (2.0 if times == 2 else 8.0)
    until(lambda: not any(lives(pid) for pid in found), 2)


def test_ranks_and_their_children_die_with_a_killed_launcher(tmp_path: Path) -> None:
    with running(tmp_path, "-n", "3", script(tmp_path, WITH_CHILDREN)) as process:
        found = pids(tmp_path, 3)
        process.kill()
        until(lambda: not any(lives(pid) for pid in found), 2)
        assert [pid for pid in found if lives(pid)] == []


def test_the_guard_leaves_with_the_launcher(tmp_path: Path) -> None:
    def children(pid: int) -> list[int]:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    with running(tmp_path, "-n", "1", "sleep", "0.5") as process:
        until(lambda: len(children(process.pid)) == 2)  # the rank and the guard
        found = children(process.pid)
        assert process.wait(LONG_S) == 0
    assert not any(lives(pid) for pid in found)


def test_what_a_rank_started_ends_with_it(run: Callable[..., Result], tmp_path: Path) -> None:
    text = "child = subprocess.Popen(['sleep', '100'])\nprint(child.pid)\n"
    began = time.monotonic()
    result = run("-n", "2", script(tmp_path, text))
    assert result.returncode == 0
    assert time.monotonic() - began < 10
    assert not any(lives(int(line.split()[1])) for line in result.stdout.splitlines())


def test_a_daemon_that_holds_the_pipe_does_not_hold_the_launcher(run: Callable[..., Result], tmp_path: Path) -> None:
    text = "daemon = subprocess.Popen(['sleep', '100'], start_new_session=True)\nprint(daemon.pid)\n"
    began = time.monotonic()
    result = run("-n", "1", script(tmp_path, text))
    assert time.monotonic() - began < 10
    daemon = int(result.stdout.split()[1])
    assert lives(daemon)  # it made a session of its own: that is its right
    os.kill(daemon, signal.SIGKILL)


# ---- usage ----


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("no-such-command-here", 127, "no-such-command-here: no such command"),
        ("missing.py", 127, "missing.py: no such file"),
        ("./plain", 126, "not executable"),
        ("./wrong", 126, "Exec format error"),
    ],
)
def test_a_command_that_cannot_run(
    run: Callable[..., Result], tmp_path: Path, command: str, code: int, words: str
) -> None:
    (tmp_path / "plain").write_text("echo hi\n")
    (tmp_path / "wrong").write_bytes(b"\x00\x01\x02\x03")
    (tmp_path / "wrong").chmod(0o755)
    result = run("-n", "2", command)
    assert result.returncode == code
    assert words in result.stderr.decode()
    assert b"Traceback" not in result.stderr


def cli(*arguments: str, tmp_path: Path) -> Result:
    return subprocess.run([*RDMARING, *arguments], cwd=tmp_path, capture_output=True, timeout=60)


def test_options_after_the_command_are_the_commands(run: Callable[..., Result]) -> None:
    assert run("-n", "1", "echo", "-n", "--grace").stdout == b"[0] --grace\n"


@pytest.mark.parametrize(
    "arguments", [["run"], ["run", "-n", "2"], ["run", "-n", "0", "true"], ["run", "-n", "x", "y"]]
)
def test_wrong_usage_exits_with_2(arguments: list[str], tmp_path: Path) -> None:
    result = cli(*arguments, tmp_path=tmp_path)
    assert result.returncode == 2
    assert b"Usage: rdmaring run" in result.stderr


def test_version_and_help(tmp_path: Path) -> None:
    assert cli("--version", tmp_path=tmp_path).stdout.decode().splitlines()[0] == f"rdmaring {__version__}"
    shown = cli("--help", tmp_path=tmp_path).stdout.decode()
    assert "rdmaring run -n 4 train.py" in shown
    assert "Start the ranks of a job" in shown
    assert "--keep-going" in cli("run", "--help", tmp_path=tmp_path).stdout.decode()


def test_a_mistyped_command_gets_the_near_one(tmp_path: Path) -> None:
    result = cli("rum", tmp_path=tmp_path)
    assert result.returncode == 2
    assert b"did you mean 'run'?" in result.stderr
