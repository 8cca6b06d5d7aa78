"""Closed forms, and times from smaller worlds, beside the simulator: what the tests hold and docs/SIMULATE.md tells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rdmaring.schedule.cluster import Cluster, Costs, LevelCost
from rdmaring.schedule.cost import predict
from rdmaring.schedule.cost_range import beyond
from rdmaring.schedule.simulate import Simulator
from rdmaring.schedule.simulate_scaled import Scaled
from rdmaring.schedule.simulate_sweep import schedule_for

US, NS = 1e-6, 1e-9

# Fast memory, the processor moving the bytes; copies by something else; rails; a narrow way; far apart; fast rails.
CLUSTERS: dict[str, Costs] = {
    "shm, TCP": Costs(
        LevelCost(0.5 * US, NS / 8, NS / 8), LevelCost(30 * US, NS / 1.25, NS / 3), NS / 10, 0.1 * US, 0.1 * US
    ),
    "one rail": Costs(LevelCost(US, NS / 10), LevelCost(10 * US, NS / 3), NS / 20, 0.1 * US, 0.1 * US),
    "8 rails": Costs(
        LevelCost(3.4 * US, NS / 450), LevelCost(14 * US, NS / 50), NS / 2000, 0.1 * US, 0.1 * US, 1 << 20, rails=8
    ),
    "oversubscribed": Costs(
        LevelCost(US, NS / 20), LevelCost(5 * US, NS / 12.5), NS / 10, 0.1 * US, 0.1 * US, rails=2, oversubscription=3.0
    ),
    "wide area": Costs(LevelCost(2 * US, NS / 8), LevelCost(1000 * US, NS), NS / 16, US, US),
}
SLICES_MAX = 30_000


@dataclass(frozen=True, slots=True)
class Compared:
    """One cell. why: what ``beyond`` says, None where the form claims to hold. deviation: closed / simulated - 1.

    scaled: the same of the time from smaller worlds, None where they do not tell, or were not asked.
    """

    collective: str
    algorithm: str
    cluster: str
    ranks: int
    per_node: int
    nbytes: int
    deviation: float
    why: str | None
    scaled: float | None = None


def compared(
    collective: str,
    algorithm: str,
    shapes: Iterable[tuple[int, int]],
    sizes: Iterable[int],
    clusters: Iterable[str] = tuple(CLUSTERS),
    *,
    held_only: bool = False,
    scaled_too: bool = False,
) -> Iterator[Compared]:
    """shapes: (ranks, ranks a node). held_only: leave out where the form does not claim to hold.

    scaled_too: where it does not, ask smaller worlds, although the world itself could be simulated.
    """
    sizes, clusters = tuple(sizes), tuple(clusters)
    for ranks, per_node in shapes:
        simulator: Simulator | None = None
        for name in clusters:
            cluster = Cluster.even(CLUSTERS[name], ranks, per_node)
            for nbytes in sizes:
                why = beyond(collective, algorithm, nbytes, cluster.sizes, cluster.costs)
                if held_only and why is not None:
                    continue
                if simulator is None:
                    simulator = Simulator(schedule_for(collective, algorithm, cluster), cluster.sizes)
                simulated = simulator.run(nbytes, cluster, arrays=False, slices_max=SLICES_MAX).seconds
                closed = predict(collective, algorithm, nbytes, cluster.sizes, cluster.costs)
                found = None
                if scaled_too and why is not None:
                    found = Scaled(collective, algorithm, cluster.costs).find(nbytes, cluster.sizes, itself=False)
                scaled = found and found.seconds / simulated - 1
                yield Compared(
                    collective, algorithm, name, ranks, per_node, nbytes, closed / simulated - 1, why, scaled
                )
