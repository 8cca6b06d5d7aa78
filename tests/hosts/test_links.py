"""`rdmaring links` on hosts that are network namespaces, joined by links of known rates."""

from __future__ import annotations

import json
import random
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from beds import run_hosts
from worlds import RDMARING

HOSTS = 6
RATE = 200  # Mbit/s
GOODPUT = 1448 / 1514  # of each frame on the wire TCP carries that much of the program's


def links(tmp_path: Path, hosts: int, *options: str, seed: int = 0, seconds: float = 6) -> tuple[int, dict[str, Any]]:
    """The exit code and the document."""
    command = [RDMARING, "links", "--live", "--json", "--seed", str(seed), "--seconds", str(seconds)]
    ran = run_hosts(hosts, 1, command, tmp_path, *options, timeout_s=80)
    lines = re.findall(r"^\[0\] (.*)$", ran.output, re.MULTILINE)
    assert lines and lines[0] == "{", ran.output
    return ran.code, json.loads("\n".join(lines))


def named(document: dict[str, Any]) -> list[tuple[str, tuple[int, ...], str]]:
    return [(each["what"], tuple(each["ranks"]), each["direction"]) for each in document["slow"]]


@pytest.mark.timeout(120)
def test_a_throttled_edge_among_three_hosts(tmp_path: Path) -> None:
    code, document = links(tmp_path, 3, "--rate", f"{RATE}mbit", "--edge", f"2-1:{RATE // 2}mbit", seconds=3)
    assert named(document) == [("edge", (2, 1), "sending")]
    assert code == 3 and document["wrong"] == 0
    for edge in document["edges"]:
        held_to = RATE / 2 if (edge["source"], edge["target"]) == (2, 1) else RATE
        assert edge["transport"] == "tcp" and edge["device"] == "eth0"
        assert edge["gb_s"] == pytest.approx(GOODPUT * held_to / 8e3, rel=0.15)
        assert edge["expected"]["gb_s"] is None and "virtual device" in edge["expected"]["text"]
    assert document["best_order"] == [0, 1, 2]  # the only other ring has the slow edge in it


@pytest.mark.timeout(120)
def test_the_throttled_edge_of_the_ring_is_busy_and_its_receiver_waits(tmp_path: Path) -> None:
    _, document = links(tmp_path, 3, "--rate", f"{RATE}mbit", "--edge", f"1-2:{RATE // 4}mbit", seconds=3)
    edges = {(edge["source"], edge["target"]): edge for edge in document["ring"]["edges"]}
    throttled = edges.pop((1, 2))
    assert throttled["busy"] > 0.8
    for edge in edges.values():
        assert edge["busy"] < 0.6
    assert throttled["receive_us"] > 0.5 * throttled["elapsed_us"]


@pytest.mark.long
@pytest.mark.timeout(150)
@pytest.mark.parametrize("seed", range(20))
def test_the_throttled_edge_of_six_hosts_is_named(seed: int, tmp_path: Path) -> None:
    source, target = random.Random(seed).sample(range(HOSTS), 2)
    throttle = f"{source}-{target}:{RATE // 2}mbit"
    code, document = links(tmp_path, HOSTS, "--rate", f"{RATE}mbit", "--edge", throttle, seed=seed)
    assert named(document) == [("edge", (source, target), "sending")]
    assert code == 3 and document["wrong"] == 0
    best = [*document["best_order"], document["best_order"][0]]
    assert (source, target) not in list(pairwise(best))
    assert document["best_bottleneck_gb_s"] >= 0.9 * GOODPUT * RATE / 8e3


@pytest.mark.long
@pytest.mark.timeout(150)
@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_named_where_nothing_is_throttled(seed: int, tmp_path: Path) -> None:
    code, document = links(tmp_path, HOSTS, "--rate", f"{RATE}mbit", seed=seed)
    assert (named(document), code) == ([], 0)


@pytest.mark.long
@pytest.mark.timeout(150)
def test_a_throttled_host_is_named(tmp_path: Path) -> None:
    code, document = links(tmp_path, 5, "--rate", f"{RATE}mbit", "--rate-of", f"3:{RATE // 2}mbit")
    assert named(document) == [("host", (3,), "both")]
    assert code == 3


@pytest.mark.long
@pytest.mark.timeout(200)
def test_reordering_regains_what_the_topology_allows(tmp_path: Path) -> None:
    """All-reduce against the least time that a ring of the full rate takes: 2(N-1)/N of the vector over each edge."""
    source = """
    comm = rr.init(timeout_s=100, reorder=os.environ["HOW"] == "measured")
    x = comm.empty(2 << 20, np.float32)
    times_s = []
    for _ in range(4):
        x[:] = comm.rank + 1
        comm.barrier()
        comm.all_reduce(x, algorithm="ring")
        times_s.append(comm.last.elapsed_s)
        assert (x == sum(range(1, comm.size + 1))).all()
    say(took_s=float(np.median(times_s[1:])), order=list(comm._order or range(comm.size)))
    """
    took_s = {}
    for how in ("plain", "measured"):
        options = ("--rate", f"{RATE}mbit", "--edge", f"2-3:{RATE // 2}mbit")
        ran = run_hosts(HOSTS, 1, source, tmp_path, *options, env={"HOW": how}, timeout_s=80)
        assert ran.code == 0, ran.output
        took_s[how] = max(ran.of(rank, "took_s") for rank in range(HOSTS))
    least_s = 2 * (HOSTS - 1) / HOSTS * (8 << 20) / (GOODPUT * RATE * 1e6 / 8)
    assert took_s["measured"] <= least_s / 0.9, took_s
    assert took_s["plain"] >= 1.7 * least_s, took_s
