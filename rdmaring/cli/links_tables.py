"""What ``rdmaring links`` prints: matrices, the ring, the verdict; and its JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rdmaring.diagnose.links.records import Edge, Report, Ring

MATRIX_RANKS_MAX = 16  # above, the slowest edges are listed
LISTED_EDGES = 24
SLOW_STYLE, FINE_STYLE, TITLE_STYLE = "bold red", "", "bold"
WIDTH = 160  # of what is no terminal: nothing is folded there


def rate_text(gb_s: float) -> str:
    """Four digits or so."""
    return f"{gb_s:.{4 if gb_s < 1 else 3 if gb_s < 10 else 2 if gb_s < 100 else 1}f}"


def time_text(value_us: float) -> str:
    return f"{value_us:.{2 if value_us < 100 else 1 if value_us < 10000 else 0}f}"


def report_dict(report: Report) -> dict[str, Any]:
    """All that was found, for JSON, with the figures that follow from others."""
    document = asdict(report)
    document["wrong"] = report.wrong
    for edge, record in zip(document["edges"], report.edges, strict=True):
        edge["of_expected"] = record.of_expected
    for slow, found in zip(document["slow"], report.slow, strict=True):
        slow["ratio"] = found.ratio
    if report.ring is not None:
        for edge, carried in zip(document["ring"]["edges"], report.ring.edges, strict=True):
            edge["wait_us"], edge["busy"] = carried.wait_us, carried.busy
    document["setting"] = setting(report)
    return document


def as_json(report: Report) -> str:
    return json.dumps(report_dict(report), indent=2, allow_nan=False)


def setting(report: Report) -> str:
    """What makes a job use the best ring."""
    return f"RDMARING_RING_ORDER={','.join(map(str, report.best_order))}"


def show(report: Report, stream: TextIO, *, reorder: bool) -> None:
    """All of it, for reading."""
    console = Console(file=stream, highlight=False)
    if not console.is_terminal:
        console = Console(file=stream, highlight=False, width=WIDTH)

    def write(text: str, style: str = "") -> None:
        console.print(Text(text, style), soft_wrap=True)

    _show_head(report, write)
    slow = {(each.source, each.target) for each in report.slow if each.what == "edge"}
    bad = {rank for each in report.slow if each.what != "edge" for rank in each.ranks}

    def style(edge: Edge) -> str:
        named = (edge.source, edge.target) in slow or edge.source in bad or edge.target in bad
        return SLOW_STYLE if named else FINE_STYLE

    if report.world <= MATRIX_RANKS_MAX:
        write("bandwidth, GB/s, from row to column", TITLE_STYLE)
        console.print(_matrix(report, lambda edge: rate_text(edge.gb_s), style))
        write("latency, us, half a round trip", TITLE_STYLE)
        console.print(_matrix(report, lambda edge: time_text(edge.latency_us), style))
    else:
        write(f"the {LISTED_EDGES} slowest of {len(report.edges)} edges (--json has all)", TITLE_STYLE)
        console.print(_slowest_edges(report, style))
    _show_expected(report, write)
    if report.ring is not None:
        write(_ring_title(report.ring), TITLE_STYLE)
        console.print(_ring(report.ring))
    if reorder:
        _show_best(report, write)
    _show_verdict(report, write)


def _show_head(report: Report, write: Callable[..., None]) -> None:
    nodes = len({member.node for member in report.members})
    kinds: dict[str, int] = {}
    for edge in report.edges:
        kind = edge.transport + (f" over {edge.device}" if edge.device else "")
        kinds[kind] = kinds.get(kind, 0) + 1
    listed = "; ".join(f"{count} by {kind}" for kind, count in sorted(kinds.items()))
    write(f"# {report.world} ranks on {nodes} {'node' if nodes == 1 else 'nodes'}; edges: {listed}", "dim")
    write(f"# seed {report.seed}; {report.seconds:.1f} s; GB = 10^9 bytes", "dim")


def _matrix(report: Report, text: Callable[[Edge], str], style: Callable[[Edge], str]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("", justify="right", style="dim")
    for rank in range(report.world):
        table.add_column(f"-> {rank}", justify="right")
    table.add_column("host", style="dim")
    known = {(edge.source, edge.target): edge for edge in report.edges}
    for source in range(report.world):
        cells = [
            Text("-", "dim") if source == target else Text(text(edge), style(edge))
            for target in range(report.world)
            for edge in [known.get((source, target), report.edges[0])]
        ]
        table.add_row(str(source), *cells, report.members[source].host)
    return table


def _slowest_edges(report: Report, style: Callable[[Edge], str]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("from", "to", "GB/s", "latency us"):
        table.add_column(heading, justify="right")
    table.add_column("transport")
    for edge in sorted(report.edges, key=lambda edge: edge.gb_s)[:LISTED_EDGES]:
        cells = (str(edge.source), str(edge.target), rate_text(edge.gb_s), time_text(edge.latency_us), edge.transport)
        table.add_row(*cells, style=style(edge))
    return table


def _show_expected(report: Report, write: Callable[..., None]) -> None:
    """One line for each kind of device, not for each edge."""
    lines: dict[str, list[float]] = {}
    for edge in report.edges:
        if edge.transport != "shm":
            lines.setdefault(edge.expected.text, []).append(edge.of_expected or 0.0)
    for text, parts in lines.items():
        if max(parts) > 0:
            write(f"expected: {text}; measured {min(parts):.2f} to {max(parts):.2f} of it on {len(parts)} edges")
        else:
            write(f"expected: not known ({text})", "dim")


def _ring_title(ring: Ring) -> str:
    return (
        f"ring {' -> '.join(map(str, (*ring.order, ring.order[0])))}, all_reduce of {ring.nbytes} bytes: "
        f"{time_text(ring.elapsed_us)} us, busbw {rate_text(ring.busbw_gb_s)} GB/s"
    )


def _ring(ring: Ring) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("edge", "sent B", "transfer us", "wait us", "credit us", "receive us", "busy"):
        table.add_column(heading, justify="right")
    for edge in ring.edges:
        table.add_row(
            f"{edge.source} -> {edge.target}",
            str(edge.sent_bytes),
            time_text(edge.transfer_us),
            time_text(edge.wait_us),
            time_text(edge.credit_us),
            time_text(edge.receive_us),
            f"{edge.busy:.2f}",
            style="bold" if edge is ring.slowest else "",
        )
    return table


def _show_best(report: Report, write: Callable[..., None]) -> None:
    how = "the best there is" if report.best_is_exact else "the best that was found"
    before, after = rate_text(report.bottleneck_gb_s), rate_text(report.best_bottleneck_gb_s)
    if not report.best_is_worth:
        write(f"reorder: no ring is faster by 5 % or more; slowest edge now {before} GB/s, in {how} {after} GB/s")
        return
    write(f"reorder: {how} is {' -> '.join(map(str, report.best_order))}", "bold")
    write(f"reorder: its slowest edge {after} GB/s; now {before} GB/s")
    write(f"reorder: set {setting(report)}, or rr.init(reorder={list(report.best_order)})")


def _show_verdict(report: Report, write: Callable[..., None]) -> None:
    if report.wrong:
        write(f"WRONG: {report.wrong} bytes or elements did not arrive as they were sent", SLOW_STYLE)
        for edge in report.edges:
            if edge.wrong:
                write(f"  rank {edge.source} -> rank {edge.target}: {edge.wrong}", SLOW_STYLE)
    for note in report.not_judged:
        write(f"not judged: {note}", "dim")
    for each in report.slow:
        write(each.text, SLOW_STYLE)
        for line in each.evidence:
            write(f"  {line}")
    if not report.slow:
        write("no edge is slow against those like it")
