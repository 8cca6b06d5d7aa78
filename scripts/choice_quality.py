#!/usr/bin/env python3
"""How good the library's choice of an algorithm is: every candidate timed in turn, at 24 sizes from 8 B to 64 MiB.

    rdmaring run -n 8 scripts/choice_quality.py
    RDMARING_TUNING=t.json rdmaring run -n 8 scripts/choice_quality.py --json 8.json
    scripts/hosts --hosts 4 -- python scripts/choice_quality.py --delay-ms 1 --sizes 8:16M
    rdmaring run -n 4 scripts/choice_quality.py --delay-ms 1 --apart --save delayed.json

Of each cell it prints what was chosen, what was best, their ratio, how much the chosen one differs from itself, and
predicted / measured. Exit code: 0; 1 if fewer cells than asked for are good, or the model is further off.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import rdmaring as rr
from rdmaring.bench.quality import Cell, measure, summary
from rdmaring.bench.sizes import parse_sizes
from rdmaring.bench.tune import with_tables
from rdmaring.choice import time_text
from rdmaring.tuning.constants import Table
from rdmaring.tuning.file import save

# 8 B to 64 MiB: doubling has 24 sizes from 8 to 64 MiB.
SIZES = "8:64M"
GOOD, ERROR = 0.95, 0.25  # asked for


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collective", default="all_reduce", help="names between commas (default: all_reduce)")
    parser.add_argument("--sizes", default=SIZES, help=f"bytes of the vector (default: {SIZES}, 24 sizes)")
    parser.add_argument("--seconds", type=float, default=100, help="about how long to measure (default: 100)")
    parser.add_argument("--delay-ms", type=float, help="between nodes: TCP through the library's delaying transport")
    parser.add_argument("--apart", action="store_true", help="every rank a node of its own, on one machine")
    parser.add_argument("--per-node", type=int, help="so many neighbouring ranks a node, on one machine")
    parser.add_argument("--probe", action="store_true", help="choose by a probe's constants")
    parser.add_argument("--json", type=Path, help="write all cells there")
    parser.add_argument("--save", type=Path, help="write a tuning file of what was measured, with fitted constants")
    return parser.parse_args()


def show(cell: Cell) -> None:
    quickest_first = sorted(cell.times_s.items(), key=lambda each: each[1])
    times = "  ".join(f"{name} {time_text(seconds)}" for name, seconds in quickest_first)
    mark = " " if cell.good else "!"
    print(
        f"{mark} {cell.collective:<14}{cell.nbytes:>10}  {cell.chosen:<13}{cell.best:<13}{cell.ratio:6.2f}"
        f"{100 * cell.spread:8.1f} %{cell.predicted_s[cell.chosen] / cell.times_s[cell.chosen]:8.2f}   {times}",
        flush=True,
    )


def main() -> int:
    given = arguments()
    rank = int(os.environ.get("RDMARING_RANK", "0"))
    if given.apart or given.per_node:
        os.environ["RDMARING_HOST_ID"] = f"node-{rank // (given.per_node or 1)}"
    transport = None
    if given.delay_ms is not None:
        from rdmaring.transport.delaying import Delaying

        transport = Delaying(given.delay_ms / 1e3)
    with rr.init(transport=transport, probe=given.probe or None) as comm:
        if comm.rank == 0:
            print(f"# {comm.size} ranks on {comm.node_count} node(s); constants {comm._chooser.constants.source}")
            titles = f"{'chosen':<13}{'best':<13}{'ratio':>6}{'A/A':>10}{'p/m':>8}   times"
            print(f"# {'collective':<14}{'bytes':>10}  {titles}")
        cells = measure(
            comm, given.collective.split(","), parse_sizes(given.sizes), given.seconds, show if comm.rank == 0 else None
        )
        if comm.rank:
            return 0
        found = summary(cells)
        print(
            f"# {100 * found.good:.1f} % of {found.cells} cells within max(5 %, A/A) of the best "
            f"(asked: {100 * GOOD:.0f} %)\n"
            f"# predicted within {100 * found.error:.0f} % of measured in the median cell "
            f"(asked: {100 * ERROR:.0f} %); over all candidates within {100 * found.error_all:.0f} %; what the choice "
            f"went by, measured before where the tuning file has it, within {100 * found.error_expected:.0f} %"
        )
        if given.json:
            record = {"ranks": comm.size, "nodes": comm.node_count, "summary": asdict(found)}
            given.json.write_text(json.dumps({**record, "cells": [asdict(cell) for cell in cells]}, indent=1))
        if given.save:
            table = table_of(cells, comm._nodes)
            assert comm._facts is not None
            save(given.save, comm._facts.fingerprint, with_tables(comm._chooser.constants, [table]))
    return 0 if found.good >= GOOD and found.error <= ERROR and not found.wrong else 1


def table_of(cells: list[Cell], nodes: tuple[int, ...]) -> Table:
    times: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for cell in cells:
        for name, seconds in cell.times_s.items():
            times.setdefault((cell.collective, name), []).append((cell.nbytes, seconds))
    sizes = tuple(count for _, count in sorted(Counter(nodes).items()))
    return Table(sizes, {key: tuple(sorted(series)) for key, series in times.items()})


if __name__ == "__main__":
    sys.exit(main())
