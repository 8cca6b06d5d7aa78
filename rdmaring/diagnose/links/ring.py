"""The ring as it is, under its real load: an all-reduce, and what each of its edges did in it."""

from __future__ import annotations

from typing import Any

import numpy as np

from rdmaring.communicator import Communicator
from rdmaring.diagnose.links.measure import Advance, Matrix
from rdmaring.diagnose.links.records import GB, Ring, RingEdge
from rdmaring.diagnose.links.reorder import bottleneck, edges_of
from rdmaring.diagnose.trace import tracing
from rdmaring.diagnose.trace.records import CREDIT, RECEIVE, Array, length, merged, stretches

RUN_S = 0.4  # about what one all-reduce should take
BYTES_MIN, BYTES_MAX = 1 << 20, 16 << 20
RUNS = 3
VALUES = 997  # of the elements, which repeat: sums of them are exact in float32 for any world that fits a machine


def measure_ring(comm: Communicator, rates: Matrix, seed: int, advance: Advance | None = None) -> Ring:
    """All-reduces by ring, checked; the last one traced, and an earlier trace of this communicator forgotten.

    rates: of every edge, GB/s. Collective; the same on every rank.
    """
    order = comm._order or tuple(range(comm.size))
    share = 2 * (comm.size - 1) / comm.size  # of the vector, over each edge
    wanted = bottleneck(order, rates) * GB * RUN_S / share
    nbytes = min(BYTES_MAX, max(BYTES_MIN, 1 << max(0, int(wanted).bit_length() - 1)))
    vector = comm.empty(nbytes // 4, np.float32)
    places = np.arange(vector.size, dtype=np.int64)
    total = comm.size * (places % VALUES).astype(np.float64) + comm.size * (comm.size - 1) / 2 + comm.size * (seed % 7)
    own_s, wrong = [], 0
    for run in range(RUNS + 1):
        if run == RUNS:
            tracing.start(comm)
        if advance is not None:
            advance("the ring", run, RUNS + 1)
        vector[:] = places % VALUES + comm.rank + seed % 7
        comm.barrier()
        comm.all_reduce(vector, algorithm="ring")
        own_s.append(comm.last.elapsed_s)
        wrong += int(np.count_nonzero(vector != total))
    waited = _waited(comm, tracing.stop(comm)[0])
    sent = np.zeros(comm.size, np.float64)
    for peer, (sent_bytes, _) in comm.last_links.items():
        sent[peer] = sent_bytes
    mine = np.concatenate([[np.median(own_s[1:]), wrong], sent, *waited])
    table: Any = comm.all_gather(mine).reshape(comm.size, -1)
    elapsed_s = float(table[:, 0].max())
    of_sender, of_credit, of_receiver = np.split(table[:, 2:], 3, axis=1)
    edges = tuple(
        RingEdge(
            source,
            target,
            int(of_sender[source, target]),
            elapsed_s * 1e6,
            float(of_sender[source, target]) / (float(rates[source, target]) * GB) * 1e6,
            float(of_credit[source, target]),
            float(of_receiver[target, source]),
        )
        for source, target in edges_of(order)
    )
    return Ring(
        order=order,
        nbytes=nbytes,
        elapsed_us=elapsed_s * 1e6,
        busbw_gb_s=nbytes * share / elapsed_s / GB,
        wrong=int(table[:, 1].sum()),
        edges=edges,
    )


def _waited(comm: Communicator, records: Array) -> tuple[Matrix, Matrix]:
    """Of each peer, in us: how long this rank waited for room in the link to it, and for bytes from it."""
    waits = []
    for kind in (CREDIT, RECEIVE):
        own = np.zeros(comm.size, np.float64)
        for peer in range(comm.size):
            chosen = records[(records["kind"] == kind) & (records["peer"] == peer)]
            own[peer] = length(merged(stretches(chosen))) / 1e3
        waits.append(own)
    return waits[0], waits[1]
