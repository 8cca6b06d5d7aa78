"""The table of ``rdmaring bench``, line by line as it is measured, and its other forms: JSON, CSV."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

from rich.console import Console
from rich.text import Text

from rdmaring.bench.cases import PLACES, Request
from rdmaring.bench.records import Cell, Host, Line, Report, flat_dicts, report_dict


class Column(NamedTuple):
    """Title, unit and width in characters of a column, and how it is filled."""

    title: str
    unit: str
    width: int
    text: Callable[[Line], str]


def time_text(value_us: float) -> str:
    """Four digits or so."""
    return f"{value_us:.{2 if value_us < 100 else 1 if value_us < 10000 else 0}f}"


def bandwidth_text(value_gb_s: float) -> str:
    return f"{value_gb_s:.{3 if value_gb_s < 10 else 2 if value_gb_s < 100 else 1}f}"


def ulp_text(error_ulp: float) -> str:
    """Two decimals; of an exact result none."""
    return "0" if error_ulp == 0 else f"{error_ulp:.2f}" if error_ulp < 1000 else f"{error_ulp:.0e}"


def sent_text(sent: Sequence[int]) -> str:
    """Bytes sent by each rank: one number where all sent the same."""
    least, most = min(sent), max(sent)
    return str(most) if least == most else f"{least}..{most}"


CASE_COLUMNS = (
    Column("size", "(B)", 12, lambda line: str(line.case.nbytes)),
    Column("count", "(elements)", 12, lambda line: str(line.case.count)),
    Column("type", "", 9, lambda line: line.case.dtype.name),
    Column("redop", "", 6, lambda line: line.case.op or "none"),
    Column("root", "", 5, lambda line: str(-1 if line.case.root is None else line.case.root)),
)
ALGORITHM_COLUMN = Column("algorithm", "", 10, lambda line: line.algorithm)
TRAFFIC_COLUMNS = (
    Column("steps", "", 6, lambda line: str(line.traffic.steps)),
    Column("sent/rank", "(B)", 22, lambda line: sent_text(line.traffic.sent)),
    Column("rank", "busiest", 8, lambda line: str(line.traffic.busiest_rank[0])),
    Column("share", "(%)", 6, lambda line: f"{100 * line.traffic.busiest_rank[1]:.1f}"),
    Column("link", "busiest", 8, lambda line: "{}->{}".format(*line.traffic.busiest_link[:2])),
    Column("carried", "(B)", 11, lambda line: str(line.traffic.busiest_link[2])),
)


def cell_columns(place: str, all_times: bool) -> list[Column]:
    """The columns of one placement; "-" where it was not measured."""

    def column(title: str, unit: str, width: int, text: Callable[[Cell], str]) -> Column:
        def fill(line: Line) -> str:
            cell = line.cells.get(place)
            return "-" if cell is None else text(cell)

        return Column(title, unit, width, fill)

    times = [column("time", "(us)", 10, lambda cell: time_text(cell.median_us))]
    if all_times:
        times.append(column("min", "(us)", 9, lambda cell: time_text(cell.min_us)))
        times.append(column("p99", "(us)", 9, lambda cell: time_text(cell.p99_us)))
    return [
        *times,
        column("algbw", "(GB/s)", 8, lambda cell: bandwidth_text(cell.algbw_gb_s)),
        column("busbw", "(GB/s)", 8, lambda cell: bandwidth_text(cell.busbw_gb_s)),
        column("#wrong", "", 7, lambda cell: "N/A" if cell.wrong is None else str(cell.wrong)),
        column("error", "(ulp)", 7, lambda cell: "N/A" if cell.error_ulp is None else ulp_text(cell.error_ulp)),
    ]


def opening_lines(request: Request, world: int, host: Host, links: Sequence[str], skipped: Sequence[str]) -> list[str]:
    """Where and how it is measured."""
    way = "persistent plans" if request.plan else "blocking calls"
    memory = "registered" if request.registered else "ordinary"
    batch = f"{request.batch} calls" if request.batch else "as many calls as take about 1 ms"
    channels = f" in {request.channels} channels" if (request.channels or 1) > 1 else ""
    return [
        f"# {world} {'rank' if world == 1 else 'ranks'}; {host.cpu}, {host.cpus} CPUs, {host.simd}",
        *(f"# links: {kind}" for kind in links),
        f"# {way} on {memory} memory{channels}; time: median of {request.samples} samples, "
        f"each the slowest rank's mean over {batch}; GB = 10^9 bytes",
        *(f"# left out: {why}" for why in skipped),
    ]


def verdict_line(wrong: int, request: Request) -> str:
    found = f"{wrong} FAILED" if wrong else "0 OK"
    return f"# Wrong elements : {found if request.check else 'not checked'}"


class BenchTable:
    """Columns as nccl-tests prints them; comments begin with #.

    The algorithm stands behind them; where several are compared, what they moved, too.
    """

    def __init__(self, request: Request, *, all_times: bool = False) -> None:
        self._request = request
        self._groups = [(place, cell_columns(place, all_times)) for place in PLACES if place in request.places]
        self._columns = [*CASE_COLUMNS, *(column for _, group in self._groups for column in group)]
        self._columns.append(ALGORITHM_COLUMN)
        if len(request.algorithms) > 1:
            self._columns += TRAFFIC_COLUMNS

    def heading(self, collective: str) -> list[str]:
        """The three lines above a collective's rows."""
        groups = " " * sum(column.width for column in CASE_COLUMNS)
        for place, group in self._groups:
            groups += place.replace("_", "-").center(sum(column.width for column in group))
        return [
            f"#\n# {collective}",
            f"#{groups[1:]}".rstrip(),
            "#" + "".join(column.title.rjust(column.width) for column in self._columns)[1:],
            "#" + "".join(column.unit.rjust(column.width) for column in self._columns)[1:].rstrip(),
        ]

    def row(self, line: Line) -> str:
        return "".join(f" {column.text(line)}".rjust(column.width) for column in self._columns)

    def closing(self, report: Report) -> list[str]:
        """The verdict."""
        return [
            verdict_line(report.wrong, self._request),
            f"# Average busbw  : {bandwidth_text(report.average_busbw_gb_s)} GB/s",
        ]


def printer(stream: TextIO) -> Callable[[str, str], None]:
    """print(text, style) to a terminal in colour, elsewhere plain."""
    console = Console(file=stream, highlight=False)

    def write(text: str, style: str = "") -> None:
        console.print(Text(text, style), soft_wrap=True)

    return write


def as_json(report: Report) -> str:
    return json.dumps(report_dict(report), indent=2, allow_nan=False)


def save_csv(report: Report, path: Path) -> None:
    """One record for each row and placement."""
    records = [record for line in report.lines for record in flat_dicts(line)]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(records[0]))
        writer.writeheader()
        writer.writerows(records)
