"""Locked memory, open files, CPUs: faked, and with real limits lowered in a process of their own."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
from unit.doctor.fake import FakeMachine, evidence, in_child

from rdmaring.diagnose.doctor import Finding, Roots, State, System
from rdmaring.diagnose.doctor.limits import (
    MEMLOCK_BYTES_MIN,
    NOFILE_BASE,
    NOFILE_PER_RANK,
    check_cpus,
    check_memlock,
    check_nofile,
)
from rdmaring.diagnose.doctor.texts import UNLIMITED


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path)


def with_device(machine: FakeMachine, soft: int, hard: int = UNLIMITED) -> Finding:
    machine.device()
    machine.system.limits["RLIMIT_MEMLOCK"] = (soft, hard)
    return check_memlock(machine.roots)


def test_memlock_too_small_for_rdma_fails_and_names_every_way_to_raise_it(machine: FakeMachine) -> None:
    finding = with_device(machine, 64 << 10)
    assert finding.state is State.FAILURE
    assert "65536" in finding.found
    assert "RLIMIT_MEMLOCK soft: 65536" in evidence(finding)
    assert "pinned" in finding.cause
    for way in ("ulimit -l unlimited", "limits.d", "LimitMEMLOCK=infinity", "--ulimit memlock=-1"):
        assert way in finding.fix


@pytest.mark.parametrize(
    ("soft", "state"),
    [
        (MEMLOCK_BYTES_MIN - 1, State.FAILURE),
        (MEMLOCK_BYTES_MIN, State.WARNING),
        (UNLIMITED - 1, State.WARNING),
        (UNLIMITED, State.OK),
    ],
)
def test_memlock_between_what_links_take_and_no_limit_warns(machine: FakeMachine, soft: int, state: State) -> None:
    assert with_device(machine, soft).state is state


def test_a_hard_limit_that_only_root_can_raise_is_named(machine: FakeMachine) -> None:
    assert "hard limit, 64 KiB" in with_device(machine, 64 << 10, 64 << 10).cause


def test_memlock_does_not_matter_without_rdma(machine: FakeMachine) -> None:
    machine.system.limits["RLIMIT_MEMLOCK"] = (64 << 10, 64 << 10)
    assert check_memlock(machine.roots).state is State.NOT_APPLICABLE


@pytest.mark.parametrize(("uid_map", "state"), [("0 0 4294967295", State.OK), ("0 100000 65536", State.FAILURE)])
def test_cap_ipc_lock_lifts_memlock_but_not_from_inside_a_user_namespace(
    machine: FakeMachine, uid_map: str, state: State
) -> None:
    machine.write("proc/self/status", "CapEff:\t0000000000004000")  # bit 14
    machine.write("proc/self/uid_map", uid_map)
    assert with_device(machine, 64 << 10).state is state


def test_a_real_limit_lowered_in_a_process_is_seen(machine: FakeMachine) -> None:
    machine.device()

    def body() -> Finding:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
        real = System()
        return check_memlock(Roots(machine.root / "sys", machine.root / "proc", machine.root / "dev", system=real))

    finding = in_child(body)
    assert finding.state is State.FAILURE
    assert "RLIMIT_MEMLOCK is 65536" in finding.found


def test_a_real_nofile_lowered_in_a_process_is_seen() -> None:
    def body() -> Finding:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        return check_nofile(Roots(ranks=100))

    finding = in_child(body)
    assert finding.state is State.FAILURE
    assert "RLIMIT_NOFILE is 64; set-up of 100 ranks takes about 464" in finding.found
    assert "Too many open files" in finding.cause
    assert "limits.d" in finding.fix


@pytest.mark.parametrize("ranks", [1, 8, 500])
def test_nofile_is_held_against_the_ranks(machine: FakeMachine, ranks: int) -> None:
    machine.ranks = ranks
    need = NOFILE_BASE + NOFILE_PER_RANK * ranks
    machine.system.limits["RLIMIT_NOFILE"] = (need, need)
    assert check_nofile(machine.roots).state is State.OK
    machine.system.limits["RLIMIT_NOFILE"] = (need - 1, UNLIMITED)
    finding = check_nofile(machine.roots)
    assert finding.state is State.FAILURE
    assert f"ulimit -n {need}" in finding.fix


def test_more_ranks_than_cpus_warn(machine: FakeMachine) -> None:
    machine.system.cpus = {3}
    finding = check_cpus(machine.roots)
    assert finding.state is State.WARNING
    assert "more ranks than CPUs" in finding.cause
    assert "cpuset" in finding.fix
    assert "sched_getaffinity: 3" in evidence(finding)


@pytest.mark.parametrize(
    ("path", "text", "more"),
    [
        ("sys/fs/cgroup/cpu.max", "150000 100000", {}),
        ("sys/fs/cgroup/unified/cpu.max", "150000 100000", {}),
        ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "150000", {"sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}),
    ],
)
def test_a_cpu_quota_below_the_ranks_warns(machine: FakeMachine, path: str, text: str, more: dict[str, str]) -> None:
    machine.write("proc/self/cgroup", "3:cpu,cpuacct:/\n0::/")
    machine.write(path, text)
    for name, value in more.items():
        machine.write(name, value)
    finding = check_cpus(machine.roots)
    assert finding.state is State.WARNING
    assert "a quota of 1.5 CPUs" in finding.found
    assert "quota" in finding.cause
    assert "--cpus=2" in finding.fix


def test_the_quota_of_a_group_above_counts(machine: FakeMachine) -> None:
    machine.write("proc/self/cgroup", "0::/job/step")
    machine.write("sys/fs/cgroup/job/cpu.max", "50000 100000")
    machine.write("sys/fs/cgroup/job/step/cpu.max", "max 100000")
    assert "a quota of 0.5 CPUs" in check_cpus(machine.roots).found


def test_cpus_enough_without_a_quota(machine: FakeMachine) -> None:
    machine.write("sys/fs/cgroup/cpu.max", "max 100000")
    finding = check_cpus(machine.roots)
    assert finding.state is State.OK
    assert "4 allowed (CPUs 0-3), no quota" in finding.found


def test_the_real_affinity_is_read() -> None:
    first = min(os.sched_getaffinity(0))

    def body() -> Finding:
        os.sched_setaffinity(0, {first})
        return check_cpus(Roots(ranks=2))

    finding = in_child(body)
    assert finding.state is State.WARNING
    assert f"1 allowed (CPUs {first})" in finding.found
