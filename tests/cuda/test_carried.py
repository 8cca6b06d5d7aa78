"""Operations on GPU memory between nodes that streams run: the host carries slices between pinned slots and links."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_nodes import ONE_SLOT, SMALL_SLOT, SMALL_SLOTS, nodes, of
from gpu_twins import alike, run_twins
from gpu_worlds import COLLECTIVES, STREAMS, kernel_cache, run_gpus

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


def test_pinned_memory_is_bounded(tmp_path: Path) -> None:
    """The fourth channel is beyond the budget, and gets one slot a direction."""
    ran = run_gpus(
        2,
        nodes()
        + """
with rr.init(device="cuda", timeout_s=60) as comm:
    p, me = ga.Producer(), comm.rank
    x = everyone(comm, 3 << 20, np.float32)
    a = ga.Numba(p, x[me])
    comm.all_reduce(a, algorithm="ring")
    say(wrong=wrong(a, x.sum(0)), pinned=int(comm._gpu.lists.facts().pinned_bytes))
""",
        tmp_path,
        env={"RDMARING_SLOT_BYTES": str(2 << 20), "RDMARING_SLOT_COUNT": "4", "RDMARING_CHANNELS": "4"},
        seed=9,
    )
    assert of(ran, 2, "wrong") == [0] * 2
    assert of(ran, 2, "pinned") == [(3 * 4 + 1) * 2 * (2 << 20) + 4 * 4096] * 2


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
else:
    said_error(lambda: comm.all_reduce(a))
    comm.close()
""",
        tmp_path,
    )
    if chosen != "host":
        assert ran.of(1, "error") == "ArgumentError", ran.output
        text = "RDMARING_CUDA_BETWEEN_NODES is 'sometimes'; accepted are 'streams' and 'host'"
        assert ran.of(1, "text").startswith(text)
        assert ran.of(0, "error") == "CudaError" and text in ran.of(0, "text"), "told at once, not at a time-out"
        return
    why = "between nodes: through pinned host memory, as rank 1 says: RDMARING_CUDA_BETWEEN_NODES=host"
    assert of(ran, 2, "link") == [["staged", why]] * 2
    assert of(ran, 2, "explained") == [f"the host runs operations: {why}"] * 2
    assert of(ran, 2, "wrong") == [0, 0]


@pytest.mark.parametrize(("per", "seed"), [(1, 1), (2, 2)])
def test_delays(per: int, seed: int, tmp_path: Path) -> None:
    """10 sequences of delays each: every communicator has streams of its own."""
    source = nodes(per) + "TURNS = 10\n" + COLLECTIVES
    ran = run_gpus(2 * per, source, tmp_path, env=ONE_SLOT, seed=seed, delay_us=1000, devices=seed)
    assert of(ran, 2 * per, "bad") == [0] * 2 * per


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_many_delays(seed: int, tmp_path: Path) -> None:
    per = 1 + seed % 2
    source = nodes(per) + "TURNS = 5\n" + COLLECTIVES
    settings = {"seed": 100 + seed, "delay_us": 2000, "devices": 1 + seed % 3, "one_queue": seed % 4 == 3}
    ran = run_gpus(2 * per, source, tmp_path, env=ONE_SLOT, **settings)
    assert of(ran, 2 * per, "bad") == [0] * 2 * per


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
