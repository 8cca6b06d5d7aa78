"""GPUDirect RDMA on the two simulators: NICs read and write GPU memory, flushes, refusals, planted bugs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cuda_sim import race_checker
from verbs.gpus import BY_READ, LATE, SUMS, UNORDERED, run_gpu_verbs, wrongs
from verbs_sim import build

WAYS: dict[str, tuple[int, str, dict[str, Any], str]] = {
    "dma-buf, ordered": (2, "dmabuf=1", {}, "dma-buf; no flush is needed"),
    "dma-buf, the driver's flush": (
        3,
        "dmabuf=1,seed=3,delay_us=200,reorder=1",
        {"attributes": UNORDERED, "seed": 5},
        "dma-buf; flushed by the driver's call",
    ),
    "dma-buf, flush by READ": (
        2,
        "dmabuf=1,seed=4,delay_us=200",
        {"attributes": BY_READ},
        "dma-buf; flushed by an RDMA READ over the loopback",
    ),
    "peer memory": (
        2,
        "peermem=1,seed=6",
        {"attributes": UNORDERED},
        "peer memory; flushed by the driver's call; dma-buf: sim0 refuses it: Operation not supported",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_nic_reads_and_writes_gpu_memory(way: str, tmp_path: Path) -> None:
    world, spec, settings, reason = WAYS[way]
    done = run_gpu_verbs(world, SUMS, tmp_path, spec, **settings)
    assert done.ran.code == 0, done.ran.output
    assert wrongs(done, world) == []
    for rank in range(world):
        assert done.of(rank, "links") == [["verbs", "gpudirect", reason]] * (world - 1)
    done.clean(world)


EACH_END = """
with rr.init(device="cuda", timeout_s=60) as comm:
    producer, me = ga.Producer(comm._ordinal("cuda")), comm.rank
    x = everyone(comm, COUNT, np.float32)
    here = ga.Torch(producer, x[me])
    comm.all_reduce(here, algorithm="ring")
    say(bad=wrong(here, x.sum(0)), links=[[link.gpu, link.gpu_reason] for link in comm.links])
"""


@pytest.mark.parametrize("staged", [(), (1,), (0, 1)], ids=["both", "one end", "neither"])
def test_bytes_of_gpu_memory_that_nics_touch(staged: tuple[int, ...], tmp_path: Path) -> None:
    """A ring of two: each rank sends half of the vector to be added (into slots), and half of the result, in place."""
    env = {f"VERBS_SIM_RANK_{rank}": "unsupported=ibv_reg_dmabuf_mr" for rank in staged}
    done = run_gpu_verbs(2, EACH_END, tmp_path, "dmabuf=1", env=env, count=100_000)
    assert done.ran.code == 0, done.ran.output
    for rank in range(2):
        assert done.of(rank, "bad") == 0
        ((gpu, reason),) = done.of(rank, "links")
        counts = done.reports[rank]["counts"]
        half = 4 * 100_000 // 2
        if rank in staged:
            assert (gpu, counts["gpu_read"], counts["gpu_written"]) == ("staged", 0, 0)
            assert reason.startswith("dma-buf: sim0 refuses it: Operation not supported; peer memory: sim0 refuses it")
        else:
            assert (gpu, counts["gpu_read"], counts["gpu_written"]) == ("gpudirect", 2 * half, half)
    done.clean(2)


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "the driver has no dma-buf, no peer memory": (
        "dmabuf=1",
        {"attributes": {"DMA_BUF_SUPPORTED": 0}},
        "dma-buf: GPU 0's driver has none (open kernel modules, Linux 5.12); "
        "peer memory: sim0 refuses it: Bad address; nvidia_peermem is not loaded",
    ),
    "the NIC has no dma-buf, no peer memory": (
        "",
        {},
        "dma-buf: sim0 refuses it: Operation not supported; "
        "peer memory: sim0 refuses it: Bad address; nvidia_peermem is not loaded",
    ),
    "the export fails": (
        "dmabuf=1",
        {"fail": ["cuMemGetHandleForAddressRange:1+:CUDA_ERROR_NOT_SUPPORTED"]},
        "dma-buf: cuMemGetHandleForAddressRange failed: CUDA_ERROR_NOT_SUPPORTED (801); "
        "peer memory: sim0 refuses it: Bad address; nvidia_peermem is not loaded",
    ),
    "the registration fails": (
        "dmabuf=1,fail=ibv_reg_dmabuf_mr:1+:ENOMEM",
        {},
        "dma-buf: sim0 refuses it: Cannot allocate memory; "
        "peer memory: sim0 refuses it: Bad address; nvidia_peermem is not loaded",
    ),
    "the memory is not capable": (
        "dmabuf=1",
        {"attributes": {"GPU_DIRECT_RDMA_SUPPORTED": 0}},
        "GPU 0's driver says that this memory is not capable of GPUDirect RDMA (its model, or how it was allocated)",
    ),
    "switched off": (
        "dmabuf=1,peermem=1",
        {"env": {"RDMARING_VERBS_GPU_DIRECT": "3"}},
        "switched off (RDMARING_VERBS_GPU_DIRECT)",
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_refusals_are_staged_with_right_sums_and_the_reason(why: str, tmp_path: Path) -> None:
    spec, settings, reason = REFUSED[why]
    done = run_gpu_verbs(2, EACH_END, tmp_path, spec, **settings)
    assert done.ran.code == 0, done.ran.output
    for rank in range(2):
        assert done.of(rank, "bad") == 0
        assert done.of(rank, "links") == [["staged", reason]]
        assert done.reports[rank]["counts"]["gpu_written"] == 0
    done.clean(2)


def test_an_old_libibverbs_has_no_dma_buf(tmp_path: Path) -> None:
    env = {"RDMARING_LIBIBVERBS": str(build.library(without=("ibv_reg_dmabuf_mr",)))}
    done = run_gpu_verbs(2, EACH_END, tmp_path, "peermem=1", env=env)
    assert done.ran.code == 0, done.ran.output
    assert [done.of(rank, "bad") for rank in range(2)] == [0, 0]
    words = "peer memory; no flush is needed; dma-buf: libibverbs has no ibv_reg_dmabuf_mr (rdma-core 34)"
    assert done.of(0, "links") == [["gpudirect", words]]


FREED = """
with rr.init(device="cuda", timeout_s=60) as comm:
    me, found, addresses = comm.rank, 0, set()
    for turn in range(6):
        x = everyone(comm, 700_001, np.float32) + turn  # an allocation of its own
        array = comm.empty(700_001, np.float32, device="cuda")
        array.copy_from_host(x[me])
        addresses.add(array.__cuda_array_interface__["data"][0])
        comm.all_reduce(array, algorithm="ring")
        found += wrong(array, x.sum(0))
        del array  # freed, and taken again: another allocation at an address that is registered
    say(bad=found, addresses=len(addresses))
"""


def test_memory_that_was_freed_and_taken_again_is_registered_anew(tmp_path: Path) -> None:
    done = run_gpu_verbs(2, FREED, tmp_path, "dmabuf=1")
    assert done.ran.code == 0, done.ran.output
    for rank in range(2):
        assert done.of(rank, "bad") == 0
        assert done.of(rank, "addresses") < 6, "the simulated driver gave no address again: this test shows nothing"
    done.clean(2)


INTO_LATE = """
with rr.init(device="cuda", timeout_s=60) as comm:
    producer, me, found = ga.Producer(comm._ordinal("cuda")), comm.rank, 0
    for turn in range(5):
        x = everyone(comm, COUNT, np.float32) + turn
        here = ga.Numba(producer, x[me])  # still being filled when the call begins: a NIC must not write before
        comm.broadcast(here, root=0)
        found += wrong(here, x[0])
        here = ga.Numba(producer, x[me])  # nor read
        comm.all_reduce(here, algorithm="ring")
        found += wrong(here, x.sum(0))
    say(bad=found)
"""


def test_nics_neither_read_nor_write_before_the_producer_is_done(tmp_path: Path) -> None:
    done = run_gpu_verbs(2, INTO_LATE, tmp_path, "dmabuf=1", delay_us=20_000, seed=12)
    assert done.ran.code == 0, done.ran.output
    assert [done.of(rank, "bad") for rank in range(2)] == [0, 0]


RECEIVED = """
with rr.init(device="cuda", timeout_s=60) as comm:
    producer, me = ga.Producer(comm._ordinal("cuda")), comm.rank
    x = everyone(comm, COUNT, np.float32)
    for root in range(2):  # who receives reads nothing by its NIC: that would flush
        here = ga.Torch(producer, x[me])
        comm.broadcast(here, root=root)
        if root != me:
            say(received=wrong(here, x[root]))
"""


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("planted", [False, True], ids=["as it is", "planted: no flush"])
def test_a_missing_flush_is_found_every_time(planted: bool, seed: int, tmp_path: Path) -> None:
    """Writes are late. Where the device says so they are flushed; where it lies, planted, receivers see old bytes."""
    attributes = None if planted else UNORDERED
    spec = f"dmabuf=1,seed={seed},delay_us=200"
    done = run_gpu_verbs(2, RECEIVED, tmp_path, spec, attributes=attributes, others=LATE, seed=seed, count=60_001)
    assert done.ran.code == 0, done.ran.output
    assert [bool(done.of(rank, "received")) for rank in range(2)] == [planted, planted]


def races_over_nics(tmp_path: Path, attributes: Any, planted: str, spec: str = "dmabuf=1", seed: int = 1) -> list[str]:
    others = LATE if planted == "no flush" or attributes else {}
    source = RECEIVED.replace("ga.Torch(", "ga.Untold(") if planted == "no input ordering" else RECEIVED
    log = tmp_path / "log"
    done = run_gpu_verbs(
        2, source, tmp_path, spec, attributes=attributes, others=others, race_log=log, count=9001, seed=seed
    )
    assert done.ran.code == 0, done.ran.output
    return [str(race) for race in race_checker.check(log)]


@pytest.mark.parametrize(
    ("attributes", "planted"),
    [({}, ""), (UNORDERED, ""), (BY_READ, ""), ({}, "no flush"), ({}, "no input ordering")],
    ids=["ordered", "the driver's flush", "flush by READ", "planted: no flush", "planted: no input ordering"],
)
def test_the_race_checker_over_nics(attributes: Any, planted: str, tmp_path: Path) -> None:
    """What NICs touch has an order with what streams touch; each planted bug is two accesses without one."""
    races = races_over_nics(tmp_path, attributes, planted)
    assert bool(races) == bool(planted), races
    if planted == "no flush":
        assert any("rdma_write" in race and " reads " in race for race in races), races
    if planted == "no input ordering":
        assert any("rdma_read" in race for race in races), races


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("planted", ["", "no flush", "no input ordering"])
def test_the_race_checker_over_nics_whatever_the_delays(planted: str, tmp_path: Path) -> None:
    for seed in range(20):
        own = tmp_path / str(seed)
        own.mkdir()
        races = races_over_nics(own, {} if planted else UNORDERED, planted, f"dmabuf=1,seed={seed},delay_us=200", seed)
        assert bool(races) == bool(planted), f"seed {seed}: {races}"
