"""Ranks whose vectors are in GPU memory, under the simulated driver, through the public face."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_worlds import run_gpus

ALL = """
with rr.init(device="cuda" if EAGER else None) as comm:
    producer = ga.Producer(comm._ordinal("cuda"))
    n, me = comm.size, comm.rank
    bad = {}
    for count, dtype in ((37, np.int64), (4 * 5003, np.float32)):
        x = everyone(comm, count, dtype)
        for kind in ga.KINDS.values():
            here = kind(producer, x[me])
            comm.all_reduce(here)
            bad[f"all_reduce {kind.__name__}"] = wrong(here, x.sum(0))
        out = kind(producer, np.zeros(count, dtype))
        comm.all_reduce(ga.Torch(producer, x[me]), out=out, op="max")
        bad["all_reduce max out"] = wrong(out, x.max(0))
        parts = np.array_split(x.sum(0), n)
        bad["reduce_scatter"] = wrong(comm.reduce_scatter(ga.Torch(producer, x[me])), parts[me])
        whole = comm.all_gather(ga.Torch(producer, x[me]))
        bad["all_gather"] = wrong(whole, x.reshape(-1))
        here = ga.Numba(producer, x[me])
        comm.broadcast(here, root=n - 1)
        bad["broadcast"] = wrong(here, x[n - 1])
        here = ga.Torch(producer, x[me])
        comm.reduce(here, root=1, op="prod" if dtype is np.int64 else "min")
        expected = x.prod(0) if dtype is np.int64 else x.min(0)
        bad["reduce"] = wrong(here, expected if me == 1 else x[me])
        each = everyone(comm, count * n, dtype)
        got = comm.all_to_all(ga.Torch(producer, each[me]))
        bad["all_to_all"] = wrong(got, each[:, me * count:(me + 1) * count].reshape(-1))
        got = comm.gather(ga.Torch(producer, x[me]), root=0)
        bad["gather"] = wrong(got, x.reshape(-1) if me == 0 else x[me])
        out = ga.Torch(producer, np.zeros(count, dtype))
        comm.scatter(ga.Torch(producer, each[0]) if me == 0 else None, out=out)
        bad["scatter"] = wrong(out, each[0][me * count:(me + 1) * count])
        pieces = [ga.Torch(producer, part) for part in np.array_split(x[me], 3)]
        comm.all_reduce(pieces)
        bad["list"] = sum(wrong(a, b) for a, b in zip(pieces, np.array_split(x.sum(0), 3)))
        comm.barrier()
        for name, found in bad.items():
            if found:
                say(wrong=f"{name} of {count} {np.dtype(dtype)}: {found} elements")
    say(done=True, links=[[link.peer, link.gpu, link.gpu_reason] for link in comm.links])
"""


@pytest.mark.parametrize(
    ("world", "devices", "hosts", "env"),
    [
        pytest.param(2, 1, False, {}, id="2 on one GPU"),
        pytest.param(3, 1, False, {}, id="3 on one GPU with one queue"),
        pytest.param(4, 4, False, {}, id="4 GPUs"),
        pytest.param(2, 1, False, {"RDMARING_CUDA_IPC": "0"}, id="2 on one GPU, staged"),
        pytest.param(3, 2, True, {}, id="3 hosts by TCP"),
        pytest.param(3, 2, True, {"RDMARING_CUDA_BETWEEN_NODES": "host"}, id="3 hosts by TCP, staged"),
    ],
)
def test_all_collectives(world: int, devices: int, hosts: bool, env: dict[str, str], tmp_path: Path) -> None:
    apart = """os.environ["RDMARING_HOST_ID"] = "host" + os.environ["RDMARING_RANK"]\n""" if hosts else ""
    source = f"EAGER = {devices > 1}\n" + apart
    one_queue = world == 3 and not hosts  # as with CUDA_DEVICE_MAX_CONNECTIONS=1
    ran = run_gpus(world, source + ALL, tmp_path, devices=devices, seed=11, one_queue=one_queue, env=env)
    assert ran.code == 0, ran.output
    for rank in range(world):
        assert not [what for what in ran.said[rank] if "wrong" in what], ran.output
        assert ran.of(rank, "done")
        for peer, way, reason in ran.of(rank, "links"):
            if hosts and not env:
                assert way == "carried" and reason.startswith("between nodes: between streams and the link"), ran.output
            elif not env:
                assert way == "cuda_ipc" and reason.startswith("on one GPU" if devices == 1 else ""), ran.output
                flags = f"flags of {min(rank, peer)} and {max(rank, peer)} in host memory"
                assert (flags in reason) == one_queue and ("flags" in reason) == one_queue, ran.output
            else:
                why = "rank 0 says: RDMARING_CUDA_BETWEEN_NODES=host" if hosts else "rank 0: RDMARING_CUDA_IPC=0"
                assert way == "staged" and why in reason


def test_numpy_arrays_on_a_communicator_of_gpu_memory(tmp_path: Path) -> None:
    """Copied there and back in slices; ranks may mix them with device arrays after the first call."""
    ran = run_gpus(
        2,
        """
        with rr.init(device="cuda:0") as comm:
            me, count = comm.rank, 1_300_001
            x = everyone(comm, count, np.float32)
            here = x[me].copy()
            assert comm.all_reduce(here) is here
            say(large=wrong(here, x.sum(0)))
            pieces = [x[me][:5].copy(), x[me][5:5].copy(), x[me][5:].copy()]
            comm.all_reduce(pieces)
            say(pieces=wrong(np.concatenate(pieces), x.sum(0)))
            work = comm.all_reduce(x[me].copy(), async_op=True)
            other = comm.all_reduce(x[me], out=np.empty(count, np.float32), op="max", async_op=True)
            say(works=wrong(work.wait(), x.sum(0)) + wrong(other.wait(), x.max(0)))
            only = x[0].copy()
            only.flags.writeable = me != 0
            comm.broadcast(only if me == 0 else (got := np.zeros(count, np.float32)))
            say(broadcast=wrong(only if me == 0 else got, x[0]))
            mixed = x[me].copy() if me else ga.Torch(ga.Producer(), x[me])
            comm.all_reduce(mixed)
            say(mixed=wrong(mixed, x.sum(0)))
            part = comm.reduce_scatter(x[me])
            say(kind=type(part).__name__, part=wrong(part, np.array_split(x.sum(0), 2)[me]))
            step = comm.plan_all_reduce(here)
            for turn in range(3):
                here[:] = x[me] + turn
                step()
                assert not wrong(here, x.sum(0) + 2 * turn)
            here[:] = x[me]
            step.start().wait()
            say(plan=wrong(here, x.sum(0)))
        """,
        tmp_path,
        seed=5,
    )
    assert ran.code == 0, ran.output
    for rank in range(2):
        for what in ("large", "pieces", "works", "broadcast", "mixed", "part", "plan"):
            assert ran.of(rank, what) == 0, ran.output
        assert ran.of(rank, "kind") == "ndarray"


def test_work_and_plans_and_groups(tmp_path: Path) -> None:
    ran = run_gpus(
        2,
        """
        with rr.init() as comm:
            me, producer = comm.rank, ga.Producer()
            x = everyone(comm, 9001, np.int32)
            arrays = [ga.Torch(producer, x[me] + turn) for turn in range(4)]
            works = [comm.all_reduce(array, async_op=True) for array in arrays]
            say(works=sum(wrong(work.wait(), x.sum(0) + 2 * turn) for turn, work in enumerate(works)))
            here = ga.Numba(producer, x[me])
            step = comm.plan_all_reduce(here)
            bad = 0
            for turn in range(3):
                producer.fill(here.memory.address, x[me] + turn)  # late: each call of the plan waits for it
                assert step() is here
                bad += wrong(here, x.sum(0) + 2 * turn)
            producer.fill(here.memory.address, x[me])
            bad += wrong(step.start().wait(), x.sum(0))
            say(plan=bad)
            with comm.dup() as other:
                say(dup=[link.gpu for link in other.links])
                array = ga.Torch(producer, x[me])
                other.all_reduce(array)
                say(dup_wrong=wrong(array, x.sum(0)))
            alone = comm.split(me)
            array = ga.Torch(producer, x[me])
            alone.all_reduce(array)
            say(alone=wrong(array, x[me]))
            alone.close()
            if me == 0:
                comm.send(ga.Torch(producer, x[0]), 1)
                got = comm.empty(9001, np.int32, device="cuda")
                comm.recv(got, 1)
                say(message=wrong(got, x[1]))
            else:
                got = comm.empty(9001, np.int32, device="cuda")
                work = comm.recv(got, 0, async_op=True)
                comm.send(ga.Torch(producer, x[1]), 0)
                work.wait()
                say(message=wrong(got, x[0]))
            buffer = comm.empty((3, 4), np.float32, device="cuda")
            say(zero=wrong(buffer, np.zeros((3, 4))), text=repr(buffer), gpu=str(comm.links[0].gpu))
            comm.all_reduce(buffer.copy_from_host(np.full((3, 4), me + 1.0)))
            say(buffer=wrong(buffer, np.full((3, 4), 3.0)))
            half = comm.all_reduce(buffer.copy_from_host(np.full((3, 4), me)), op="avg", scale=4.0)
            say(avg=wrong(half, np.full((3, 4), 2.0)))
        """,
        tmp_path,
        seed=6,
    )
    assert ran.code == 0, ran.output
    for rank in range(2):
        for what in ("works", "plan", "dup_wrong", "alone", "message", "zero", "buffer", "avg"):
            assert ran.of(rank, what) == 0, (what, ran.output)
        assert ran.of(rank, "dup") == ["cuda_ipc"]
        assert ran.of(rank, "text") == "<rdmaring.cuda.DeviceArray (3, 4) float32 on cuda:0>"


ORDER = """
with rr.init(device="cuda") as comm:
    producer = ga.Producer()
    x = everyone(comm, 50_000, np.float32) + 1
    found = 0
    for turn in range(6):
        array = KIND(producer, x[comm.rank] * (turn + 1))
        comm.all_reduce(array, stream=producer.stream if TELL else None)
        found += wrong(array, x.sum(0) * (turn + 1))
    say(wrong=found)
"""


@pytest.mark.parametrize(
    ("kind", "tell", "right", "apart"),
    [
        ("Numba", False, True, ""),
        ("Torch", False, True, ""),
        ("Untold", True, True, ""),
        ("Untold", True, True, "host"),
        ("Untold", True, True, "streams"),
        ("Untold", False, False, ""),
    ],
    ids=[
        "the interface's stream",
        "DLPack's order",
        "stream=",
        "stream= between nodes, staged",
        "stream= between nodes, carried",
        "planted: nobody tells",
    ],
)
def test_producers_are_waited_for(kind: str, tell: bool, right: bool, apart: str, tmp_path: Path) -> None:
    """Late producers: with the order the sums are right; without it, planted, the simulated driver shows wrong ones."""
    source = ORDER.replace("KIND", f"ga.{kind}").replace("TELL", str(tell))
    if apart:
        source = """os.environ["RDMARING_HOST_ID"] = "host" + os.environ["RDMARING_RANK"]\n""" + source
    env = {"RDMARING_CUDA_BETWEEN_NODES": apart} if apart else {}
    env |= (
        {} if right else {"RDMARING_CUDA_IPC": "0"}
    )  # a list is late, too: it may begin behind the producer by chance
    ran = run_gpus(2, source, tmp_path, seed=7, delay_us=20_000, env=env)
    assert ran.code == 0, ran.output
    found = [ran.of(rank, "wrong") for rank in range(2)]
    assert (found == [0, 0]) if right else all(found), ran.output


def test_host_and_device_in_the_first_call_are_a_mismatch(tmp_path: Path) -> None:
    ran = run_gpus(
        2,
        """
        comm = rr.init()
        x = np.ones(1000, np.float32)
        said_error(lambda: comm.all_reduce(ga.Torch(ga.Producer(), x) if comm.rank else x))
        comm.close()
        """,
        tmp_path,
    )
    for rank in range(2):
        assert ran.of(rank, "error") == "MismatchError", ran.output
        assert ran.of(rank, "hint").startswith("host and device memory in one operation"), ran.output
        assert "all_reduce of 1000 float32" in ran.of(rank, "text")


ERRORS = {
    "comm.all_reduce(ga.Torch(p, np.ones(4, np.complex64)))": "x has DLPack elements of code 5, 64 bits",
    "comm.all_reduce(ga.Numba(p, np.ones(4, np.complex64)))": "x has dtype complex64; accepted are float32",
    "comm.all_reduce(ga.Strided(p, np.ones(4)))": "x is not contiguous (shape (2,), strides (16,))",
    "comm.all_reduce(a, out=np.ones(4))": "out is in host memory, x in memory of GPU 0; accepted is the same",
    "comm.all_reduce(np.ones(4), out=a)": "out is in memory of GPU 0, x in host memory; accepted is the same",
    "comm.all_reduce([a, np.ones(4)])": "x[1] is in host memory, x[0] in GPU memory; accepted is one of the two",
    "comm.all_reduce([np.ones(4), a])": "x[1] is in GPU memory, x[0] in host memory; accepted is one of the two",
    "comm.all_reduce([a, ga.Torch(p, np.ones(4, np.int8))])": "x[1] has dtype int8, x[0] has float64",
    "comm.all_reduce([a, ga.Torch(q, np.ones(4))])": "x[1] is on GPU 1, x[0] on GPU 0; accepted is one GPU a rank",
    "comm.all_reduce(ga.Torch(q, np.ones(4)))": "the array is on GPU 1; this communicator's are on GPU 0",
    "comm.all_reduce(a, out=ga.Torch(p, np.ones(5)))": "out has 5 elements; accepted are 4",
    "comm.all_reduce(a, out=ga.Torch(p, np.ones(4, np.int8)))": "out has dtype int8, x has float64",
    "comm.all_reduce(read_only)": "x is read-only; the result would be written to it",
    "comm.all_reduce(zero_stream)": "x names stream 0; the protocol has 1 for the legacy stream",
    "comm.all_reduce(nowhere)": "x lies at 0x10, where the CUDA driver knows of no memory",
    "comm.all_reduce(odd)": "which is no multiple of its 8 bytes an element",
    "comm.all_reduce(a, stream='x')": "stream is a str; accepted are a stream of torch",
    "comm.empty(4, device='cuda:7')": "there is no GPU 7: 2 are visible, counted from 0",
    "comm.empty(1 << 50, device='cuda')": "cuMemAlloc failed: CUDA_ERROR_OUT_OF_MEMORY (2)",
    "comm.empty(4, device='gpu')": "device is 'gpu'; accepted are 'cuda', 'cuda:0' and so on, or a number",
    "buffer.copy_from_host(np.ones(5))": "source has shape (5,); accepted is this array's, (4,)",
    "buffer.copy_to_host(np.ones(4, np.int8))": "out has shape (4,), dtype int8",
}


def test_errors_name_the_argument(tmp_path: Path) -> None:
    ran = run_gpus(
        1,
        f"""
        from types import SimpleNamespace
        comm = rr.init()
        p, q = ga.Producer(0), ga.Producer(1)
        a = ga.Torch(p, np.arange(4.0))
        read_only = ga.Numba(p, np.ones(4))
        read_only.readonly = True
        zero_stream = ga.Numba(p, np.ones(4))
        zero_stream.tells = 0
        facts = {{"shape": (3,), "typestr": "<f8", "version": 3}}
        nowhere = SimpleNamespace(__cuda_array_interface__={{**facts, "data": (16, False)}})
        odd = SimpleNamespace(__cuda_array_interface__={{**facts, "data": (a.memory.address + 4, False)}})
        buffer = comm.empty(4, device="cuda:0")
        comm.all_reduce(a)
        for call in {list(ERRORS)!r}:
            try:
                eval(call)
                say(call=call, text="nothing was raised")
            except (rr.RdmaringError, ValueError, TypeError) as error:
                say(call=call, text=f"{{type(error).__name__}}: {{error}}")
        comm.all_reduce(a)  # errors of a call change nothing
        say(after=wrong(a, np.arange(4.0)), nothing=type(comm.all_reduce(read_only, out=a)).__name__)
        """,
        tmp_path,
        devices=2,
    )
    assert ran.code == 0, ran.output
    texts = {what["call"]: what["text"] for what in ran.said[0] if "call" in what}
    for call, words in ERRORS.items():
        assert words in texts[call], (call, texts[call])
        assert texts[call].split(":")[0] in ("ArgumentError", "ArgumentTypeError", "CudaError"), texts[call]
    assert ran.of(0, "after") == 0 and ran.of(0, "nothing") == "Torch"


def test_a_gpu_that_one_rank_cannot_use_is_told_to_all(tmp_path: Path) -> None:
    ran = run_gpus(
        2,
        """
        said_error(lambda: rr.init(device="cuda:0" if os.environ["RDMARING_RANK"] == "0" else "cuda:3"))
        """,
        tmp_path,
    )
    assert ran.of(1, "error") == "CudaError" and "there is no GPU 3: 1 are visible" in ran.of(1, "text")
    assert ran.of(0, "error") == "CudaError", ran.output
    assert ran.of(0, "text").startswith("rank 1 cannot use its GPU 3: there is no GPU 3"), ran.output
