"""Which row of a GID table is used, and why the others are not."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit.doctor.fake import FakeMachine, evidence

from rdmaring.diagnose.doctor import State
from rdmaring.diagnose.doctor.gids import V1, V2, check_gid_table

LOCAL = "fe80:0000:0000:0000:5054:00ff:fe12:3456"
V4 = "0000:0000:0000:0000:0000:ffff:c000:0207"  # 192.0.2.7
V6 = "2001:0db8:0000:0000:0000:0000:0000:0007"
UNIQUE_LOCAL = "fd00:0000:0000:0000:0000:0000:0000:0007"
EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    made = FakeMachine(tmp_path)
    made.device()
    return made


def fill(machine: FakeMachine, rows: list[tuple[str, str | None]]) -> None:
    port = machine.roce_port()
    for index, (gid, kind) in enumerate(rows):
        machine.gid(port, index, gid, kind)


def chosen_index(machine: FakeMachine) -> int | None:
    tables = check_gid_table(machine.roots).data["tables"]
    return next((row["index"] for row in tables["mlx5_0/1"] if row["chosen"]), None)


@pytest.mark.parametrize(
    ("rows", "index"),
    [
        # As a usual port shows them: each address as v1 and as v2.
        ([(LOCAL, V1), (LOCAL, V2), (V4, V1), (V4, V2), (V6, V1), (V6, V2)], 3),
        ([(V6, V2), (V4, V2)], 1),  # IPv4 before IPv6
        ([(V4, V1), (V6, V2)], 1),  # v2 before v1, whatever the family
        ([(V4, V1), (LOCAL, V2)], 1),  # v2 before v1 goes before global
        ([(LOCAL, V2), (UNIQUE_LOCAL, V2)], 1),  # only IPv6
        ([(V6, V2), (UNIQUE_LOCAL, V2)], 0),  # as good: the first
        ([(V4, V1)], 0),
        ([(EMPTY, ""), (V4, None), (V6, V2)], 2),  # empty and unreadable rows are passed over
        ([(EMPTY, "")], None),
    ],
)
def test_the_rule(machine: FakeMachine, rows: list[tuple[str, str | None]], index: int | None) -> None:
    fill(machine, rows)
    assert chosen_index(machine) == index


def test_every_row_has_its_reason(machine: FakeMachine) -> None:
    fill(machine, [(LOCAL, V1), (LOCAL, V2), (V4, V1), (V4, V2), (V6, V2), (EMPTY, ""), (V6, None)])
    finding = check_gid_table(machine.roots)
    assert finding.state is State.OK
    assert finding.found == "mlx5_0/1: index 3, 192.0.2.7 RoCE v2"
    reasons = [row["reason"] for row in finding.data["tables"]["mlx5_0/1"]]
    assert reasons[0] == reasons[2] == "not chosen: IB/RoCE v1, where row 3 is RoCE v2"
    assert reasons[1] == "not chosen: link-local, where row 3 is not"
    assert reasons[3] == "chosen: RoCE v2, IPv4, lowest index of these"
    assert reasons[4] == "not chosen: IPv6, where row 3 is IPv4"
    assert reasons[5] == "skipped: empty"
    assert reasons[6].startswith("skipped: its type is unreadable")
    assert f"gids/3: {V4} RoCE v2 ipv4 eth2: chosen" in evidence(finding)


def test_a_row_that_cannot_be_read_does_not_stop_the_others(machine: FakeMachine) -> None:
    fill(machine, [(V4, V2)])
    (machine.root / "sys/class/infiniband/mlx5_0/ports/1/gids/1").mkdir()
    finding = check_gid_table(machine.roots)
    assert finding.state is State.OK
    assert "skipped: unreadable" in finding.data["tables"]["mlx5_0/1"][1]["reason"]


def test_only_link_local_warns_and_says_why(machine: FakeMachine) -> None:
    fill(machine, [(LOCAL, V1), (LOCAL, V2)])
    finding = check_gid_table(machine.roots)
    assert finding.state is State.WARNING
    assert "mlx5_0/1 index 1" in finding.found
    assert "no router forwards" in finding.cause
    assert "ip addr add" in finding.fix


def test_no_row_at_all_fails(machine: FakeMachine) -> None:
    fill(machine, [(EMPTY, ""), (V4, None)])
    finding = check_gid_table(machine.roots)
    assert finding.state is State.FAILURE
    assert "network namespace" in finding.cause
    assert "netns" in finding.fix


def test_infiniband_is_addressed_by_lid(machine: FakeMachine) -> None:
    port = machine.port()
    machine.gid(port, 0, "fe80:0000:0000:0000:b8ce:f603:0012:3456", V1, None)
    finding = check_gid_table(machine.roots)
    assert finding.state is State.OK
    assert "addressed by LID 0x3" in finding.found
    assert "not needed" in finding.data["tables"]["mlx5_0/1"][0]["reason"]


def test_a_port_that_is_down_has_no_table_to_choose_from(machine: FakeMachine) -> None:
    machine.port(state="1: DOWN")
    assert check_gid_table(machine.roots).state is State.NOT_APPLICABLE
