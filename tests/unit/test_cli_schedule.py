"""`rdmaring schedule` as a user meets it."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from rdmaring._native import check, ffi, lib
from rdmaring.cli.main import main
from rdmaring.schedule import ALGORITHMS, generate
from rdmaring.schedule.encode import encode_file
from rdmaring.schedule.rows import Row, Schedule

Outcome = tuple[int, str, str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """run("ring", "-n", "3"): exit code, standard output, standard error."""

    def call(*arguments: str) -> Outcome:
        with pytest.raises(SystemExit) as left:
            main(["schedule", *arguments])
        captured = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return left.value.code, captured.out, captured.err

    return call


def test_a_ring_of_four_is_printed_and_proven(run: Callable[..., Outcome]) -> None:
    code, out, err = run("ring", "-n", "4")
    assert (code, err) == (0, "")
    for rank in range(4):
        assert f"rank {rank}: 7 rows, sends 3/2 (1.500) of the vector" in out
    result = out.splitlines()[-2:]
    # 2(N-1) steps, 2(N-1)/N of the vector, on every link; N ranks of 2N - 1 rows.
    assert result[0] == (
        "steps 6; sent by a rank 3/2 (1.500) of the vector; busiest link 3/2 (1.500); window 3; 28 rows, 24 transfers"
    )
    assert result[1].startswith("proven for 4 ranks: every contribution exactly once")


def test_ranks_are_chosen_and_proof_is_left_out(run: Callable[..., Outcome]) -> None:
    code, out, _ = run("ring", "-n", "300", "--rank", "7", "--rank", "299", "--no-verify")
    assert code == 0
    assert [line.split(":")[0] for line in out.splitlines() if line.startswith("rank ")] == [
        "rank 7",
        "rank 299",
    ]
    assert out.splitlines()[-1] == "not proven: --no-verify"
    assert "every contribution" not in out


def test_uneven_senders_are_shown_as_a_range(run: Callable[..., Outcome]) -> None:
    _, out, _ = run("naive", "-n", "4", "--rank", "0")
    assert "sent by a rank 1 to 3 of the vector" in out


def test_roots(run: Callable[..., Outcome]) -> None:
    code, out, _ = run("ring", "-n", "3", "--collective", "broadcast", "--root", "2")
    assert code == 0 and out.startswith("broadcast by ring, 3 ranks, root 2\n")
    code, out, _ = run("ring", "-n", "3", "--collective", "reduce")
    assert code == 0 and out.startswith("reduce by ring, 3 ranks, root 0\n")


def test_json_is_one_document(run: Callable[..., Outcome]) -> None:
    code, out, err = run("ring", "-n", "3", "--rank", "1", "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert (document["collective"], document["algorithm"], document["world"]) == ("all_reduce", "ring", 3)
    assert [rank["rank"] for rank in document["ranks"]] == [1]
    assert len(document["ranks"][0]["rows"]) == 5
    assert document["proof"]["sent"] == ["4/3"] * 3  # of all ranks, though one is shown
    assert document["proof"]["busiest_link"] == "4/3"
    assert len(document["proof"]["orders"]) == 3
    assert json.loads(run("ring", "-n", "3", "--json", "--no-verify")[1])["proof"] is None


def test_what_is_saved_is_what_c_and_python_load(run: Callable[..., Outcome], tmp_path: Path) -> None:
    path = tmp_path / "ring5.rrs"
    code, printed, _ = run("ring", "-n", "5", "--save", str(path))
    assert code == 0
    assert printed.splitlines()[-1] == f"saved to {path}, {path.stat().st_size} bytes"
    assert path.read_bytes() == encode_file(generate("all_reduce", "ring", 5))
    for rank in range(5):
        out = ffi.new("rr_schedule **")
        check(lib.rr_schedule_load(str(path).encode(), rank, out))
        assert lib.rr_schedule_chunk_count(out[0]) == 5
        lib.rr_schedule_free(out[0])
    code, loaded, _ = run("--load", str(path))
    assert code == 0
    assert loaded.splitlines() == printed.splitlines()[:-1]


def test_every_algorithm_is_listed(run: Callable[..., Outcome]) -> None:
    code, out, _ = run("--list")
    assert code == 0
    listed = {(line.split()[0], name) for line in out.splitlines() for name in line.split()[1:]}
    assert listed == set(ALGORITHMS)
    document = json.loads(run("--list", "--json")[1])
    assert {(collective, name) for collective, names in document.items() for name in names} == set(ALGORITHMS)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), ("ALGORITHM", "ring, biring, tree, halving, direct, direct1")),
        (("ring",), ("-n", "8")),
        (("rong", "-n", "2"), ("ALGORITHM", "'rong'", "ring, biring, tree, halving, direct, direct1")),
        (
            ("naive", "-n", "2", "--collective", "reduce"),
            ("'naive'", "reduce", "ring, tree, binomial, direct", "all_reduce"),
        ),
        (("ring", "-n", "0"), ("-n", "0")),
        (("ring", "-n", "2", "--root", "1"), ("--root", "all_reduce has no root")),
        (("ring", "-n", "2", "--collective", "reduce", "--root", "2"), ("--root", "2", "0..1")),
        (("ring", "-n", "2", "--rank", "2"), ("--rank", "2", "0..1")),
        (("ring", "-n", "2", "--collective", "allreduce"), ("--collective", "all_reduce")),
        (("ring", "--load", "x"), ("ALGORITHM", "--load")),
        (("--load", "x", "-n", "2", "--collective", "reduce"), ("-n, --collective", "--load")),
    ],
)
def test_wrong_usage_is_exit_code_2(
    run: Callable[..., Outcome], arguments: tuple[str, ...], says: tuple[str, ...]
) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    for words in says:
        assert words in err.splitlines()[-1]


def test_files_that_cannot_be_used(run: Callable[..., Outcome], tmp_path: Path) -> None:
    code, out, err = run("--load", str(tmp_path / "none"))
    assert (code, out) == (1, "")
    assert err == f"rdmaring schedule: {tmp_path / 'none'}: No such file or directory\n"
    damaged = bytearray(encode_file(generate("all_reduce", "ring", 3)))
    damaged[200] ^= 1
    (tmp_path / "damaged").write_bytes(damaged)
    code, out, err = run("--load", str(tmp_path / "damaged"))
    assert (code, out) == (1, "")
    assert "damaged: the file's CRC" in err
    code, out, err = run("ring", "-n", "2", "--save", str(tmp_path / "no" / "folder"))
    assert (code, out) == (1, "")
    assert "No such file or directory" in err


def test_a_wrong_schedule_is_neither_printed_nor_saved(run: Callable[..., Outcome], tmp_path: Path) -> None:
    """Well-formed bytes, and the last row of rank 1 is missing."""
    right = generate("all_reduce", "ring", 3)

    def rows(rank: int) -> tuple[Row, ...]:
        return right.rows(rank)[: -1 if rank == 1 else None]

    fields = {name: getattr(right, name) for name in right.__dataclass_fields__ if not name.startswith("_")}
    path, other = tmp_path / "wrong", tmp_path / "other"
    path.write_bytes(encode_file(Schedule(**{**fields, "make_rows": rows})))
    assert zlib.crc32(path.read_bytes()[:-4]).to_bytes(4, "little") == path.read_bytes()[-4:]
    code, out, err = run("--load", str(path), "--save", str(other))
    assert (code, out) == (1, "")
    assert "rank" in err and str(path) in err
    assert not other.exists()
    assert run("--load", str(path), "--no-verify")[0] == 0


def test_help_shows_examples(run: Callable[..., Outcome]) -> None:
    code, out, _ = run("--help")
    assert code == 0
    assert "rdmaring schedule ring -n 8" in out


def test_a_ring_in_another_order(run: Callable[..., Outcome], tmp_path: Path) -> None:
    saved = tmp_path / "ring.rrs"
    code, out, err = run("ring", "-n", "4", "--order", "0,2,1,3", "--save", str(saved))
    assert (code, err) == (0, "")
    wanted = generate("all_reduce", "ring", 4, order=(0, 2, 1, 3))
    assert "proven for 4 ranks" in out and f"identity {wanted.identity:016x}" in out
    code, out, err = run("--load", str(saved), "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert {send["peer"] for row in document["ranks"][2]["rows"] for send in row["sends"]} == {1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ring", "-n", "3", "--order", "0,1"), "'0,1'; accepted is each of the ranks 0..2 once"),
        (("ring", "-n", "3", "--order", "a,b,c"), "'a,b,c'; accepted is each of the ranks 0..2 once"),
        (("direct", "-n", "3", "--order", "0,1,2"), "direct visits no ring"),
    ],
)
def test_orders_that_do_not_fit(run: Callable[..., Outcome], arguments: tuple[str, ...], message: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())


def test_nodes_by_size_and_by_sizes(run: Callable[..., Outcome], tmp_path: Path) -> None:
    saved = tmp_path / "nodes.rrs"
    code, out, err = run("hierarchical", "-n", "8", "--nodes-of", "4", "--save", str(saved))
    assert (code, err) == (0, "")
    wanted = generate("all_reduce", "hierarchical", 8, nodes=[0, 0, 0, 0, 1, 1, 1, 1])
    assert "proven for 8 ranks" in out and f"identity {wanted.identity:016x}" in out
    assert saved.read_bytes() == encode_file(wanted)
    uneven = generate("all_reduce", "hierarchical-ring", 7, nodes=[0, 0, 0, 1, 1, 1, 2])
    for option, value in (("--nodes-of", "3"), ("--nodes", "3,3,1")):
        code, out, err = run("hierarchical-ring", "-n", "7", option, value)
        assert (code, err) == (0, "")
        assert f"identity {uneven.identity:016x}" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("hierarchical", "-n", "5", "--nodes", "2,2"), "'2,2'; accepted are numbers >= 1 that add up to 5 ranks"),
        (("hierarchical", "-n", "5", "--nodes", "5,0"), "'5,0'; accepted are numbers >= 1 that add up to 5 ranks"),
        (("hierarchical", "-n", "5", "--nodes", "two,3"), "'two,3'; accepted are numbers >= 1"),
        (("hierarchical", "-n", "5", "--nodes-of", "0"), "--nodes-of"),
        (("hierarchical", "--nodes-of", "2"), "-n is missing"),
        (("hierarchical", "-n", "5", "--nodes-of", "2", "--nodes", "2,3"), "give one of them"),
        (("direct", "-n", "4", "--nodes-of", "2"), "direct knows no nodes; accepted with hierarchical"),
        (("--load", "x", "--nodes-of", "2"), "--nodes-of with --load"),
    ],
)
def test_nodes_that_do_not_fit(run: Callable[..., Outcome], arguments: tuple[str, ...], message: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())
