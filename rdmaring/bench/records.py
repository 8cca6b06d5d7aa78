"""What was measured, as plain data, and the formulas for bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rdmaring.bench.cases import AUTO, PLACES, Case, Request

GB = 1e9  # bytes


def bus_factor(collective: str, world: int) -> float:
    """busbw / algbw: what makes the bandwidth comparable with a link's, whatever the algorithm.

    Of reduce_scatter, all_gather, gather and scatter it applies to the bytes of the whole vector, of all_to_all to
    what one rank gives, its own part among it; as nccl-tests has it.
    """
    if collective == "all_reduce":
        return 2 * (world - 1) / world
    if collective in ("reduce_scatter", "all_gather", "all_to_all", "gather", "scatter"):
        return (world - 1) / world
    return 1.0


@dataclass(frozen=True, slots=True)
class Cell:
    """One row's times in one placement; bandwidths are of the median.

    A sample is the slowest rank's mean over ``calls`` calls. p99 lies between the two samples next to it.
    wrong: elements on all ranks that were not as they should be. error_ulp: the largest error of an element on any
    rank (accuracy.py). None: not checked.
    """

    median_us: float
    min_us: float
    p99_us: float
    max_us: float
    samples: int
    calls: int  # of one sample
    algbw_gb_s: float
    busbw_gb_s: float
    wrong: int | None
    error_ulp: float | None


def make_cell(
    case: Case, world: int, samples_s: Sequence[float], calls: int, wrong: int | None, error_ulp: float | None
) -> Cell:
    """samples_s: seconds of one call, slowest rank, one value a sample."""
    times_us = np.asarray(samples_s, np.float64) * 1e6
    median_us = float(np.median(times_us))
    algbw = case.nbytes / (median_us * 1e-6) / GB
    return Cell(
        median_us=median_us,
        min_us=float(times_us.min()),
        p99_us=float(np.percentile(times_us, 99)),
        max_us=float(times_us.max()),
        samples=len(times_us),
        calls=calls,
        algbw_gb_s=algbw,
        busbw_gb_s=algbw * bus_factor(case.collective, world),
        wrong=wrong,
        error_ulp=error_ulp,
    )


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one call moved, counted by the ranks; bytes are payload, headers apart.

    sent, received: by each rank. links[s][d]: bytes that rank s sent to rank d.
    """

    steps: int
    sent: tuple[int, ...]
    received: tuple[int, ...]
    links: tuple[tuple[int, ...], ...]

    @property
    def busiest_rank(self) -> tuple[int, float]:
        """The rank that sent and received most, and its share of what all ranks sent and received."""
        both = [sent + received for sent, received in zip(self.sent, self.received, strict=True)]
        most = max(both)
        return both.index(most), most / (sum(both) or 1)

    @property
    def busiest_link(self) -> tuple[int, int, int]:
        """Sender, receiver and bytes of the link that carried most."""
        world = len(self.links)
        pairs = [(s, d) for s in range(world) for d in range(world)]
        sender, receiver = max(pairs, key=lambda pair: self.links[pair[0]][pair[1]])
        return sender, receiver, self.links[sender][receiver]


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the result. algorithm: what served it. cells: by placement."""

    case: Case
    world: int
    algorithm: str
    mailbox: bool
    cells: dict[str, Cell]
    traffic: Traffic

    @property
    def wrong(self) -> int:
        return sum(cell.wrong or 0 for cell in self.cells.values())


@dataclass(frozen=True, slots=True)
class Host:
    """The machine of rank 0."""

    cpu: str
    cpus: int
    simd: str
    kernel: str
    python: str


@dataclass(frozen=True, slots=True)
class Report:
    """All of one run. links: each kind of link among the ranks, in words."""

    version: str
    world: int
    request: Request
    host: Host
    links: tuple[str, ...]
    skipped: tuple[str, ...]
    lines: tuple[Line, ...]

    @property
    def wrong(self) -> int:
        return sum(line.wrong for line in self.lines)

    @property
    def average_busbw_gb_s(self) -> float:
        """The mean over all cells."""
        cells = [cell for line in self.lines for cell in line.cells.values()]
        return sum(cell.busbw_gb_s for cell in cells) / max(1, len(cells))


def report_dict(report: Report) -> dict[str, Any]:
    """The report for JSON. Times in us, bandwidths in GB/s (10^9), sizes in bytes."""
    return {
        "rdmaring": report.version,
        "world": report.world,
        "request": asdict(report.request),
        "host": asdict(report.host),
        "links": list(report.links),
        "skipped": list(report.skipped),
        "wrong": report.wrong if report.request.check else None,
        "average_busbw_gb_s": report.average_busbw_gb_s,
        "rows": [line_dict(line) for line in report.lines],
    }


def line_dict(line: Line) -> dict[str, Any]:
    """One row for JSON. A placement that was not measured is null."""
    case, traffic = line.case, line.traffic
    rank, share = traffic.busiest_rank
    sender, receiver, link_bytes = traffic.busiest_link
    return {
        "collective": case.collective,
        "size_bytes": case.nbytes,
        "count": case.count,
        "dtype": case.dtype.name,
        "op": case.op,
        "root": case.root,
        "asked_algorithm": case.algorithm or AUTO,
        "algorithm": line.algorithm,
        "mailbox": line.mailbox,
        **{place: asdict(line.cells[place]) if place in line.cells else None for place in PLACES},
        "steps": traffic.steps,
        "sent_bytes": list(traffic.sent),
        "received_bytes": list(traffic.received),
        "busiest_rank": {"rank": rank, "share": share},
        "busiest_link": {"sender": sender, "receiver": receiver, "bytes": link_bytes},
    }


def flat_dicts(line: Line) -> list[dict[str, Any]]:
    """One row as a record for each placement, for CSV."""
    shared = {key: value for key, value in line_dict(line).items() if not isinstance(value, (dict, list))}
    shared = {key: value for key, value in shared.items() if key not in PLACES}
    rank, share = line.traffic.busiest_rank
    sender, receiver, link_bytes = line.traffic.busiest_link
    counted = {
        "sent_bytes_max": max(line.traffic.sent),
        "sent_bytes_min": min(line.traffic.sent),
        "busiest_rank": rank,
        "busiest_rank_share": share,
        "busiest_link": f"{sender}->{receiver}",
        "busiest_link_bytes": link_bytes,
    }
    return [
        {"world": line.world, **shared, "place": place, **asdict(cell), **counted} for place, cell in line.cells.items()
    ]
