"""What `rdmaring links` prints, its JSON and its picture, of edges that were made up."""

from __future__ import annotations

import io
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from unit.links.made import edges_between, report_of

from rdmaring.cli import heat_map
from rdmaring.cli.links import _exit_code
from rdmaring.cli.links_tables import as_json, report_dict, setting, show
from rdmaring.diagnose.links.records import Report

SIX = list(range(6))


def slow_edge() -> Report:
    return report_of(SIX, edges_between(SIX, lambda a, b: 0.0125 if (a, b) == (2, 3) else 0.025))


def shown(report: Report, *, reorder: bool = False) -> str:
    stream = io.StringIO()
    show(report, stream, reorder=reorder)
    return stream.getvalue()


def test_matrices_ring_and_verdict_are_shown() -> None:
    text = shown(slow_edge())
    lines = [line.split() for line in text.splitlines()]
    assert ["2", "0.0250", "0.0250", "-", "0.0125", "0.0250", "0.0250", "host2"] in lines
    assert ["2", "40.00", "40.00", "-", "40.00", "40.00", "40.00", "host2"] in lines
    assert "# 6 ranks on 6 nodes; edges: 30 by tcp over eth0" in text
    assert "ring 0 -> 1 -> 2 -> 3 -> 4 -> 5 -> 0, all_reduce of 4194304 bytes" in text
    assert "edge rank 2 -> rank 3 (host2 -> host3, tcp) is slow: 0.0125 GB/s, 0.50 of the others" in text
    assert "expected: eth0 runs at 20000 Mbit/s; measured 0.01 to 0.01 of it on 30 edges" in text
    assert "reorder" not in text
    assert max(map(len, text.splitlines())) <= 160


def test_the_best_order_is_shown_on_demand_with_its_setting() -> None:
    report = slow_edge()
    text = shown(report, reorder=True)
    assert report.best_is_worth and (2, 3) not in list(zip(report.best_order, report.best_order[1:], strict=False))
    assert "its slowest edge 0.0250 GB/s; now 0.0125 GB/s" in text
    assert f"set {setting(report)}, or rr.init(reorder={list(report.best_order)})" in text
    even = shown(report_of(SIX, edges_between(SIX, lambda a, b: 0.025)), reorder=True)
    assert "no ring is faster by 5 % or more" in even and "RDMARING_RING_ORDER" not in even


def test_what_is_fine_is_said_and_what_is_wrong_too() -> None:
    fine = report_of(SIX, edges_between(SIX, lambda a, b: 0.025))
    assert "no edge is slow against those like it" in shown(fine)
    wrong = report_of(SIX, edges_between(SIX, lambda a, b: 0.025, wrong={(1, 4): 17}))
    assert "WRONG: 17 bytes or elements" in shown(wrong) and "rank 1 -> rank 4: 17" in shown(wrong)
    assert [_exit_code(report) for report in (fine, slow_edge(), wrong)] == [0, 3, 1]


def test_of_many_ranks_the_slowest_edges_are_listed() -> None:
    nodes = list(range(20))
    text = shown(report_of(nodes, edges_between(nodes, lambda a, b: 0.5 if (a, b) == (7, 11) else 1 + a / 100)))
    assert "the 24 slowest of 380 edges" in text
    assert ["7", "11", "0.5000", "40.00", "tcp"] in [line.split() for line in text.splitlines()]


def test_json_has_all_and_what_follows_from_it() -> None:
    report = slow_edge()
    document = json.loads(as_json(report))
    assert document == json.loads(json.dumps(report_dict(report)))
    (edge,) = [each for each in document["edges"] if (each["source"], each["target"]) == (2, 3)]
    assert (edge["gb_s"], edge["of_expected"], edge["wrong"]) == (0.0125, 0.005, 0)
    (slow,) = document["slow"]
    assert (slow["what"], slow["source"], slow["target"], slow["ratio"]) == ("edge", 2, 3, 0.5)
    busiest = max(document["ring"]["edges"], key=lambda each: each["busy"])
    assert (busiest["source"], busiest["target"], busiest["wait_us"]) == (2, 3, 0.0)
    assert document["setting"] == setting(report)
    assert len(document["members"]) == 6 and document["seed"] == 7


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_the_picture_is_of_its_kind(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"map.{kind}"
    heat_map.save(slow_edge(), path)
    begins = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    assert path.read_bytes().startswith(begins[kind])


def test_the_picture_frames_what_is_slow(tmp_path: Path) -> None:
    def frames(report: Report) -> int:
        path = tmp_path / "map.svg"
        heat_map.save(report, path)
        styles = [each.get("style", "") for each in ElementTree.parse(path).iter()]
        return sum("stroke: #ff0000" in style for style in styles)

    assert frames(slow_edge()) == 1
    assert frames(report_of(SIX, edges_between(SIX, lambda a, b: 0.5 if 4 in (a, b) else 1.0))) == 10
    assert frames(report_of(SIX, edges_between(SIX, lambda a, b: 0.5 if a == 4 else 1.0))) == 5
    assert frames(report_of(SIX, edges_between(SIX, lambda a, b: 1.0))) == 0
