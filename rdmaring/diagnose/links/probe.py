"""The whole examination of a live communicator's edges. Collective; the report is the same on every rank."""

from __future__ import annotations

import json
import os
import platform
import socket
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rdmaring._version import __version__
from rdmaring.communicator import Communicator
from rdmaring.diagnose.links.addresses import interface_of_address
from rdmaring.diagnose.links.counters import moved, read_counters
from rdmaring.diagnose.links.expected import interface, least, local_end, rdma_port
from rdmaring.diagnose.links.measure import BUDGET_S, Advance, Matrix, Measure, Rates
from rdmaring.diagnose.links.records import Edge, Expected, Member, Report
from rdmaring.diagnose.links.reorder import Reordering, best_ring, edges_of
from rdmaring.diagnose.links.ring import measure_ring
from rdmaring.diagnose.links.verdict import find_slow, suspects

AGAIN_TIMES = 2
REORDER_S = 2.0
MEMORY = Expected(None, "memory of this machine")


@dataclass(frozen=True)
class Options:
    """How to measure. sys, proc: where sysfs and procfs are."""

    seed: int = 0
    budget_s: float = BUDGET_S
    parallel: bool = False
    sys: Path = Path("/sys")
    proc: Path = Path("/proc")


def probe(comm: Communicator, options: Options | None = None, advance: Advance | None = None) -> Report:
    """Measure every edge, compare them, look at the ring, find the best one.

    advance: called as it goes on with what is measured, how many of it are done, of how many.

    Raises:
        RdmaringError: a rank or an edge failed meanwhile.
    """
    chosen = options or Options()
    begin = time.monotonic()
    before = read_counters(chosen.sys, chosen.proc)
    measure = Measure(comm, seed=chosen.seed, parallel=chosen.parallel, advance=advance)
    rough, latencies = measure.pilot()
    found = measure.rates(rough, chosen.budget_s)
    ends = _ends(comm, chosen)
    told = _gathered(comm, {"member": _own(comm, {}), "ends": ends})
    members = [Member(**{**each["member"], "cpus": tuple(each["member"]["cpus"])}) for each in told]
    edges = _edges(comm.size, found, latencies, [each["ends"] for each in told])
    for _ in range(AGAIN_TIMES):
        pairs = suspects(edges, members)[: 2 * comm.size]
        if not pairs:
            break
        edges = _better(edges, measure.again(pairs, rough, chosen.budget_s))
    rates = _matrix(comm.size, edges)
    ring = measure_ring(comm, rates, chosen.seed, advance) if comm.size > 1 else None
    changed = moved(before, read_counters(chosen.sys, chosen.proc))
    members = [replace(member, counters=each) for member, each in zip(members, _gathered(comm, changed), strict=True)]
    slow, notes = find_slow(edges, members)
    best = best_of(comm, rates, latencies)
    return Report(
        version=__version__,
        world=comm.size,
        seed=chosen.seed,
        seconds=round(max(_gathered(comm, time.monotonic() - begin)), 3),
        members=tuple(members),
        edges=tuple(edges),
        ring=ring,
        slow=slow,
        not_judged=notes,
        best_order=best.order,
        best_bottleneck_gb_s=best.bottleneck_gb_s,
        bottleneck_gb_s=best.bottleneck_before_gb_s,
        best_is_exact=best.exact,
        best_is_worth=best.worth,
    )


def ring_of(comm: Communicator) -> tuple[int, ...]:
    """The ranks as the communicator's rings visit them."""
    return comm._order or tuple(range(comm.size))


def best_of(comm: Communicator, rates: Matrix, latencies: Matrix) -> Reordering:
    """The best ring, against the communicator's own."""
    return best_ring(rates, np.nan_to_num(latencies), comm._nodes, ring_of(comm))


def measured_order(comm: Communicator, budget_s: float = REORDER_S, seed: int = 0) -> tuple[int, ...]:
    """What ``init(reorder=True)`` takes: the best ring by a short measurement, or the one there is if that is as good.

    The edges of the ring there is are measured twice, so that it is not left because of other load on a machine.
    Collective; the same on every rank. Opens an edge between every two ranks.
    """
    ring = ring_of(comm)
    if comm.size < 3:
        return ring
    measure = Measure(comm, seed=seed)
    rough, latencies = measure.pilot()
    first = measure.rates(rough, budget_s).gb_s
    best = best_of(comm, np.fmax(first, measure.again(edges_of(ring), rough, budget_s).gb_s), latencies)
    return best.order if best.worth else ring


# ---- what this rank knows ----


def _own(comm: Communicator, counters: dict[str, int]) -> dict[str, Any]:
    return {
        "rank": comm.rank,
        "node": comm._nodes[comm.rank],
        "host": platform.node() or socket.gethostname(),
        "pid": os.getpid(),
        "cpus": sorted(os.sched_getaffinity(0)),
        "counters": counters,
    }


def _ends(comm: Communicator, options: Options) -> dict[str, dict[str, Any]]:
    """Of each peer: how this rank reaches it, and what this end could carry."""
    known = interface_of_address(options.proc)
    found = {}
    for link in comm.links:
        device, can = link.device, MEMORY
        if link.transport == "tcp":
            device = local_end(link.path, known) or ""
            can = _interface(device, options.sys) if device else Expected(None, f"no interface known for {link.path}")
        elif link.transport == "verbs":
            can = rdma_port(link.device, options.sys)
        elif link.transport != "shm":
            can = Expected(None, f"nothing is known of the transport {link.transport}")
        found[str(link.peer)] = {
            "transport": link.transport,
            "device": device,
            "gb_s": can.gb_s,
            "text": can.text,
        }
    return found


def _interface(name: str, sys: Path) -> Expected:
    try:
        index: int | None = socket.if_nametoindex(name)
    except OSError:
        index = None
    return interface(name, sys, index)


def _gathered(comm: Communicator, mine: Any) -> list[Any]:
    """Every rank's plain data."""
    data = np.frombuffer(json.dumps(mine).encode(), np.uint8)
    sizes = comm.all_gather(np.array([data.size], np.int64))
    parts = np.split(comm.all_gather(data, counts=[int(size) for size in sizes]), np.cumsum(sizes)[:-1])
    return [json.loads(part.tobytes()) for part in parts]


# ---- putting it together ----


def _edges(world: int, rates: Rates, latencies: Matrix, ends: list[dict[str, dict[str, Any]]]) -> list[Edge]:
    edges = []
    for source in range(world):
        for target in range(world):
            if source == target:
                continue
            pair = (source, target)
            here, there = ends[source][str(target)], ends[target][str(source)]
            edges.append(
                Edge(
                    source,
                    target,
                    here["transport"],
                    here["device"],
                    float(rates.gb_s[pair]),
                    float(latencies[pair]),
                    int(rates.message_bytes[pair]),
                    int(rates.message_count[pair]),
                    int(rates.wrong[pair]),
                    least(Expected(here["gb_s"], here["text"]), Expected(there["gb_s"], there["text"])),
                    (float(rates.gb_s[pair]),),
                )
            )
    return edges


def _better(edges: list[Edge], again: Rates) -> list[Edge]:
    """Other load on the machine makes an edge slower, never faster: the better median counts."""
    merged = []
    for edge in edges:
        pair = (edge.source, edge.target)
        rate = float(again.gb_s[pair])
        if np.isnan(rate):
            merged.append(edge)
            continue
        merged.append(
            replace(
                edge,
                gb_s=max(edge.gb_s, rate),
                wrong=edge.wrong + int(again.wrong[pair]),
                message_count=edge.message_count + int(again.message_count[pair]),
                measured_gb_s=(*edge.measured_gb_s, rate),
            )
        )
    return merged


def _matrix(world: int, edges: list[Edge]) -> Matrix:
    rates = np.zeros((world, world))
    for edge in edges:
        rates[edge.source, edge.target] = edge.gb_s
    return rates
