"""GPUDirect RDMA on the two simulators: NICs read and write GPU memory, flushes, refusals, planted bugs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from verbs.gpus import BY_READ, LATE, SUMS, UNORDERED, run_gpu_verbs, wrongs

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


def test_missing_flush_is_found(tmp_path: Path) -> None:
    """The device lies about its ordering, so the library does not flush: planted."""
    done = run_gpu_verbs(2, SUMS, tmp_path, "dmabuf=1", others=LATE)
    assert wrongs(done, 2)
