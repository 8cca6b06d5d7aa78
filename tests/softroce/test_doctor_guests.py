"""The doctor on a machine with real verbs over soft-RoCE."""

from __future__ import annotations

from pathlib import Path

import pytest
from beds import run_softroce

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

EXAMINE = """
from rdmaring.diagnose import doctor

say(found={finding.id: [finding.state.value, finding.found] for finding in doctor.run_checks()})
"""


def test_a_guest_with_soft_roce(tmp_path: Path) -> None:
    ran = run_softroce(1, 1, EXAMINE, tmp_path, timeout_s=360)
    assert ran.code == 0, ran.output
    found = ran.of(0, "found")
    assert found["rdma-devices"] == ["ok", "rxe0/1 Ethernet 2.5 Gb/sec (1X SDR)"]
    assert found["verbs-access"] == ["ok", "rxe0: uverbs can be opened"]
    assert found["verbs-library"][0] == found["port-state"][0] == found["port-rate"][0] == "ok"
    # Row 0 of soft-RoCE is link-local: who takes the first row fails between hosts.
    assert found["gid-table"] == ["ok", "rxe0/1: index 1, 10.77.0.1 RoCE v2"]
    assert found["roce-mtu"] == ["ok", "rxe0/1: RoCE MTU 4096 (interface eth0 has MTU 9000)"]
    assert found["memlock"] == ["ok", "unlimited"]
    assert found["nic-numa"][0] == found["pcie"][0] == "not-applicable"
