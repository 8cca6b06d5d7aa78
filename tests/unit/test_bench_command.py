"""`rdmaring bench` as a user meets it: table, JSON, CSV, picture, exit codes."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rdmaring as rr
from rdmaring.bench.cases import IN_PLACE, OUT_OF_PLACE, Request, make_cases, make_request
from rdmaring.bench.measure import Bench
from rdmaring.bench.records import report_dict
from rdmaring.cli.main import cli
from rdmaring.cli.picture import PictureError, check_picture, curves, save_picture
from rdmaring.cli.tables import BenchTable, as_json, printer, save_csv


@pytest.fixture
def comm() -> Iterator[Any]:
    with rr.init(0, 1, "127.0.0.1:1") as made:
        yield made


def quick(**given: Any) -> Request:
    return make_request(**{"samples": 3, "warmup": 1, "batch": 2, **given})


@pytest.fixture
def report(comm: Any) -> Any:
    request = quick(algorithms="ring,naive,auto", dtypes="float32,int8", sizes="8,64,4K")
    return Bench(comm, request, make_cases(request, 1)).run()


def test_columns_stand_as_in_nccl_tests(report: Any) -> None:
    table = BenchTable(Request())
    titles = table.heading("all_reduce")[2].lstrip("#").split()
    group = ["time", "algbw", "busbw", "#wrong", "error"]
    assert titles == ["size", "count", "type", "redop", "root", *group, *group, "algorithm"]
    row = table.row(report.lines[0]).split()
    assert row[:5] == ["8", "2", "float32", "sum", "-1"]
    assert len(row) == len(titles)
    assert (row[8], row[9], row[13], row[14], row[15]) == ("0", "0", "0", "0", "ring")
    assert float(row[5]) == pytest.approx(report.lines[0].cells[OUT_OF_PLACE].median_us, abs=0.06)


def test_headings_stand_above_their_columns(report: Any) -> None:
    for request in (Request(), Request(algorithms=("ring", "naive"), places=(IN_PLACE,))):
        for all_times in (False, True):
            table = BenchTable(request, all_times=all_times)
            titles, row = table.heading("all_reduce")[2], table.row(report.lines[0])
            assert len(titles) == len(row)
            assert [c.isspace() for c in titles][-1] is False and not row[-1].isspace()
            assert len(titles.lstrip("#").split()) == len(row.split())


def test_several_algorithms_show_what_they_moved() -> None:
    titles = BenchTable(Request(algorithms=("ring", "naive"))).heading("all_reduce")[2].split()
    assert titles[-7:] == ["algorithm", "steps", "sent/rank", "rank", "share", "link", "carried"]


def test_a_placement_that_was_not_measured_is_a_dash(comm: Any) -> None:
    request = quick(collectives="broadcast", sizes="8")
    (line,) = Bench(comm, request, make_cases(request, 1)).run().lines
    assert BenchTable(request).row(line).split()[5:10] == ["-"] * 5
    assert report_dict(Bench(comm, request, make_cases(request, 1)).run())["rows"][0]["out_of_place"] is None


def test_text_goes_to_a_file_without_colour_and_unbroken() -> None:
    stream = io.StringIO()
    printer(stream)("x" * 300 + " [bold] :smile:", "red")
    assert stream.getvalue() == "x" * 300 + " [bold] :smile:\n"


def test_json_and_csv_hold_every_row(report: Any, tmp_path: Path) -> None:
    document = json.loads(as_json(report))
    assert document["world"] == 1 and document["wrong"] == 0
    assert len(document["rows"]) == len(report.lines) == 18
    row = document["rows"][0]
    assert row["size_bytes"] == 8 and row["dtype"] == "float32" and row["asked_algorithm"] == "ring"
    assert set(row["in_place"]) == {
        "median_us", "min_us", "p99_us", "max_us", "samples", "calls", "algbw_gb_s", "busbw_gb_s", "wrong",
        "error_ulp",
    }  # fmt: skip
    save_csv(report, tmp_path / "rows.csv")
    with (tmp_path / "rows.csv").open(newline="") as file:
        records = list(csv.DictReader(file))
    assert len(records) == 2 * len(report.lines)
    assert {record["place"] for record in records} == {IN_PLACE, OUT_OF_PLACE}
    assert float(records[0]["median_us"]) == row["out_of_place"]["median_us"]


def test_the_picture_has_a_curve_for_each_algorithm_and_dtype(report: Any, tmp_path: Path) -> None:
    drawn = curves(report)
    assert set(drawn) == {
        (f"{algorithm} {dtype}", place)
        for algorithm in ("ring", "naive", "auto")
        for dtype in ("float32", "int8")
        for place in (IN_PLACE, OUT_OF_PLACE)
    }
    assert all([line.case.nbytes for line in lines] == [8, 64, 4096] for lines in drawn.values())
    path = tmp_path / "busbw.png"
    check_picture(path)
    save_picture(report, path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_picture_that_cannot_be_drawn_is_refused_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(PictureError, match="png"):
        check_picture(tmp_path / "picture.xyz")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(PictureError, match=r"pip install 'rdmaring\[plot\]'"):
        check_picture(tmp_path / "picture.png")


# ---- as a user runs it ----


def bench(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rdmaring.cli.main", "bench", *arguments]
    return subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=100,
        stdin=subprocess.DEVNULL,
    )


def test_two_ranks_print_one_document(tmp_path: Path) -> None:
    quickly = ("--iters", "2", "--warmup", "1", "--batch", "2")
    result = bench("-n", "2", "--sizes", "8:64K:x8", "--algorithm", "ring,naive", "--json", *quickly, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    document = json.loads(result.stdout)
    assert (document["world"], document["wrong"]) == (2, 0)
    assert [row["size_bytes"] for row in document["rows"][::2]] == [8, 64, 512, 4096, 32768]
    for row in document["rows"]:
        assert row["steps"] == 2  # the ring's 2(N-1); naive: to the root and back
        assert row["sent_bytes"] == row["received_bytes"] == [row["size_bytes"]] * 2
        for place in (IN_PLACE, OUT_OF_PLACE):
            cell = row[place]
            assert cell["wrong"] == 0
            assert cell["busbw_gb_s"] == pytest.approx(row["size_bytes"] / cell["median_us"] / 1e3)


def test_the_naive_root_carries_half_of_all_and_the_ring_is_balanced(tmp_path: Path) -> None:
    """Three ranks, 3 KiB: naive sends 2(N-1) vectors, all from or to rank 0."""
    what = ("--sizes", "3K", "--algorithm", "ring,naive", "--in-place")
    result = bench("-n", "3", *what, "--iters", "1", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    ring, naive = json.loads(result.stdout)["rows"]
    assert ring["steps"] == 4 and ring["sent_bytes"] == [4096] * 3  # 2(N-1)/N of 3072
    assert ring["busiest_rank"]["share"] == pytest.approx(1 / 3)
    assert ring["busiest_link"]["bytes"] == 4096
    assert naive["sent_bytes"] == [6144, 3072, 3072]
    assert naive["busiest_rank"] == {"rank": 0, "share": 0.5}


def test_the_table_has_no_prefix_of_ranks_and_no_bar(tmp_path: Path) -> None:
    result = bench("-n", "2", "--sizes", "1K", "--iters", "1", "--batch", "1", "--csv", "rows.csv", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    rows = [line for line in result.stdout.splitlines() if not line.startswith("#")]
    assert len(rows) == 1 and rows[0].split()[:3] == ["1024", "256", "float32"]
    assert "# Wrong elements : 0 OK" in result.stdout.splitlines()
    assert (tmp_path / "rows.csv").is_file()


def test_wrong_usage_names_the_option_and_starts_nothing(tmp_path: Path) -> None:
    for arguments, option in (
        (("-n", "2", "--op", "add"), "--op"),
        (("-n", "2", "--csv", "no/such/folder.csv"), "--csv"),
        (("-n", "2", "--plot", "picture.xyz"), "--plot"),
        (
            (
                "-n",
                "0",
            ),
            "-n",
        ),
        (("--root", "1"), "--root"),
    ):
        result = bench(*arguments, cwd=tmp_path)
        assert result.returncode == 2
        assert option in result.stderr.splitlines()[-1]
        assert result.stdout == ""


def test_ranks_of_a_launcher_are_not_started_again(tmp_path: Path) -> None:
    result = bench(
        "-n", "2", RDMARING_RANK="0", RDMARING_WORLD_SIZE="3", RDMARING_RENDEZVOUS="127.0.0.1:1", cwd=tmp_path
    )
    assert result.returncode == 2
    assert "rank 0 of 3" in result.stderr


def test_a_wrong_element_is_exit_code_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("rdmaring.bench.operands.count_wrong", lambda *arguments: 3)
    arguments = ["bench", "--sizes", "8", "--iters", "1", "--batch", "1", "--in-place"]
    assert cli.main(args=arguments, standalone_mode=False) == 1
    assert "# Wrong elements : 6 FAILED" in capsys.readouterr().out
