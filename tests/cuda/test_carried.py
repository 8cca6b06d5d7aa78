"""Operations on GPU memory between nodes that streams run: the host carries slices between pinned slots and links."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cuda_sim import race_checker
from gpu_twins import alike, run_twins
from gpu_worlds import CAPTURE, STREAMS, kernel_cache, run_gpus

import rdmaring

EXAMPLES = Path(__file__).resolve().parents[2] / "native" / "examples"

# PER ranks are neighbours on a node.
NODES = """
import os
os.environ["RDMARING_HOST_ID"] = f"host{int(os.environ['RDMARING_RANK']) // PER}"
"""
ONE_SLOT = {"RDMARING_SLOT_BYTES": "4096", "RDMARING_SLOT_COUNT": "1"}
SMALL_SLOTS = {"RDMARING_SLOT_BYTES": "8192", "RDMARING_SLOT_COUNT": "2"}
SMALL_SLOT = {"RDMARING_SLOT_BYTES": "8192", "RDMARING_SLOT_COUNT": "1"}  # float32 in place of 16 bits fits


def nodes(per: int = 1) -> str:
    return f"PER = {per}" + NODES


def of(ran: Any, world: int, key: str) -> list[Any]:
    assert ran.code == 0, ran.output
    return [ran.of(rank, key) for rank in range(world)]


EVERYTHING = """
from rdmaring.schedule import algorithms_of

with rr.init(timeout_s=60) as comm:
    twins, n, me = Twins(comm), comm.size, comm.rank
    tried = 0
    for dtype in DTYPES:
        x = values(me, 6007, dtype)
        each = values(me, n * 1200, dtype)
        part = np.zeros(np.array_split(x, n)[me].size, dtype)
        for name, given, out, options in (
            ("all_reduce", x, np.zeros_like(x), {}),
            ("reduce_scatter", x, part, {}),
            ("all_gather", x, np.zeros(n * x.size, dtype), {}),
            ("reduce", x, np.zeros_like(x), {"root": n - 1}),
            ("all_to_all", each, np.zeros_like(each), {}),
        ):
            for algorithm in algorithms_of(name):
                twins.run(name, given, out, algorithm=algorithm, **options)
                tried += 1
        for op in ("prod", "min", "max"):
            twins.run("all_reduce", x, np.zeros_like(x), op=op)
        twins.in_place("broadcast", x, root=n - 1)
        twins.from_root("scatter", each, np.zeros(1200, dtype), 0)
        twins.to_root("gather", x, np.zeros(n * x.size, dtype), n - 1)
        tried += 6
        if dtype == FLOATS[2]:
            twins.run("all_reduce", x, np.zeros_like(x), wire="float32", algorithm="ring", op="avg")
            tried += 1
    x = values(me, 300_001, FLOATS[0])  # rounds: scratch is bounded
    twins.run("reduce_scatter", x, np.zeros(np.array_split(x, n)[me].size, x.dtype), algorithm="ring")
    plans = list(twins.gpu._plans.values())
    say(calls=twins.calls, bad=twins.bad, tried=tried + 1)
    say(listed=sum(plan.listed for plan in plans), plans=len(plans))
    say(ways=[link.gpu for link in twins.gpu.links])
"""


@pytest.mark.parametrize(
    ("per", "dtypes", "env", "one_queue"),
    [
        pytest.param(1, "FLOATS[0], INTEGERS[0]", SMALL_SLOTS, False, id="2 nodes of 1"),
        pytest.param(1, "FLOATS[2],", SMALL_SLOT, True, id="2 nodes of 1, one queue"),
        pytest.param(2, "FLOATS[0], FLOATS[2]", SMALL_SLOTS, False, id="2 nodes of 2"),
        pytest.param(2, "FLOATS[3], INTEGERS[3]", SMALL_SLOT, True, id="2 nodes of 2, one queue"),
    ],
)
def test_bits_of_the_cpu(per: int, dtypes: str, env: dict[str, str], one_queue: bool, tmp_path: Path) -> None:
    """Every algorithm of every collective, over TCP."""
    source = nodes(per) + f"DTYPES = ({dtypes})" + EVERYTHING
    settings = {"devices": per, "delay_us": 20, "seed": 4, "one_queue": one_queue}
    ran = run_twins(2 * per, source, tmp_path, kernel_cache(), env=env, **settings)
    assert ran.code == 0, ran.output
    alike(ran, 2 * per, ran.of(0, "tried"))
    for rank in range(2 * per):
        assert ran.of(rank, "listed") == ran.of(rank, "plans")
        assert sorted(ran.of(rank, "ways")) == ["carried"] * per + ["cuda_ipc"] * (per - 1)


def test_nodes_of_different_sizes(tmp_path: Path) -> None:
    """Two ranks, one and one: the order of `hierarchical` among these is not proven, so the host runs it."""
    ran = run_gpus(
        4,
        """
os.environ["RDMARING_HOST_ID"] = "host" + "0012"[int(os.environ["RDMARING_RANK"])]
with rr.init(device="cuda", timeout_s=60) as comm:
    p, me = ga.Producer(comm._ordinal("cuda")), comm.rank
    x = everyone(comm, 20_003, np.float32)
    bad = 0
    for algorithm in ("hierarchical", "hierarchical-ring", "ring", "direct"):
        a = ga.Numba(p, x[me])
        comm.all_reduce(a, algorithm=algorithm)
        bad += wrong(a, x.sum(0))
    say(bad=bad, listed={plan.choice.algorithm: plan.listed for plan in comm._gpu and comm._plans.values()})
    say(links=[link.gpu for link in comm.links])
""",
        tmp_path,
        env=SMALL_SLOTS,
        devices=2,
        seed=8,
        delay_us=50,
    )
    assert of(ran, 4, "bad") == [0] * 4
    assert ran.of(0, "listed") == {"hierarchical": False, "hierarchical-ring": True, "ring": True, "direct": True}
    assert ran.of(0, "links") == ["cuda_ipc", "carried", "carried"] and ran.of(3, "links") == ["carried"] * 3


@pytest.mark.parametrize("channels", [2])
def test_channels(channels: int, tmp_path: Path) -> None:
    """Each has its links, its slots, and its two streams."""
    source = nodes(2) + "DTYPES = (FLOATS[0],)" + EVERYTHING
    env = {**SMALL_SLOTS, "RDMARING_CHANNELS": str(channels)}
    ran = run_twins(4, source, tmp_path, kernel_cache(), devices=1, env=env, delay_us=20, seed=5)
    alike(ran, 4, ran.of(0, "tried"))


def test_the_host_does_not_wait(tmp_path: Path) -> None:
    """Calls return while the producer's work still waits; what comes behind in its stream sees the results."""
    ran = run_gpus(
        2,
        nodes()
        + STREAMS
        + """
with rr.init(device="cuda", timeout_s=60) as comm:
    p, me = ga.Producer(), comm.rank
    x = everyone(comm, 5000, np.int64)
    a, b = ga.Numba(p, x[me]), ga.Numba(p, x[me])
    comm.all_reduce(a)
    comm.synchronize()
    sync(p)
    gate = Gate(p)
    p.fill(a.memory.address, x[me])
    before = called(*SYNCHRONIZING)
    for _ in range(3):
        assert comm.all_reduce(a) is a
    work = comm.all_reduce(b, op="max", stream=p.stream, async_op=True)
    assert work.wait() is b and not work.done()
    plan = comm.plan_all_reduce(b)
    assert plan() is b
    say(waits=called(*SYNCHRONIZING) - before, idle=idle(p))
    gate.open()
    say(wrong=wrong(a, x.sum(0) * 4) + wrong(b, x.max(0) * 2))
    comm.synchronize()
    say(steps=work.stats.steps, sent=comm.last.sent_bytes, edge=comm.last_links, done=work.done())
    say(pinned=int(comm._gpu.lists.facts().pinned_bytes), explained=str(comm.explain(1 << 20)).splitlines()[-1])
    comm.all_reduce(a)  # close() waits for it
""",
        tmp_path,
        seed=21,
    )
    assert of(ran, 2, "waits") == [0, 0] and of(ran, 2, "idle") == [False, False]
    assert of(ran, 2, "wrong") == [0, 0] and of(ran, 2, "done") == [True, True]
    assert of(ran, 2, "sent") == [5000 * 8] * 2
    assert of(ran, 2, "edge") == [{str(1 - rank): [40_000, 40_000]} for rank in range(2)]
    line = "  arrays in GPU memory: streams run operations; the host carries what goes between nodes"
    assert of(ran, 2, "explained") == [line] * 2
    assert all(0 < pinned < 5 << 20 for pinned in of(ran, 2, "pinned"))


# By these the driver of a communicator asks each 20 ms whether the GPU has failed.
LOOKS = ("cuEventQuery", "cuCtxPushCurrent", "cuCtxPopCurrent", "cuThreadExchangeStreamCaptureMode")


def test_what_a_call_costs(tmp_path: Path) -> None:
    """Driver calls a slice and step; none at all, but for a look each 20 ms, while slices are carried."""
    world, count, slot = 4, 4 * 8 * 1024, 4096
    ran = run_gpus(
        world,
        nodes(2)
        + STREAMS
        + f"""
LOOKS = {LOOKS}
with rr.init(device="cuda", timeout_s=60) as comm:
    p, me = ga.Producer(), comm.rank
    x = everyone(comm, {count}, np.float32)
    a = ga.Numba(p, x[me])
    comm.all_reduce(a, algorithm="ring")
    comm.synchronize()
    sync(p)
    other = comm.dup()
    other.barrier()
    gate = Gate(p) if me == 0 else None
    before, waits = int(comm._gpu.lists.facts().calls), called(*SYNCHRONIZING)
    work = comm.all_reduce(a, algorithm="ring", async_op=True)
    calls = int(comm._gpu.lists.facts().calls) - before
    other.barrier()  # all have emitted, and hardly a slice has gone
    every = called("*")
    looks = called(*LOOKS)
    if gate:
        gate.open()
    while not work.done():
        time.sleep(0.001)
    say(calls=calls, waits=called(*SYNCHRONIZING) - waits)
    say(others=called("*") - every - (called(*LOOKS) - looks))
    work.wait()
    say(sent=comm.last.sent_bytes, edges=comm.last_links, wrong=wrong(a, x.sum(0) * 4))
    other.barrier()
""",
        tmp_path,
        env=ONE_SLOT,
        seed=6,
    )
    steps, slices = 2 * (world - 1), count * 4 // world // slot
    for calls in of(ran, world, "calls"):
        assert calls <= 8 * steps * slices, f"{calls} calls for {steps} steps of {slices} slices"
        print(f"{calls} driver calls, {calls / steps / slices:.2f} a slice and step")
    assert of(ran, world, "waits") == [0] * world and of(ran, world, "wrong") == [0] * world
    assert of(ran, world, "others") == [0] * world
    expected = 2 * (world - 1) * count * 4 // world
    assert of(ran, world, "sent") == [expected] * world
    for rank in range(world):
        edges = {int(peer): counted for peer, counted in ran.of(rank, "edges").items()}
        assert edges[(rank + 1) % world][0] == expected and edges[(rank - 1) % world][1] == expected


def test_by_a_transport_of_the_callers(tmp_path: Path) -> None:
    """Late by seed, and counted at both ends by somebody else than the library."""
    count = 120_000
    ran = run_gpus(
        3,
        nodes()
        + STREAMS
        + f"""
from rdmaring.transport import Delaying
counting = Delaying(0.001, jitter_s=0.001, seed=int(os.environ["RDMARING_RANK"]))
with rr.init(device="cuda", timeout_s=60, transport=counting) as comm:
    p, me, n = ga.Producer(comm._ordinal("cuda")), comm.rank, comm.size
    comm.barrier()
    x = everyone(comm, {count}, np.float32)
    a = ga.Numba(p, x[me])
    comm.all_reduce(a, algorithm="ring")
    say(wrong=wrong(a, x.sum(0)), links=[[link.transport, link.gpu] for link in comm.links])
    comm.synchronize()
    to, back = counting.sent((me + 1) % n), counting.received((me - 1) % n)
    say(data=to.data_bytes, received=back.data_bytes, edges=comm.last_links)
    for name, op in (("max", np.max), ("sum", np.sum)):
        comm.all_reduce(a, op=name, algorithm="direct")
    say(again=wrong(a, x.sum(0) * n))
""",
        tmp_path,
        seed=41,
        env=SMALL_SLOTS,
    )
    assert of(ran, 3, "wrong") == [0] * 3 and of(ran, 3, "again") == [0] * 3
    expected = 2 * 2 * count * 4 // 3
    for rank in range(3):
        assert ran.of(rank, "links") == [["delaying", "carried"]] * 2
        edges = {int(peer): counted for peer, counted in ran.of(rank, "edges").items()}
        assert edges[(rank + 1) % 3][0] == expected and edges[(rank - 1) % 3][1] == expected
        gathered = 1021 * 8  # what set-up tells, at most
        assert expected <= ran.of(rank, "data") < expected + gathered
        assert ran.of(rank, "data") == ran.of((rank + 1) % 3, "received")


@pytest.mark.parametrize("chosen", ["host", "sometimes"])
def test_who_runs_them_is_chosen_by_name(chosen: str, tmp_path: Path) -> None:
    """One rank that wants the host decides for all."""
    ran = run_gpus(
        2,
        nodes()
        + f"""
if os.environ["RDMARING_RANK"] == "1":
    os.environ["RDMARING_CUDA_BETWEEN_NODES"] = {chosen!r}
comm = rr.init()
x = everyone(comm, 5000, np.int64)
a = ga.Numba(ga.Producer(), x[comm.rank])
if {chosen!r} == "host":
    comm.all_reduce(a)
    say(wrong=wrong(a, x.sum(0)), link=[comm.links[0].gpu, comm.links[0].gpu_reason])
    say(explained=comm.explain(4096).on_gpu)
    comm.close()
elif comm.rank:
    said_error(lambda: comm.all_reduce(a))
""",
        tmp_path,
    )
    if chosen != "host":
        assert ran.of(1, "error") == "ArgumentError", ran.output
        text = "RDMARING_CUDA_BETWEEN_NODES is 'sometimes'; accepted are 'streams' and 'host'"
        assert ran.of(1, "text").startswith(text)
        return
    why = "between nodes: through pinned host memory, as rank 1 says: RDMARING_CUDA_BETWEEN_NODES=host"
    assert of(ran, 2, "link") == [["staged", why]] * 2
    assert of(ran, 2, "explained") == [f"the host runs operations: {why}"] * 2
    assert of(ran, 2, "wrong") == [0, 0]


DELAYS = """
with rr.init(device="cuda", timeout_s=60) as comm:
    p, n, me = ga.Producer(comm._ordinal("cuda")), comm.size, comm.rank
    bad = 0
    for turn in range(TURNS):
        other = comm.dup() if turn else comm  # with streams, so delays, of its own
        x = everyone(comm, 2003, np.int32)
        a, b = ga.Numba(p, x[me]), ga.Numba(p, np.zeros_like(x[me]))
        for algorithm in ("ring", "direct", None):
            other.all_reduce(a, out=b, algorithm=algorithm)
            other.all_reduce(b, op="max")
        bad += wrong(b, x.sum(0))
        part = ga.Numba(p, np.zeros_like(np.array_split(x[me], n)[me]))
        other.reduce_scatter(a, out=part)
        other.all_gather(part, out=b)
        bad += wrong(b, x.sum(0))
        other.broadcast(b, root=n - 1)
        other.reduce(b, root=0)
        bad += wrong(b, x.sum(0) * (n if me == 0 else 1))
        if other is not comm:
            other.close()
    comm.barrier()
    say(bad=bad)
"""


@pytest.mark.parametrize(("per", "seed"), [(1, 1), (2, 2)])
def test_delays(per: int, seed: int, tmp_path: Path) -> None:
    """10 sequences of delays each: every communicator has streams of its own."""
    source = nodes(per) + "TURNS = 10\n" + DELAYS
    ran = run_gpus(2 * per, source, tmp_path, env=ONE_SLOT, seed=seed, delay_us=1000, devices=seed)
    assert of(ran, 2 * per, "bad") == [0] * 2 * per


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_many_delays(seed: int, tmp_path: Path) -> None:
    per = 1 + seed % 2
    source = nodes(per) + "TURNS = 5\n" + DELAYS
    settings = {"seed": 100 + seed, "delay_us": 2000, "devices": 1 + seed % 3, "one_queue": seed % 4 == 3}
    ran = run_gpus(2 * per, source, tmp_path, env=ONE_SLOT, **settings)
    assert of(ran, 2 * per, "bad") == [0] * 2 * per


START = """
comm = rr.init(device="cuda", timeout_s=60)
p, me = ga.Producer(comm._ordinal("cuda")), comm.rank
x = everyone(comm, 60_000, np.float32)
a = ga.Numba(p, x[me])
comm.all_reduce(a)
comm.synchronize()
sync(p)

def drained(seconds=20):
    end = time.monotonic() + seconds
    while not idle(p) and time.monotonic() < end:
        time.sleep(0.01)
    say(drained=idle(p))
"""


@pytest.mark.parametrize("one_queue", [False, True], ids=["queues", "one queue"])
@pytest.mark.parametrize("when", ["before it enters", "inside"])
def test_a_death(when: str, one_queue: bool, tmp_path: Path) -> None:
    """A rank is killed that never came, or in the middle of its list: the others are told, and their streams let go."""
    world = 4
    ran = run_gpus(
        world,
        nodes(2)
        + STREAMS
        + START
        + f"""
if me == 3:
    if {when == "inside"}:
        gate = Gate(p)
        comm.all_reduce(a)
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)
comm.all_reduce(a)
said_error(comm.synchronize)
drained()
comm.close()
""",
        tmp_path,
        env=SMALL_SLOTS,
        seed=32,
        one_queue=one_queue,
    )
    for rank in range(world - 1):
        assert ran.of(rank, "error") in ("PeerDiedError", "PeerFailedError"), ran.output
        assert ran.of(rank, "seconds") < 15
        assert ran.of(rank, "drained"), ran.output
    assert "PeerDiedError" in {ran.of(rank, "error") for rank in range(world - 1)}
    assert ran.of(1, "peer") == 3 or ran.of(2, "peer") == 3, ran.output


def test_time_is_over(tmp_path: Path) -> None:
    """One rank's stream stands before the list for longer than the time-out; then it runs through all the same."""
    ran = run_gpus(
        2,
        nodes()
        + STREAMS
        + START
        + """
gate = Gate(p) if me else None
work = comm.all_reduce(a, timeout_s=1.5, async_op=True)
work.wait()
said_error(work.synchronize)
if me:
    say(held=not idle(p))
    gate.open()
drained()
comm.close()
""",
        tmp_path,
        seed=33,
    )
    errors = {ran.of(rank, "error") for rank in range(2)}
    assert "OperationTimeoutError" in errors and errors <= {"OperationTimeoutError", "PeerFailedError"}, ran.output
    assert ran.of(1, "held")
    for rank in range(2):
        assert ran.of(rank, "seconds") < 15 and ran.of(rank, "drained"), ran.output
        assert "link down" not in ran.of(rank, "text"), "nothing is wrong with the link"


def test_an_abort(tmp_path: Path) -> None:
    """Of a list whose peer's stream does not come."""
    ran = run_gpus(
        2,
        nodes()
        + STREAMS
        + START
        + """
gate = Gate(p) if me else None
comm.all_reduce(a)
if me == 0:
    threading.Timer(0.3, comm.abort, ["a test"]).start()
said_error(comm.synchronize)
if me:
    gate.open()
drained()
comm.close()
""",
        tmp_path,
        seed=34,
        env=SMALL_SLOTS,
    )
    assert ran.of(0, "error") == "AbortedError", ran.output
    assert ran.of(1, "error") in ("PeerFailedError", "AbortedError", "PeerClosedError"), ran.output
    for rank in range(2):
        assert ran.of(rank, "seconds") < 10 and ran.of(rank, "drained"), ran.output


def test_a_mismatch_moves_nothing(tmp_path: Path) -> None:
    ran = run_gpus(
        2,
        nodes()
        + STREAMS
        + START
        + """
comm.all_reduce(a, op="max" if me else "sum")
said_error(comm.synchronize)
drained()
comm.close()
""",
        tmp_path,
        seed=35,
    )
    assert of(ran, 2, "error") == ["MismatchError"] * 2 and of(ran, 2, "drained") == [True, True]


def test_a_capture_is_refused(tmp_path: Path) -> None:
    """A launch is nothing that the host sees, so nobody would carry: said so; the communicator works on."""
    ran = run_gpus(
        2,
        nodes()
        + STREAMS
        + CAPTURE
        + START
        + """
said_error(lambda: capture(p, lambda: comm.all_reduce(a)))
plan = comm.plan_all_reduce(a)
said_error(lambda: capture(p, plan))
comm.all_reduce(a)
say(wrong=wrong(a, 2 * x.sum(0)))
comm.close()
""",
        tmp_path,
        seed=23,
    )
    for rank in range(2):
        errors = [what for what in ran.said[rank] if "error" in what]
        assert [each["error"] for each in errors] == ["ArgumentError"] * 2, ran.output
        assert (
            "the host takes part in it: between nodes it carries slices between streams and links" in errors[0]["text"]
        )
    assert of(ran, 2, "wrong") == [0, 0]


def test_numpy_arrays(tmp_path: Path) -> None:
    """They are copied to the GPU and back; the host waits for these."""
    ran = run_gpus(
        2,
        nodes()
        + """
with rr.init(device="cuda:0", timeout_s=60) as comm:
    x = everyone(comm, 300_001, np.float32)
    here = x[comm.rank].copy()
    comm.all_reduce(here)
    work = comm.all_reduce(x[comm.rank].copy(), op="max", async_op=True)
    say(wrong=wrong(here, x.sum(0)) + wrong(work.wait(), x.max(0)))
""",
        tmp_path,
        seed=5,
    )
    assert of(ran, 2, "wrong") == [0, 0]


WATCHED = """
from rdmaring._native import ffi, lib
lib.rr_lists_watch(ffi.cast("rr_carried_watch", ctypes.cast(sim.cs_carried, ctypes.c_void_p).value))
"""


def carried_accesses(log: Path) -> set[str]:
    """What carriers told the log."""
    names = set()
    for path in log.glob("*.jsonl"):
        names |= {line.get("call", "") for line in map(json.loads, path.read_text().splitlines())}
    return {name for name in names if name.startswith("carrier_")}


@pytest.mark.parametrize(("per", "one_queue"), [(1, False), (2, False), (2, True)])
def test_no_races(per: int, one_queue: bool, tmp_path: Path) -> None:
    """The log has the host's accesses to slots and flags, too."""
    log = tmp_path / "log"
    source = nodes(per) + STREAMS + WATCHED + "TURNS = 1\n" + DELAYS
    settings = {"seed": 5, "delay_us": 300, "devices": per, "one_queue": one_queue}
    ran = run_gpus(2 * per, source, tmp_path, env=ONE_SLOT, race_log=log, **settings)
    assert of(ran, 2 * per, "bad") == [0] * 2 * per
    assert carried_accesses(log) == {f"carrier_{what}" for what in ("takes", "sets", "reads", "writes")}
    history = race_checker.read(log)
    assert history.standstill() == []
    assert history.races() == []


PLANTED = """
with rr.init(device="cuda", timeout_s=60) as comm:
    p, me = ga.Producer(), comm.rank
    x = everyone(comm, 30_000, np.float32)
    a = ga.Numba(p, x[me])
    comm.all_reduce(a, algorithm="ring")
    comm.all_reduce(a, algorithm="ring")
    comm.synchronize()
    sync(p)
    say(done=True)
"""


@pytest.mark.parametrize("seed", [6, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(100, 120))])
@pytest.mark.parametrize(
    ("plant", "words"),
    [(0, ""), (1, "carrier_reads"), (2, "carrier_writes")],
    ids=["none", "taken before it is read", "here before it has come"],
)
def test_a_link_that_breaks_its_contract_is_a_race(plant: int, words: str, seed: int, tmp_path: Path) -> None:
    """Credit too early, and ready too early, as the carrier gives them when the link is wrong about its memory."""
    library, log = build_link(tmp_path, plant), tmp_path / "log"
    source = nodes() + STREAMS + WATCHED + PLANTED
    env = {**ONE_SLOT, "RDMARING_LINK": str(library)}
    ran = run_gpus(2, source, tmp_path, env=env, race_log=log, seed=seed, delay_us=100)
    assert of(ran, 2, "done") == [True, True]
    races = [str(race) for race in race_checker.check(log)]
    assert bool(races) == bool(plant), races[:3]
    assert all(words in race for race in races)


def build_link(tmp_path: Path, plant: int) -> Path:
    """late_link.c as a library."""
    library = tmp_path / "late.so"
    include = Path(rdmaring.__file__).parent / "include"
    flags = ["-std=c99", "-D_GNU_SOURCE", f"-DPLANT={plant}", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    where = [f"-I{include}", f"-I{EXAMPLES}", "-o", str(library), str(Path(__file__).with_name("late_link.c"))]
    done = subprocess.run([os.environ.get("CC", "cc"), *flags, *where], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return library
