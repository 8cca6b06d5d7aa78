"""Ranks on nodes of their own, joined by verbs: the substitute libibverbs of tests/verbs_sim."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verbs_sim import build
from worlds import Ran, run_world

NOTHING_LIVES = dict.fromkeys(["device_lists", "contexts", "pds", "mrs", "channels", "cqs", "qps"], 0)

# Each rank is a node, unless PER says how many are neighbours on one.
NODES = """
me = int(os.environ["RDMARING_RANK"])
os.environ["RDMARING_HOST_ID"] = f"node-{me // int(os.environ.get('PER', '1'))}"
"""


@dataclass
class Verbs:
    """What the ranks said, and what the substitute library says of each process that ended by itself."""

    ran: Ran
    reports: dict[int, dict[str, Any]]

    def of(self, rank: int, key: str) -> Any:
        return self.ran.of(rank, key)

    def clean(self, ranks: int) -> None:
        """Nothing is left, and nothing was done that hardware would not bear."""
        assert sorted(self.reports) == list(range(ranks)), self.ran.output
        for report in self.reports.values():
            assert report["live"] == NOTHING_LIVES, report
            assert report["violations"] == [], report
            assert report["counts"]["rnr_naks"] == 0, report


def run_verbs(
    world: int,
    source: str,
    tmp_path: Path,
    spec: str = "",
    *,
    env: dict[str, str] | None = None,
    timeout_s: float = 60,
    options: tuple[str, ...] = (),
) -> Verbs:
    """``source`` on ``world`` ranks; ``spec`` is the VERBS_SIM of all, ``env`` may hold VERBS_SIM_RANK_1."""
    report = tmp_path / "report"
    simulated = build.environment(spec, fabric=str(tmp_path), report=report, sysfs_root=tmp_path / "sysfs")
    report.unlink(missing_ok=True)  # of the process that wrote the sysfs
    ran = run_world(
        world,
        NODES + source,
        tmp_path,
        *options,
        env={**simulated, "RDMARING_TRANSPORT": "verbs", **(env or {})},
        timeout_s=timeout_s,
    )
    lines = [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []
    return Verbs(ran, {line["rank"]: line for line in lines})
