"""`rdmaring bench --tensors` and `--channels`: many arrays beside one list, vectors in parts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rdmaring as rr
from rdmaring.bench.cases import Request, RequestError, make_cases, make_request
from rdmaring.bench.tensors import WAYS, Tensors, measure, tensor_dict
from rdmaring.cli.bench_tensors import heading, row
from rdmaring.cli.main import cli


@pytest.fixture
def comm() -> Iterator[Any]:
    with rr.init(0, 1, "127.0.0.1:1") as made:
        yield made


def quick(**given: Any) -> Request:
    return make_request(**{"sizes": "4,100", "samples": 3, "warmup": 1, "batch": 1, "tensors": 7, **given})


@pytest.mark.parametrize("registered", [False, True])
def test_every_way_gives_the_exact_result_and_a_time(comm: Any, registered: bool) -> None:
    request = quick(dtypes="float32,bfloat16,int8", ops="sum,max", registered=registered)
    seen: list[Any] = []
    report = measure(comm, request, make_cases(request, 1), seen.append)
    assert list(report.lines) == seen
    assert [(line.case.dtype.name, line.case.op, line.case.nbytes) for line in seen] == [
        (dtype, op, nbytes) for dtype in request.dtypes for op in request.ops for nbytes in (4, 100)
    ]
    for line in seen:
        assert (line.tensors, line.wrong, line.error_ulp) == (7, 0, 0)
        assert set(line.times_us) == set(WAYS) and all(each > 0 for each in line.times_us.values())
        assert line.faster == line.times_us["one_by_one"] / line.times_us["list"]
        assert len(row(line)) == len(heading()[0])
    document = json.loads(json.dumps(tensor_dict(report), allow_nan=False))
    assert document["rows"][1] | {"tensors": 7, "size_bytes": 100, "count": 25, "wrong": 0} == document["rows"][1]


@pytest.mark.parametrize("way", WAYS)
def test_a_wrong_element_of_any_way_is_counted(comm: Any, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    request = quick(sizes="100")
    (case,) = make_cases(request, 1).served
    tensors = Tensors(comm, request, case)
    right = tensors.calls()

    def spoiled() -> None:
        right[way]()
        (tensors._whole if way == "one_array" else tensors._each[5])[24] += 1

    monkeypatch.setattr(tensors, "calls", lambda: {**right, way: spoiled})
    assert [tensors.count_wrong(each) for each in WAYS] == [int(each == way) for each in WAYS]
    assert (tensors.error_ulp() > 0.5) == (way == "list")


def test_ordinary_arrays_lie_apart_and_registered_ones_in_one_memory(comm: Any) -> None:
    for registered in (False, True):
        request = quick(sizes="100", registered=registered)
        (case,) = make_cases(request, 1).served
        each = Tensors(comm, request, case)._each
        assert [array.size for array in each] == [25] * 7
        assert all((array.base is not None) == registered for array in each)
        assert not any(np.shares_memory(a, b) for a, b in pairwise(each))


def test_other_collectives_have_no_lists_here() -> None:
    with pytest.raises(RequestError, match="all_gather is not accepted") as caught:
        make_cases(quick(collectives="all_gather"), 2)
    assert caught.value.option == "--tensors"
    both = make_cases(quick(collectives="all_gather,all_reduce", tensors=None), 2)
    assert not both.skipped


# ---- as a user runs it ----


def bench(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rdmaring.cli.main", "bench", *arguments]
    return subprocess.run(
        command, cwd=cwd, env=dict(os.environ), capture_output=True, text=True, timeout=100, stdin=subprocess.DEVNULL
    )


def test_three_ranks_measure_lists(tmp_path: Path) -> None:
    what = ("--tensors", "20", "--sizes", "1K", "--algorithm", "ring,auto", "--channels", "2")
    what += ("--iters", "2", "--warmup", "1", "--batch", "1")
    done = bench("-n", "3", *what, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["world"], document["wrong"], document["request"]["channels"]) == (3, 0, 2)
    assert [line["asked_algorithm"] for line in document["rows"]] == ["ring", "auto"]
    assert document["rows"][0]["algorithm"] == "ring"
    for line in document["rows"]:
        assert line["tensors"] == 20 and 0 < line["error_ulp"] <= 2  # (N-1) roundings
        assert line["list_faster"] == line["one_by_one_us"] / line["list_us"]
    done = bench("-n", "2", *what, "--dtype", "int32", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if not line.startswith("#")]
    assert [line[:4] for line in rows] == [["1024", "20", "int32", "sum"]] * 2
    assert [line[10:12] for line in rows] == [["0", "0"]] * 2
    assert "# Wrong elements : 0 OK" in done.stdout and "memory in 2 channels" in done.stdout


def test_channels_are_those_of_the_communicator(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[Any] = []
    real = rr.init

    def init(**given: Any) -> Any:
        made.append(real(**given))
        return made[-1]

    monkeypatch.setattr("rdmaring.init", init)
    monkeypatch.setenv("RDMARING_CHANNELS", "3")
    quickly = ["bench", "--sizes", "8K", "--iters", "1", "--batch", "1", "--in-place"]
    for options, channels in ((["--channels", "2"], 2), ([], 3)):
        assert cli.main(args=[*quickly, *options], standalone_mode=False) == 0
        assert made[-1]._settings.channels == channels
    assert "memory in 2 channels" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--tensors", "0"), "--tensors"),
        (("--channels", "17"), "--channels"),
        (("--tensors", "5", "--plan"), "--plan with --tensors"),
        (("--tensors", "5", "--csv", "rows.csv"), "--csv with --tensors"),
        (("--tensors", "5", "--collective", "broadcast"), "broadcast is not accepted here"),
    ],
)
def test_what_does_not_fit_is_refused(options: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = bench("-n", "2", *options, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr and done.stdout == ""
