"""Operations on GPU memory that streams run by themselves: order, capture, what they cost, races."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cuda_sim import race_checker
from gpu_worlds import CAPTURE, COLLECTIVES, STREAMS, run_gpus


def of(ran: Any, world: int, key: str) -> list[Any]:
    assert ran.code == 0, ran.output
    return [ran.of(rank, key) for rank in range(world)]


@pytest.mark.parametrize("one_queue", [False, True], ids=["queues", "one queue"])
def test_the_host_does_not_wait(one_queue: bool, tmp_path: Path) -> None:
    """Calls return while the producer's work still waits; what comes behind in its stream sees the results."""
    ran = run_gpus(
        2,
        STREAMS
        + """
with rr.init(device="cuda") as comm:
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
    say(steps=work.stats.steps, sent=comm.last.sent_bytes, done=work.done())
    comm.all_reduce(a)  # close() waits for it
""",
        tmp_path,
        seed=21,
        one_queue=one_queue,
    )
    assert of(ran, 2, "waits") == [0, 0] and of(ran, 2, "idle") == [False, False]
    assert of(ran, 2, "wrong") == [0, 0] and of(ran, 2, "done") == [True, True]
    assert of(ran, 2, "sent") == [5000 * 8] * 2


def test_plans_are_captured_and_replayed(tmp_path: Path) -> None:
    """Beside calls that are not captured, on the same stream; ranks that capture differently are told."""
    ran = run_gpus(
        3,
        STREAMS
        + CAPTURE
        + """
with rr.init(device="cuda") as comm:
    p, me = ga.Producer(), comm.rank
    x = everyone(comm, 3000, np.float32)
    a, b = ga.Numba(p, x[me]), ga.Numba(p, x[me])
    step, other = comm.plan_all_reduce(a), comm.plan_all_reduce(b, op="max")
    step(), other()  # kernels are compiled outside
    def both():
        step()
        other()
    graph = capture(p, both)
    bad = 0
    for turn in range(30):
        p.fill(a.memory.address, x[me] + turn)
        launch(p, graph)
        if turn % 5 == 0:
            comm.all_reduce(b)
            bad += wrong(b, (x.max(0) * 3 ** (1 + turn // 5)).astype(np.float32))
        bad += wrong(a, x.sum(0) + 3 * turn)
    say(bad=bad, captured=int(comm._gpu.lists.facts().captured))
    comm.synchronize()
    sync(p)
    def differ():
        comm.all_reduce(a, op="min" if me else "sum")
    said_error(lambda: capture(p, differ))
""",
        tmp_path,
        seed=22,
    )
    assert of(ran, 3, "bad") == [0, 0, 0] and of(ran, 3, "captured")[0] == 2
    assert of(ran, 3, "error") == ["MismatchError"] * 3


@pytest.mark.parametrize("apart", [False, True], ids=["host arrays", "between nodes"])
def test_a_capture_of_what_the_host_does_is_refused(apart: bool, tmp_path: Path) -> None:
    """With the reason; when the capture has ended the communicator works on."""
    split = """os.environ["RDMARING_HOST_ID"] = "host" + os.environ["RDMARING_RANK"]\n""" if apart else ""
    ran = run_gpus(
        2,
        split
        + STREAMS
        + CAPTURE
        + f"""
with rr.init(device="cuda") as comm:
    p, me = ga.Producer(), comm.rank
    x = everyone(comm, 3000, np.float32)
    a = ga.Numba(p, x[me])
    comm.all_reduce(a)
    array = a if {apart} else x[me].copy()
    said_error(lambda: capture(p, lambda: comm.all_reduce(array, stream=p.stream)))
    comm.all_reduce(a)
    say(wrong=wrong(a, 2 * x.sum(0)))
""",
        tmp_path,
        seed=23,
    )
    why = "between nodes it carries slices between streams and links, and of a graph's launch it knows nothing"
    why = why if apart else "an array is in host memory"
    assert of(ran, 2, "error") == ["ArgumentError"] * 2, ran.output
    assert all(f"the host takes part in it: {why}; accepted are" in text for text in of(ran, 2, "text"))
    assert of(ran, 2, "wrong") == [0, 0]


SMALL_SLOTS = {"RDMARING_SLOT_BYTES": "4096", "RDMARING_SLOT_COUNT": "1"}


def collectives(tmp_path: Path, world: int, turns: int, **settings: Any) -> None:
    ran = run_gpus(world, f"TURNS = {turns}\n" + COLLECTIVES, tmp_path, env=SMALL_SLOTS, **settings)
    assert of(ran, world, "bad") == [0] * world, (settings, ran.output)
    for rank in range(world):
        assert ran.of(rank, "lists") >= 9, ran.output  # all but the set-up's and the barrier's


@pytest.mark.parametrize("seed", [1, 2])
def test_delays(seed: int, tmp_path: Path) -> None:
    """20 sequences of delays: each communicator has streams of its own. test_bits.py has 200."""
    collectives(tmp_path, 3, 10, seed=seed, delay_us=1000, devices=seed)


@pytest.mark.parametrize(("devices", "one_queue"), [(1, False), (3, False), (1, True)])
def test_no_races(devices: int, one_queue: bool, tmp_path: Path) -> None:
    """With one queue the flags lie in host memory."""
    log = tmp_path / "log"
    collectives(tmp_path, 3, 2, seed=5, delay_us=300, devices=devices, one_queue=one_queue, race_log=log)
    history = race_checker.read(log)
    assert history.standstill() == []
    flags = {access.range[0][0] for access in history.accesses if access.flag}
    assert ("s" in flags) == one_queue
    assert history.races() == []


def test_what_a_call_costs(tmp_path: Path) -> None:
    """Calls of the driver a slice and step, bytes that are copied, and no wait of the host."""
    log, world, count, slot = tmp_path / "log", 4, 4 * 8 * 1024, 4096
    ran = run_gpus(
        world,
        STREAMS
        + f"""
with rr.init(device="cuda") as comm:
    p, me = ga.Producer(), comm.rank
    x = everyone(comm, {count}, np.float32)
    a = ga.Numba(p, x[me])
    comm.all_reduce(a, algorithm="ring")
    comm.synchronize()
    sync(p)
    comm.barrier()
    facts = comm._gpu.lists.facts
    before, waits = int(facts().calls), called(*SYNCHRONIZING)
    sim.cs_race_mark(b"before")
    comm.all_reduce(a, algorithm="ring")
    say(calls=int(facts().calls) - before, waits=called(*SYNCHRONIZING) - waits, pid=os.getpid())
    comm.synchronize()
    sync(p)
    say(sent=comm.last.sent_bytes, wrong=wrong(a, x.sum(0) * 4), block=comm._gpu.lists.block.address)
    comm.barrier()
""",
        tmp_path,
        env=SMALL_SLOTS,
        seed=6,
        race_log=log,
    )
    steps, slices = 2 * (world - 1), count * 4 // world // slot
    for calls in of(ran, world, "calls"):
        assert calls <= 8 * steps * slices, f"{calls} calls for {steps} steps of {slices} slices"
        print(f"{calls} driver calls, {calls / steps / slices:.2f} a slice and step")
    assert of(ran, world, "waits") == [0] * world and of(ran, world, "wrong") == [0] * world
    expected = 2 * (world - 1) * count * 4 // world
    assert of(ran, world, "sent") == [expected] * world
    for rank in range(world):
        to_peers, landed = copied(log / f"{ran.of(rank, 'pid')}.jsonl")
        assert (to_peers, landed) == (expected, expected // 2), "sends; and what is gathered, out of slots"


def copied(path: Path) -> tuple[int, int]:
    """Bytes that device-to-device copies behind the mark wrote to memory of others, and to what this process took."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    own = {line["range"][0] for line in lines if line.get("call") == "cuMemAlloc"}
    begin = next(at for at, line in enumerate(lines) if line.get("mark") == "before")
    found = [0, 0]
    for line in lines[begin:]:
        if line.get("op") == "copy" and line["reads"] and line["reads"][0][0].startswith("d"):
            for memory, _, nbytes in line["writes"]:
                if memory.startswith("d"):
                    found[memory in own] += nbytes
    return found[0], found[1]
