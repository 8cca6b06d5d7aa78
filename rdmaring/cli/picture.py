"""The picture of ``rdmaring bench --plot``: busbw against size."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from rdmaring.bench.cases import PLACES
from rdmaring.bench.records import Line, Report
from rdmaring.bench.sizes import format_bytes

INSTALL = "pip install 'rdmaring[plot]'"
KINDS = (".png", ".svg", ".pdf")
LABELS_MAX = 14  # along the axis of sizes
LINE_STYLE = {"out_of_place": "-", "in_place": "--"}


class PictureError(Exception):
    """No picture can be drawn to that file; the message says why."""


def check_picture(path: Path) -> None:
    """Before anything is measured, and without the seconds that importing matplotlib takes.

    Raises:
        PictureError: matplotlib is missing, or the file's kind is not served.
    """
    if path.suffix.lower() not in KINDS:
        raise PictureError(f"{str(path)!r} names no kind of picture; accepted are {', '.join(KINDS)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise PictureError(f"a picture needs matplotlib; install it by: {INSTALL}")


def curves(report: Report) -> dict[tuple[str, str], list[Line]]:
    """The lines of the picture: (label, placement) -> rows by size.

    A label holds what is not the same in all rows.
    """

    def parts(line: Line) -> tuple[str, ...]:
        asked = line.case.algorithm or "auto"
        return line.case.collective, asked, line.case.dtype.name, line.case.op or ""

    every = [parts(line) for line in report.lines]
    differs = [len({each[part] for each in every}) > 1 for part in range(4)]
    differs[1] = True
    found: dict[tuple[str, str], list[Line]] = {}
    for line, words in zip(report.lines, every, strict=True):
        label = " ".join(word for word, shown in zip(words, differs, strict=True) if shown and word)
        for place in PLACES:
            if place in line.cells:
                found.setdefault((label, place), []).append(line)
    for lines in found.values():
        lines.sort(key=lambda line: line.case.nbytes)
    return found


def save_picture(report: Report, path: Path) -> None:
    """Draw it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.subplots()
    drawn = curves(report)
    labels = list(dict.fromkeys(label for label, _ in drawn))
    several_places = len({place for _, place in drawn}) > 1
    for (label, place), lines in drawn.items():
        axes.plot(
            [line.case.nbytes for line in lines],
            [line.cells[place].busbw_gb_s for line in lines],
            LINE_STYLE[place],
            color=f"C{labels.index(label) % 10}",
            marker="o",
            markersize=3.5,
            label=f"{label}, {place.replace('_', '-')}" if several_places else label,
        )
    sizes = sorted({line.case.nbytes for line in report.lines})
    axes.set_xscale("log", base=2)
    shown = sizes[:: -(-len(sizes) // LABELS_MAX)]
    axes.set_xticks(shown, [format_bytes(size) for size in shown], rotation=30, ha="right")
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("size of the vector")
    axes.set_ylabel("busbw (GB/s, 10⁹ bytes)")
    axes.set_title(_title(report), fontsize=11)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)


def _title(report: Report) -> str:
    case = report.lines[0].case
    collectives = ", ".join(report.request.collectives)
    dtypes = case.dtype.name if len(report.request.dtypes) == 1 else ""
    way = "plans" if report.request.plan else "calls"
    memory = "registered" if report.request.registered else "ordinary"
    words = [f"{collectives}, {report.world} ranks", dtypes, f"{way} on {memory} memory", report.host.cpu]
    return "\n".join((", ".join(word for word in words[:3] if word), words[3]))
