"""`rdmaring links` as a user starts it, on ranks of this machine."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from worlds import RDMARING, run_world

CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("RDMARING_", "OMPI_", "SLURM_"))}


def links(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [RDMARING, "links", *arguments],
        env={**CLEAN, **(env or {})},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_three_ranks_json_and_picture(tmp_path: Path) -> None:
    picture = tmp_path / "map.png"
    done = links("-n", "3", "--seconds", "0.5", "--seed", "5", "--json", "--picture", str(picture))
    document: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (3 if document["slow"] else 0), done.stderr
    assert document["world"] == 3 and document["seed"] == 5 and document["wrong"] == 0
    pairs = [(edge["source"], edge["target"]) for edge in document["edges"]]
    assert pairs == [(a, b) for a in range(3) for b in range(3) if a != b]
    for edge in document["edges"]:
        assert edge["transport"] == "shm" and edge["message_count"] >= 3
        assert 0.001 < edge["gb_s"] < 1000 and 0.1 < edge["latency_us"] < 1e6
    ring = document["ring"]
    assert ring["order"] == [0, 1, 2]
    assert [(edge["source"], edge["target"]) for edge in ring["edges"]] == [(0, 1), (1, 2), (2, 0)]
    for edge in ring["edges"]:  # a ring sends 2(N-1)/N of the vector over each edge; chunks end at whole lines
        assert edge["sent_bytes"] == pytest.approx(4 / 3 * ring["nbytes"], abs=4096)
        assert 0 <= edge["credit_us"] <= 10 * edge["elapsed_us"]
    assert sum(edge["receive_us"] for edge in ring["edges"]) > 0
    assert sorted(document["best_order"]) == [0, 1, 2]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_two_ranks_in_a_table(tmp_path: Path) -> None:
    done = links("-n", "2", "--seconds", "0.3", "--reorder", "--parallel")
    assert done.returncode in (0, 3), done.stderr
    assert "# 2 ranks on 1 node; edges: 2 by shm" in done.stdout
    assert "ring 0 -> 1 -> 0, all_reduce of" in done.stdout
    assert "reorder: no ring is faster by 5 % or more" in done.stdout


def test_ranks_of_a_launcher(tmp_path: Path) -> None:
    line = [RDMARING, "run", "-n", "2", RDMARING, "links", "--live", "--seconds", "0.3", "--json"]
    done = subprocess.run(line, env=CLEAN, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode in (0, 3), done.stderr
    text = "\n".join(line.removeprefix("[0] ") for line in done.stdout.splitlines())
    assert json.loads(text)["world"] == 2


@pytest.mark.parametrize(
    ("arguments", "env", "message"),
    [
        ((), {}, "one of -n for ranks on this machine, --hosts for others, or --live under a launcher"),
        (("--live",), {}, "--live: no launcher has started this process"),
        (("-n", "1"), {}, "1 is not in the range"),
        (("-n", "2", "--picture", "map.txt"), {}, "names no kind of picture"),
        (("-n", "2", "--picture", "nowhere/map.png"), {}, "there is no such folder"),
        (("-n", "3"), {"RDMARING_RANK": "0", "RDMARING_WORLD_SIZE": "2", "RDMARING_RENDEZVOUS": "h:1"}, "-n is 3"),
        (("--live",), {"RDMARING_RANK": "0", "RDMARING_WORLD_SIZE": "1"}, "the job has one rank"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], env: dict[str, str], message: str) -> None:
    done = links(*arguments, env=env)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
    assert done.stdout == ""


def test_help_has_examples_and_exit_codes() -> None:
    done = links("--help")
    assert done.returncode == 0
    assert "mpirun --host a,b,c,d rdmaring links --live" in done.stdout
    assert "3 if a slow edge, host or rank was named" in " ".join(done.stdout.split())


def test_bytes_that_arrive_wrong_are_counted(tmp_path: Path) -> None:
    """The receiver of one edge expects other data than were sent: one byte in 256 is right by chance."""
    source = """
    from rdmaring.diagnose.links import measure, probe
    right = measure.expected_bytes
    def other(seed, pair, nbytes):
        return right(seed + (comm.rank == 2 and pair == (1, 2)), pair, nbytes)
    with rr.init(timeout_s=30) as comm:
        measure.expected_bytes = other
        report = probe.probe(comm, probe.Options(budget_s=0.3))
    say(wrong={f"{e.source}-{e.target}": [e.wrong, e.message_bytes * (e.message_count + 1)] for e in report.edges})
    """
    ran = run_world(3, source, tmp_path)
    assert ran.code == 0, ran.output
    for rank in range(3):
        for name, (wrong, nbytes) in ran.of(rank, "wrong").items():
            assert wrong == 0 if name != "1-2" else 0.98 * nbytes < wrong, ran.output


def test_init_may_measure_the_order_of_the_ring(tmp_path: Path) -> None:
    source = """
    with rr.init(timeout_s=30, reorder=True) as comm:
        x = np.full(100_000, comm.rank + 1.0)
        comm.all_reduce(x, algorithm="ring")
        ring = list(comm._order or range(comm.size))
        to = [peer for peer, (sent, _) in comm.last_links.items() if sent]
        half = comm.split(comm.rank % 2)
        y = half.all_reduce(np.ones(1000), algorithm="ring")
        say(ring=ring, to=to, total=float(x.sum()), half=float(y.sum()))
    """
    ran = run_world(4, source, tmp_path, env={"RDMARING_RING_ORDER": "0,2,1,3"})
    assert ran.code == 0, ran.output
    ring = ran.of(0, "ring")
    assert sorted(ring) == [0, 1, 2, 3]
    for rank in range(4):
        assert ran.of(rank, "ring") == ring
        assert ran.of(rank, "to") == [ring[(ring.index(rank) + 1) % 4]]
        assert ran.of(rank, "total") == 10 * 100_000
        assert ran.of(rank, "half") == 2000
