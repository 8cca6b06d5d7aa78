"""One run, drawn by its seed."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from chaos_runs.faults import FAULTS, Fault

RANKS_MAX = 8
DTYPES = ("int32", "int64", "float32", "float64")
# Elements: by tiny messages, by few slices, by many.
COUNTS = (3, 1_000, 40_000, 300_000)
COUNT_SLOW = {"sim": 300_000, "tcp": 1_000_000}  # for longer than the time-out
CALLS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
ALGORITHMS = (None, None, "ring", "direct")


@dataclass(frozen=True)
class Plan:
    """bed: "local" (processes of this machine; nodes by RDMARING_HOST_ID), "namespaces" or "guests".

    victim, peer: ranks. step: the operation before which, or in which, the fault is made. delay_ms: after that
    operation began (kill, stop). turn: which transfer is dropped or corrupted, or which descriptor is closed.
    """

    seed: int
    transport: str
    fault: str
    bed: str
    ranks: int
    ranks_per_node: int
    victim: int
    peer: int
    step: int
    delay_ms: float
    turn: int
    count: int
    dtype: str
    calls: tuple[str, ...]
    algorithm: str | None
    registered: bool

    def node_of(self, rank: int) -> int:
        return rank // self.ranks_per_node

    @property
    def nodes(self) -> int:
        return -(-self.ranks // self.ranks_per_node)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"calls": list(self.calls)}

    @classmethod
    def of(cls, given: dict[str, Any]) -> Plan:
        return cls(**{**given, "calls": tuple(given["calls"])})


def _first(seed: int, names: Sequence[str]) -> str:
    """The choice stays the same when names that lose are left out: so a seed can be run on one transport alone."""
    return max(names, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest())


def faults_of(transport: str, root: bool, only: Sequence[str] = (), without: Sequence[str] = ()) -> list[Fault]:
    """only, without: names of faults, or of a fault on one transport, as in "stop:tcp"."""
    return [
        fault
        for fault in FAULTS.values()
        if transport in fault.transports
        and (root or not (fault.namespaces and transport == "tcp"))
        and (not only or not {fault.name, f"{fault.name}:{transport}"}.isdisjoint(only))
        and {fault.name, f"{fault.name}:{transport}"}.isdisjoint(without)
    ]


def draw(
    seed: int, transports: Sequence[str], root: bool, only: Sequence[str] = (), without: Sequence[str] = ()
) -> Plan:
    """The same for the same seed, as long as the winner among transports and faults is among those given."""
    usable = [name for name in transports if faults_of(name, root, only, without)]
    transport = _first(seed, usable)
    fault = FAULTS[_first(seed, [each.name for each in faults_of(transport, root, only, without)])]
    dice = random.Random(f"{seed} {transport} {fault.name}")
    bed = {"softroce": "guests"}.get(transport, "local")
    in_namespaces = dice.random() < 0.2
    if transport == "tcp" and root and (fault.namespaces or in_namespaces):
        bed = "namespaces"
    # Ranks that wait for each other share two CPUs here: eight are drawn, but seldom.
    ranks = dice.choice((2, 3, 3, 4, 4, 5, 6, RANKS_MAX))
    if fault.name == "slow":
        ranks = max(3, ranks)  # of two edges neither is three times the median (docs/WHY.md)
    per_node = dice.choice((1, 1, 2))
    if bed == "guests":
        ranks, per_node = 2, 1
    elif transport == "verbs":
        ranks = dice.choice((2, 3))  # each has threads that play its adapter
    elif bed == "namespaces":
        # What comes back over a slow edge is late, too: of few ranks, or two nodes, too many edges look busy.
        ranks = dice.choice((2, 3, 4) if fault.name != "slow" else (4,))
        per_node = 2 if ranks == 4 and fault.name != "slow" and dice.random() < 0.5 else 1
    if transport == "shm":
        per_node = ranks
    elif ranks <= per_node or ranks % per_node:
        per_node = 1
    # An odd one out needs two who agree, and the cause of an edge a third rank that sees neither end.
    victim = dice.randrange(ranks)
    others = [rank for rank in range(ranks) if transport == "shm" or rank // per_node != victim // per_node]
    peer = dice.choice([rank for rank in others if rank != victim])
    # Each edge is used: a ring leaves most of them alone.
    calls = (*(dice.choice(CALLS) for _ in range(4)), "all_to_all" if fault.edge == "edge" else "all_reduce")
    count = dice.choice(COUNTS if fault.name != "slow" else (COUNT_SLOW[transport],))
    return Plan(
        seed=seed,
        transport=transport,
        fault=fault.name,
        bed=bed,
        ranks=ranks,
        ranks_per_node=per_node,
        victim=victim,
        peer=peer,
        step=dice.randrange(2, 12),
        delay_ms=round(dice.choice((0.0, 1.0, 5.0, 30.0)) * dice.random(), 3),
        turn=dice.randrange(1, 30),
        count=count,
        dtype=dice.choice(DTYPES),
        calls=calls,
        algorithm=dice.choice(ALGORITHMS),
        registered=dice.random() < 0.3,
    )
