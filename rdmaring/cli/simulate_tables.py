"""The tables of ``rdmaring simulate``, and its JSON document."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.table import Table

from rdmaring.bench.sizes import format_bytes
from rdmaring.schedule.cluster import Costs
from rdmaring.schedule.simulate_sweep import (
    CLOSED,
    ESTIMATE,
    EVENTS,
    SCALED,
    Cell,
    Crossing,
    Sweep,
    TextbookLine,
    crossings,
    fastest,
)

HEADS = {"hierarchical-ring": "hier-ring", "hierarchical": "hier"}


def time_text(seconds: float) -> str:
    """Three digits and a unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}" if seconds / size < 1000 else f"{seconds / size:.0f} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def cell_text(cell: Cell) -> str:
    """Its time; an estimate is marked."""
    return f"{'~' if cell.method == ESTIMATE else ''}{time_text(cell.seconds)}"


def methods_text(cells: Sequence[Cell]) -> str:
    """By what the times were found."""
    methods = {cell.method for cell in cells}
    return ", ".join(method for method in (CLOSED, EVENTS, SCALED, ESTIMATE) if method in methods)


def per_world(cells: Sequence[Cell], algorithms: Sequence[str], world: int) -> Table:
    """Sizes down, algorithms across: times, the fastest marked, and what share of the bound it reaches."""
    of_world = [cell for cell in cells if cell.ranks == world]
    nodes = of_world[0].nodes
    return _times(f"{world} ranks on {nodes} node{'s' * (nodes > 1)}", "bytes", of_world, algorithms)


def per_size(cells: Sequence[Cell], algorithms: Sequence[str], nbytes: int) -> Table:
    """Worlds down, algorithms across."""
    return _times(format_bytes(nbytes), "ranks", [cell for cell in cells if cell.nbytes == nbytes], algorithms)


def _times(title: str, head: str, cells: Sequence[Cell], algorithms: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column(head, justify="right")
    for algorithm in algorithms:
        table.add_column(HEADS.get(algorithm, algorithm), justify="right")
    table.add_column("% of bound", justify="right")
    times = {(cell.ranks, cell.nbytes, cell.algorithm): cell for cell in cells}
    for (ranks, nbytes), best in sorted(fastest(cells).items()):
        row = [times[ranks, nbytes, each] for each in algorithms]
        marks = [("[bold green]", "[/]") if cell.algorithm == best.algorithm else ("", "") for cell in row]
        texts = [f"{mark}{cell_text(cell)}{end}" for cell, (mark, end) in zip(row, marks, strict=True)]
        place = format_bytes(nbytes) if head == "bytes" else str(ranks)
        table.add_row(place, *texts, f"{100 * best.share:.3g}")
    return table


def map_of_fastest(cells: Sequence[Cell]) -> Table:
    """Sizes down, worlds across: who is the fastest."""
    best = fastest(cells)
    worlds = sorted({ranks for ranks, _ in best})
    table = Table(title="the fastest, by ranks", title_justify="left", box=None, pad_edge=False)
    table.add_column("bytes", justify="right")
    for world in worlds:
        table.add_column(str(world))
    for nbytes in sorted({size for _, size in best}):
        names = (best[world, nbytes].algorithm for world in worlds)
        table.add_row(format_bytes(nbytes), *(HEADS.get(name, name) for name in names))
    return table


def crossing_lines(found: Sequence[Crossing]) -> list[str]:
    """One line a world: ``8 ranks: direct, from 1.2 MiB ring``."""
    by_world: dict[int, list[Crossing]] = {}
    for crossing in found:
        by_world.setdefault(crossing.ranks, []).append(crossing)
    lines = []
    for world, each in sorted(by_world.items()):
        parts = [each[0].before, *(f"from {format_bytes(one.nbytes)} {one.after}" for one in each)]
        lines.append(f"{world} ranks: {', '.join(parts)}")
    return lines


def textbook_table(lines: Sequence[TextbookLine], nbytes: int) -> Table:
    """naive beside ring."""
    size = format_bytes(nbytes)
    table = Table(
        title=f"all_reduce of {size}: why rings. Bytes in vectors", title_justify="left", box=None, pad_edge=False
    )
    heads = (
        "ranks",
        "naive: root sends",
        "steps",
        "time",
        "ring: each sends",
        "steps",
        "time",
        "ring faster by",
        "from",
    )
    for head in heads:
        table.add_column(head, justify="right")
    for line in lines:
        table.add_row(
            str(line.ranks),
            f"{line.naive_root:g}",
            str(line.naive_steps),
            time_text(line.naive_seconds),
            f"{line.ring_rank:.4g}",
            str(line.ring_steps),
            time_text(line.ring_seconds),
            f"{line.naive_seconds / line.ring_seconds:.3g}",
            "rows" if line.counted else "formula",
        )
    return table


def costs_text(costs: Costs) -> str:
    """The constants in one line."""
    near, far = (
        f"{time_text(level.latency_s)} and {1e-9 / level.s_per_byte if level.s_per_byte else float('inf'):.4g} GB/s"
        for level in (costs.near, costs.far)
    )
    more = f", {costs.rails} rails" if costs.rails > 1 else ""
    more += f", oversubscribed {costs.oversubscription:g}" if costs.oversubscription > 1 else ""
    more += f", {costs.processors_per_node} processors a node" if costs.processors_per_node else ""
    return f"in a node {near}, between nodes {far}{more}"


def document(sweep: Sweep, cells: Sequence[Cell], source: str, lines: Sequence[TextbookLine]) -> str:
    """One JSON document: what was asked, every cell, crossings, the fastest."""
    slow = sweep.disturbed
    return json.dumps(
        {
            "collective": sweep.collective,
            "algorithms": list(sweep.algorithms),
            "ranks_per_node": sweep.per_node,
            "channels": sweep.channels,
            "costs": asdict(sweep.costs),
            "costs_from": source,
            "slow_links": [[*link, factor] for link, factor in slow.slow_links.items()] if slow else [],
            "stragglers": [list(each) for each in slow.stragglers.items()] if slow else [],
            "jitter": slow.jitter if slow else 0.0,
            "seed": slow.seed if slow else None,
            "method": methods_text(cells),
            "cells": [asdict(cell) for cell in cells],
            "crossings": [asdict(crossing) for crossing in crossings(cells)],
            "textbook": [asdict(line) for line in lines],
        },
        indent=1,
    )
