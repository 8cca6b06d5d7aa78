"""The doctor on two machines with real verbs over soft-RoCE, and between them."""

from __future__ import annotations

from pathlib import Path

import pytest
from beds import run_softroce

pytestmark = [pytest.mark.long, pytest.mark.timeout(640)]

EXAMINE = """
from rdmaring.diagnose import doctor

secret = os.environ["RDMARING_SECRET"].encode()
if os.environ["RDMARING_RANK"] == "0":
    with doctor.Server(doctor.PORT_DEFAULT, secret, doctor.Roots()) as server:
        assert server.examined.wait(500)
else:
    address = os.environ["BED_ADDRESSES"].split()[0]
    while True:
        try:
            report = doctor.examine_pair(address, doctor.PORT_DEFAULT, secret)
            break
        except doctor.DoctorError as error:
            if "refused" not in str(error):
                raise
            time.sleep(1)
    say(**{name: {finding.id: [finding.state.value, finding.found] for finding in findings}
           for name, findings in (("mine", report.mine.findings), ("theirs", report.theirs.findings),
                                  ("pair", report.findings))})
"""


def test_two_guests_with_soft_roce(tmp_path: Path) -> None:
    ran = run_softroce(2, 1, EXAMINE, tmp_path, "--grace", "60", timeout_s=580)
    assert ran.code == 0, ran.output
    for number, name in ((2, "mine"), (1, "theirs")):
        found = ran.of(1, name)
        assert found["rdma-devices"] == ["ok", "rxe0/1 Ethernet 2.5 Gb/sec (1X SDR)"]
        assert found["verbs-access"] == ["ok", "rxe0: uverbs can be opened"]
        assert found["verbs-library"][0] == found["port-state"][0] == "ok"
        # Row 0 of soft-RoCE is link-local: who takes the first row fails between hosts.
        assert found["gid-table"] == ["ok", f"rxe0/1: index 1, 10.77.0.{number} RoCE v2"]
        assert found["roce-mtu"] == ["ok", "rxe0/1: RoCE MTU 4096 (interface eth0 has MTU 9000)"]
        assert found["memlock"] == ["ok", "unlimited"]
    pair = ran.of(1, "pair")
    gids = "10.77.0.2 (index 1) and 10.77.0.1 (index 1), RoCE v2"
    assert pair["pair-gid"] == ["ok", f"rxe0/1 and rxe0/1: {gids}"]
    assert pair["pair-path-mtu"][0] == "ok"
    assert "9000 bytes" in pair["pair-path-mtu"][1]
    for name in ("pair-version", "pair-host", "pair-reach", "pair-mtu", "pair-rails", "pair-rate", "pair-rdma-mtu"):
        assert pair[name][0] == "ok", (name, pair[name])
