#!/usr/bin/env python3
"""The table of docs/SIMULATE.md: how far predictions are from the simulator, by algorithm.

    scripts/model_agreement.py                    some minutes: 2 to 128 ranks, 1 to 64 a node or all, 8 B to 1 GiB
    scripts/model_agreement.py --cells 100        of each algorithm, drawn by --seed
    scripts/model_agreement.py --algorithm tree

Columns: cells compared; of these, where the closed form claims to hold, and the worst there; where it does not and
smaller worlds tell the time, and the worst there; and of the rest, which are estimates unless the world itself is small
enough to be simulated, how many, the worst and the median. Exit code 1 if what claims to hold is more than 2 % off.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys

from rdmaring.schedule import ALGORITHMS
from rdmaring.schedule.cost_range import AGREEMENT
from rdmaring.schedule.simulate_agreement import CLUSTERS, Compared, compared

SHAPES = [
    (ranks, min(per_node, ranks))
    for ranks in (2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17, 24, 31, 32, 33, 48, 64, 72, 96, 128)
    for per_node in (1, 2, 4, 8, 32, 128)
]
SIZES = [8 << step for step in range(0, 28, 3)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=150, help="of each algorithm (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--algorithm", default="", help="only those with this in collective/algorithm")
    given = parser.parse_args()
    print(f"# seed {given.seed}, {given.cells} cells each; deviations in percent")
    print(f"{'':32}{'cells':>6}{'held':>6}{'worst':>8}{'scaled':>8}{'worst':>8}{'others':>8}{'worst':>8}{'median':>8}")
    worst = 0.0
    for collective, algorithm in sorted(ALGORITHMS):
        if given.algorithm not in f"{collective}/{algorithm}":
            continue
        draw = random.Random(f"{given.seed}/{collective}/{algorithm}")
        cells: list[Compared] = []
        for _ in range(given.cells):
            shape, nbytes, cluster = draw.choice(SHAPES), draw.choice(SIZES), draw.choice(list(CLUSTERS))
            cells += compared(collective, algorithm, [shape], [nbytes], [cluster], scaled_too=True)
        held = [abs(cell.deviation) for cell in cells if cell.why is None]
        scaled = [abs(cell.scaled) for cell in cells if cell.scaled is not None]
        others = [abs(cell.deviation) for cell in cells if cell.why is not None and cell.scaled is None]
        text = f"{collective + ' ' + algorithm:32}{len(cells):6}"
        for kind in (held, scaled, others):
            text += f"{len(kind):{6 if kind is held else 8}}{f'{100 * max(kind):.1f}' if kind else '-':>8}"
        print(f"{text}{f'{100 * statistics.median(others):.1f}' if others else '-':>8}", flush=True)
        worst = max([worst, *held, *scaled])
        for cell in cells:
            if (cell.why is None and abs(cell.deviation) > AGREEMENT) or abs(cell.scaled or 0.0) > AGREEMENT:
                print(f"  {cell}")
    return int(worst > AGREEMENT)


if __name__ == "__main__":
    sys.exit(main())
