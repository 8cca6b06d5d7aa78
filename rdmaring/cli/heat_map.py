"""The picture of ``rdmaring links --picture``: bandwidth from every rank to every other."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rdmaring.cli.picture import PictureError, check_picture
from rdmaring.diagnose.links.records import Report

__all__ = ["PictureError", "check_picture", "save"]

LABELLED_RANKS_MAX = 16  # above, figures in the cells cannot be read
DARK_BELOW = 0.55  # of the scale: there white figures are read better


def save(report: Report, path: Path) -> None:
    """Draw it. Slow edges have a frame."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    rates = np.full((report.world, report.world), np.nan)
    for edge in report.edges:
        rates[edge.source, edge.target] = edge.gb_s
    side = min(14.0, 3.5 + 0.55 * report.world)
    figure = Figure(figsize=(side + 1.5, side), layout="constrained")
    axes = figure.subplots()
    most = float(np.nanmax(rates))
    image = axes.imshow(rates, cmap="viridis", vmin=0.0, vmax=most)
    figure.colorbar(image, ax=axes, label="GB/s (10⁹ bytes)", shrink=0.8)
    if report.world <= LABELLED_RANKS_MAX:
        labels = [f"{member.rank}  {member.host}" for member in report.members]
        axes.set_xticks(range(report.world), [str(rank) for rank in range(report.world)])
        axes.set_yticks(range(report.world), labels)
        for edge in report.edges:
            colour = "white" if edge.gb_s < DARK_BELOW * most else "black"
            axes.text(edge.target, edge.source, f"{edge.gb_s:.3g}", ha="center", va="center", color=colour, fontsize=8)
    for slow in report.slow:
        for edge in report.edges:
            if slow.what == "edge":
                framed = (edge.source, edge.target) == (slow.source, slow.target)
            else:
                framed = (slow.direction != "receiving" and edge.source in slow.ranks) or (
                    slow.direction != "sending" and edge.target in slow.ranks
                )
            if framed:
                corner = (edge.target - 0.5, edge.source - 0.5)
                axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="red", linewidth=2))
    axes.set_xlabel("to rank")
    axes.set_ylabel("from rank")
    axes.set_title("\n".join(slow.text for slow in report.slow) or "no edge is slow against those like it", fontsize=9)
    figure.savefig(path, dpi=150)
