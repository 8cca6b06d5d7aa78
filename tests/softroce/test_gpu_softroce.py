"""Vectors in (simulated) GPU memory over real soft-RoCE, whose driver takes no GPU memory: staged, and told."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from beds import run_softroce
from cuda_sim.environment import environment
from gpu_worlds import GPU, TESTS, kernel_cache

from rdmaring.cuda import kernels

COMPUTE_CAPABILITY = (9, 0)  # of the simulated devices

# Guests compute some fifty times slower than their host: small vectors, one larger than a slice.
SUMS = """
with rr.init(device="cuda", timeout_s=150, require="rdma") as comm:
    producer = ga.Producer(comm._ordinal("cuda"))
    n, me = comm.size, comm.rank
    say(before=[[link.transport, link.gpu, link.gpu_reason] for link in comm.links])
    found = 0
    for count in (37, 90_001):
        x = everyone(comm, count, np.float32)
        here = ga.Torch(producer, x[me])
        comm.all_reduce(here, algorithm="ring")
        found += wrong(here, x.sum(0))
        here = ga.Numba(producer, x[me])
        comm.broadcast(here, root=n - 1)
        found += wrong(here, x[n - 1])
        parts = np.array_split(x.sum(0), n)
        found += wrong(comm.reduce_scatter(ga.Torch(producer, x[me])), parts[me])
        found += wrong(comm.all_gather(ga.Torch(producer, x[me])), x.reshape(-1))
    say(wrong=found, after=[[link.transport, link.gpu, link.gpu_reason] for link in comm.links])
"""


@pytest.mark.timeout(400)
def test_gpu_memory_is_staged_over_soft_roce(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """dma-buf and peer memory are driven to the registration, refused by rxe, and told; the sums are right."""
    cache = str(kernel_cache())
    with monkeypatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", cache)
        kernels.cubin("float32", COMPUTE_CAPABILITY)  # here, where the processor is none of software
    source = f"os.environ['XDG_CACHE_HOME'] = {cache!r}\n" + GPU + textwrap.dedent(SUMS)  # the bed has its own
    own = {**environment(devices=1, seed=9), "PYTHONPATH": TESTS}
    ran = run_softroce(2, 1, source, tmp_path, env=own, timeout_s=330)
    assert ran.code == 0, ran.output
    for rank in range(2):
        assert ran.of(rank, "wrong") == 0, ran.output
        ((transport, gpu, reason),) = ran.of(rank, "before")
        assert (transport, gpu) == ("verbs", "staged")
        assert reason.startswith("not tried yet"), ran.output
        ((transport, gpu, reason),) = ran.of(rank, "after")
        assert (transport, gpu) == ("verbs", "staged")
        dma_buf, peer = reason.split("; peer memory: ")
        assert dma_buf == "dma-buf: rxe0 refuses it: Operation not supported", ran.output
        assert peer == "rxe0 refuses it: Bad address; nvidia_peermem is not loaded", ran.output
