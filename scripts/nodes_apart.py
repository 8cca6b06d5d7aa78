"""All-reduce between nodes that are far apart: measured with a delay on every message, and simulated.

    rdmaring run -n 8 scripts/nodes_apart.py
    rdmaring run -n 8 scripts/nodes_apart.py --delay-ms 1 --sizes 64K --algorithms ring,hierarchical
    rdmaring run -n 8 scripts/nodes_apart.py --picture docs/pictures/nodes_apart.svg

The ranks of this machine play nodes of ``--nodes-of`` ranks (RDMARING_HOST_ID); what passes between nodes is carried by
rdmaring.transport.Delaying, which delays every message by ``--delay-ms``. Algorithms take turns, round by round; a
figure is the median over the rounds of the slowest rank's mean time of a call, by plans on registered memory.

Simulated is what `rdmaring.schedule.simulate` says of the same rows with the library's own constants for TCP and the
delay, and one delay more: before a call moves anything, both ends of every link tell each other what they call. It
knows nothing of the time that Python takes to carry a message.

Exit code: 0; 1 if a sum is wrong; 2 for wrong arguments.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

CALL_S = 0.1  # about as long as one algorithm is called in one round


def arguments_of(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], usage="rdmaring run -n N %(prog)s [OPTIONS]", allow_abbrev=False
    )
    parser.add_argument("--nodes-of", type=int, default=4, metavar="K", help="ranks a node; default 4")
    parser.add_argument("--delay-ms", type=float, default=1.0, help="of every message between nodes; default 1")
    parser.add_argument("--sizes", default="1K:4M", help="bytes, as rdmaring bench takes them; default 1K:4M")
    parser.add_argument("--algorithms", default="ring,direct,hierarchical", help="default ring,direct,hierarchical")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--picture", type=Path, metavar="FILE", help=".svg, .png or .pdf; needs matplotlib")
    return parser.parse_args(given)


def simulated_s(algorithm: str, nbytes: int, nodes: list[int], delay_s: float) -> float:
    from rdmaring.schedule import SHAPED, generate
    from rdmaring.schedule.cluster import Cluster
    from rdmaring.schedule.simulate import simulate
    from rdmaring.tuning.constants import built_in

    sizes = tuple(nodes.count(node) for node in dict.fromkeys(nodes))
    schedule = generate("all_reduce", algorithm, len(nodes), nodes=nodes if algorithm in SHAPED else None)
    processors = max(1, len(os.sched_getaffinity(0)) // len(sizes))  # of a node: they share this machine's
    costs = built_in("tcp", processors).rows_crowded
    costs = replace(costs, far=replace(costs.far, latency_s=costs.far.latency_s + delay_s))
    return delay_s + simulate(schedule, nbytes, Cluster(costs, sizes)).seconds


def measure(comm: Any, nbytes: int, algorithms: list[str], rounds: int) -> dict[str, float] | None:
    """Median seconds of a call by algorithm; None if a sum was wrong. Collective."""
    import numpy as np

    x = comm.empty(nbytes // 4, np.float32)
    plans = {algorithm: comm.plan_all_reduce(x, algorithm=algorithm) for algorithm in algorithms}
    right = True
    calls = {}
    for algorithm, plan in plans.items():
        x[:] = comm.rank
        begin = time.perf_counter()
        plan()
        taken = np.array([time.perf_counter() - begin], np.float64)
        right = right and bool((x == comm.size * (comm.size - 1) / 2).all())
        x[:] = 0
        comm.all_reduce(taken, op="max")
        calls[algorithm] = max(1, min(50, int(CALL_S / taken[0])))
    means: dict[str, list[float]] = {algorithm: [] for algorithm in algorithms}
    for _ in range(rounds):
        for algorithm, plan in plans.items():
            plan()
            begin = time.perf_counter()
            for _ in range(calls[algorithm]):
                plan()
            mean = np.array([(time.perf_counter() - begin) / calls[algorithm]], np.float64)
            comm.all_reduce(mean, op="max")
            means[algorithm].append(float(mean[0]))
    wrong = np.array([not right], np.int32)
    comm.all_reduce(wrong, op="max")
    return None if wrong[0] else {algorithm: statistics.median(each) for algorithm, each in means.items()}


def draw(path: Path, rows: list[dict[str, Any]], algorithms: list[str], title: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    sizes = [row["bytes"] for row in rows]
    for number, algorithm in enumerate(algorithms):
        for kind, line in (("measured", "o-"), ("simulated", "--")):
            times = [row[f"{kind}_ms"][algorithm] for row in rows]
            axes.plot(sizes, times, f"C{number}{line}", label=f"{algorithm}, {kind}")
    axes.set(xscale="log", yscale="log", xlabel="bytes", ylabel="ms a call", title=title)
    axes.set_xscale("log", base=2)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path)


def main() -> int:
    arguments = arguments_of()
    rank, world = int(os.environ.get("RDMARING_RANK", "0")), int(os.environ.get("RDMARING_WORLD_SIZE", "1"))
    nodes = [each // arguments.nodes_of for each in range(world)]
    os.environ["RDMARING_HOST_ID"] = f"node-{nodes[rank]}"
    import rdmaring as rr
    from rdmaring.bench.sizes import parse_sizes
    from rdmaring.transport import Delaying

    algorithms = arguments.algorithms.split(",")
    delay_s = arguments.delay_ms / 1e3
    rows: list[dict[str, Any]] = []
    with rr.init(timeout_s=60, transport=Delaying(delay_s)) as comm:
        say = print if comm.rank == 0 else lambda *_, **__: None
        title = f"{world} ranks, {arguments.nodes_of} a node, {arguments.delay_ms:g} ms between nodes"
        say(f"# {title}; ms, measured (simulated)")
        say("# " + "bytes".rjust(9) + "".join(name.rjust(26) for name in algorithms) + "   ring / last")
        for nbytes in parse_sizes(arguments.sizes):
            measured = measure(comm, nbytes, algorithms, arguments.rounds)
            if measured is None:
                say(f"{nbytes} bytes: a sum is wrong", file=sys.stderr)
                return 1
            model = {name: simulated_s(name, nbytes, nodes, delay_s) for name in algorithms}
            times = "".join(f"{measured[name] * 1e3:14.2f} ({model[name] * 1e3:8.2f})".rjust(26) for name in algorithms)
            say(f"{nbytes:11}{times}{measured[algorithms[0]] / measured[algorithms[-1]]:10.2f}", flush=True)
            rows.append(
                {
                    "bytes": nbytes,
                    "measured_ms": {name: seconds * 1e3 for name, seconds in measured.items()},
                    "simulated_ms": {name: seconds * 1e3 for name, seconds in model.items()},
                }
            )
    if rank == 0 and arguments.json:
        document = {"ranks": world, "nodes_of": arguments.nodes_of, "delay_ms": arguments.delay_ms, "rows": rows}
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")
    if rank == 0 and arguments.picture:
        draw(arguments.picture, rows, algorithms, title)
    return 0


if __name__ == "__main__":
    sys.exit(main())
