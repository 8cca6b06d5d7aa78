"""The doctor over a live communicator whose ranks are on different hosts."""

from __future__ import annotations

from pathlib import Path

from beds import run_hosts

EXAMINE = """
from rdmaring.diagnose import doctor

with rr.init() as comm:
    report = doctor.over(comm)
    say(hosts=[document.machine.host for document in report.documents],
        counts=[len(document.findings) for document in report.documents],
        ranks=[line.value for finding in report.documents[comm.rank].findings if finding.id == "cpus"
               for line in finding.evidence if line.source == "ranks"],
        pairs={f"{a} {b}": {finding.id: [finding.state.value, finding.found] for finding in findings}
               for (a, b), findings in report.pairs.items()})
"""


def test_every_rank_gets_the_findings_of_all_and_neighbours_are_compared(tmp_path: Path) -> None:
    ran = run_hosts(2, 2, EXAMINE, tmp_path)
    assert ran.code == 0, ran.output
    first = ran.of(0, "pairs")
    assert sorted(first) == ["0 1", "1 2", "2 3", "3 0"]
    for rank in range(4):
        assert ran.of(rank, "pairs") == first  # the same on all
        assert len(set(ran.of(rank, "hosts"))) == 2
        assert len(set(ran.of(rank, "counts"))) == 1
        assert ran.of(rank, "ranks") == ["2"]  # limits are held against the ranks of the host
    near, far = first["0 1"], first["1 2"]
    assert near["pair-host"] == ["ok", "one host: edges use shared memory"]
    assert near["pair-namespaces"][0] == "ok"
    assert far["pair-host"][0] == "ok"
    assert "plays two hosts" in far["pair-host"][1]
    assert far["pair-mtu"][0] == "ok"
    assert "10.77.0.0/24" in far["pair-mtu"][1]
