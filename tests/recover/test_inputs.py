"""A failed operation leaves inputs alone: those of calls with out= always, overwritten ones with restore=True."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from worlds import run_world

from rdmaring import settings

COMMON = """
WORLD, LATE, T = 3, 2, 20
comm = rr.init(timeout_s=60, restore=RESTORE)
n = 300_000
mine = np.random.default_rng([7, comm.rank])

def vector(count, dtype=np.float32):
    return mine.integers(1, 9, count).astype(dtype)
"""

# How each collective is called, by name: input, and the call on a communicator of its own. Sizes are beyond mailboxes.
OUT_OF_PLACE = """
def own(count):
    return np.full(count, -1, np.float32)

calls = {
    "all_reduce": lambda c, x: c.all_reduce(x, out=own(n), algorithm="ring", timeout_s=T),
    "all_reduce of a list": lambda c, x: c.all_reduce([x[:99], x[99:]], out=own(n), algorithm="ring", timeout_s=T),
    "all_reduce, async": lambda c, x: c.all_reduce(x, out=own(n), async_op=True, timeout_s=T).wait(),
    "float16": lambda c, x: c.all_reduce(x.view(np.float16), out=np.zeros(2 * n, np.float16), timeout_s=T),
    "reduce_scatter": lambda c, x: c.reduce_scatter(x, timeout_s=T),
    "all_gather": lambda c, x: c.all_gather(x, timeout_s=T),
    "broadcast": lambda c, x: c.broadcast(x if c.rank == 0 else own(n), timeout_s=T),
    "reduce": lambda c, x: c.reduce(x, out=own(n), timeout_s=T),
    "all_to_all": lambda c, x: c.all_to_all(x, timeout_s=T),
    "gather": lambda c, x: c.gather(x, timeout_s=T),
    "scatter": lambda c, x: c.scatter(x if c.rank == 0 else None, out=own(n // WORLD), timeout_s=T),
    "tiny": lambda c, x: c.all_reduce(x[:3], out=own(3), timeout_s=T),
}
"""

# What the last rank does instead of taking part.
LATE = {
    "kill": """
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
    "timeout": """
        time.sleep(6)
        sys.exit(0)
        """,
    "mismatch": """
        for group in groups:
            try:
                group.all_reduce(np.ones(17_000), timeout_s=10)
            except rr.RdmaringError:
                pass
        time.sleep(1)
        sys.exit(0)
        """,
}

# Again and again on each communicator, until one of its ranks ends that in the middle of an operation.
ABORTED = """
def call_until_aborted(group, x, call):
    if group.rank == LATE:
        threading.Timer(mine.uniform(0.01, 0.1), lambda: group.abort("the test says so")).start()
    while True:
        before = x.copy()
        try:
            call(group, x)
        except rr.RdmaringError as error:
            return type(error).__name__, bool(np.array_equal(x, before))
        x[:] = before
"""


@pytest.mark.parametrize("failure", LATE)
def test_inputs_of_calls_with_out_are_left_alone(failure: str, tmp_path: Path) -> None:
    source = f"""
        groups = [comm.dup() for _ in calls]
        if comm.rank == LATE:
{textwrap.indent(textwrap.dedent(LATE[failure]), " " * 12)}
        T = {0.2 if failure == "timeout" else 20}
        for group, (name, call) in zip(groups, calls.items()):
            x = vector(n)
            before = x.copy()
            try:
                call(group, x)
                ended = "well"
            except rr.RdmaringError as error:
                ended = type(error).__name__
            say(name=name, ended=ended, left=bool(np.array_equal(x, before)))
        """
    source = "RESTORE = None\n" + COMMON + OUT_OF_PLACE + textwrap.dedent(source)
    ran = run_world(3, source, tmp_path, "--keep-going", timeout_s=120)
    for rank in (0, 1):
        told = {each["name"]: each for each in ran.said[rank]}
        assert len(told) == 12, ran.output
        assert [name for name, each in told.items() if not each["left"]] == [], ran.output
        # a chain may be through on the ranks before the late one; where all need all, nobody is
        assert told["all_reduce"]["ended"] != "well", ran.output
        assert told["tiny"]["ended"] != "well", ran.output


def _aborted(restore: str, calls: str, tmp_path: Path, env: dict[str, str] | None = None) -> dict[str, list[bool]]:
    """name of a call -> whether its input was left, on each rank."""
    source = """
        for name, entry in calls.items():
            x, call = entry if isinstance(entry, tuple) else (vector(n), entry)
            group = comm.dup()
            ended, left = call_until_aborted(group, x, call)
            say(name=name, ended=ended, left=left)
            group.close()
        """
    source = f"RESTORE = {restore}\n" + COMMON + calls + ABORTED + textwrap.dedent(source)
    ran = run_world(3, source, tmp_path, env=env, timeout_s=120)
    assert ran.code == 0, ran.output
    found: dict[str, list[bool]] = {}
    for rank in range(3):
        for each in ran.said[rank]:
            assert each["ended"] == "AbortedError", ran.output
            found.setdefault(each["name"], []).append(each["left"])
    assert all(len(left) == 3 for left in found.values())
    return found


def test_inputs_of_calls_with_out_are_left_alone_by_an_abort(tmp_path: Path) -> None:
    found = _aborted("None", OUT_OF_PLACE, tmp_path)
    assert len(found) == 12
    assert {name: left for name, left in found.items() if not all(left)} == {}


IN_PLACE = """
def scattered(c, x):
    part = np.array_split(x, WORLD)[c.rank]
    return c.reduce_scatter(x, out=part, timeout_s=T)

def planned(c, x):
    return c.plan_all_reduce(x, algorithm="ring")

registered = comm.empty(n, np.float32)
calls = {
    "all_reduce": (vector(n), lambda c, x: c.all_reduce(x, algorithm="ring", timeout_s=T)),
    "float16": (vector(n, np.float16), lambda c, x: c.all_reduce(x, algorithm="ring", timeout_s=T)),
    "avg": (vector(n), lambda c, x: c.all_reduce(x, op="avg", algorithm="ring", timeout_s=T)),
    "registered": (registered, lambda c, x: c.all_reduce(x, algorithm="ring", timeout_s=T)),
    "list": (vector(n), lambda c, x: c.all_reduce([x[:10], x[10:7000], x[7000:]], algorithm="ring", timeout_s=T)),
    "async": (vector(n), lambda c, x: c.all_reduce(x, algorithm="ring", async_op=True, timeout_s=T).wait()),
    "plan": (vector(n), lambda c, x: planned(c, x).start(timeout_s=T).wait()),
    "direct": (vector(n), lambda c, x: c.all_reduce(x, algorithm="direct", timeout_s=T)),
    "halving": (vector(n), lambda c, x: c.all_reduce(x, algorithm="halving", timeout_s=T)),
    "reduce_scatter": (vector(n), scattered),
    "reduce": (vector(n), lambda c, x: c.reduce(x, root=1, timeout_s=T)),
}
registered[:] = vector(n)
"""


# The last rank dies in the middle of an operation: an abort is answered between moves, where little is torn.
KILLED = """
x, call = calls[CASE]
comm.barrier()
if comm.rank == LATE:
    threading.Timer(mine.uniform(0.3, 0.4), lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
while True:
    before = x.copy()
    try:
        call(comm, x)
    except rr.RdmaringError:
        say(left=bool(np.array_equal(x, before)))
        break
    x[:] = before
"""
TORN = ("all_reduce", "registered", "async", "direct")


def _left_by_a_death(restore: str, case: str, tmp_path: Path) -> list[bool]:
    """Whether the input was left, on each survivor."""
    common = COMMON.replace("n = 300_000", "n = 4_000_000")
    source = f"RESTORE = {restore}\nCASE = {case!r}\n" + common + IN_PLACE + KILLED
    ran = run_world(3, source, tmp_path, "--keep-going", env={"RDMARING_RESTORE": "0"})
    return [ran.of(rank, "left") for rank in (0, 1)]


@pytest.mark.parametrize("case", [*TORN, "float16", "list", "plan"])
def test_restore_puts_overwritten_inputs_back(case: str, tmp_path: Path) -> None:
    assert all(_left_by_a_death("True", case, tmp_path))


def test_without_restore_they_are_lost(tmp_path: Path) -> None:
    """What makes the test above one that can fail. A death may come between two operations, but not each time."""
    assert not all(all(_left_by_a_death("None", case, tmp_path)) for case in 3 * TORN)


def test_the_variable_does_as_the_argument() -> None:
    assert settings.read({"RDMARING_RESTORE": "1"}, None).restore
    assert not settings.read({"RDMARING_RESTORE": "0"}, None).restore
    assert not settings.with_arguments(settings.read({"RDMARING_RESTORE": "1"}, None), restore=False).restore


def test_ranks_may_differ_and_results_do_not(tmp_path: Path) -> None:
    ran = run_world(
        3,
        """
        comm = rr.init(timeout_s=30, restore=int(os.environ["RDMARING_RANK"]) == 1)
        x = np.full(50_000, comm.rank + 1.0)
        for _ in range(3):
            comm.all_reduce(x)
        works = [comm.all_reduce(np.full(20_000 + k, 1.0), async_op=True) for k in range(4)]
        say(right=bool((x == 6 * 9).all()), works=[float(work.wait()[-1]) for work in works])
        """,
        tmp_path,
    )
    assert ran.code == 0, ran.output
    for rank in range(3):
        assert ran.of(rank, "right")
        assert ran.of(rank, "works") == [3.0] * 4
