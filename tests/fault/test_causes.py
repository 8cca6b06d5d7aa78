"""An edge that fails because its peer did: the peer's own word is told, not the edge."""

from __future__ import annotations

from pathlib import Path

import pytest
from verdicts import agreed, run

# Rank 1 is gone from the communicator when rank 0 comes to it, and rank 0 finds its wire broken before it has looked.
BROKEN = """
from rdmaring.transport import Sockets
class Broken(Sockets):
    name = "broken"
    whole = True
    def send(self, head, body):
        if not Broken.whole:
            raise OSError(5, "the wire is broken")
        return super().send(head, body)

comm = rr.init(timeout_s=30, transport=Broken)
comm.all_reduce(np.ones(10_000))
if comm.rank == 1:
    LEAVES
else:
    time.sleep(1.5)
    Broken.whole = False
    judged(lambda: comm.all_reduce(np.ones(10_000)))
"""


def test_a_broken_wire_of_a_rank_that_closed(tmp_path: Path) -> None:
    ran = run(2, BROKEN.replace("LEAVES", "comm.close(); time.sleep(3)"), tmp_path, "tcp")
    found = agreed(ran, (0,), "never_entered", 1)
    assert "closed its communicator" in found["text"]
    assert ran.of(0, "error") == "PeerClosedError", ran.output


def test_a_broken_wire_of_a_rank_that_aborted(tmp_path: Path) -> None:
    ran = run(2, BROKEN.replace("LEAVES", "comm.abort('enough'); time.sleep(3)"), tmp_path, "tcp")
    assert ran.of(0, "error") == "AbortedError", ran.output
    assert "enough" in ran.of(0, "text")


@pytest.mark.parametrize("end", ["lives", "dies"])
def test_a_broken_wire_of_a_rank_that_says_nothing(end: str, tmp_path: Path) -> None:
    """Nobody else knows better: it is the edge, but for a rank that has ended."""
    leaves = "time.sleep(3)" if end == "lives" else "os.kill(os.getpid(), signal.SIGKILL)"
    ran = run(2, BROKEN.replace("LEAVES", leaves), tmp_path, "tcp")
    if end == "dies":
        assert ran.of(0, "error") in ("LinkError", "PeerDiedError"), ran.output
        agreed(ran, (0,), "died", 1)
        return
    found = agreed(ran, (0,), "link_down", 0)
    assert found["text"] == "link down: the edge between ranks 0 and 1 over broken failed while both ends live"
    assert "the wire is broken" in found["evidence"][0]
