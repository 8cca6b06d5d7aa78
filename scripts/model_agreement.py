#!/usr/bin/env python3
"""The table of docs/SIMULATE.md: how far closed forms are from the simulator, by algorithm.

    scripts/model_agreement.py                    some minutes: 2 to 64 ranks, 1 to 8 a node or all, 8 B to 1 GiB
    scripts/model_agreement.py --cells 100        of each algorithm, drawn by --seed
    scripts/model_agreement.py --algorithm tree

Columns: cells compared; of these, where the form claims to hold, and the worst there; the worst, and the median, of
what are estimates elsewhere. Exit code 1 if a form that claims to hold is further off than it may be.
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
    for ranks in (2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17, 24, 31, 32, 33, 48, 64)
    for per_node in (1, 2, 4, 8, 64)
]
SIZES = [8 << step for step in range(0, 28, 3)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=150, help="of each algorithm (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--algorithm", default="", help="only those with this in collective/algorithm")
    given = parser.parse_args()
    print(f"# seed {given.seed}, {given.cells} cells each; deviations in percent")
    print(f"{'':32}{'cells':>6}{'held':>6}{'worst':>8}   {'estimates':>10}{'median':>8}")
    worst = 0.0
    for collective, algorithm in sorted(ALGORITHMS):
        if given.algorithm not in f"{collective}/{algorithm}":
            continue
        draw = random.Random(f"{given.seed}/{collective}/{algorithm}")
        cells: list[Compared] = []
        for _ in range(given.cells):
            shape, nbytes, cluster = draw.choice(SHAPES), draw.choice(SIZES), draw.choice(list(CLUSTERS))
            cells += compared(collective, algorithm, [shape], [nbytes], [cluster])
        held = [abs(cell.deviation) for cell in cells if cell.why is None]
        others = [abs(cell.deviation) for cell in cells if cell.why is not None]
        texts = [f"{100 * max(held):.1f}" if held else "-"]
        texts += [f"{100 * max(others):.0f}", f"{100 * statistics.median(others):.1f}"] if others else ["-", "-"]
        name = f"{collective} {algorithm}"
        print(f"{name:32}{len(cells):6}{len(held):6}{texts[0]:>8}   {texts[1]:>10}{texts[2]:>8}", flush=True)
        worst = max([worst, *held])
        for cell in cells:
            if cell.why is None and abs(cell.deviation) > AGREEMENT:
                print(f"  {cell}")
    return int(worst > AGREEMENT)


if __name__ == "__main__":
    sys.exit(main())
