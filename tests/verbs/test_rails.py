"""A rail that stays dead: the edge's work moves to another rail of the two nodes, and nothing is lost and nothing comes twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from verbs.simulated import Verbs, run_verbs
from verbs.test_mend import ROUNDS

SOURCE = """
import logging
class Kept(logging.Handler):
    lines = []
    def emit(self, record):
        self.lines.append([record.levelname, record.getMessage()])
logging.getLogger("rdmaring").addHandler(Kept())
""" + ROUNDS.replace(
    "    say(reconnects",
    "    link = comm.links[0]\n"
    "    say(rail=link.rail, rails=list(link.rails), device=link.device, failovers=link.failovers, moved=link.moved)\n"
    "    say(logged=Kept.lines, channels=link.channels)\n"
    "    say(reconnects",
)


def moved(done: Verbs, world: int = 2) -> list[dict[str, Any]]:
    """What each rank says of its first edge, once all sums were right and nothing is left."""
    assert done.ran.code == 0, done.ran.output
    done.clean(world)
    return [{key: done.of(rank, key) for key in ("rail", "rails", "device", "failovers", "moved")} for rank in range(world)]


DEAD = {
    "port": "port_down_after={at}",
    "device": "device_fatal_after={at}",
    "wire": "drop_link_after={at}",  # nobody is told: no acknowledgement comes, now and after it was made anew
}


@pytest.mark.parametrize("at", [30, 75])
@pytest.mark.parametrize("dead", DEAD)
def test_the_work_moves_to_the_other_rail(dead: str, at: int, tmp_path: Path) -> None:
    env = {"VERBS_SIM_RANK_1": f"fault_device=0,{DEAD[dead].format(at=at)}", "ROUNDS": "12"}
    done = run_verbs(2, SOURCE, tmp_path, f"seed={at},devices=2,timeout_percent=2", env=env)
    assert moved(done) == [
        {"rail": 1, "rails": [1], "device": "sim1/1", "failovers": 1, "moved": "channel 0 from sim0/1 to sim1/1"}
    ] * 2
