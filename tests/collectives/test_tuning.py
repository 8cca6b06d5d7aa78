"""Constants in use: a file, a probe, other constants on another rank; what is chosen is what runs."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from nodes import FAR
from worlds import RDMARING, run_world

from rdmaring.choice import ALIKE
from rdmaring.tuning.constants import Table, built_in
from rdmaring.tuning.file import load, save
from rdmaring.tuning.fingerprint import Fingerprint

HERE = """
    comm = rr.init(timeout_s=30)
    say(hosts=comm._facts.fingerprint.hosts, transports=comm._facts.fingerprint.transports)
    say(digest=comm._chooser.constants.digest)
"""


@pytest.fixture(scope="module")
def fingerprint(tmp_path_factory: pytest.TempPathFactory) -> Fingerprint:
    """Of two ranks on this machine."""
    ran = run_world(2, HERE, tmp_path_factory.mktemp("facts"))
    assert ran.code == 0, ran.output
    return Fingerprint(tuple(ran.of(0, "hosts")), tuple(ran.of(0, "transports")), ())


def tuned(path: Path, fingerprint: Fingerprint, algorithm: str) -> Path:
    """A file in which ``algorithm`` is by far the quickest all-reduce on two ranks."""
    times = {("all_reduce", name): ((8, 1.0), (1 << 20, 1.0)) for name in ("ring", "direct", "direct1", "tree")}
    times[("all_reduce", algorithm)] = ((8, 1e-6), (1 << 20, 1e-6))
    save(path, fingerprint, replace(built_in("shm", None), tables=(Table((2,), times),)))
    return path


@pytest.mark.parametrize("algorithm", ["tree", "ring", "direct1"])
def test_a_file_decides(algorithm: str, fingerprint: Fingerprint, tmp_path: Path) -> None:
    path = tuned(tmp_path / "t.json", fingerprint, algorithm)
    ran = run_world(
        2,
        """
        with rr.init(timeout_s=30) as comm:
            x = np.arange(50_000.0, dtype=np.float32)
            comm.all_reduce(x)
            assert np.array_equal(x, 2 * np.arange(50_000, dtype=np.float32))
            found = comm.explain(nbytes=x.nbytes)
            say(chosen=found.choice.algorithm, text=found, ran=comm.plan_all_reduce(x).algorithm,
                measured=found.candidates[0].measured_s, constants=found.constants)
            forced = comm.plan_all_reduce(x, algorithm="ring").algorithm
            part = comm.split(0, key=-comm.rank)
            say(forced=forced, split=part.explain(nbytes=8).choice.algorithm)
            part.close()
        with rr.init(timeout_s=30, tuning="") as comm:
            say(without=comm.explain(nbytes=200_000).constants)
        """,
        tmp_path,
        env={"RDMARING_TUNING": str(path)},
    )
    assert ran.code == 0, ran.output
    for rank in range(2):
        assert ran.of(rank, "chosen") == ran.of(rank, "ran") == ran.of(rank, "split") == algorithm
        assert ran.of(rank, "forced") == "ring"
        assert f"{algorithm} (measured 1 us" in ran.of(rank, "text")
        assert ran.of(rank, "measured") == pytest.approx(1e-6 if algorithm == "ring" else 1.0)
        assert str(path) in ran.of(rank, "constants")
        assert "built in for shm" in ran.of(rank, "without")


def test_what_is_forced_is_explained(tmp_path: Path) -> None:
    ran = run_world(
        2,
        """
        with rr.init(timeout_s=30) as comm:
            say(text=comm.explain(nbytes=8), whole=comm.explain(nbytes=8, collective="broadcast").choice.algorithm)
        """,
        tmp_path,
        env={"RDMARING_ALGORITHM": "halving"},
    )
    assert ran.code == 0, ran.output
    assert "halving (forced)" in ran.of(0, "text")
    assert ran.of(0, "whole") != "halving", "no broadcast is made so"


def test_a_file_for_another_job_is_not_used(fingerprint: Fingerprint, tmp_path: Path) -> None:
    other = replace(fingerprint, hosts=("Abacus x 7",))
    path = tuned(tmp_path / "t.json", other, "tree")
    ran = run_world(2, HERE, tmp_path, env={"RDMARING_TUNING": str(path)})
    assert ran.code == 0, ran.output
    assert f"hosts are {fingerprint.hosts[0]}, the file has Abacus x 7" in ran.output
    assert ran.output.count("is not used") == 1, "one rank says it"
    cpus = int(fingerprint.hosts[0].rpartition(" x ")[2])
    assert ran.of(0, "digest") == ran.of(1, "digest") == built_in("shm", cpus).digest


def test_ranks_with_other_files_do_not_meet(fingerprint: Fingerprint, tmp_path: Path) -> None:
    one, two = tuned(tmp_path / "1.json", fingerprint, "ring"), tuned(tmp_path / "2.json", fingerprint, "tree")
    source = f"""
        files = [{str(one)!r}, {str(two)!r}]
        said_error(lambda: rr.init(timeout_s=30, tuning=files[int(os.environ["RDMARING_RANK"])]))
    """
    ran = run_world(2, source, tmp_path)
    for rank in range(2):
        assert ran.of(rank, "error") == "ArgumentError", ran.output
        assert "rank 0 has tuning file" in ran.of(rank, "text")


def test_other_constants_are_a_mismatch(tmp_path: Path) -> None:
    """What init() does not see, the first operation does: tiny messages and rows alike."""
    ran = run_world(
        2,
        """
        from dataclasses import replace
        for count, forced in ((1, None), (300_000, "ring"), (0, None)):
            comm = rr.init(timeout_s=30)
            constants = comm._chooser.constants
            if comm.rank:
                comm._use_constants(replace(constants, rows=replace(constants.rows, row_s=9e-6)))
            x = np.ones(count, np.float32)
            error = said_error((lambda: comm.all_reduce(x, algorithm=forced)) if count else comm.barrier)
            say(**{f"text {count}": str(error), f"hint {count}": error.hint, f"name {count}": type(error).__name__})
            comm.close()
        """,
        tmp_path,
    )
    for rank in range(2):
        for count in (1, 300_000, 0):
            assert ran.of(rank, f"name {count}") == "MismatchError", ran.output
            assert ran.of(rank, f"text {count}").count("chosen by the costs") == 2
            assert "RDMARING_TUNING" in ran.of(rank, f"hint {count}")


@pytest.mark.parametrize(("world", "per"), [(2, 2), (4, 2), (3, 1)])
def test_a_probe_gives_all_ranks_the_same_bits(world: int, per: int, tmp_path: Path) -> None:
    ran = run_world(
        world,
        FAR
        + """
import rdmaring.probe as probe
begun = []
real = probe.probed
def timed(comm):
    comm.barrier()
    begin = time.monotonic()
    found = real(comm)
    begun.append(time.monotonic() - begin)
    return found
probe.probed = timed
with rr.init(timeout_s=60, probe=True) as comm:
    constants = comm._chooser.constants
    x = np.ones(100_000, np.float32); comm.all_reduce(x); assert (x == world).all()
    near, far = constants.rows.near, constants.rows.far
    say(digest=constants.digest, text=repr(constants), seconds=begun[0], source=constants.source,
        levels=[near.latency_s, near.s_per_byte, far.latency_s, far.s_per_byte], gamma=constants.rows.reduce_s_per_byte)
""",
        tmp_path,
        env={"PER": str(per)},
    )
    assert ran.code == 0, ran.output
    assert len({ran.of(rank, "text") for rank in range(world)}) == 1, ran.output
    assert len({ran.of(rank, "digest") for rank in range(world)}) == 1
    assert ran.of(0, "source") == "of a probe"
    own = built_in("tcp" if world > per else "shm", None).rows
    near_s, near_rate, far_s, far_rate = ran.of(0, "levels")
    if per > 1:
        assert (near_s, near_rate) != (own.near.latency_s, own.near.s_per_byte)
    if world > per:
        assert (far_s, far_rate) != (own.far.latency_s, own.far.s_per_byte)
    assert 1e-12 < ran.of(0, "gamma") < 1e-8
    # 200 ms is what it plans with; ranks that wait for processors which others have take longer.
    assert ran.of(0, "seconds") < 0.2 * (1 if len(os.sched_getaffinity(0)) >= world and not busy() else 10)


def busy() -> bool:
    """Others run on this machine."""
    return os.getloadavg()[0] > len(os.sched_getaffinity(0)) / 2


def test_a_probe_and_a_file_are_one_too_many(fingerprint: Fingerprint, tmp_path: Path) -> None:
    path = tuned(tmp_path / "t.json", fingerprint, "ring")
    ran = run_world(1, "said_error(lambda: rr.init(probe=True))", tmp_path, env={"RDMARING_TUNING": str(path)})
    assert ran.of(0, "error") == "ArgumentError"
    assert "accepted is one of the two" in ran.of(0, "text")


# ---- rdmaring tune ----


def tune(*options: str) -> subprocess.CompletedProcess[str]:
    line = [RDMARING, "tune", *options]
    return subprocess.run(line, capture_output=True, text=True, timeout=100, check=False)


def test_tune_writes_a_file_that_is_used(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    names = "all_reduce,broadcast,gather,scatter"
    asked = ("--collective", names, "--sizes", "8,64K", "--seconds", "1", "-o", str(path))
    done = tune("-n", "2", *asked, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["nodes"] == [2]
    assert document["refused"] == []
    assert set(document["errors"]) == {"all_reduce", "broadcast", "gather", "scatter"}
    cells = {(each["collective"], each["algorithm"], each["size_bytes"]) for each in document["times"]}
    assert {(name, by, 65536) for name in ("gather", "scatter") for by in ("direct", "binomial")} <= cells
    assert {("all_reduce", "ring", 8), ("all_reduce", "direct1", 65536), ("broadcast", "tree", 8)} <= cells
    assert all(each["seconds"] > 0 for each in document["times"])
    done = tune("-n", "3", *asked)
    assert done.returncode == 0, done.stderr
    assert f"export RDMARING_TUNING={path}" in done.stdout
    assert [table.sizes for table in load(str(path)).constants.tables] == [(2,), (3,)]
    ran = run_world(2, HERE + "\n    say(text=comm.explain(nbytes=8))", tmp_path, env={"RDMARING_TUNING": str(path)})
    assert ran.code == 0, ran.output
    assert "(measured" in ran.of(0, "text")


SPOILED = """
        from rdmaring.bench import interleaved, tune
        real = interleaved.bind
        def spoiled(comm, case, operands, *, plan):
            call = real(comm, case, operands, plan=plan)
            if case.algorithm != "ring" or comm.rank:
                return call
            def spoil():
                call()
                operands.result[0] += 1
            return spoil
        interleaved.bind = spoiled
"""


def test_tune_names_a_wrong_candidate(tmp_path: Path) -> None:
    """An algorithm whose rows leave a rank's contribution out is refused."""
    ran = run_world(
        2,
        SPOILED
        + """
        with rr.init(timeout_s=60) as comm:
            found = tune.measure(comm, ["all_reduce"], [64, 4096], 0.2)
            say(refused=[(each.algorithm, each.nbytes, each.wrong) for each in found.refused],
                kept=sorted(name for _, name in found.table.times))
        """,
        tmp_path,
    )
    assert ran.code == 0, ran.output
    for rank in range(2):
        assert ran.of(rank, "refused") == [["ring", 64, 1]]
        assert "ring" not in ran.of(rank, "kept") and "direct" in ran.of(rank, "kept")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "one of -n"),
        (("-n", "2", "--hosts", "a,b"), "accepted is one of them"),
        (("-n", "2", "--collective", "barrier"), "accepted are all_reduce"),
        (("-n", "2", "--collective", "all_to_all"), "broadcast, reduce, gather, scatter"),
        (("-n", "2", "--sizes", "x"), "is no size"),
        (("--hosts", "a"), "two or more host names"),
    ],
)
def test_tune_refuses(options: tuple[str, ...], said: str) -> None:
    done = tune(*options)
    assert done.returncode == 2
    assert said in done.stderr


def test_tune_help_has_examples() -> None:
    done = tune("--help")
    assert done.returncode == 0
    assert "rdmaring tune -n 8" in done.stdout and "Exit code" in done.stdout


def test_explain_measures_the_candidates(tmp_path: Path) -> None:
    ran = run_world(
        3,
        """
        import ml_dtypes
        with rr.init(timeout_s=60) as comm:
            for collective in ("all_reduce", "broadcast", "reduce_scatter", "all_to_all", "gather", "scatter"):
                for nbytes, dtype in ((8, np.float32), (70_001, ml_dtypes.bfloat16)):
                    before = comm.explain(nbytes, collective, dtype)
                    found = comm.explain(nbytes, collective, dtype, measure=True)
                    assert all(each.measured_s is None for each in before.candidates)
                    same = [(each.algorithm, each.predicted_s) for each in before.candidates]
                    assert [(each.algorithm, each.predicted_s) for each in found.candidates] == same
                    assert all(each.measured_s > 0 for each in found.candidates)
                    assert found.choice == before.choice and found.count("chosen") == 1
                    assert found.splitlines()[1].split() == ["algorithm", "predicted", "now"]
                    assert before.splitlines()[1].split() == ["algorithm", "predicted", "measured"]
                    say(**{f"{collective} {nbytes}": [each.measured_s for each in found.candidates]})
            assert comm.all_reduce(np.ones(1, np.float32))[0] == 3
            for more in ({"collective": "barrier"}, {"dtype": np.complex64}):
                said_error(lambda: comm.explain(8, measure=True, **more))
        """,
        tmp_path,
    )
    assert ran.code == 0, ran.output
    for collective in ("all_reduce", "broadcast", "reduce_scatter", "all_to_all", "gather", "scatter"):
        for nbytes in (8, 70_001):
            key = f"{collective} {nbytes}"
            assert ran.of(0, key) == ran.of(1, key) == ran.of(2, key), "all ranks see the same"
    errors = [what["text"] for what in ran.said[0] if what.get("error")]
    assert ["barrier" in errors[0], "complex64" in errors[1]] == [True, True], errors


def test_a_wrong_candidate_is_not_explained_away(tmp_path: Path) -> None:
    source = (
        SPOILED
        + """
        with rr.init(timeout_s=60) as comm:
            said_error(lambda: comm.explain(4096, measure=True))
    """
    )
    ran = run_world(2, source, tmp_path)
    for rank in range(2):
        assert ran.of(rank, "error") == "RdmaringError", ran.output
        assert "ring of all_reduce gave 1 wrong elements on 4096 bytes" in ran.of(rank, "text")
        assert "rdmaring bench --collective all_reduce --algorithm ring" in ran.of(rank, "hint")


@pytest.mark.parametrize("collective", ["gather", "scatter"])
def test_a_file_decides_of_rooted_parts(collective: str, fingerprint: Fingerprint, tmp_path: Path) -> None:
    for quick, slow in (("direct", "binomial"), ("binomial", "direct")):
        times = {(collective, quick): ((8, 1e-6), (1 << 20, 1e-6)), (collective, slow): ((8, 1.0), (1 << 20, 1.0))}
        path = tmp_path / f"{quick}.json"
        save(path, fingerprint, replace(built_in("shm", None), tables=(Table((2,), times),)))
        ran = run_world(
            2,
            f"""
            with rr.init(timeout_s=30) as comm:
                part = np.full(5000, comm.rank + 1, np.float32)
                comm.gather(part, root=1) if {collective!r} == "gather" else comm.scatter(
                    np.repeat(part, 2) if comm.rank == 1 else None, root=1, out=part)
                (native,) = [plan for shape, plan in comm._plans.items() if shape.collective == {collective!r}]
                say(ran=native.choice.algorithm, reason=native.choice.reason)
            """,
            tmp_path,
            env={"RDMARING_TUNING": str(path)},
        )
        for rank in range(2):
            assert ran.of(rank, "ran") == quick, ran.output
            assert "measured 1 us" in ran.of(rank, "reason")


def test_bench_explains() -> None:
    line = [RDMARING, "bench", "-n", "2", "--explain", "--sizes", "8,1M", "--collective", "all_reduce,broadcast"]
    done = subprocess.run([*line, "--json"], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [(each["collective"], each["size_bytes"]) for each in found] == [
        ("all_reduce", 8),
        ("all_reduce", 1 << 20),
        ("broadcast", 8),
        ("broadcast", 1 << 20),
    ]
    for each in found:
        times = {one["algorithm"]: one["predicted_s"] for one in each["candidates"]}
        assert times[each["chosen"]] <= ALIKE * min(times.values())
        assert "built in for shm" in each["constants"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0
    assert done.stdout.count("chosen") == 4 and "all_reduce of 1048576 bytes among 2 ranks: " in done.stdout
    done = subprocess.run([*line, "--measure", "--json"], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    for each in json.loads(done.stdout):
        assert all(one["measured_s"] > 0 for one in each["candidates"])
    done = subprocess.run([RDMARING, "bench", "--measure"], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 2 and "--measure: accepted with --explain only" in done.stderr
