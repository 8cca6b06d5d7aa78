"""Shared memory, huge pages, NUMA, CMA: faked, and with real seccomp filters."""

from __future__ import annotations

import errno
import os
import platform
from pathlib import Path

import pytest
from unit.doctor import seccomp
from unit.doctor.fake import FakeMachine, evidence, in_child

from rdmaring.diagnose.doctor import Finding, Roots, State
from rdmaring.diagnose.doctor.cma import check_cma
from rdmaring.diagnose.doctor.cross_memory import CrossMemory
from rdmaring.diagnose.doctor.memory import BYTES_PER_PAIR, check_huge_pages, check_numa, check_shared_memory

GIB = 1 << 30
FILTERED = "CapEff:\t0000000000000000\nSeccomp:\t2\n"


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path)


def test_shared_memory_of_this_machine_works_and_dev_shm_does_not_matter() -> None:
    finding = check_shared_memory(Roots(ranks=2))
    assert finding.state is State.OK
    assert "/dev/shm: not looked at" in evidence(finding)


def test_a_real_seccomp_filter_on_memfd_create_is_named() -> None:
    if platform.machine() not in seccomp.NUMBERS:
        pytest.skip(f"call numbers of {platform.machine()} are not known here")

    def body() -> Finding:
        seccomp.refuse("memfd_create", errno.EPERM)
        return check_shared_memory(Roots(ranks=2))

    finding = in_child(body)
    assert finding.state is State.FAILURE
    assert "seccomp filter" in finding.cause
    assert "--security-opt seccomp" in finding.fix
    assert "EPERM" in evidence(finding)
    assert "Seccomp: 2" in evidence(finding)


@pytest.mark.parametrize(
    ("number", "files", "cause", "fix"),
    [
        (errno.EACCES, {"proc/sys/vm/memfd_noexec": "2"}, "vm.memfd_noexec=2", "memfd_noexec=1"),
        (errno.ENOSYS, {}, "no memfd_create", "Linux 3.17"),
        (errno.ENOSPC, {}, "no memory left", "raise"),
    ],
)
def test_why_there_is_no_memfd(machine: FakeMachine, number: int, files: dict[str, str], cause: str, fix: str) -> None:
    machine.system.memfd_error = OSError(number, os.strerror(number))
    for path, text in files.items():
        machine.write(path, text)
    finding = check_shared_memory(machine.roots)
    assert finding.state is State.FAILURE
    assert cause in finding.cause
    assert fix in finding.fix


def test_too_little_memory_for_the_links_of_many_ranks_fails(machine: FakeMachine) -> None:
    machine.ranks = 128
    need = BYTES_PER_PAIR * 128 * 127  # 15.9 GiB; there are 8 * 10^6 KiB
    finding = check_shared_memory(machine.roots)
    assert finding.state is State.FAILURE
    assert f"= {need}" in evidence(finding)
    assert "this machine" in finding.cause
    assert "RDMARING_MEMORY_BUDGET" in finding.fix


@pytest.mark.parametrize(
    ("cgroup", "files"),
    [
        ("0::/pod", {"sys/fs/cgroup/pod/memory.max": "5000000", "sys/fs/cgroup/pod/memory.current": "4000000"}),
        (
            "4:memory:/docker/x",  # a path that is not mounted in the container: its own group is the root
            {
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "5000000",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "4000000",
            },
        ),
    ],
)
def test_a_memory_limit_of_the_control_group_fails(machine: FakeMachine, cgroup: str, files: dict[str, str]) -> None:
    machine.write("proc/self/cgroup", cgroup)
    for path, text in files.items():
        machine.write(path, text)
    finding = check_shared_memory(machine.roots)
    assert finding.state is State.FAILURE
    assert "976.6 KiB left, links of 2 ranks take 2 MiB" in finding.found
    assert "control group" in finding.cause
    assert "docker run --memory" in finding.fix


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("always within_size advise [never] deny force", State.WARNING),
        ("always within_size advise never [deny] force", State.WARNING),
        ("always within_size [advise] never deny force", State.OK),
        ("[always] within_size advise never deny force", State.OK),
    ],
)
def test_huge_pages_of_shared_memory(machine: FakeMachine, text: str, state: State) -> None:
    path = machine.write("sys/kernel/mm/transparent_hugepage/shmem_enabled", text)
    finding = check_huge_pages(machine.roots)
    assert finding.state is state
    assert text in evidence(finding)
    if state is State.WARNING:
        assert f"echo advise > {path}" in finding.fix
        assert "huge pages" in finding.cause
    path.unlink()
    assert check_huge_pages(machine.roots).state is State.NOT_APPLICABLE


def test_cpus_without_the_memory_of_their_node_warn(machine: FakeMachine) -> None:
    machine.write("sys/devices/system/node/node1/cpulist", "4-7")
    machine.write("sys/devices/system/node/node0/distance", "10 32")
    machine.write("sys/devices/system/node/node1/distance", "32 10")
    finding = check_numa(machine.roots)
    assert finding.state is State.OK
    assert "largest distance 32" in finding.found
    machine.write("proc/self/status", "Mems_allowed_list:\t1")
    finding = check_numa(machine.roots)
    assert finding.state is State.WARNING
    assert "CPUs of node 0 are allowed, its memory is not" in finding.found
    assert "node 1 alone" in finding.cause
    assert "--membind" in finding.fix


# ---- CMA ----


def test_cma_of_this_machine_is_probed_and_what_forbids_it_named() -> None:
    finding = check_cma(Roots(env={}))
    assert finding.state in (State.OK, State.WARNING)
    assert "process_vm_readv of an unrelated process" in evidence(finding)
    if finding.state is State.WARNING:
        assert "EPERM" in finding.found or "ENOSYS" in finding.found


@pytest.mark.parametrize(("number", "cause"), [(errno.EPERM, "seccomp filter"), (errno.ENOSYS, "no process_vm_readv")])
def test_a_real_seccomp_filter_on_process_vm_readv_is_named(machine: FakeMachine, number: int, cause: str) -> None:
    if platform.machine() not in seccomp.NUMBERS:
        pytest.skip(f"call numbers of {platform.machine()} are not known here")

    def body() -> Finding:
        seccomp.refuse("process_vm_readv", number)
        machine.write("proc/self/status", Path("/proc/self/status").read_text())
        # Yama's mode is this fake's, so that the test says the same on machines that have it on.
        return check_cma(Roots(procfs=machine.root / "proc", env={}))

    finding = in_child(body)
    assert finding.state is State.WARNING
    assert errno.errorcode[number] in finding.found
    assert cause in finding.cause
    assert "slots" in finding.cause


@pytest.mark.parametrize(
    ("scope", "memory", "status", "cause", "fix"),
    [
        # Yama 1 lets a parent read its child: a probe of a child alone would call that allowed.
        ("1", CrossMemory(errno.EPERM, 0), None, "ptrace_scope is 1 (children only)", "ptrace_scope=0"),
        ("2", CrossMemory(errno.EPERM, errno.EPERM), None, "ptrace_scope is 2", "--cap-add=SYS_PTRACE"),
        ("3", CrossMemory(errno.EPERM, errno.EPERM), None, "ptrace_scope is 3 (nobody)", "reboot"),
        ("0", CrossMemory(errno.EPERM, errno.EPERM), FILTERED, "seccomp filter (Seccomp: 2", "SYS_PTRACE"),
        # Yama's mode 1 would have let the child be read: it is not what forbids it here.
        ("1", CrossMemory(errno.EPERM, errno.EPERM), FILTERED, "seccomp filter", "seccomp=PROFILE"),
        ("0", CrossMemory(errno.ENOSYS, errno.ENOSYS), None, "CONFIG_CROSS_MEMORY_ATTACH", "kernel"),
        ("0", CrossMemory(errno.EPERM, errno.EPERM), None, "security module", "deny_ptrace"),
        ("0", CrossMemory(0, 0, wrong=True), None, "bytes differ", "report"),
    ],
)
def test_the_policy_that_forbids_cma_is_named(
    machine: FakeMachine, scope: str, memory: CrossMemory, status: str | None, cause: str, fix: str
) -> None:
    machine.write("proc/sys/kernel/yama/ptrace_scope", scope)
    machine.system.memory = memory
    if status is not None:
        machine.write("proc/self/status", status)
    finding = check_cma(machine.roots)
    assert finding.state is State.WARNING
    assert cause in finding.cause
    assert fix in finding.fix
    assert f"ptrace_scope: {scope}" in evidence(finding) or "ENOSYS" in finding.found


def test_a_process_that_is_not_dumpable_is_named(machine: FakeMachine) -> None:
    machine.system.memory = CrossMemory(errno.EPERM, 0)
    machine.system.dumpable = False
    assert "not dumpable" in check_cma(machine.roots).cause


def test_a_user_namespace_is_named(machine: FakeMachine) -> None:
    machine.system.memory = CrossMemory(errno.EPERM, 0)
    machine.write("proc/self/uid_map", "0 100000 65536")
    finding = check_cma(machine.roots)
    assert "user namespace" in finding.cause
    assert "one container" in finding.fix


def test_cap_sys_ptrace_takes_yama_out_of_the_causes(machine: FakeMachine) -> None:
    machine.write("proc/sys/kernel/yama/ptrace_scope", "1")
    machine.write("proc/self/status", f"CapEff:\t{1 << 19:016x}\nSeccomp:\t2")
    machine.system.memory = CrossMemory(errno.EPERM, 0)
    assert "seccomp" in check_cma(machine.roots).cause


def test_cma_that_is_switched_off_is_not_probed(machine: FakeMachine) -> None:
    machine.env["RDMARING_CMA"] = "0"
    machine.system.memory = CrossMemory(errno.EPERM, errno.EPERM)
    assert check_cma(machine.roots).state is State.NOT_APPLICABLE
