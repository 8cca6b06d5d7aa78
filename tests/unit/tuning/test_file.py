"""Tuning files: what is written is read; what is not one is refused, with where and why, in bounded time and memory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rdmaring.errors import ArgumentError
from rdmaring.tuning import file as tuning_file
from rdmaring.tuning.constants import KINDS, Table, built_in
from rdmaring.tuning.file import FILE_BYTES_MAX, load, merged, save
from rdmaring.tuning.fingerprint import Fingerprint, agree, own_record, slowest

HERE = Fingerprint(("Xeon x 2",), ("shm", "tcp"), ())
TABLE = Table((2, 2), {("all_reduce", "ring"): ((8, 1.1e-6), (1024, 3.3e-5)), ("reduce", "direct"): ((8, 2e-6),)})


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "deep" / "t.json"
    save(path, HERE, replace(built_in("tcp", None), tables=(TABLE,)))
    return path


def test_round_trip(written: Path) -> None:
    found = load(str(written))
    assert found.fingerprint == HERE
    assert found.constants == replace(built_in("tcp", None), tables=(TABLE,))
    assert found.constants.digest == replace(built_in("tcp", None), tables=(TABLE,)).digest
    assert found.constants.on(2).rows.processors_per_node == 2
    assert load(str(written)).digest == found.digest
    assert str(written) in found.constants.source
    assert [each.name for each in written.parent.iterdir()] == ["t.json"]


def change(path: Path, **changes: Any) -> Path:
    """A key "a.b.0" is the way to what is replaced."""
    document = json.loads(path.read_text())
    for where, value in changes.items():
        *way, last = where.split("__")
        inner = document
        for step in way:
            inner = inner[int(step) if step.isdecimal() else step]
        inner[int(last) if last.isdecimal() else last] = value
    path.write_text(json.dumps(document))
    return path


POINTS = "tables__0__times__0__bytes_and_seconds"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": "other"}, "format is 'other'"),
        ({"version": 2}, "version is '2'"),
        ({"version": True}, "version is 'True'"),
        ({"fingerprint": []}, "fingerprint is '[]'"),
        ({"fingerprint__hosts": ["x"] * 65}, "hosts is"),
        ({"fingerprint__devices": ["x" * 201]}, "devices of the fingerprint"),
        ({"constants__rows": 3}, "rows is '3'"),
        ({"constants__rows__row_s": -1e-9}, "row_s is '-1e-09'"),
        ({"constants__mailbox__near__latency_s": 1e300}, "latency_s is '1e+300'"),
        ({"constants__rows__far__s_per_byte": "0"}, "s_per_byte is '0'"),
        ({"constants__rows__slice_s": True}, "slice_s is 'True'"),
        ({"tables": [{}] * 65}, "tables is"),
        ({"tables__0__nodes": []}, "nodes of a table"),
        ({"tables__0__nodes": [2, -1]}, "nodes of a table"),
        ({"tables__0__nodes": [1 << 60]}, "nodes of a table"),
        ({"tables__0__times__0__algorithm": "magic"}, "times of ('all_reduce', 'magic')"),
        ({"tables__0__times__1__algorithm": "ring", "tables__0__times__1__collective": "all_reduce"}, "once"),
        ({POINTS: [[8, 1e-6], [8, 1e-6]]}, "ascending"),
        ({POINTS: [[8, 0]]}, "above 0"),
        ({POINTS: [[8.0, 1e-6]]}, "bytes_and_seconds has [8.0"),
        ({POINTS: [[8, 1e-6]] * 257}, "a list of up to 256"),
        ({POINTS: [8]}, "bytes_and_seconds has 8"),
        ({POINTS: [[1 << 51, 1.0]]}, "bytes_and_seconds has"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refused(written: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        load(str(change(written, **changes)), "RDMARING_TUNING")
    assert said in str(caught.value)
    assert f"RDMARING_TUNING is {str(written)!r}" in str(caught.value)
    assert "rdmaring tune" in caught.value.hint


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"[" * 200_000,
        b'{"a": ' * 100_000,
        b"NaN",
        b'{"format": "rdmaring tuning", "version": ' + b"9" * 100_000 + b"}",
        b"[]",
        b"null",
        b'"text"',
        b" " * (FILE_BYTES_MAX + 1),
    ],
    ids=range(10),
)
def test_hostile_bytes(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(data)
    with pytest.raises(ArgumentError, match="is no tuning file of this release"):
        load(str(path))


def test_not_a_number_in_the_constants(written: Path) -> None:
    written.write_text(written.read_text().replace('"row_s": ', '"row_s": NaN, "was": '))
    with pytest.raises(ArgumentError, match="NaN is no number"):
        load(str(written))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="cannot be read: No such file"):
        load(str(tmp_path / "none.json"))
    with pytest.raises(ArgumentError, match="cannot be read: Is a directory"):
        load(str(tmp_path))


def test_a_failed_save_leaves_what_was_there(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = written.read_bytes()

    def fails(*paths: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tuning_file.os, "replace", fails)
    with pytest.raises(OSError, match="No space"):
        save(written, HERE, built_in("tcp", None))
    assert written.read_bytes() == before
    assert [each.name for each in written.parent.iterdir()] == ["t.json"]


def test_merging_keeps_other_shapes() -> None:
    other, again = Table((4,), {}), Table((2, 2), {})
    assert merged([TABLE, other], again) == (other, again)
    many = [Table((each,), {}) for each in range(1, 100)]
    assert len(merged(many, again)) == tuning_file.TABLES_MAX
    assert merged(many, again)[-1] is again


# ---- fingerprints, and what ranks agree on ----


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (HERE, []),
        (replace(HERE, hosts=("Xeon x 4",)), ["hosts are Xeon x 4, the file has Xeon x 2"]),
        (replace(HERE, transports=("shm",)), ["transports are shm, the file has shm, tcp"]),
        (replace(HERE, devices=("mlx5_0/1",)), ["devices are mlx5_0/1, the file has none"]),
    ],
)
def test_which_part_differs(job: Fingerprint, said: list[str]) -> None:
    assert HERE.differences(job) == said


def records(*each: dict[str, Any]) -> bytes:
    own = json.loads(own_record(["shm"], []))
    return b"".join(json.dumps(own | more).encode().ljust(2048) for more in each)


def test_all_ranks_find_the_same_facts() -> None:
    told = records(
        {"cpu": "A", "cpus": "3"},
        {"cpu": "A", "cpus": "c"},
        {"cpu": "B", "cpus": "ff", "transports": ["verbs"], "devices": ["mlx5_0/1"]},
    )
    facts = agree(told, [0, 0, 1])
    assert facts.fingerprint == Fingerprint(("A x 4", "B x 8"), ("shm", "verbs"), ("mlx5_0/1",))
    assert (facts.processors, facts.transport, facts.probe, facts.file) == (4, "verbs", False, "")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"probe": True}, "rank 0 has no probe, rank 1 has probe"),
        ({"file": "abcd"}, "rank 0 has no tuning file, rank 1 has tuning file abcd"),
    ],
)
def test_ranks_that_differ_are_told(more: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        agree(records({}, more), [0, 0])


@pytest.mark.parametrize(
    ("names", "slow"),
    [
        (["shm"], "shm"),
        (["shm", "verbs"], "verbs"),
        (["tcp", "verbs"], "tcp"),
        (["delaying", "tcp"], "delaying"),
        ([], "shm"),
    ],
)
def test_the_slowest_transport(names: list[str], slow: str) -> None:
    assert slowest(names) == slow


def test_constants_are_kept_by_kind(written: Path) -> None:
    document = json.loads(written.read_text())
    assert set(document["constants"]) == set(KINDS)
