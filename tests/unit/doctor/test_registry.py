"""All checks together: their order, their selection, their documentation, and what a broken one does."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from unit.doctor.fake import FakeMachine

from rdmaring.diagnose.doctor import CHECKS, Check, Evidence, Finding, Roots, State, registry, run_checks, worst
from rdmaring.diagnose.doctor.findings import TEXT_CHARS_MAX, from_dict
from rdmaring.rendezvous.protocol import ProtocolError

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "DOCTOR.md"
PAIR_IDS = (
    "pair-version pair-host pair-namespaces pair-gpus pair-addresses pair-mtu pair-rails pair-link-layer pair-rate "
    "pair-rdma-mtu pair-gid pair-reach pair-path-mtu pair-clock"
).split()


def test_every_check_stands_in_the_document_and_no_other() -> None:
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", DOCUMENT.read_text(), re.MULTILINE)
    assert sorted(row[0] for row in rows) == sorted([*(check.id for check in CHECKS), *PAIR_IDS])
    assert all(cell.strip() for row in rows for cell in row)


def test_ids_are_unique_and_each_check_says_what_it_looks_at() -> None:
    assert len({check.id for check in CHECKS}) == len(CHECKS) == 35
    assert all(check.looks_at.endswith(".") for check in CHECKS)


def test_this_machine_can_be_examined_and_nothing_breaks() -> None:
    findings = run_checks(Roots())
    assert [finding.id for finding in findings] == [check.id for check in CHECKS]
    assert not [finding for finding in findings if "the check itself failed" in finding.found]
    json.dumps([finding.as_dict() for finding in findings], allow_nan=False)


def test_a_machine_where_all_is_well_has_nothing_to_warn_of(tmp_path: Path) -> None:
    from rdmaring.diagnose.doctor.interfaces import Address

    machine = FakeMachine(tmp_path)
    machine.system.own_addresses.append(Address("eth0", "2001:db8::7", 64))
    machine.device()
    machine.port()
    findings = run_checks(machine.roots)
    assert worst(findings) is State.OK, [finding for finding in findings if finding.state is not State.OK]


def test_an_empty_machine_breaks_no_check(tmp_path: Path) -> None:
    roots = Roots(tmp_path / "sys", tmp_path / "proc", tmp_path / "dev", {"HOME": str(tmp_path)})
    assert not [finding for finding in run_checks(roots) if "the check itself failed" in finding.found]


def test_only_some_run_in_the_same_order() -> None:
    assert [finding.id for finding in run_checks(Roots(), ["nofile", "clock"])] == ["clock", "nofile"]


def test_an_unknown_check_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="no check 'clocks'; there are host-identity"):
        run_checks(Roots(), ["clocks"])


def test_a_check_that_breaks_is_a_finding_and_the_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(roots: Roots) -> Finding:
        """Breaks."""
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr(registry, "CHECKS", (Check("broken", broken), *CHECKS[:1]))
    first, second = run_checks(Roots())
    assert first.state is State.FAILURE
    assert first.found == "the check itself failed: ZeroDivisionError: by nothing"
    assert second.id == CHECKS[0].id


def test_a_failure_without_a_cause_or_a_fix_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="needs a cause and a fix"):
        Finding("x", State.FAILURE, "bad")
    with pytest.raises(ValueError, match="kebab-case"):
        Finding("Not Kebab", State.OK, "fine")


def test_a_finding_survives_json() -> None:
    finding = Finding("gid-table", State.WARNING, "f", (Evidence("a", "b"),), "c", "d", {"n": 1})
    assert from_dict(json.loads(json.dumps(finding.as_dict()))) == finding


@pytest.mark.parametrize(
    "change",
    [
        {"state": "splendid"},
        {"id": "../etc"},
        {"found": "x" * (TEXT_CHARS_MAX + 1)},
        {"found": 7},
        {"evidence": "none"},
        {"evidence": [{"source": "x"}]},
        {"data": []},
        {"cause": "", "state": "failure"},
    ],
)
def test_a_finding_that_is_damaged_is_refused(change: dict[str, object]) -> None:
    good = Finding("gid-table", State.OK, "f").as_dict()
    with pytest.raises(ProtocolError):
        from_dict(good | change)


def test_control_characters_of_a_peer_do_not_reach_the_terminal() -> None:
    good = Finding("gid-table", State.OK, "f").as_dict()
    assert from_dict(good | {"found": "\x1b[2Jx"}).found == "?[2Jx"
