"""Bad input: an error that names the argument, what it was and what is accepted; nothing changes."""

from __future__ import annotations

import array
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from worlds import run_world

import rdmaring as rr


@pytest.fixture()
def alone() -> Any:
    with rr.init(0, 1) as comm:
        yield comm


def read_only() -> np.ndarray[Any, Any]:
    x = np.ones(4)
    x.flags.writeable = False
    return x


WRONG: dict[str, tuple[Callable[[Any], Any], type[Exception], list[str]]] = {
    "strided": (lambda c: c.all_reduce(np.ones(8)[::2]), ValueError, ["x is not contiguous", "accepted"]),
    "fortran": (lambda c: c.all_reduce(np.ones((3, 4), order="F")), ValueError, ["x is not contiguous"]),
    "read-only": (lambda c: c.all_reduce(read_only()), ValueError, ["x is read-only", "out="]),
    "read-only out": (lambda c: c.all_reduce(np.ones(4), out=read_only()), ValueError, ["out is read-only"]),
    "complex": (lambda c: c.all_reduce(np.ones(4, complex)), TypeError, ["x has dtype complex128", "float32"]),
    "bool": (lambda c: c.all_reduce(np.ones(4, bool)), TypeError, ["x has dtype bool"]),
    "swapped": (lambda c: c.all_reduce(np.ones(4, ">f8")), TypeError, ["x has dtype >f8", "byte order"]),
    "list of numbers": (lambda c: c.all_reduce([1.0, 2.0]), TypeError, ["x[0] is a float", "accepted"]),
    "text": (lambda c: c.all_reduce("abc"), TypeError, ["x is a str"]),
    "empty list": (lambda c: c.all_reduce([]), ValueError, ["x is an empty list"]),
    "mixed list": (lambda c: c.all_reduce([np.ones(2), np.ones(2, "f4")]), TypeError, ["x[1] has dtype float32"]),
    "out dtype": (lambda c: c.all_reduce(np.ones(4), out=np.ones(4, "f4")), ValueError, ["out has dtype float32"]),
    "out count": (lambda c: c.all_reduce(np.ones(4), out=np.ones(5)), ValueError, ["out has 5 elements", "4"]),
    "op": (lambda c: c.all_reduce(np.ones(4), op="mean"), ValueError, ["op is 'mean'", "avg"]),
    "avg of ints": (lambda c: c.all_reduce(np.ones(4, int), op="avg"), ValueError, ["op='avg'", "integer"]),
    "scale of ints": (lambda c: c.all_reduce(np.ones(4, int), scale=2), ValueError, ["scale=2", "integer"]),
    "scale nan": (lambda c: c.all_reduce(np.ones(4), scale=float("nan")), ValueError, ["scale is NaN"]),
    "algorithm": (lambda c: c.all_reduce(np.ones(4), algorithm="rign"), ValueError, ["algorithm is 'rign'", "ring"]),
    "order": (lambda c: c.all_reduce(np.ones(4), order="any"), ValueError, ["order is 'any'"]),
    "order and ring": (
        lambda c: c.all_reduce(np.ones(4), order="rank", algorithm="ring"),
        ValueError,
        ["order='rank'"],
    ),
    "timeout": (lambda c: c.all_reduce(np.ones(4), timeout_s=0), ValueError, ["timeout_s is 0"]),
    "root": (lambda c: c.broadcast(np.ones(4), root=1), ValueError, ["root is 1", "0..0"]),
    "negative root": (lambda c: c.reduce(np.ones(4), root=-1), ValueError, ["root is -1"]),
    "counts": (lambda c: c.reduce_scatter(np.ones(4), counts=[1, 3]), ValueError, ["counts has 2 entries"]),
    "counts sum": (lambda c: c.reduce_scatter(np.ones(4), counts=[3]), ValueError, ["counts add up to 3"]),
    "negative counts": (lambda c: c.all_gather(np.ones(4), counts=[-4]), ValueError, ["counts holds -4"]),
    "gather counts": (lambda c: c.gather(np.ones(4), counts=[]), ValueError, ["counts has 0 entries"]),
    "scatter counts": (lambda c: c.scatter(np.ones(4), counts=[]), ValueError, ["counts has 0 entries"]),
    "scatter negative": (lambda c: c.scatter(np.ones(4), counts=[-4]), ValueError, ["counts holds -4"]),
    "scatter sum": (lambda c: c.scatter(np.ones(4), counts=[5]), ValueError, ["x has 4 elements", "5"]),
    "counts by pair": (lambda c: c.all_to_all(np.ones(4), counts=([], [4])), ValueError, ["counts[0] has 0 entries"]),
    "part": (lambda c: c.all_gather(np.ones(4), out=np.ones(5)), ValueError, ["x has 4 elements", "5"]),
    "shape": (lambda c: c.empty(-3), ValueError, ["shape is -3"]),
    "overlap in a list": (lambda c: c.all_reduce([np.zeros(9)] * 2), ValueError, ["list x overlap"]),
    "masked": (lambda c: c.all_reduce(np.ma.ones(4)), TypeError, ["x is a masked array"]),
    "root kind": (lambda c: c.broadcast(np.ones(4), root=0.5), TypeError, ["root is 0.5"]),
    "explained": (lambda c: c.explain(8, "bcast"), ValueError, ["collective is 'bcast'", "broadcast"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments(case: str, alone: Any) -> None:
    call, kind, words = WRONG[case]
    with pytest.raises(kind) as caught:
        call(alone)
    assert isinstance(caught.value, rr.CallError)
    for word in words:
        assert word in str(caught.value)
    assert alone.all_reduce(np.ones(3)).tolist() == [1, 1, 1]  # the communicator lives on


def test_partial_overlap(alone: Any) -> None:
    x = np.arange(10.0)
    with pytest.raises(ValueError, match="out overlaps the input"):
        alone.all_reduce(x[:8], out=x[2:])
    assert x.tolist() == list(range(10))
    alone.all_reduce(x[:5], out=x[5:])
    assert x.tolist() == [0, 1, 2, 3, 4] * 2


class OfAnotherLibrary:
    """What torch and others offer: DLPack, and nothing else."""

    def __init__(self, values: list[float]) -> None:
        self.data = np.array(values, np.float32)

    def __dlpack__(self, **options: Any) -> Any:
        return self.data.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.data.__dlpack_device__()


def test_other_arrays_are_used_in_place(alone: Any) -> None:
    given = OfAnotherLibrary([1.0, 2.0])
    assert alone.all_reduce(given, scale=3.0) is given
    assert given.data.tolist() == [3.0, 6.0]
    buffer = array.array("d", [1.0, 2.0, 3.0])
    assert alone.all_reduce(buffer, scale=2.0) is buffer
    assert buffer.tolist() == [2.0, 4.0, 6.0]
    with pytest.raises(ValueError, match="x is read-only"):
        alone.all_reduce(bytes(8))
    out = np.zeros(8, np.uint8)
    alone.all_reduce(bytes(range(8)), out=out)
    assert out.tolist() == list(range(8))


def test_closed() -> None:
    comm = rr.init(0, 1)
    x = np.ones(2)
    comm.all_reduce(x)
    plan = comm.plan_all_reduce(x)
    comm.close()
    with pytest.raises(rr.ClosedError, match="is closed"):
        plan()
    for call in (lambda: comm.all_reduce(x), lambda: comm.barrier(), lambda: comm.empty(3), lambda: comm.links):
        with pytest.raises(rr.ClosedError, match="is closed"):
            call()


def test_what_is_checked_once_is_checked_again_when_it_changed(alone: Any) -> None:
    """Small arrays are remembered: a changed one is not taken for what it was."""
    x = np.full(4, 7.0)
    for _ in range(3):
        assert alone.all_reduce(x) is x
    x.flags.writeable = False
    with pytest.raises(ValueError, match="x is read-only"):
        alone.all_reduce(x)
    x.flags.writeable = True
    alone.all_reduce(x)
    view = x.view(np.int64)
    assert alone.all_reduce(view) is view and x.tolist() == [7.0] * 4
    addresses = set()
    for value in range(300):  # many short-lived arrays at few addresses
        y = np.full(3, float(value))
        addresses.add(id(y))
        assert alone.all_reduce(y).tolist() == [value] * 3
        del y
    assert alone.all_reduce(np.full(3, 5, np.float32)).dtype == np.float32
    with pytest.raises(TypeError, match="x is a int"):
        alone.all_reduce(3)


def test_init_arguments() -> None:
    with pytest.raises(ValueError, match="rank"):
        rr.init(3, 2, "127.0.0.1:1")
    with pytest.raises(ValueError, match="timeout_s"):
        rr.init(0, 1, timeout_s=-1)


def test_missing_ranks_are_named(tmp_path: Path) -> None:
    script = (
        "import rdmaring as rr, sys\n"
        "try: rr.init(int(sys.argv[1]), 4, '127.0.0.1:29817', timeout_s=2)\n"
        "except rr.SetupError as e: print(e)\n"
    )
    env = {**os.environ, "RDMARING_SECRET": "of this test"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(r)], env=env, stdout=subprocess.PIPE, text=True, cwd=tmp_path
        )
        for r in (0, 2)
    ]
    for rank in ranks:
        text = rank.communicate(timeout=60)[0]
        assert "1" in text and "3" in text and "rank" in text, text


def test_explicit_arguments(tmp_path: Path) -> None:
    script = (
        "import rdmaring as rr, numpy as np, sys\n"
        "with rr.init(int(sys.argv[1]), 2, '127.0.0.1:29823', timeout_s=30) as c:\n"
        "    print(c.all_reduce(np.full(3, c.rank + 1.0))[0])\n"
    )
    env = {**os.environ, "RDMARING_SECRET": "of this test"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(r)], env=env, stdout=subprocess.PIPE, text=True, cwd=tmp_path
        )
        for r in range(2)
    ]
    assert [rank.communicate(timeout=60)[0].strip() for rank in ranks] == ["3.0", "3.0"]


def test_torchrun_environment(tmp_path: Path) -> None:
    script = (
        "import rdmaring as rr, numpy as np\n"
        "with rr.init(timeout_s=30) as c: print(c.rank, c.all_reduce(np.ones(2))[0])\n"
    )
    env = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29831", "RDMARING_SECRET": "s"}
    for name in ("RDMARING_RANK", "RDMARING_WORLD_SIZE"):
        env.pop(name, None)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env={**env, "RANK": str(r), "LOCAL_RANK": str(r)},
            stdout=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
        for r in range(2)
    ]
    assert sorted(rank.communicate(timeout=60)[0].strip() for rank in ranks) == ["0 2.0", "1 2.0"]


def test_unknown_variable_warns_with_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDMARING_TIMOUT", "3")
    with pytest.warns(UserWarning, match="RDMARING_TIMOUT is unknown.*RDMARING_TIMEOUT"):
        rr.init(0, 1).close()


def test_timeout_variable_must_be_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDMARING_TIMEOUT", "soon")
    with pytest.raises(ValueError, match="RDMARING_TIMEOUT is 'soon'"):
        rr.init(0, 1)


def test_huge_registered_memory_is_refused_with_words(alone: Any) -> None:
    with pytest.raises(MemoryError, match="bytes of registered memory"):
        alone.empty(1 << 44, np.uint8)


def test_errors_in_two_ranks_leave_the_communicator_usable(tmp_path: Path) -> None:
    ran = run_world(
        2,
        """
        comm = rr.init(timeout_s=20)
        said_error(lambda: comm.all_reduce(np.ones(6)[::2]))
        x = np.ones(6); comm.all_reduce(x)
        say(right=bool((x == 2).all()))
        """,
        tmp_path,
    )
    assert ran.code == 0, ran.output
    assert ran.said[1][0]["error"] == "ArgumentError" and ran.of(0, "right")


def test_algorithm_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDMARING_ALGORITHM", "ring")
    with rr.init(0, 1) as comm:
        assert comm.plan_all_reduce(np.ones(3)).algorithm == "ring"
        assert comm.plan_all_reduce(np.ones(3), algorithm="direct").algorithm == "direct"
    monkeypatch.setenv("RDMARING_ALGORITHM", "rang")
    with pytest.raises(ValueError, match=r"RDMARING_ALGORITHM is 'rang'; accepted are .*direct"):
        rr.init(0, 1)


def test_one_that_is_left_open_ends_in_silence(tmp_path: Path) -> None:
    """builtins go last, when the modules have lost their names."""
    source = "import builtins, rdmaring as rr\nbuiltins.held = rr.init(0, 1)\n"
    done = subprocess.run([sys.executable, "-c", source], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
