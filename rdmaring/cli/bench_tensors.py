"""``rdmaring bench --tensors``: many arrays as one list beside a call for each."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import NamedTuple

import click

from rdmaring.bench.cases import Cases, Request
from rdmaring.bench.measure import host, links
from rdmaring.bench.tensors import TensorLine, measure, tensor_dict
from rdmaring.cli.tables import opening_lines, printer, time_text, ulp_text, verdict_line
from rdmaring.communicator import Communicator


class Column(NamedTuple):
    """Title, unit and width in characters of a column, and how it is filled."""

    title: str
    unit: str
    width: int
    text: Callable[[TensorLine], str]


COLUMNS = (
    Column("size", "(B)", 12, lambda line: str(line.case.nbytes)),
    Column("tensors", "", 9, lambda line: str(line.tensors)),
    Column("type", "", 9, lambda line: line.case.dtype.name),
    Column("redop", "", 6, lambda line: str(line.case.op)),
    Column("one by one", "(us)", 12, lambda line: time_text(line.times_us["one_by_one"])),
    Column("list", "(us)", 11, lambda line: time_text(line.times_us["list"])),
    Column("new list", "(us)", 11, lambda line: time_text(line.times_us["new_list"])),
    Column("plan", "(us)", 11, lambda line: time_text(line.times_us["plan"])),
    Column("one array", "(us)", 11, lambda line: time_text(line.times_us["one_array"])),
    Column("faster", "list", 8, lambda line: f"{line.faster:.2f}"),
    Column("#wrong", "", 8, lambda line: "N/A" if line.wrong is None else str(line.wrong)),
    Column("error", "(ulp)", 8, lambda line: "N/A" if line.error_ulp is None else ulp_text(line.error_ulp)),
    Column("algorithm", "", 14, lambda line: line.algorithm),
)


def row(line: TensorLine) -> str:
    return "".join(column.text(line).rjust(column.width) for column in COLUMNS)


def heading() -> list[str]:
    titles = "".join(column.title.rjust(column.width) for column in COLUMNS)
    units = "".join(column.unit.rjust(column.width) for column in COLUMNS)
    return [f"#{titles[1:]}", f"#{units[1:]}".rstrip()]


def show_tensors(comm: Communicator, request: Request, cases: Cases, *, as_json: bool) -> int:
    """Measures on every rank, and shows on rank 0. Returns the exit code."""
    if comm.rank or as_json:
        report = measure(comm, request, cases)
        if comm.rank == 0:
            click.echo(json.dumps(tensor_dict(report), indent=2, allow_nan=False))
        return 1 if report.wrong else 0
    write = printer(sys.stdout)
    write("\n".join(opening_lines(request, comm.size, host(), links(comm), cases.skipped)), "dim")
    write("\n".join(heading()), "bold")
    report = measure(comm, request, cases, lambda line: write(row(line), "bold red" if line.wrong else ""))
    write(verdict_line(report.wrong, request), "bold red" if report.wrong else "bold")
    return 1 if report.wrong else 0
