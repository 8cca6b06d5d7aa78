"""A child of fork() closes its copies, and does nothing else to its parent's communicators: on every transport."""

from __future__ import annotations

import itertools
import os
import random
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from gpu_worlds import run_gpus
from transport.test_library import EXAMPLE, build
from verbs.simulated import run_verbs
from worlds import Ran, run_world

HERE = Path(__file__).parent
SEED = 1  # of what is sampled; all of it under --long
KINDS = ("shm", "tcp", "verbs", "python", "library", "cuda")
STATES = ("idle", "in flight")
ACTS = ("close", "exit", "gc", "exec", "store", "own", "siblings")

BEGIN = """
import ctypes, faulthandler, gc, random, traceback
import rdmaring.transport
faulthandler.enable()
KIND = os.environ["KIND"]
me, world = int(os.environ["RDMARING_RANK"]), int(os.environ["RDMARING_WORLD_SIZE"])
if KIND not in ("shm", "cuda"):
    os.environ["RDMARING_HOST_ID"] = f"node-{me}"
comm = rr.init(timeout_s=20, **({"transport": rdmaring.transport.Sockets} if KIND == "python" else {}))
want = {"shm": "shm", "tcp": "tcp", "verbs": "verbs", "python": "sockets", "library": "socket", "cuda": "shm"}[KIND]
assert {link.transport for link in comm.links} == {want}, comm.links

def vector(count):
    "Of this rank, and what it is summed to."
    draw = [np.random.default_rng([count, rank]) for rank in range(world)]
    drawn = [each.integers(0, 1 << 20, count).astype(np.float64) for each in draw]
    if KIND == "cuda":
        return comm.empty(count, np.float64, device="cuda").copy_from_host(drawn[me]), sum(drawn)
    x = comm.empty(count, np.float64)
    x[:] = drawn[me]
    return x, sum(drawn)

def right(x, want):
    return np.array_equal(x.copy_to_host() if KIND == "cuda" else x, want)

def forked_error(call):
    try:
        call()
    except rr.ForkedError:
        return
    raise AssertionError("no ForkedError")
"""

MATRIX = (
    BEGIN
    + """
shim = ctypes.CDLL(None)
rng = random.Random(int(os.environ["SEED"]))
stays, _ = vector(70_000)
shared = comm.empty(5000, np.float64)  # of which a child stores into its own
plan = comm.plan_all_reduce(stays)
plan()

def in_child(act, x, work):
    if act == "store":
        shared[:] = -1
        assert (shared == -1).all()
        if KIND != "cuda":
            x[:] = -1
            stays[:] = -1
        os._exit(0)
    for call in (lambda: comm.barrier(), lambda: comm.all_reduce(np.ones(100_000)), plan, lambda: comm.links,
                 lambda: comm.last, lambda: comm.abort("by a child"), lambda: comm.recv(np.ones(3), 1 - me)):
        forked_error(call)
    if act == "close":
        files = [os.open("/dev/null", os.O_RDONLY) for _ in range(40)]  # under the numbers that the parent's had
        comm.close()
        comm.close()
        for each in files:
            os.close(each)  # each is still open
        os._exit(0)
    if act == "exec":
        os.execv(sys.executable, [sys.executable, "-S", "-c", "pass"])
    if act in ("own", "siblings"):
        shim.disarm()
        alone = act == "own"
        os.environ.update(RDMARING_TRANSPORT="tcp", RDMARING_SECRET="of the children")
        os.environ.pop("RDMARING_LINK", None)
        place = "127.0.0.1:" + os.environ["PORT"]
        with rr.init(0, 1) if alone else rr.init(me, world, address=place, timeout_s=20) as own:
            for y in (shared, own.empty(5000), np.empty(200_000)):  # the first was the parent's
                y[:] = me
                own.all_reduce(y)
                assert (y == (me if alone else sum(range(world)))).all()
        os._exit(0)

def one(act, state, count):
    x, want = vector(count)
    shared[:] = me
    work = None
    early = rng.randrange(world)
    if state == "in flight" and me == early:
        work = comm.all_reduce(x, async_op=True)
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            in_child(act, x, work)
        except BaseException:
            print(f"CHILD {act} {state}: {traceback.format_exc()}", flush=True)
            os._exit(1)
        return "child"
    status = os.waitpid(pid, 0)[1]
    assert status == 0, (act, state, os.waitstatus_to_exitcode(status))
    if work is None:
        work = comm.all_reduce(x, async_op=True)
    work.wait()
    assert right(x, want), (act, state, count)
    assert (shared == me).all(), (act, state)
    for more in (1, 3000, 150_000):
        x, want = vector(more)
        comm.all_reduce(x)
        assert right(x, want), (act, state, more)

shim.arm()
where = None
for act, state in CASES:
    where = one(act, state, rng.choice((1000, 60_000, 400_000)))
    if where == "child":
        break
if where == "child":
    del plan, comm
    gc.collect()
    if act == "gc":
        os._exit(0)
    sys.exit(0)
plan()
comm.close()
say(done=True)
"""
)

DEATH = (
    BEGIN
    + """
x, want = vector(50_000)
comm.all_reduce(x)
assert right(x, want)
comm.barrier()
if me == 1:
    work = comm.all_reduce(x, async_op=True) if STATE == "in flight" else None
    pid = os.fork()
    if pid == 0:
        os.setsid()  # the launcher ends what is left of a rank's group
        with open("away", "w"):
            pass
        time.sleep(20)
        os._exit(0)
    while not os.path.exists("away"):
        time.sleep(0.001)
    with open("pid.new", "w") as file:
        file.write(f"{pid} {time.time()}")
    os.rename("pid.new", "pid")
    os.kill(os.getpid(), signal.SIGKILL)
if me == 2 and STATE == "in flight":
    time.sleep(0.3)  # so that no rank is through with it
try:
    while True:
        if STATE == "in flight":
            comm.all_reduce(x)
        else:
            comm.barrier()
        comm.synchronize()
except rr.RdmaringError as error:
    seen, kind = time.time(), type(error).__name__
while not os.path.exists("pid"):
    time.sleep(0.01)
pid, died = open("pid").read().split()
say(kind=kind, after=seen - float(died))
with open(f"seen{me}", "w"):
    pass
while me == 0 and not os.path.exists("seen2"):
    time.sleep(0.01)
if me == 0:
    with open(f"/proc/{pid}/stat") as file:
        say(child=file.read().rpartition(")")[2].split()[0])
    os.kill(int(pid), signal.SIGKILL)
os._exit(0)
"""
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(kind: str, world: int, source: str, tmp_path: Path, *options: str, **env: str) -> Ran:
    env = {"KIND": kind, "PORT": str(free_port()), **env}
    if kind == "verbs":
        done = run_verbs(world, source, tmp_path, "seed=8,delay_us=50", env=env, options=options)
        if not options:
            done.clean(world)
        return done.ran
    if kind == "cuda":
        return run_gpus(world, source, tmp_path, *options, env=env, devices=1)
    if kind == "library":
        env["RDMARING_LINK"] = str(build(tmp_path, EXAMPLE.read_text()))
    return run_world(world, source, tmp_path, *options, env={"RDMARING_TRANSPORT": "tcp", **env})


def matrix(kind: str, cases: Sequence[tuple[str, str]], tmp_path: Path) -> None:
    shim, calls = tmp_path / "child_calls.so", tmp_path / "calls"
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", shim, HERE / "child_calls.c", "-ldl"], check=True)
    source = f"CASES = {cases!r}\n" + MATRIX
    env: dict[str, Any] = {"LD_PRELOAD": str(shim), "CHILD_CALLS": str(calls), "SEED": str(SEED)}
    ran = run(kind, 2, source, tmp_path, **env)
    assert ran.code == 0, ran.output
    assert not calls.exists(), calls.read_text()
    for rank in range(2):
        assert ran.of(rank, "done")
    assert [line for line in ran.output.splitlines() if "SAY" not in line] == [], ran.output  # children say nothing


CASES = list(itertools.product(ACTS, STATES))
DEATHS = list(itertools.product(KINDS, STATES))


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_child_does_harms_nobody(kind: str, tmp_path: Path) -> None:
    matrix(kind, random.Random(f"{SEED} {kind}").sample(CASES, 4), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_a_child_does_harms_nobody(kind: str, tmp_path: Path) -> None:
    matrix(kind, random.Random(SEED).sample(CASES, len(CASES)), tmp_path)


def death(kind: str, state: str, tmp_path: Path) -> None:
    source = f"os.chdir({str(tmp_path)!r})\nSTATE = {state!r}\n" + DEATH
    ran = run(kind, 3, source, tmp_path, "--keep-going")
    for rank in (0, 2):
        assert ran.of(rank, "kind") == "PeerDiedError", ran.output
        assert ran.of(rank, "after") < 1, ran.output
    assert ran.of(0, "child") == "S", ran.output  # it has lived on


@pytest.mark.parametrize(("kind", "state"), random.Random(SEED).sample(DEATHS, 2))
def test_the_death_of_a_rank_whose_child_lives_on_is_seen(kind: str, state: str, tmp_path: Path) -> None:
    death(kind, state, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(("kind", "state"), DEATHS)
def test_each_death_of_a_rank_whose_child_lives_on_is_seen(kind: str, state: str, tmp_path: Path) -> None:
    death(kind, state, tmp_path)
