"""Vectors in GPU memory have the bits of the same schedule in host memory, whatever carries the slices.

Both run beside each other on the same ranks: a communicator of host memory, and its twin whose arrays lie in GPU
memory, under the simulated driver, which runs the real kernels' source late and out of step.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_twins import alike, run_twins
from gpu_worlds import kernel_cache


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled kernels, of all tests here."""
    return tmp_path_factory.mktemp("kernels")


APART = """
import os
os.environ["RDMARING_HOST_ID"] = "host" + os.environ["RDMARING_RANK"]
"""
SMALL_SLOTS = {"RDMARING_SLOT_BYTES": "8192", "RDMARING_SLOT_COUNT": "2"}  # many slices, little credit
STAGED = {"RDMARING_CUDA_IPC": "0"}
BY_HOST = {"RDMARING_CUDA_BETWEEN_NODES": "host"}  # test_carried.py has the other executor
WORLDS = [
    pytest.param(2, 1, False, SMALL_SLOTS, False, id="2 ranks, one GPU"),
    pytest.param(2, 1, False, {**SMALL_SLOTS, **STAGED}, False, id="2 ranks, staged", marks=pytest.mark.long),
    pytest.param(4, 2, False, SMALL_SLOTS, True, id="4 ranks, two GPUs, one queue", marks=pytest.mark.long),
    pytest.param(3, 1, True, BY_HOST, False, id="3 hosts by TCP, staged"),
]


REDUCTIONS = """
with rr.init() as comm:
    twins = Twins(comm)
    for dtype in DTYPES:
        ops = ("sum", "prod", "min", "max") + (("avg",) if dtype in FLOATS else ())
        for op in ops:
            for algorithm in ("ring", "direct"):
                x = values(comm.rank, 9001 if dtype.itemsize < 8 else 3001, dtype)
                twins.run("all_reduce", x, np.zeros_like(x), op=op, algorithm=algorithm)
        x = values(comm.rank, 7, dtype)
        twins.run("all_reduce", x, np.zeros_like(x))
        if dtype in FLOATS:
            twins.run("all_reduce", x, np.zeros_like(x), op="max", scale=0.3)
    say(calls=twins.calls, bad=twins.bad)
"""
OF_FLOAT, OF_INTEGER = 5 * 2 + 2, 4 * 2 + 1  # calls


@pytest.mark.parametrize(
    ("dtypes", "calls"),
    [
        pytest.param("FLOATS[:2]", 2 * OF_FLOAT, id="32 and 64 bits"),
        pytest.param("FLOATS[2:]", 2 * OF_FLOAT, id="16 bits"),
        pytest.param("INTEGERS[:4]", 4 * OF_INTEGER, id="signed", marks=pytest.mark.long),
        pytest.param("INTEGERS[4:]", 4 * OF_INTEGER, id="unsigned", marks=pytest.mark.long),
    ],
)
def test_reductions_have_the_bits_of_the_cpu(dtypes: str, calls: int, tmp_path: Path, cache: Path) -> None:
    source = f"DTYPES = {dtypes}" + REDUCTIONS
    ran = run_twins(2, source, tmp_path, cache, devices=1, env=SMALL_SLOTS, delay_us=20, seed=3)
    alike(ran, 2, calls)


def test_reductions_between_hosts_have_the_bits_of_the_cpu(tmp_path: Path, cache: Path) -> None:
    """Through the staging of TCP: packed first, received beside, both pinned."""
    source = APART + "DTYPES = (FLOATS[0], FLOATS[2], INTEGERS[0])" + REDUCTIONS
    ran = run_twins(3, source, tmp_path, cache, devices=1, env=BY_HOST, delay_us=20, seed=3)
    alike(ran, 3, 2 * OF_FLOAT + OF_INTEGER)


@pytest.mark.parametrize(("world", "devices", "apart", "env", "one_queue"), WORLDS)
def test_collectives_have_the_bits_of_the_cpu(
    world: int, devices: int, apart: bool, env: dict[str, str], one_queue: bool, tmp_path: Path, cache: Path
) -> None:
    """Every algorithm of the collectives, float32 on the way of 16-bit floats, and vectors of several rounds."""
    ran = run_twins(
        world,
        (APART if apart else "")
        + """
from rdmaring.schedule import algorithms_of

with rr.init() as comm:
    twins, n, me = Twins(comm), comm.size, comm.rank
    tried = 0
    def run(name, given, out, **options):
        global tried
        tried += 1
        twins.run(name, given, out, **options)
    for dtype in (FLOATS[0], FLOATS[2], INTEGERS[0]):
        count = 6007
        x = values(me, count, dtype)
        part = np.zeros(np.array_split(x, n)[me].size, dtype)
        for name, given, out, options in (
            ("all_reduce", x, np.zeros_like(x), {}),
            ("reduce_scatter", x, part, {}),
            ("all_gather", x, np.zeros(n * count, dtype), {}),
            ("reduce", x, np.zeros_like(x), {"root": n - 1}),
            ("all_to_all", values(me, n * 1200, dtype), np.zeros(n * 1200, dtype), {}),
        ):
            for algorithm in algorithms_of(name):
                run(name, given, out, algorithm=algorithm, **options)
        if dtype == FLOATS[2]:
            run("all_reduce", x, np.zeros_like(x), wire="float32", algorithm="ring")
            run("all_reduce", x, np.zeros_like(x), wire="float32", algorithm="ring", op="avg")
    x = values(me, 300_001, FLOATS[0])  # rounds: scratch is bounded
    run("reduce_scatter", x, np.zeros(np.array_split(x, n)[me].size, x.dtype), algorithm="ring")
    say(calls=twins.calls, bad=twins.bad, tried=tried)
""",
        tmp_path,
        cache,
        devices=devices,
        env=env,
        one_queue=one_queue,
        delay_us=20,
        seed=4,
    )
    assert ran.code == 0, ran.output
    tried = ran.of(0, "tried")
    assert tried >= 3 * 8
    alike(ran, world, tried)


@pytest.mark.long
@pytest.mark.timeout(1300)
@pytest.mark.parametrize("seed", range(20))
def test_two_hundred_sequences_of_delays(seed: int, tmp_path: Path) -> None:
    """
    Ten in each world of 2 to 4 ranks on one to four GPUs, with many queues and one: every communicator has streams, so
    delays, of its own. All collectives in each; dtypes and reductions in turn, with one slot a link.
    """
    world = 2 + seed % 3
    ran = run_twins(
        world,
        f"SEQUENCE, TURNS = {seed}, 10"
        + """
with rr.init() as comm:
    twins, n, me = Twins(comm), comm.size, comm.rank
    base = twins.gpu
    for turn in range(SEQUENCE * TURNS, (SEQUENCE + 1) * TURNS):
        dtype = (FLOATS + INTEGERS)[turn % 12]
        ops = ("sum", "prod", "min", "max") + (("avg",) if dtype in FLOATS else ())
        op = ops[turn // 12 % len(ops)]
        twins.gpu = base.dup()
        x = values(me, 2003, dtype)
        part = np.zeros(np.array_split(x, n)[me].size, dtype)
        for algorithm in ("ring", "direct"):
            twins.run("all_reduce", x, np.zeros_like(x), op=op, algorithm=algorithm)
        twins.run("reduce_scatter", x, part, op=op)
        twins.run("reduce", x, np.zeros_like(x), op=op, root=turn % n)
        twins.run("all_gather", x, np.zeros(n * x.size, dtype))
        each = values(me, n * 601, dtype)
        twins.run("all_to_all", each, np.zeros_like(each))
        twins.in_place("broadcast", x, root=turn % n)
        twins.from_root("scatter", each, np.zeros(601, dtype), turn % n)
        twins.to_root("gather", x, np.zeros(n * x.size, dtype), turn % n)
        say(listed=sum(native.listed for native in twins.gpu._plans.values()))
        twins.gpu.close()
    say(calls=twins.calls, bad=twins.bad)
""",
        tmp_path,
        kernel_cache(),
        devices=1 + seed % 4,
        env={"RDMARING_SLOT_BYTES": "4096", "RDMARING_SLOT_COUNT": "1"},
        one_queue=seed % 4 == 3,
        delay_us=2000,
        seed=1000 + seed,
        timeout_s=1200,
    )
    alike(ran, world, 90)
    assert all(said["listed"] >= 8 for rank in ran.said.values() for said in rank if "listed" in said), ran.output


def test_many_seeds_of_delays(tmp_path: Path, cache: Path) -> None:
    """Passes that end late, in every order that streams allow, with one slot a link: never another bit."""
    ran = run_twins(
        3,
        """
with rr.init() as comm:
    twins = Twins(comm)
    x = values(comm.rank, 5003, FLOATS[0])
    for turn in range(40):
        twins.run("all_reduce", x, np.zeros_like(x), algorithm="ring" if turn % 2 else "direct")
    say(calls=twins.calls, bad=twins.bad)
""",
        tmp_path,
        cache,
        devices=1,
        env={"RDMARING_SLOT_BYTES": "4096", "RDMARING_SLOT_COUNT": "1", **STAGED},
        delay_us=400,
        seed=77,
    )
    alike(ran, 3, 40)


def test_slots_are_pinned_once_and_given_back(tmp_path: Path, cache: Path) -> None:
    """By the driver's count of calls: ranges are registered once and given back; no host waits for a stream."""
    ran = run_twins(
        2,
        """
import ctypes

with rr.init() as comm:
    twins = Twins(comm)
    sim = ctypes.CDLL("libcuda.so.1")
    sim.cs_calls.restype = ctypes.c_uint64
    called = lambda name: int(sim.cs_calls(name.encode()))
    x = values(comm.rank, 20_000, FLOATS[0])
    twins.run("all_reduce", x, np.zeros_like(x), algorithm="ring")
    here = ga.Torch(twins.producer, x)
    first, waits = called("cuMemHostRegister"), called("cuStreamSynchronize") + called("cuEventSynchronize")
    for _ in range(20):
        twins.gpu.all_reduce(here, algorithm="ring")
    say(first=first, later=called("cuMemHostRegister") - first)
    say(waits=called("cuStreamSynchronize") + called("cuEventSynchronize") - waits)
    say(unregistered=called("cuMemHostUnregister"))
    twins.gpu.close()
    say(left=called("cuMemHostUnregister"), calls=twins.calls, bad=twins.bad)
""",
        tmp_path,
        cache,
        devices=1,
        env={**SMALL_SLOTS, **STAGED},
        seed=9,
    )
    alike(ran, 2, 1)
    for rank in range(2):
        assert 1 <= ran.of(rank, "first") <= 2, ran.output  # this rank's slots, and the peer's
        assert ran.of(rank, "later") == 0, ran.output
        assert ran.of(rank, "waits") == 0, ran.output
        assert ran.of(rank, "unregistered") == 0, ran.output
        assert ran.of(rank, "left") == ran.of(rank, "first"), ran.output
