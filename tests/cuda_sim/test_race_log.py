"""The race log says what each operation touched and what it came after."""

from __future__ import annotations

import ctypes
import json
import os
from pathlib import Path
from typing import Any

import cuda.bindings.driver as driver
import numpy as np
import pytest
from cuda_sim.child import check, context, in_child, run

BLOCK = 2 << 20


def lines_of(folder: Path) -> list[dict[str, Any]]:
    (path,) = folder.glob("*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def some_work() -> None:
    context()
    one, two, event = check(driver.cuStreamCreate(1)), check(driver.cuStreamCreate(1)), check(driver.cuEventCreate(2))
    address, pinned = int(check(driver.cuMemAlloc(BLOCK))), int(check(driver.cuMemHostAlloc(64, 0)))
    check(driver.cuMemsetD32Async(address + 512, 3, 16, one))
    check(driver.cuEventRecord(event, one))
    check(driver.cuStreamWaitEvent(two, event, 0))
    check(driver.cuMemcpyDtoHAsync(pinned, address + 512, 64, two))
    check(driver.cuStreamWriteValue32(two, address, 7, 0))
    check(driver.cuStreamWaitValue32(one, address, 7, 1))
    check(driver.cuStreamSynchronize(one))
    ctypes.CDLL("libcuda.so.1").cs_race_mark(b"between")
    check(driver.cuEventSynchronize(event))
    check(driver.cuMemFree(address))
    print(pinned, os.getpid())


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], int, int]:
    folder = tmp_path_factory.mktemp("race") / "log"
    status, output = run(__file__, "some_work", race_log=folder, node="n")
    assert status == 0, output
    pinned, pid = map(int, output.split())
    return lines_of(folder), pinned, pid


Log = tuple[list[dict[str, Any]], int, int]


def test_the_first_line_names_the_process(log: Log) -> None:
    assert log[0][0] == {"process": log[2], "node": "n", "one_queue": False}


def test_operations_have_their_ranges_and_edges(log: Log) -> None:
    lines, pinned, pid = log
    ops = {line["op"]: line for line in lines if "op" in line and line["op"] != "memop"}
    assert set(ops) == {"fill", "record", "wait", "copy"}
    (memory, offset, size), *others = ops["fill"]["writes"]
    assert (memory[0], offset, size, others) == ("d", 512, 64, []) and ops["fill"]["reads"] == []
    assert ops["copy"]["reads"] == [[memory, 512, 64]]
    assert ops["copy"]["writes"] == [[f"h{pid}", pinned, 64]]
    assert ops["record"]["edges"] == [["records", f"l{pid}.1", 1]]
    assert ops["wait"]["edges"] == [["awaits", f"l{pid}.1", 1]]
    assert (ops["fill"]["stream"], ops["fill"]["number"], ops["record"]["number"]) == (1, 1, 2)
    assert ops["copy"]["stream"] == ops["wait"]["stream"] == 2
    assert all(op["begin"] <= op["end"] for op in ops.values())


def test_flags_have_their_value_and_time(log: Log) -> None:
    edges = [edge for line in log[0] if line.get("op") == "memop" for edge in line["edges"]]
    sets, polls = sorted(edges, key=lambda edge: edge[0] == "polls")
    assert sets[0] == "sets" and polls[0] == "polls"
    assert sets[1] == polls[1] and sets[1][1:] == [0, 4]
    assert sets[2] == polls[2] == 7 and sets[3] < polls[3]


def test_what_the_host_waited_for_stands_in_its_order(log: Log) -> None:
    lines, _, pid = log
    host = [line for line in lines if "call" in line or "mark" in line]
    assert [line.get("call", line.get("mark")) for line in host[:4]] == [
        "cuMemAlloc", "cuStreamSynchronize", "between", "cuEventSynchronize",
    ]  # fmt: skip
    assert host[1]["edges"] == [["after", 1, 3]]
    assert host[3]["edges"] == [["awaits", f"l{pid}.1", 1]]
    assert host[-1]["call"] == "cuMemFree" and host[-1]["range"] == host[0]["range"]
    steps = [line["host"][1] for line in host]
    assert steps == sorted(set(steps)) and {line["host"][0] for line in host} == {1}
    assert all(line["host"][1] < steps[-1] for line in lines if "op" in line)


@in_child()
def test_without_a_folder_nothing_is_written() -> None:
    context()
    before = set(os.listdir())
    check(driver.cuMemcpyHtoD(check(driver.cuMemAlloc(4)), np.zeros(1, np.uint32).ctypes.data, 4))
    assert set(os.listdir()) == before
