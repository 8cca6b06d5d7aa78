"""The picture of ``rdmaring simulate --plot``: time against bytes, and against ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rdmaring.bench.sizes import format_bytes
from rdmaring.schedule.simulate_sweep import Cell, Sweep, crossings

LABELS_MAX = 12  # along an axis


def save_picture(sweep: Sweep, cells: Sequence[Cell], path: Path) -> None:
    """One part for each axis that has more than one value: by bytes at the largest world, by ranks at a middle size."""
    from matplotlib.figure import Figure

    by_bytes, by_ranks = len(sweep.sizes) > 1, len(sweep.worlds) > 1
    parts = max(1, by_bytes + by_ranks)
    figure = Figure(figsize=(7.5 * parts, 5.5), layout="constrained")
    axes = figure.subplots(1, parts, squeeze=False)[0]
    if by_bytes or not by_ranks:
        _by_bytes(axes[0], sweep, cells, max(sweep.worlds))
    if by_ranks:
        _by_ranks(axes[-1], sweep, cells, sorted(sweep.sizes)[len(sweep.sizes) // 2])
    figure.savefig(path, dpi=150)


def _by_bytes(axes: Any, sweep: Sweep, cells: Sequence[Cell], world: int) -> None:
    sizes = sorted(sweep.sizes)
    shown = [cell for cell in cells if cell.ranks == world]
    for algorithm in sweep.algorithms:
        times = {cell.nbytes: cell.seconds for cell in shown if cell.algorithm == algorithm}
        axes.plot(sizes, [times[size] for size in sizes], marker="o", markersize=3, label=algorithm)
    shape = shown[0]
    plural = "s" * (shape.nodes > 1)
    least = [
        cell.share * cell.seconds
        for cell in sorted(shown, key=lambda cell: cell.nbytes)
        if cell.algorithm == sweep.algorithms[0]
    ]
    axes.plot(sizes, least, "k:", label="bound")
    for crossing in crossings(shown):
        axes.axvline(crossing.nbytes, color="0.7", linewidth=0.8)
        text = f" {format_bytes(crossing.nbytes)}"
        axes.text(crossing.nbytes, 0.01, text, rotation=90, fontsize=7, transform=axes.get_xaxis_transform())
    labels = sizes[:: -(-len(sizes) // LABELS_MAX)]
    axes.set_xscale("log", base=2)
    axes.set_xticks(labels, [format_bytes(size) for size in labels], rotation=30, ha="right")
    _finish(axes, "size of the vector", f"{sweep.collective}, {world} ranks on {shape.nodes} node{plural}")


def _by_ranks(axes: Any, sweep: Sweep, cells: Sequence[Cell], nbytes: int) -> None:
    worlds = sorted(sweep.worlds)
    shown = [cell for cell in cells if cell.nbytes == nbytes]
    for algorithm in sweep.algorithms:
        times = {cell.ranks: cell.seconds for cell in shown if cell.algorithm == algorithm}
        axes.plot(worlds, [times[world] for world in worlds], marker="o", markersize=3, label=algorithm)
    axes.set_xscale("log", base=2)
    labels = worlds[:: -(-len(worlds) // LABELS_MAX)]
    axes.set_xticks(labels, [str(world) for world in labels], rotation=30, ha="right")
    _finish(axes, "ranks", f"{sweep.collective} of {format_bytes(nbytes)}, {sweep.per_node} ranks a node")


def _finish(axes: Any, x_label: str, title: str) -> None:
    axes.minorticks_off()
    axes.set_yscale("log")
    axes.set_xlabel(x_label)
    axes.set_ylabel("predicted time (s)")
    axes.set_title(title, fontsize=11)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
